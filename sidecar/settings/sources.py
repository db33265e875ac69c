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
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from sidecar.errors import SettingsError
from sidecar.settings.model import Settings
from sidecar.settings.spelling import CONFIG, PREFIX, RENAMED, option, variable, ways
from sidecar.system.plain_text import shortened_without_password

OWN_FILE: Final = Path("sidecar.toml")
PROJECT_FILE: Final = Path("pyproject.toml")
TABLE: Final = "tool.sidecar"
"""The settings' table in `PROJECT_FILE`, which belongs to other programs, too."""

_OR_DIR: Final = ", or the directory as an argument, as in `sidecar run DIR`"
_SERVICE: Final = re.compile(r"\w+_(SERVICE_(HOST|PORT(_\w+)?)|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)")


def load(flags: Mapping[str, Any], *, environ: Mapping[str, str] = os.environ) -> Settings:
    """Read the settings; raises `SettingsError` with every problem found, one per line.

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

    try:
        settings = Settings(**values)
    except ValidationError as error:
        problems += _explain(error, origins, unread=in_file is None)
    if problems:
        raise SettingsError("\n".join(problems))
    return settings


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
        if status.st_uid not in (0, os.geteuid()) or status.st_mode & stat.S_IWOTH:
            why = "everybody may write to it" if status.st_mode & stat.S_IWOTH else "it belongs to another user"
            return FileHere(None, f"{path} is not read, because {why}: name it with --config {path} if you trust it")
        return FileHere(path)
    return FileHere()


def _read_file(path: Path, problems: list[str]) -> dict[str, Any] | None:
    """Return the file's keys; None if it cannot be read, as no setting can be called missing then."""
    text = ""
    try:
        text = path.expanduser().read_text(encoding="utf-8")
        values = tomllib.loads(text)
        if path.name == PROJECT_FILE.name:
            return _table(values, path, problems)
    except (OSError, RuntimeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        problems.append(f"file {path}: cannot be read ({reason}); give --config or SIDECAR_CONFIG a readable TOML file")
    except ValueError as error:  # not TOML, with line and column; or not UTF-8, with the byte
        *before, last = text.split("\n")
        end = f"at line {len(before) + 1}, column {len(last) + 1}"  # which tomllib does not count
        reason = str(error).replace("at end of document", end)
        problems.append(f'file {path}: not TOML: {reason}; write lines such as replicas = 2 or run = "name"')
    else:
        return values
    return None


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
        remedy = problem["msg"].removeprefix("Value error, ").removeprefix("Input ")
        lines.append(f"{origin}{where}{_shown(key, given)}: {remedy}")
    return lines


def _shown(key: str, given: Any) -> str:
    """Return a value for a message; nothing of hooks, whose commands and paths of URLs may hold keys."""
    if given is None or key == "hooks":
        return ""
    return f": {shortened_without_password(str(given) if isinstance(given, Path) else given)}"


def _replacement(key: str, spell: Callable[[str], str]) -> str:
    """Say what to write instead of a name that is not a setting."""
    if key in RENAMED:
        *others, last = map(spell, RENAMED[key])
        return f"this setting was split; give {', '.join(others)} or {last}"
    import difflib  # noqa: PLC0415 - for a mistake only: start-up does not pay

    similar = difflib.get_close_matches(key.lower().replace("-", "_"), Settings.model_fields, n=1)
    remedy = f"did you mean {spell(similar[0])}?" if similar else "remove it; `sidecar settings` lists all"
    return f"there is no such setting; {remedy}"
