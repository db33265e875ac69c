"""What writers really do, system call by system call: nothing on the way counts as complete."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from checkpoints.kinds import CALLBACKS, KINDS, NEVER_WHOLE
from checkpoints.recording import Recorder, operations, read_calls

from sidecar.checkpoints.files import list_files
from sidecar.checkpoints.formats import FORMATS
from sidecar.errors import CheckpointError

pytestmark = [pytest.mark.tensorflow, pytest.mark.nightly]

EARLY = {
    ("shards", 1): 6,  # after each map and before the next shard, and the first shard before there is a map
    ("shards", 2): 6,
    ("saved_model", 2): 8,  # new variables beside the marker of the save before
    ("saved_model_by_tf_keras", 2): 8,
    ("saved_model_with_assets", 2): 11,  # new assets, too
    ("export", 2): 8,
    ("model_checkpoint_by_tf_keras", 2): 8,
}
"""States that only time tells from finished ones: the writer does not stay in them."""

RECORDED = KINDS + CALLBACKS
BETWEEN_CALLS = 0.01  # seconds on the fake clock; a writer that is stopped for longer than `quiet_seconds` is beyond it


@pytest.fixture(scope="session")
def traced(real_writer, tmp_path_factory):
    """The first save of each kind and the next one under the same name: folders after each, and the calls made."""
    if reason := Recorder.reason_not_to():
        if "strace" in os.environ.get("TEST_REQUIRES", "").split(","):
            pytest.fail(reason)
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("recorded")
    real_writer.write("", folder)
    saves = []
    for number in (1, 2):
        recorder = Recorder(real_writer.pid, folder / f"{number}.log")
        recorder.start()
        for kind in RECORDED:
            real_writer.write(kind, folder / "live" / kind)
        saves.append(read_calls(recorder.stop()))
        shutil.copytree(folder / "live", folder / str(number))
    return folder, saves


def whole(root: Path) -> Iterator[tuple[str, str]]:
    """Names and digests of what passes the structure check, whatever the time."""
    listing = list_files(root)
    for format_ in FORMATS.values():
        for candidate in format_.candidates(root, listing):
            with contextlib.suppress(CheckpointError):
                yield candidate.name, format_.inspect(root, candidate.name).digest


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("kind", RECORDED)
def test_nothing_on_the_way_is_complete(traced, root, new_catalog, clock, kind, number, tally):
    """After each call, and half of each write: what is found is the finished checkpoint, or the one before it."""
    folder, saves = traced
    if number == 2:
        shutil.copytree(folder / "1" / kind, root, dirs_exist_ok=True)
    right = set(whole(folder / str(number) / kind))
    assert len(right) == (kind not in NEVER_WHOLE)
    allowed = right | set(whole(root))
    catalog = new_catalog()
    catalog.scan()
    clock.seconds += 60
    catalog.scan()
    states = early = 0
    for _, do in operations(saves[number - 1], folder / "live" / kind):
        do(root)
        states += 1
        clock.seconds += BETWEEN_CALLS
        early += not set(whole(root)) <= allowed
        assert {found.checkpoint.key for found in catalog.scan().found} <= allowed
    clock.seconds += 60
    assert {found.checkpoint.key for found in catalog.scan().found} == right
    assert states > 5
    assert early <= EARLY.get((kind, number), 0)
    tally.add("states that writers pass through", states, states)
    print(f"{kind}, save {number}: {states} states, {early} of them whole by structure alone, and too early")
    for name in sorted(each.relative_to(root) for each in root.rglob("*") if each.is_file()):
        assert (root / name).read_bytes() == (folder / str(number) / kind / name).read_bytes(), "the replay is faithful"
