"""Write results for TensorBoard: one run of TensorBoard for each eval set, with the training step as x.

Numbers are scalars. Scores that `BinnedAUC` counted are PR curves, and the settings may give hyperparameters.

TensorBoard shows numbers of 32 bits: its fast loader leaves out doubles without a word (tensorboard-data-server 0.7.2).
So each number is the float that is nearest to it. No package of TensorBoard is needed.
"""

import contextlib
import math
import os
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, Literal
from urllib.parse import quote

from sidecar.checkpoints.formats.crc32c import masked_crc32c
from sidecar.coordination.totals import number_of
from sidecar.errors import SidecarError
from sidecar.protocol.records import Result, Value
from sidecar.publishing.evaluation_archive.confusion import histograms
from sidecar.publishing.sinks.protobuf import bytes_field, double_field, float_field, integer_field, text_field
from sidecar.publishing.sinks.sink import Evaluation, SinkRefusedError, SinkUnavailableError
from sidecar.system.confined import Folder, open_folder
from sidecar.system.durable import sync_file, write_new
from sidecar.system.plain_text import shortened

Tags = Literal["metric", "keras"]

Parameter = str | bool | int | float

_FILE_VERSION: Final = "brain.Event:2"
_FLOAT: Final = 1  # DT_FLOAT (tensorflow/core/framework/types.proto)
_USUAL_BINS: Final = range(20, 201)  # between thresholds; TensorBoard's own summaries have 201 thresholds by default
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
    `parameters`: hyperparameters of the run, for the page *HParams*. `read` returns a file of the state directory, from
    which PR curves come; None if it is not there.
    """

    name = "tensorboard"

    def __init__(
        self,
        directory: Path,
        run: str,
        tags: Tags = "metric",
        *,
        parameters: Mapping[str, Parameter] | None = None,
        read: Callable[[str], bytes | None] = lambda _: None,
    ) -> None:
        self._directory, self._tags, self._read = directory, tags, read
        self._parameters = parameters or {}
        self._file = f"events.out.tfevents.sidecar.{run}"
        self._known: dict[str, _Known] = {}  # by eval set

    def write(self, evaluation: Evaluation) -> None:
        """Append the events, durably. An event that is there, as its time shows, is not written a second time."""
        step = evaluation.checkpoint.step
        if step is None or step < 0:
            raise SinkRefusedError(f"{evaluation.checkpoint.name} has no training step that TensorBoard could show")
        stem = f"{self._file}.{evaluation.id.partition('-')[0]}"
        curves = self._curves(evaluation.result)
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            with open_folder(self._directory) as top:
                self._write_parameters(top, f"{stem}.parameters", evaluation.milliseconds)
                for eval_set, metrics in evaluation.result.metrics.items():
                    with top.folder(_folder_name(eval_set), make=True) as folder:
                        values = self._values(metrics) + curves.get(eval_set, b"")
                        self._append(folder, stem, eval_set, evaluation.milliseconds, step, values)
        except OSError as error:
            raise SinkUnavailableError(f"{error.filename or self._directory}: {error.strerror}") from error

    def _append(self, folder: Folder, stem: str, eval_set: str, milliseconds: int, step: int, values: bytes) -> None:
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
            events = [_event(milliseconds, step, values)]
            if os.fstat(file.fileno()).st_size == 0:
                # An earlier time, so that the file alone does not look as if it had the event.
                events.insert(0, _first_event(milliseconds - 1))
            append(file, *events)
        folder.sync()
        self._known[eval_set] = _Known(_state(folder, files), milliseconds, torn=False)

    def _values(self, metrics: Mapping[str, Value]) -> bytes:
        """Return the summary's values of all series: a tag and a number each."""
        found = b""
        for metric, value in metrics.items():
            numbers = (("", number_of(value)), ("lower", value.lower), ("upper", value.upper))
            for bound, number in numbers:
                if number is not None:
                    found += bytes_field(1, text_field(1, self._tag(metric, bound)) + float_field(2, number))
        return found

    def _curves(self, result: Result) -> dict[str, bytes]:
        """Return the summary's values of PR curves by eval set; nothing if workers' states cannot be read."""
        saved = []
        if any(name.startswith("pr_") for metrics in result.metrics.values() for name in metrics):
            with contextlib.suppress(SidecarError):
                saved = [self._read(f"{folder}/states.json") for folder in result.saves]
        if not saved or None in saved:
            return {}
        found = dict[str, bytes]()
        for (eval_set, name), (negatives, positives) in histograms(result, filter(None, saved)).items():
            found[eval_set] = found.get(eval_set, b"") + _pr_curve(f"pr_{name}", negatives, positives)
        return found

    def _write_parameters(self, top: Folder, name: str, milliseconds: int) -> None:
        """Write the hyperparameters of the run, unless a file has them: TensorBoard takes those of the newest start."""
        if not self._parameters:
            return
        fields = b"".join(
            bytes_field(1, text_field(1, name) + bytes_field(2, _json_value(value)))
            for name, value in sorted(self._parameters.items())
        )
        with contextlib.suppress(FileNotFoundError):
            if fields in top.read(name, _LONGEST_RECORD):
                return
            top.unlink(name)
        start = bytes_field(3, fields + double_field(5, milliseconds / 1000))
        tensor = integer_field(1, _FLOAT) + bytes_field(2, bytes_field(2, b""))  # of shape (0,)
        value = text_field(1, "_hparams_/session_start_info") + bytes_field(8, tensor) + _metadata("hparams", start)
        write_new(
            top, name, record(_first_event(milliseconds)) + record(_event(milliseconds, 0, bytes_field(1, value)))
        )
        top.sync()

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


def _first_event(milliseconds: int) -> bytes:
    return double_field(1, milliseconds / 1000) + text_field(3, _FILE_VERSION)


def _event(milliseconds: int, step: int, values: bytes) -> bytes:
    """Return an `Event` with values of a summary (tensorflow/core/framework/summary.proto)."""
    return double_field(1, milliseconds / 1000) + integer_field(2, step) + bytes_field(5, values)


def _metadata(plugin: str, content: bytes) -> bytes:
    """Return the field of a value that says which plugin shows it, with data for the plugin."""
    return bytes_field(9, bytes_field(1, text_field(1, plugin) + bytes_field(2, content)))


def _json_value(value: Parameter) -> bytes:
    """Return a `google.protobuf.Value`."""
    if isinstance(value, bool):
        return integer_field(4, int(value))
    return text_field(3, value) if isinstance(value, str) else double_field(2, value)


def _pr_curve(tag: str, negatives: Sequence[float], positives: Sequence[float]) -> bytes:
    """Return a value of the plugin `pr_curves`, with thresholds at ends of equal bins of scores.

    Its tensor has true and false positives, true and false negatives, precision and recall at each threshold
    (tensorboard/plugins/pr_curve/summary.py). So that no number is rounded, thresholds are left out evenly.
    """
    bins = len(positives)
    widths = (width for width in range(1, bins + 1) if bins % width == 0 and bins // width in _USUAL_BINS)
    width = next(widths, 1)
    firsts = range(0, bins + 1, width)
    true, false = ([math.fsum(weights[first:]) for first in firsts] for weights in (positives, negatives))
    rows = [
        *(true, false, [false[0] - each for each in false], [true[0] - each for each in true]),
        [hits / (hits + wrong) if hits else 0.0 for hits, wrong in zip(true, false, strict=True)],
        [hits / true[0] if hits else 0.0 for hits in true],
    ]
    count = len(firsts)
    shape = b"".join(bytes_field(2, integer_field(1, size)) for size in (len(rows), count))
    numbers = struct.pack(f"<{len(rows) * count}f", *(number for row in rows for number in row))
    tensor = integer_field(1, _FLOAT) + bytes_field(2, shape) + bytes_field(4, numbers)
    metadata = _metadata("pr_curves", integer_field(2, count))
    return bytes_field(1, text_field(1, f"{tag}/pr_curves") + bytes_field(8, tensor) + metadata)


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
