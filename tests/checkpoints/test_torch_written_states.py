"""Show what PyTorch and Lightning really do, system call by system call: nothing on the way counts as complete."""

import shutil
import time
from pathlib import Path

import pytest
from checkpoints.kinds import ARCHIVES, DCP, HUGGING_FACE, LIGHTNING_SAVES, TRAINER_SAVES
from checkpoints.written_states import replay, trace, whole

pytestmark = [pytest.mark.torch, pytest.mark.nightly]

PLAIN = tuple(kind for kind in ARCHIVES if kind != "lightning")
RECORDED = (
    PLAIN
    + LIGHTNING_SAVES
    + tuple(kind for kind in HUGGING_FACE if kind != "trainer")
    + TRAINER_SAVES[:1]
    + (*DCP, "dcp_async")
)
OTHER_FILESYSTEM = Path("/dev/shm")


@pytest.fixture(scope="session")
def traced(torch_writer, tmp_path_factory):
    """Two saves of each kind."""
    return trace(torch_writer, RECORDED, tmp_path_factory.mktemp("recorded"))


@pytest.mark.parametrize("just_written", [False, True])
@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("kind", RECORDED)
def test_nothing_on_the_way_is_complete(traced, root, new_catalog, clock, kind, number, just_written, tally):
    """After each call, and half of each write: the structure alone tells, also where checksums replace quiet time."""
    if just_written:
        clock.wall_seconds = time.time() - clock.seconds
    assert len(set(whole(traced.after(number, kind)))) == 1
    states, early = replay(traced, number, kind, root, new_catalog(), clock)
    assert states == 1 if "same" in kind else states > 2
    assert early == 0
    tally.add("states that writers pass through", states, states)
    print(f"{kind}, save {number}: {states} states, {early} of them whole by structure alone, and too early")


def test_surplus_checkpoints_of_the_trainer_vanish(torch_writer, tmp_path, root, new_catalog, clock):
    """While it deletes them, file by file, they are found as they were, or not at all, and never corrupt."""
    kind = TRAINER_SAVES[1]
    (tmp_path / "traced").mkdir()
    traced, catalog = trace(torch_writer, [kind], tmp_path / "traced"), new_catalog()
    digests: dict[str, set[str]] = {}
    words = []
    for word, do in traced.operations(1, kind):
        do(root)
        clock.seconds += 1
        scan = catalog.scan()
        for found in scan.found:
            digests.setdefault(found.checkpoint.name, set()).add(found.checkpoint.digest)
        assert scan.corrupt == ()
        words.append(word)
    assert {name: len(each) for name, each in digests.items()} == {f"checkpoint-{step}": 1 for step in (5, 10, 15)}
    assert words.count("unlink") >= 2 * 6, "two checkpoints of six files each"


def test_a_writer_that_is_stopped_between_two_shards(torch_writer, tmp_path, root):
    """The old index and some new shards are never taken for a checkpoint, however long the writer stands still."""
    kind = "pretrained_shards"
    (tmp_path / "traced").mkdir()
    traced = trace(torch_writer, [kind], tmp_path / "traced")
    shutil.copytree(traced.after(1, kind), root, dirs_exist_ok=True)
    allowed = set(whole(root)) | set(whole(traced.after(2, kind)))
    stopped = 0
    for _, do in traced.operations(2, kind):
        do(root)
        if list(root.rglob(".tmp*")):
            stopped += 1
            assert set(whole(root)) <= allowed
    assert stopped > 2, "safetensors 0.8 writes each shard to a temporary file"


def test_lightning_renames_on_one_filesystem(traced):
    """The file appears whole under its name."""
    for number in (1, 2):
        words = [word for word, _ in traced.operations(number, "lightning_same_filesystem")]
        assert words == ["rename"]


def test_lightning_writes_in_place_across_filesystems(traced, tmp_path):
    """The usual case on clusters, where $TMPDIR is local: the final name is opened, emptied and filled."""
    assert OTHER_FILESYSTEM.stat().st_dev != tmp_path.stat().st_dev
    for number in (1, 2):
        words = [word for word, _ in traced.operations(number, "lightning_other_filesystem")]
        assert words[0] == "open"
        assert set(words[1:]) == {"write"}


def test_torch_writes_in_place(traced):
    """Under the final name, so a hard link would change with the next save."""
    for kind in PLAIN:
        words = [word for word, _ in traced.operations(2, kind)]
        assert words[0] == "open"
        assert "rename" not in words
