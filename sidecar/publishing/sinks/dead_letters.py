"""Keep the events that a hook could not deliver, in files of the state directory that people and programs read.

`sinks/dead_letters/<hook>.jsonl` holds one JSON object a line: when and why the event was given up, and the event. At
its limit the file becomes `<hook>.old.jsonl`, in place of the one before, so that the oldest events go.
"""

import contextlib
import json
import os
from pathlib import Path
from typing import BinaryIO, Final

from sidecar.publishing.sinks.sink import SinkUnavailableError
from sidecar.system import durable
from sidecar.system.clock import timestamp
from sidecar.system.confined import open_folder
from sidecar.system.plain_text import one_line

FOLDER: Final = "sinks/dead_letters"

_MOST_BYTES: Final = 8 * 1024 * 1024


def add_dead_letter(run_dir: Path, hook: str, body: bytes, reason: str, wall: float) -> str:
    """Append an event durably, and return the path of the file, relative to the run's state directory.

    `body`: the event, as the hook got it. `reason`: why it was given up. `wall`: Unix time in seconds. Raises
    `SinkUnavailableError` if the file cannot be written: the event must not be forgotten, so it waits.
    """
    line = json.dumps({"given_up_at": timestamp(wall), "reason": reason, "event": json.loads(body)}).encode() + b"\n"
    name = f"{hook}.jsonl"
    try:
        with open_folder(run_dir) as run, run.folder(FOLDER, make=True) as folder:
            with contextlib.suppress(FileNotFoundError):
                if folder.stat(name).st_size + len(line) > _MOST_BYTES:
                    folder.rename(name, f"{hook}.old.jsonl")
            with folder.append_to_file(name) as file:
                _append(file, line)
            folder.sync()
    except OSError as error:
        path = one_line(str(error.filename or run_dir / FOLDER / name))
        raise SinkUnavailableError(f"{reason}; and {path} cannot be written: {error.strerror}") from error
    return f"{FOLDER}/{name}"


def _append(file: BinaryIO, line: bytes) -> None:
    """Append a line durably, or leave the file as it was. The line of a daemon that was killed may lack its end."""
    length = os.fstat(file.fileno()).st_size
    is_torn = length > 0 and os.pread(file.fileno(), 1, length - 1) != b"\n"
    rest = b"\n" * is_torn + line
    try:
        while rest:
            rest = rest[file.write(rest) :]  # a disk that fills up takes a part first
        durable.sync_file(file)
    except OSError:
        with contextlib.suppress(OSError):
            os.ftruncate(file.fileno(), length)
        raise
