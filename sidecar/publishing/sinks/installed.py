"""Load sinks of other authors: entry points of the group `sidecar.sinks`, or functions that the settings name.

Each is a function `make(options, run, timeout_seconds)` that returns a `Sink`. Code of others may raise anything, and
may hang: each error becomes one sentence, and importing and making have a time limit.
"""

import copy
import os
import re
from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Final

from sidecar.errors import SettingsError
from sidecar.publishing.sinks.sink import Evaluation, Sink, SinkRefusedError, SinkUnavailableError
from sidecar.system.bounded_calls import BoundedCalls, HangingError
from sidecar.system.file_import import import_file
from sidecar.system.plain_text import one_line

GROUP: Final = "sidecar.sinks"
MAKE: Final = "make"
"""Option that names the function of a sink that no distribution provides."""

_START_SECONDS: Final = 60.0  # libraries of others may be large, and disks slow
_MOST_CHARACTERS: Final = 400
_REFERENCE: Final = re.compile(r"([^:]+\.py|\w+(\.\w+)*):[^\W\d]\w*")


class InstalledSink:
    """Call a sink of another author: whatever it raises becomes an error of this program, in one line."""

    def __init__(self, name: str, sink: Sink) -> None:
        self.name, self.sink = name, sink

    def write(self, evaluation: Evaluation) -> None:
        """Deliver a copy of one evaluation: the journal and the other sinks hold the evaluation itself."""
        daemon = os.getpid()
        try:
            self.sink.write(copy.deepcopy(evaluation))
        except SinkRefusedError as error:
            raise SinkRefusedError(_sentence(error)) from error
        except SinkUnavailableError as error:
            raise SinkUnavailableError(_sentence(error)) from error
        except BaseException as error:  # SystemExit, too, would end the thread without a word
            raise SinkUnavailableError(_sentence(error)) from error
        finally:
            if os.getpid() != daemon:  # a process that the sink forked would go on as a second daemon
                os._exit(1)


def load(
    name: str, options: Mapping[str, Any], run: str, timeout_seconds: float, *, start_seconds: float = _START_SECONDS
) -> InstalledSink:
    """Return the sink whose function the option `make` names, or else the installed one with this name.

    Raises `SettingsError` if there is none, or if it cannot be made.
    """
    given = {key: value for key, value in options.items() if key != MAKE}
    where, find = _named(name, options[MAKE]) if MAKE in options else _installed(name)

    def make() -> InstalledSink:
        sink = find()(given, run, timeout_seconds)
        if getattr(sink, "name", None) != name or not callable(getattr(sink, "write", None)):
            raise TypeError(
                f"what it returned, of type {type(sink).__name__}, is not a sink: it needs the attribute name, "
                f"{name!r}, and the method write(evaluation)"
            )
        return InstalledSink(name, sink)

    return _called(make, where, start_seconds)


def _named(name: str, reference: Any) -> tuple[str, Callable[[], Any]]:
    where = f"[sinks.{name}], {MAKE} = {one_line(repr(reference))}"
    if not isinstance(reference, str) or not _REFERENCE.fullmatch(reference):
        raise SettingsError(f"{where}: write package.module:function, or /path/of/file.py:function")
    source, _, function = reference.rpartition(":")
    if not source.endswith(".py"):
        return where, EntryPoint(name, reference, GROUP).load
    if not Path(source).is_absolute():
        raise SettingsError(f"{where}: write the whole path of the file, as /path/of/file.py:function")

    return where, lambda: getattr(import_file(Path(source), f"sidecar_sink_{name}"), function)


def _installed(name: str) -> tuple[str, Callable[[], Any]]:
    found = list(entry_points(group=GROUP, name=name))
    if len(found) != 1:
        raise SettingsError(f"[sinks.{name}]: {_none(name) if not found else _several(found)}")
    return f"[sinks.{name}], from {_origin(found[0])}", found[0].load


def _called(make: Callable[[], InstalledSink], where: str, start_seconds: float) -> InstalledSink:
    try:
        return BoundedCalls(patience_seconds=start_seconds)(where, make)
    except HangingError as error:
        raise SettingsError(f"{where}: it could not be imported and made within {start_seconds:g} s") from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise SettingsError(f"{where}: {_sentence(error)}") from error


def _none(name: str) -> str:
    names = sorted(point.name for point in entry_points(group=GROUP))
    known = f"installed are {', '.join(names)}" if names else "none is installed"
    return (
        f"no installed distribution provides the sink {name!r} ({known}); install it into the daemon's environment, "
        f'or name its function with {MAKE} = "/path/of/file.py:function"'
    )


def _several(found: list[EntryPoint]) -> str:
    return f"several distributions provide it: {', '.join(map(_origin, found))}; uninstall all but one"


def _origin(point: EntryPoint) -> str:
    return f"{point.value} of {point.dist.name if point.dist is not None else 'an unknown distribution'}"


def _sentence(error: BaseException) -> str:
    return _short(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)


def _short(text: str) -> str:
    text = one_line(text)
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}…"
