"""Check the table of hooks, as `values` checks the other settings. Used by `outputs` alone.

Only the spelling is checked. Whether a program or the file of a secret is there matters to the daemon alone, since
other users read the same settings for `sidecar status`.
"""

import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

from pydantic import BeforeValidator

from sidecar.settings.json_table import table_of

HOOK_NAMES: Final = ("result", "best", "failure", "nan", "end")
DEADLINE_SECONDS: Final = 3600.0  # outlasts a restart or an upgrade of the receiver; the events after it wait meanwhile
TIMEOUT_SECONDS: Final = 30.0  # receivers answer in seconds; a command that takes longer delays its own events only

_KEYS: Final = ("command", "url", "secret_file", "authorization_file", "form", "deadline_seconds", "timeout_seconds")
_OF_URLS: Final = ("secret_file", "authorization_file", "form")
FORMS: Final = ("event", "slack", "discord", "teams")
"""Bodies of a POST: the event, or the message of a chat program."""
_REMEDY: Final = 'write a command, such as "notify-send sidecar", or a URL, such as "https://example.com/hook"'


@dataclass(frozen=True, slots=True, kw_only=True)
class HookSetting:
    """Hold one hook: a command or a URL, and its limits."""

    command: tuple[str, ...] | None = None
    url: str | None = None
    secret_file: Path | None = None
    authorization_file: Path | None = None
    form: str | None = None
    deadline_seconds: float = DEADLINE_SECONDS
    timeout_seconds: float = TIMEOUT_SECONDS


def _are_hooks(value: Any) -> Any:
    """Return the hooks by name; from the environment they come as a JSON object."""
    remedy = 'write a table of hooks, such as {"best": "notify-send sidecar"}'
    return {name: _hook(name, given) for name, given in table_of(value, remedy).items()}


def _hook(name: Any, given: Any) -> HookSetting:
    """Return one hook. Raises a `ValueError` that begins with its name."""
    if name not in HOOK_NAMES:
        raise ValueError(f"there is no hook {name!r}: write some of {', '.join(HOOK_NAMES)}")
    if isinstance(given, HookSetting):
        return given
    table = given if isinstance(given, Mapping) else {"url" if _is_url(given) else "command": given}
    if unknown := [key for key in table if key not in _KEYS]:
        raise ValueError(f"hook {name}: there is no key {unknown[0]!r}: write some of {', '.join(_KEYS)}")
    command, url = table.get("command"), table.get("url")
    if (command is None) == (url is None):
        raise ValueError(f"hook {name}: give either command or url: {_REMEDY}")
    if command is not None and (odd := [key for key in _OF_URLS if key in table]):
        raise ValueError(f"hook {name}: {odd[0]} is for what is posted to a URL, and command has none: leave it out")
    return HookSetting(
        command=None if command is None else _command(name, command),
        url=None if url is None else _url(name, url),
        secret_file=_file(name, "secret_file", table.get("secret_file")),
        authorization_file=_file(name, "authorization_file", table.get("authorization_file")),
        form=_form(name, table.get("form")),
        deadline_seconds=_seconds(name, "deadline_seconds", table.get("deadline_seconds", DEADLINE_SECONDS)),
        timeout_seconds=_seconds(name, "timeout_seconds", table.get("timeout_seconds", TIMEOUT_SECONDS)),
    )


def _is_url(given: Any) -> bool:
    return isinstance(given, str) and given.strip().lower().startswith(("http://", "https://"))


def _command(name: str, given: Any) -> tuple[str, ...]:
    try:
        words = shlex.split(given) if isinstance(given, str) else given
    except ValueError as error:
        raise ValueError(f"hook {name}: the command cannot be split into words ({error}): close all quotes") from error
    is_list = isinstance(words, list | tuple) and bool(words) and all(isinstance(word, str) for word in words)
    if not is_list or not words[0] or any("\0" in word for word in words):
        raise ValueError(f'hook {name}: {_REMEDY}, or a list of words, such as ["mail", "-s", "sidecar", "me"]')
    return tuple(words)


def _url(name: str, given: Any) -> str:
    remedy = f"hook {name}: write a URL, such as https://example.com/hook"
    try:
        parts = urlsplit(given) if isinstance(given, str) else None
        valid = parts is not None and parts.scheme in ("http", "https") and bool(parts.hostname) and not parts.fragment
        valid = valid and (parts is None or parts.port != 0) and given.isascii() and given.isprintable()
    except ValueError as error:  # brackets that do not match, or a port that is not a number
        raise ValueError(remedy) from error
    if not valid or " " in given:
        raise ValueError(remedy)
    return str(given)


def _form(name: str, given: Any) -> str | None:
    if given is not None and given not in FORMS:
        raise ValueError(f"hook {name}: there is no form {given!r}: write one of {', '.join(FORMS)}")
    return None if given is None else str(given)


def _file(name: str, key: str, given: Any) -> Path | None:
    if given is None:
        return None
    if not isinstance(given, str | Path) or not str(given):
        raise ValueError(f"hook {name}: write {key} as the path of a file")
    try:
        return Path(given).expanduser().absolute()
    except RuntimeError as error:  # `~` of a user that does not exist
        raise ValueError(f"hook {name}: {key}: {error}: write the path in full") from error


def _seconds(name: str, key: str, given: Any) -> float:
    is_number = isinstance(given, int | float) and not isinstance(given, bool)
    if not is_number or not 0 < given < math.inf:
        raise ValueError(f"hook {name}: write {key} as seconds, more than 0, such as 30")
    return float(given)


Hooks = Annotated[dict[str, HookSetting], BeforeValidator(_are_hooks)]
