"""Read settings from a TOML file, from the `SIDECAR_*` environment and from options; each overrides those before.

The file is the one that was named, else `./sidecar.toml`, else `./pyproject.toml` if it has a table `[tool.sidecar]`.
All problems come in one `SettingsError`, one line each: where the value came from, the value, what to write instead. A
value that a stronger source replaces is never used, so it is not judged.
"""

import os
import re
import stat
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from sidecar.errors import SettingsError
from sidecar.settings.model import Settings
from sidecar.settings.spelling import CONFIG, PREFIX, option, variable, ways
from sidecar.system.bucket_url import as_typed
from sidecar.system.plain_text import shortened_without_password

OWN_FILE: Final = Path("sidecar.toml")
PROJECT_FILE: Final = Path("pyproject.toml")
TABLE: Final = "tool.sidecar"
"""The settings' table in `PROJECT_FILE`, which belongs to other programs, too."""

_LINES: Final = 'write lines such as replicas = 2 or run = "name"'
_OR_DIR: Final = ", or the directory as an argument, as in `sidecar run DIR`"
_SERVICE: Final = re.compile(r"\w+_(SERVICE_(HOST|PORT(_\w+)?)|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)")


@dataclass(frozen=True, slots=True)
class Given:
    """Hold the values that were given, where each of them came from, and the problems on the way."""

    values: Mapping[str, Any]
    origins: Mapping[str, str]
    problems: tuple[str, ...] = ()
    unread: bool = False  # a file could not be read, so no setting can be called missing

    def settings(self) -> Settings:
        """Return the checked settings. Raises `SettingsError` with every problem found, one per line."""
        problems = list(self.problems)
        try:
            settings = Settings(**self.values)
        except ValidationError as error:
            problems += _explain(error, self.origins, unread=self.unread)
        if problems:
            raise SettingsError("\n".join(problems))
        return settings

    def with_values(self, values: Mapping[str, Any], origins: Mapping[str, str]) -> "Given":
        """Return these values with others in their place."""
        return replace(self, values={**self.values, **values}, origins={**self.origins, **origins})

    def with_file(self, path: Path, text: str, refused: Mapping[str, str]) -> "Given":
        """Return these values with those of a file in their place. `refused`: why some keys cannot be in it."""
        problems: list[str] = []
        values = _parse(path, text, problems) or {}
        origins = {key: f"file {path}, key {key}" for key in values}
        for key in [key for key in values if key not in Settings.model_fields or key in refused]:
            problems.append(f"{origins[key]}: {refused.get(key) or _replacement(key, str)}")
            del values[key]
        return replace(self.with_values(values, origins), problems=(*self.problems, *problems))


def read_given(flags: Mapping[str, Any], environ: Mapping[str, str]) -> Given:
    """Read the values of all sources.

    `flags` holds the options given, by setting, and `config`; None counts as not given. So does an empty
    variable, since compose files and unit files pass those on.
    """
    given = {key: value for key, value in flags.items() if value is not None}
    variables = {name: value for name, value in environ.items() if name.startswith(PREFIX) and value}
    problems: list[str] = []
    otherwise = variables.pop(variable(CONFIG), None)
    path = given.pop(CONFIG, otherwise) or file_here().path
    in_file = _read_file(Path(path), problems) if path else {}

    origins = {key: f"file {path}, key {key}" for key in in_file or {}}
    values = dict(in_file or {})
    for key, value in _read_environment(variables, environ, problems).items():
        values[key], origins[key] = value, f"environment {variable(key)}"
    for key, value in given.items():
        values[key], origins[key] = value, f"option {option(key)}"
    for key in [key for key in values if key not in Settings.model_fields]:
        problems.append(f"{origins[key]}: {_replacement(key, str)}")
        del values[key]
    return Given(values, origins, tuple(problems), unread=in_file is None)


@dataclass(frozen=True, slots=True)
class FileHere:
    """Hold the path of the current directory's settings file, or the reason why it is refused."""

    path: Path | None = None
    refused: str | None = None


def file_here() -> FileHere:
    """Find the settings file that is read where none is named.

    A file that another user could have put there is refused, since settings name programs to run.
    """
    for path in (OWN_FILE, PROJECT_FILE):
        try:
            status = path.stat()
            if not stat.S_ISREG(status.st_mode) or (path == PROJECT_FILE and TABLE not in path.read_text("utf-8")):
                continue
        except (OSError, ValueError):
            continue
        if (why := why_untrusted(status)) is not None:
            return FileHere(None, f"{path} is not read, because {why}: name it with --config {path} if you trust it")
        return FileHere(path)
    return FileHere()


def why_untrusted(status: os.stat_result) -> str | None:
    """Return why a settings file may be another user's work; None if it is not."""
    if status.st_mode & stat.S_IWOTH:
        return "everybody may write to it"
    return None if status.st_uid in (0, os.geteuid()) else "it belongs to another user"


def _read_file(path: Path, problems: list[str]) -> dict[str, Any] | None:
    """Return the file's keys; None if it cannot be read, as no setting can be called missing then."""
    try:
        text = path.expanduser().read_text(encoding="utf-8")
    except (OSError, RuntimeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        problems.append(f"file {path}: cannot be read ({reason}); give --config or SIDECAR_CONFIG a readable TOML file")
        return None
    except ValueError as error:  # not UTF-8, with the byte
        problems.append(f"file {path}: not TOML: {error}; {_LINES}")
        return None
    return _parse(path, text, problems)


def _parse(path: Path, text: str, problems: list[str]) -> dict[str, Any] | None:
    """Return the keys in the text of a file; None if it is not TOML."""
    try:
        values = tomllib.loads(text)
    except ValueError as error:  # with line and column
        *before, last = text.split("\n")
        end = f"at line {len(before) + 1}, column {len(last) + 1}"  # which tomllib does not count
        problems.append(f"file {path}: not TOML: {str(error).replace('at end of document', end)}; {_LINES}")
        return None
    return _table(values, path, problems) if path.name == PROJECT_FILE.name else values


def _table(values: dict[str, Any], path: Path, problems: list[str]) -> dict[str, Any] | None:
    tools = values.get("tool")
    table = tools.get("sidecar", {}) if isinstance(tools, dict) else {}
    if isinstance(table, dict):
        return table
    problems.append(f"file {path}, tool.sidecar: {shortened_without_password(table)}: write a table, [tool.sidecar]")
    return None


def _read_environment(
    variables: Mapping[str, str], environ: Mapping[str, str], problems: list[str]
) -> Mapping[str, Any]:
    values = {}
    for name, value in variables.items():
        key = name.removeprefix(PREFIX).lower()
        if key in Settings.model_fields:
            values[key] = value
            continue
        # Kubernetes describes a Service named `sidecar` to every pod: SIDECAR_SERVICE_HOST, SIDECAR_PORT_80_TCP, …
        of_kubernetes = "KUBERNETES_SERVICE_HOST" in environ and _SERVICE.fullmatch(name)
        if not of_kubernetes:
            problems.append(f"environment {name}: {_replacement(key, variable)}")
    return values


def _explain(error: ValidationError, origins: Mapping[str, str], *, unread: bool) -> list[str]:
    lines = []
    for problem in error.errors(include_url=False):
        key, *inside = (str(part) for part in problem["loc"])
        if problem["type"] == "missing":
            if not unread:
                lines.append(f"{key} is not set: {ways(key)}{_OR_DIR if key == 'checkpoint_dir' else ''}")
            continue
        origin = origins.get(key, f"default of {key}")
        given = problem["input"]
        where = "".join(f"[{part}]" for part in inside)
        remedy = problem["msg"].removeprefix("Value error, ")
        if (line := _REMEDIES.get(problem["type"])) is not None:
            remedy = line.format(**problem.get("ctx", {}))
        lines.append(f"{origin}{where}{_shown(key, given)}: {remedy}")
    return lines


_REMEDIES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("int_parsing", "int_type", "int_from_float", "int_parsing_size"), "write a whole number"),
    **dict.fromkeys(("float_parsing", "float_type"), "write a number"),
    "finite_number": "write a finite number",
    **dict.fromkeys(("bool_parsing", "bool_type"), "write true or false"),
    "string_type": "write a text",
    "path_type": "write a path",
    "greater_than_equal": "write {ge:g} or more",
    "greater_than": "write a number above {gt:g}",
    "less_than_equal": "write {le:g} or less",
    "literal_error": "write {expected}",
}
"""The line to write, by the type of pydantic's error."""


def _shown(key: str, given: Any) -> str:
    """Return a value for a message; nothing of hooks, whose commands and paths of URLs may hold keys."""
    if given is None or key == "hooks":
        return ""
    return f": {shortened_without_password(as_typed(given) if isinstance(given, Path) else given)}"


def _replacement(key: str, spell: Callable[[str], str]) -> str:
    """Say what to write instead of a name that is not a setting."""
    import difflib  # noqa: PLC0415 - for a mistake only: start-up does not pay

    similar = difflib.get_close_matches(key.lower().replace("-", "_"), Settings.model_fields, n=1)
    remedy = f"did you mean {spell(similar[0])}?" if similar else "remove it; `sidecar settings` lists all"
    return f"there is no such setting; {remedy}"
