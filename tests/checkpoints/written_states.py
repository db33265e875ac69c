"""Trace the saves of a real writer, and replay them state by state in front of a catalog."""

import contextlib
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from checkpoints.recording import Call, Recorder, operations, read_calls
from checkpoints.writer_process import WARM_UP, WriterProcess
from required import give_up

from sidecar.checkpoints.catalog import Catalog
from sidecar.checkpoints.files import list_files
from sidecar.checkpoints.formats import FORMATS
from sidecar.errors import CheckpointError

BETWEEN_CALLS = 0.01  # seconds on the fake clock; a writer that is stopped for longer than `quiet_seconds` is beyond it


@dataclass(frozen=True)
class Traced:
    """Two saves of some kinds, one after the other under the same names: the folders after each, and the calls made."""

    folder: Path
    saves: list[list[Call]]

    def after(self, number: int, kind: str) -> Path:
        """Return the folder as it was after a save; nothing is in it after save 0."""
        return self.folder / str(number) / kind

    def operations(self, number: int, kind: str) -> Iterator[tuple[str, Callable[[Path], None]]]:
        """Yield what a save did, call by call."""
        return operations(self.saves[number - 1], self.folder / "live" / kind, self.after(number, kind))


def trace(writer: WriterProcess, kinds: Iterable[str], folder: Path) -> Traced:
    """Let a writer save twice. Skips or fails the test if nothing can be traced here."""
    if reason := Recorder.reason_not_to():
        give_up("strace", reason)
    writer.write(WARM_UP, folder)
    saves = []
    for number in (1, 2):
        recorder = Recorder(writer.pid, folder / f"{number}.log")
        recorder.start()
        for kind in kinds:
            writer.write(kind, folder / "live" / kind)
        saves.append(read_calls(recorder.stop()))
        shutil.copytree(folder / "live", folder / str(number))
    return Traced(folder, saves)


def whole(root: Path) -> Iterator[tuple[str, str]]:
    """Names and digests of what passes the structure check without a doubt, whatever the time."""
    listing = list_files(root)
    for format_ in FORMATS.values():
        for candidate in format_.candidates(root, listing):
            with contextlib.suppress(CheckpointError):
                inspection = format_.inspect(root, candidate.name)
                if inspection.doubt is None:
                    yield candidate.name, inspection.digest


def replay(traced: Traced, number: int, kind: str, root: Path, catalog: Catalog, clock) -> tuple[int, int]:
    """After each call, and half of each write, assert that only the finished checkpoint or the one before is found.

    Return how many states there were, and how many of them were too early whole by their structure alone.
    """
    if number == 2:
        shutil.copytree(traced.after(1, kind), root, dirs_exist_ok=True)
    right = set(whole(traced.after(number, kind)))
    allowed = right | set(whole(root))
    catalog.scan()
    clock.seconds += 60
    catalog.scan()
    states = early = 0
    for _, do in traced.operations(number, kind):
        do(root)
        states += 1
        clock.seconds += BETWEEN_CALLS
        early += not set(whole(root)) <= allowed
        assert {found.checkpoint.key for found in catalog.scan().found} <= allowed
    clock.seconds += 60
    assert {found.checkpoint.key for found in catalog.scan().found} == right
    for name in sorted(each.relative_to(root) for each in root.rglob("*") if each.is_file()):
        assert (root / name).read_bytes() == (traced.after(number, kind) / name).read_bytes(), "the replay is faithful"
    return states, early
