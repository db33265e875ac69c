"""Print the settings for `sidecar settings`: all of them by topic, or one with its type, default, reason and names."""

import difflib
import shutil
import textwrap
from collections.abc import Iterator, Mapping
from typing import Final

from sidecar.commands.options import FLAGS
from sidecar.errors import SettingsError
from sidecar.settings import PREFIX, option, variable
from sidecar.settings.documented import Documented, documented

_INDENT: Final = 12
_NARROWEST: Final = 40
_EXAMPLES: Final[Mapping[str, str]] = {
    "path": '"/path/to/it"',
    "text": '"…"',
    "seconds": "60",
    "number": "1",
    "whole": "1",
    "list": '["…"]',
    "table": "{ … }",
    "`true`": "true",
}
"""Values for the line to write of settings without a default, by the first word of their type."""


def settings_text(word: str | None) -> Iterator[str]:
    """Yield the lines that answer a person: all settings, one, or those whose names contain the word.

    Raises `SettingsError` if there is no such setting.
    """
    groups = documented()
    known = {each.name: each for _, _, group in groups for each in group}
    if word is None:
        for title, _, group in groups:
            yield from (title, *map(_line, group), "")
        yield "`sidecar settings NAME` shows type, default, reason, and the line to write."
        return
    name = word.strip("-").lower().replace("-", "_").removeprefix(PREFIX.lower())
    found = [each for each in known.values() if name in each.name]
    if name in known or len(found) == 1:
        yield from _one(known.get(name, found[0]))
    elif found:
        yield from map(_line, found)
    else:
        close = difflib.get_close_matches(name, known, n=1)
        remedy = f"did you mean {close[0]}?" if close else "`sidecar settings` lists all"
        raise SettingsError(f"there is no setting {word!r}; {remedy}")


def _width() -> int:
    return max(_NARROWEST, shutil.get_terminal_size().columns)


def _line(setting: Documented) -> str:
    line = f"  {setting.name:<28} {setting.meaning}"
    return line if len(line) <= _width() else f"{line[: _width() - 1].rstrip()}…"


def _one(setting: Documented) -> Iterator[str]:
    value = setting.default.strip("`") if setting.default not in ("", "not set") else _example(setting.type)
    flag = f", option {option(setting.name)}" if setting.name in FLAGS.values() else ""
    yield from textwrap.wrap(f"{setting.name}: {setting.meaning}", _width())
    parts = {
        "type": setting.type,
        "default": ": ".join(filter(None, (setting.default, setting.reason))),
        "give it as": f"{variable(setting.name)}{flag}",
        "in the file": f"{setting.name} = {value}",
    }
    for title, text in parts.items():
        yield from textwrap.wrap(
            text, _width(), initial_indent=f"  {title:<{_INDENT}}", subsequent_indent=" " * (_INDENT + 2)
        )


def _example(kind: str) -> str:
    """Return a value to fill in, for the line of a file."""
    first = kind.split(maxsplit=1)[0].strip(",")
    return _EXAMPLES.get(first, f'"{first.strip("`")}"')
