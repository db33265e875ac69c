"""Write results as TensorBoard's scalars: one run of TensorBoard for each eval set, with the training step as x.

TensorBoard shows numbers of 32 bits: its fast loader leaves out doubles without a word (tensorboard-data-server 0.7.2).
So each number is the float that is nearest to it. No package of TensorBoard is needed.
"""

import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, Literal
from urllib.parse import quote

from sidecar.checkpoints.formats.crc32c import masked_crc32c
from sidecar.coordination.totals import number_of
from sidecar.protocol.records import Value
from sidecar.publishing.sinks.protobuf import bytes_field, double_field, float_field, integer_field, text_field
from sidecar.publishing.sinks.sink import Evaluation, SinkRefusedError, SinkUnavailableError
from sidecar.system.confined import Folder, open_folder
from sidecar.system.durable import sync_file
from sidecar.system.plain_text import shortened

Tags = Literal["metric", "keras"]

_FILE_VERSION: Final = "brain.Event:2"
_LONGEST_NAME: Final = 255  # bytes of the name of a folder
_LAST_SECOND: Final = 1e12  # of any time that a file may tell
_WALL_TIME: Final = struct.Struct("<Bd")  # field 1 of an event, which is always the first one


@dataclass(frozen=True, slots=True)
class _Known:
    """Hold the size of the files of an eval set, the time of the newest event in them, and whether the last is torn."""

    state: tuple[tuple[int, int], ...]  # inode and size of each file
    newest: int
    torn: bool


class TensorBoard:
    """Append one event for each evaluation to a file of each eval set, in the log directory of `tensorboard --logdir`.

    Files are never changed but at their end. If a killed writer left a part of a record, another file follows, because
    readers stop at that part. The names of the files hold the id of the run, because two runs of one name may share a
    directory, and the events of one must not be taken for those of the other. `tags`: `metric` names series as the
    metrics are named; `keras` as `SidecarEvaluator` of tf_keras names them, `evaluation_METRIC_vs_iterations`.
    """

    name = "tensorboard"

    def __init__(self, directory: Path, run: str, tags: Tags = "metric") -> None:
        self._directory, self._tags = directory, tags
        self._file = f"events.out.tfevents.sidecar.{run}"
        self._known: dict[str, _Known] = {}  # by eval set

    def write(self, evaluation: Evaluation) -> None:
        """Append the events, durably. An event that is there, as its time shows, is not written a second time."""
        step = evaluation.checkpoint.step
        if step is None or step < 0:
            raise SinkRefusedError(f"{evaluation.checkpoint.name} has no training step that TensorBoard could show")
        stem = f"{self._file}.{evaluation.id.partition('-')[0]}"
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            with open_folder(self._directory) as top:
                for eval_set, metrics in evaluation.result.metrics.items():
                    with top.folder(_folder_name(eval_set), make=True) as folder:
                        self._append(folder, stem, eval_set, evaluation.milliseconds, step, metrics)
        except OSError as error:
            raise SinkUnavailableError(f"{self._directory}: {error.filename or ''}: {error.strerror}") from error

    def _append(
        self, folder: Folder, stem: str, eval_set: str, milliseconds: int, step: int, metrics: Mapping[str, Value]
    ) -> None:
        """Append the event of one eval set to its newest file, unless one of its files has it."""
        files = _files(folder, stem)
        known = self._known.get(eval_set)
        if known is None or known.state != _state(folder, files):  # a start, or another node wrote meanwhile
            known = _read(folder, files)
        if milliseconds <= known.newest:
            return
        if known.torn or not files:
            files.append(f"{stem}.{len(files)}")
        with folder.append_to_file(files[-1]) as file:
            events = [_event(milliseconds, step, self._values(metrics))]
            if os.fstat(file.fileno()).st_size == 0:
                # An earlier time, so that the file alone does not look as if it had the event.
                events.insert(0, double_field(1, (milliseconds - 1) / 1000) + text_field(3, _FILE_VERSION))
            append(file, *events)
        folder.sync()
        self._known[eval_set] = _Known(_state(folder, files), milliseconds, torn=False)

    def _values(self, metrics: Mapping[str, Value]) -> Iterator[tuple[str, float]]:
        """Yield the tag and the number of each series."""
        for metric, value in metrics.items():
            yield self._tag(metric), number_of(value)
            for bound, number in (("lower", value.lower), ("upper", value.upper)):
                if number is not None:
                    yield self._tag(metric, bound), number

    def _tag(self, metric: str, bound: str = "") -> str:
        if self._tags == "keras":
            return f"evaluation_{metric}{bound and f'_{bound}'}_vs_iterations"
        return f"{metric}{bound and f'/{bound}'}"


def _folder_name(eval_set: str) -> str:
    """Return the name of a folder, which TensorBoard shows. Raises `SinkRefusedError` for a name too long."""
    name = quote(eval_set, safe=" ()", errors="surrogatepass")
    if len(name) > _LONGEST_NAME:
        raise SinkRefusedError(f"the name of eval set {shortened(eval_set)} is too long for a folder of TensorBoard")
    return name.replace(".", "%2E") if name in (".", "..") else name


def _event(milliseconds: int, step: int, values: Iterator[tuple[str, float]]) -> bytes:
    """Return an `Event` with a scalar for each value (tensorflow/core/framework/summary.proto)."""
    summary = b"".join(bytes_field(1, text_field(1, tag) + float_field(2, number)) for tag, number in values)
    return double_field(1, milliseconds / 1000) + integer_field(2, step) + bytes_field(5, summary)


def _files(folder: Folder, stem: str) -> list[str]:
    """Return the files of a run in their order; each after the first one follows one with a torn record."""
    names, files = set(folder.names()), list[str]()
    while (name := f"{stem}.{len(files)}") in names:
        files.append(name)
    return files


def _state(folder: Folder, files: list[str]) -> tuple[tuple[int, int], ...]:
    found = map(folder.stat, files)
    return tuple((status.st_ino, status.st_size) for status in found)


def _read(folder: Folder, files: list[str]) -> _Known:
    """Read all files of an eval set."""
    state, newest, torn = _state(folder, files), 0, False
    for name in files:
        end = 0
        with folder.open_file(name) as file:
            for end, event in records(file):  # noqa: B007 - the end of the last one
                newest = max(newest, _time_of(event))
            torn = os.fstat(file.fileno()).st_size > end
    return _Known(state, newest, torn)


def _time_of(event: bytes) -> int:
    """Return the time of an event in milliseconds; 0 if it has none."""
    if len(event) < _WALL_TIME.size or event[0] != double_field(1, 0)[0]:
        return 0
    _, seconds = _WALL_TIME.unpack_from(event)
    return round(1000 * seconds) if 0 < seconds < _LAST_SECOND else 0


_HEAD_BYTES: Final = 12  # length and its checksum
_CHECKSUM_BYTES: Final = 4
_LONGEST_RECORD: Final = 1 << 24


def record(data: bytes) -> bytes:
    """Return data as a record."""
    length = struct.pack("<Q", len(data))
    return b"".join([length, struct.pack("<I", masked_crc32c(length)), data, struct.pack("<I", masked_crc32c(data))])


def records(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield the end and the data of each whole record, from the beginning of a file."""
    file.seek(0)
    end = 0
    while (data := _next(file)) is not None:
        end += _HEAD_BYTES + len(data) + _CHECKSUM_BYTES
        yield end, data


def append(file: BinaryIO, *data: bytes) -> None:
    """Append records durably. The file must end with a whole record: readers stop at one that is not."""
    waiting = memoryview(b"".join(map(record, data)))
    while waiting:
        waiting = waiting[os.write(file.fileno(), waiting) :]
    sync_file(file)


def _next(file: BinaryIO) -> bytes | None:
    """Return the data of the next record; None if it is not whole."""
    head = _read_exactly(file, _HEAD_BYTES)
    if len(head) < _HEAD_BYTES:
        return None
    length, checksum = struct.unpack("<QI", head)
    if checksum != masked_crc32c(head[:8]) or length > _LONGEST_RECORD:
        return None
    data, tail = _read_exactly(file, length), _read_exactly(file, _CHECKSUM_BYTES)
    whole = len(data) == length and tail == struct.pack("<I", masked_crc32c(data))
    return data if whole else None


def _read_exactly(file: BinaryIO, size: int) -> bytes:
    """Return that many bytes, or fewer at the end of the file."""
    parts = []
    while size and (part := file.read(size)):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
