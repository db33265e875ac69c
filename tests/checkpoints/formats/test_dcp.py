"""Folders of torch.distributed.checkpoint that real ranks wrote: whole, cut off, saved again, damaged."""

import os
import pickle
import shutil
from pathlib import Path

import pytest

from sidecar.checkpoints.formats import FORMATS
from sidecar.checkpoints.inspect import inspect_one
from sidecar.errors import CheckpointError, ChecksumError, CorruptError, IncompleteError, VanishedError

DCP = FORMATS["dcp"]


@pytest.fixture
def step(written, root) -> Path:
    """Return what two ranks saved, under a name as torchtitan gives it."""
    return Path(shutil.copytree(written / "dcp_sharded" / "m-5", root / "step-5"))


@pytest.mark.usefixtures("step")
def test_it_is_found_at_once(new_catalog):
    """No data file is newer than `.metadata`, which is written last. The step is in the name."""
    (found,) = new_catalog().scan().found
    assert (found.checkpoint.name, found.checkpoint.format, found.checkpoint.step) == ("step-5", "dcp", 5)
    names = {file.name for file in found.files}
    assert names == {"step-5/.metadata", "step-5/__0_0.distcp", "step-5/__1_0.distcp"}


@pytest.mark.parametrize("kind", ["dcp", "dcp_sharded"])
def test_cuts_between_two_parts_of_a_data_file(written, tmp_path, kind):
    """Each part is an archive of its own, so the rest is a row of whole archives."""
    shutil.copytree(written / kind, tmp_path, dirs_exist_ok=True)
    tried = 0
    for path in (tmp_path / "m-5").glob("*.distcp"):
        content, at = path.read_bytes(), 0
        while (at := content.find(b"PK\5\6", at) + 22) < len(content):
            path.write_bytes(content[:at])
            tried += 1
            with pytest.raises(IncompleteError):
                DCP.inspect(tmp_path, "m-5")
        path.write_bytes(content)
    assert tried > 30


@pytest.mark.parametrize("file", ["__0_0.distcp", "__1_0.distcp"])
def test_a_data_file_that_is_newer_waits(step, new_catalog, clock, file):
    """As if one rank had saved again, and another one had not: such a mixture would be whole, and wrong."""
    at = (step / ".metadata").stat().st_mtime_ns + 1
    os.utime(step / file, ns=(at, at))
    catalog = new_catalog()
    catalog.scan()
    clock.seconds += 59
    ((_, reason),) = catalog.scan().waiting
    assert file in reason
    clock.seconds += 1
    assert catalog.scan().found


def test_a_mixture_that_grows_is_never_found(step, new_catalog, clock):
    """One rank writes for minutes while the others have finished."""
    catalog = new_catalog()
    assert catalog.scan().found
    content = (step / "__1_0.distcp").read_bytes()
    for length in range(0, len(content), len(content) // 20):
        (step / "__1_0.distcp").write_bytes(content[:length])
        clock.seconds += 50
        assert catalog.scan().found == ()


@pytest.mark.seconds
@pytest.mark.nightly
def test_flipped_bits(step, tally):
    """`check` finds each one in the tensors; others are refused, or change the digest."""
    digest = DCP.inspect(step.parent, "step-5").digest
    tried = caught = 0
    for path in sorted(step.iterdir()):
        content = path.read_bytes()
        for bit in range(0, 8 * len(content), 8 * len(content) // 300 | 1):
            damaged = bytearray(content)
            damaged[bit // 8] ^= 1 << bit % 8
            path.write_bytes(damaged)
            tried += 1
            try:
                caught += DCP.inspect(step.parent, "step-5").digest != digest
                DCP.check(step.parent, "step-5")
            except CheckpointError:
                caught += 1
        path.write_bytes(content)
    tally.add("bits flipped in folders of torch.distributed.checkpoint", tried, caught)
    assert caught >= tried


def test_check_finds_a_flipped_weight(step):
    """The message names the file and the tensor's part."""
    path = step / "__0_0.distcp"
    content = bytearray(path.read_bytes())
    content[content.find(b"data/0") + 200] ^= 1
    path.write_bytes(content)
    DCP.inspect(step.parent, "step-5")
    with pytest.raises(ChecksumError) as caught:
        DCP.check(step.parent, "step-5")
    assert "__0_0.distcp" in str(caught.value)


class Planted:
    """Writes a file when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.write_text, (self.path, "it ran")


def test_a_planted_pickle_never_runs(step, tmp_path, new_catalog):
    """The metadata is looked at, and never loaded."""
    proof = tmp_path / "proof"
    planted = pickle.dumps({"names": ["__0_0.distcp", "__1_0.distcp"], "x": Planted(proof), "y": "." * 100}, protocol=4)
    (step / ".metadata").write_bytes(planted)
    assert new_catalog(quiet_seconds=0).scan().found
    DCP.check(step.parent, "step-5")
    assert not proof.exists()
    pickle.loads(planted)
    assert proof.exists()


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"", IncompleteError),
        (b"\x80\x02}.", CorruptError),
        (b"\x80\x04}.", CorruptError),
        (pickle.dumps({"a": "b" * 100}, protocol=4), CorruptError),
        (pickle.dumps("__7_0.distcp" * 100_000, protocol=4), IncompleteError),
        (b"not a pickle at all", CorruptError),
    ],
)
def test_metadata_that_is_none(step, content, error):
    """Or names files that are not there."""
    (step / ".metadata").write_bytes(content)
    with pytest.raises(error):
        DCP.inspect(step.parent, "step-5")


def test_other_folders(root, written, new_catalog, tmp_path):
    """Unfinished ones of other writers, hidden ones, links, and files."""
    for name in ("tmp_step-5", "5.orbax-checkpoint-tmp-12", "tmp-5", ".hidden"):
        shutil.copytree(written / "dcp" / "m-5", root / name)
    shutil.copytree(written / "dcp" / "m-5", tmp_path / "good")
    (root / "link").symlink_to(tmp_path / "good")
    (root / "file").touch()
    (root / "empty").mkdir()
    scan = new_catalog(quiet_seconds=0).scan()
    assert (scan.found, scan.waiting) == ((), ())
    for name in ("link", "file", "empty", "nowhere"):
        with pytest.raises(VanishedError):
            DCP.inspect(root, name)


@pytest.mark.torch
def test_a_save_without_coordination_is_refused(tmp_path, new_catalog, clock, root):
    """Each rank writes metadata of its own, and nothing tells when all have. The remedy is named."""
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        dcp.save({"w": torch.ones(3)}, checkpoint_id=root / "step-5", use_collectives=False)
    finally:
        dist.destroy_process_group()
    assert (root / "step-5" / "__0.metadata").exists()
    with pytest.raises(CorruptError, match="use_collectives=True"):
        DCP.inspect(root, "step-5")
    catalog = new_catalog()
    catalog.scan()
    clock.seconds += 120
    scan = catalog.scan()
    reasons = [reason for _, reason in scan.waiting] + [each.reason for each in scan.corrupt]
    assert scan.found == ()
    assert any("use_collectives=True" in reason for reason in reasons)


def test_the_step_of_other_trainers(written, tmp_path):
    """Accelerate and Lightning name their folders otherwise."""
    for name, expected in (("checkpoint-500/pytorch_model_fsdp_0", 500), ("epoch=3-step=40.ckpt", 40), ("last", None)):
        shutil.copytree(written / "dcp" / "m-5", tmp_path / name)
        assert inspect_one(tmp_path / name, root=tmp_path).step == expected
