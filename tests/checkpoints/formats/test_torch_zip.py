"""Archives of `torch.save` that real PyTorch and Lightning wrote: flipped bits, steps, refusals, planted pickles."""

import contextlib
import io
import os
import pickle
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from checkpoints.kinds import ARCHIVES

from sidecar.checkpoints.files import list_files
from sidecar.checkpoints.formats import FORMATS, file_group
from sidecar.checkpoints.formats.torch_zip import saved_before
from sidecar.checkpoints.inspect import inspect_one, verify
from sidecar.errors import CheckpointError, ChecksumError, CorruptError, VanishedError
from sidecar.retention.pins.pin import pin

TORCH = FORMATS["torch_zip"]

FLIPS = 500  # of each file; the largest has 160,000 bits


def only_name(folder: Path) -> str:
    """The one file in a folder."""
    (path,) = folder.iterdir()
    return path.name


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        ("torch_training", "variable"),
        ("torch_buffer", "variable"),
        ("lightning", "variable"),
        ("torch_state", "name"),
        ("torch_bfloat16", "name"),
        ("torch_unchecked", "name"),
    ],
)
def test_the_step(written, kind, source):
    """From the pickle if the file has one, else from the name."""
    folder = written / kind
    found = inspect_one(folder / only_name(folder))
    assert (found.format, found.step, found.step_source) == ("torch_zip", 5, source)


def rewritten(source, target, content):
    """An archive of torch with another pickle."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            new.writestr(name, pickle.dumps(content, protocol=2) if name.endswith("/data.pkl") else old.read(name))


@pytest.mark.parametrize("numbers", [4_000, 300_000])
def test_the_step_after_the_weights(written, tmp_path, numbers):
    """At the end of a pickle of any size; in the middle of one that is not too large."""
    folder = written / "torch_state"
    source = folder / only_name(folder)
    values = [float(number) for number in range(numbers)]
    rewritten(source, tmp_path / "latest.pt", {"model": {}, "history": values, "global_step": 20})
    assert inspect_one(tmp_path / "latest.pt").step == 20
    rewritten(source, tmp_path / "latest.pt", {"history": values, "step": 20, "more": list(values)})
    assert inspect_one(tmp_path / "latest.pt").step == (20 if numbers < 100_000 else None)


def test_the_step_under_a_key_of_the_user(recorded):
    """`step_key` decides alone: a key that is not there, or that holds no whole number, is no step."""
    folder = recorded.torch / "lightning_last"
    steps = {key: TORCH.inspect(folder, "last.ckpt", step_key=key) for key in ("epoch", "global_step", "loops", "none")}
    assert {key: found.step for key, found in steps.items()} == {
        "epoch": 1,
        "global_step": 10,
        "loops": None,
        "none": None,
    }
    assert {found.step_source for found in steps.values()} == {"step_key"}
    assert all(found.same_as for found in steps.values()), "the state is the same whatever the key"


def test_the_name_of_the_first_folder_does_not_matter(tmp_path):
    """One is the file's name, or `archive` if a buffer was saved: the same content has the same digest."""
    digests = set()
    for prefix in ("m-5", "archive", "modèle"):
        with zipfile.ZipFile(tmp_path / "m.pt", "w") as archive:
            archive.writestr(f"{prefix}/data.pkl", pickle.dumps({"step": 3}, protocol=2))
            archive.writestr(f"{prefix}/data/0", b"weights")
        found = TORCH.inspect(tmp_path, "m.pt")
        assert found.step == 3
        digests.add(found.digest)
    assert len(digests) == 1


@pytest.mark.seconds
@pytest.mark.parametrize("kind", ARCHIVES)
@pytest.mark.drawn(2)
def test_flipped_bits(written, tmp_path, kind, tally):
    """Each is refused, found by `check`, or changes neither the digest nor what `zipfile` reads from the archive."""
    name = only_name(written / kind)
    content = (written / kind / name).read_bytes()
    digest = TORCH.inspect(written / kind, name).digest
    tried = caught = 0
    for bit in range(0, 8 * len(content), 8 * len(content) // FLIPS | 1):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        (tmp_path / name).write_bytes(damaged)
        tried += 1
        try:
            found = TORCH.inspect(tmp_path, name)
            TORCH.check(tmp_path, name)
        except CheckpointError:
            caught += 1
            continue
        caught += found.digest != digest
        if kind != "torch_unchecked":
            assert found.digest == digest, f"bit {bit}"
            with contextlib.suppress(NotImplementedError, zipfile.BadZipFile):  # flags that miniz does not look at
                assert contents(bytes(damaged)) == contents(content), f"bit {bit}"
    tally.add("bits flipped in archives of torch.save", tried, caught)
    assert caught > tried / 3


def contents(archive: bytes) -> dict[str, bytes]:
    """Return what a reader of the archive gets, by names without the first folder."""
    with zipfile.ZipFile(io.BytesIO(archive)) as file:
        return {name.partition("/")[2]: file.read(name) for name in file.namelist()}


@pytest.mark.torch
@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["torch_training", "lightning"])
def test_what_is_not_found_does_not_matter_to_torch(written, tmp_path, kind):
    """`torch.load` refuses the file as well, or loads what was saved."""
    import torch

    name = only_name(written / kind)
    content = (written / kind / name).read_bytes()

    def loaded(path: Path) -> bytes:
        saved = io.BytesIO()
        torch.save(torch.load(path, weights_only=True), saved)
        return saved.getvalue()

    expected, unseen = loaded(written / kind / name), 0
    for bit in range(0, 8 * len(content), 8 * len(content) // FLIPS | 1):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        (tmp_path / name).write_bytes(damaged)
        with contextlib.suppress(CheckpointError):
            TORCH.inspect(tmp_path, name)
            TORCH.check(tmp_path, name)
            with contextlib.suppress(RuntimeError):
                assert loaded(tmp_path / name) == expected, f"bit {bit}"
            unseen += 1
    assert unseen > 0, "flags, times and padding"


@pytest.mark.torch
def test_torch_itself_does_not_find_a_flipped_weight(written, tmp_path):
    """So `verify = "full"`, and the check of new files, find more than the restore does."""
    import torch

    shutil.copytree(written / "torch_state", tmp_path, dirs_exist_ok=True)
    with zipfile.ZipFile(tmp_path / "m-5.pt") as archive:
        weights = archive.read("m-5/data/0")
    content = bytearray((tmp_path / "m-5.pt").read_bytes())
    content[content.find(weights)] ^= 1
    before = torch.load(tmp_path / "m-5.pt", weights_only=True)
    (tmp_path / "m-5.pt").write_bytes(content)
    after = torch.load(tmp_path / "m-5.pt", weights_only=True)
    assert not all(torch.equal(before[key], after[key]) for key in before)
    with pytest.raises(ChecksumError):
        TORCH.check(tmp_path, "m-5.pt")


def test_check_finds_a_flipped_weight(written, tmp_path):
    """The structure is whole; the message names the member, its place and both checksums."""
    shutil.copytree(written / "torch_training", tmp_path, dirs_exist_ok=True)
    with zipfile.ZipFile(tmp_path / "m-5.pt") as archive:
        crc = archive.getinfo("m-5/data/0").CRC
    content = bytearray((tmp_path / "m-5.pt").read_bytes())
    at = content.find(b"m-5/data/0") + 100
    content[at] ^= 1
    (tmp_path / "m-5.pt").write_bytes(content)
    TORCH.inspect(tmp_path, "m-5.pt")
    with pytest.raises(ChecksumError, match=rf"data/0.*{crc:08x}"):
        TORCH.check(tmp_path, "m-5.pt")


def test_without_checksums_the_content_is_the_identity(written, tmp_path):
    """`torch.serialization.set_crc32_options(False)`: nothing to compare, but other weights are another checkpoint."""
    shutil.copytree(written / "torch_unchecked", tmp_path, dirs_exist_ok=True)
    before = TORCH.inspect(tmp_path, "m-5.pt")
    assert before.proof_bytes is None
    content = bytearray((tmp_path / "m-5.pt").read_bytes())
    content[content.find(b"m-5/data/0") + 100] ^= 1
    (tmp_path / "m-5.pt").write_bytes(content)
    TORCH.check(tmp_path, "m-5.pt")
    assert TORCH.inspect(tmp_path, "m-5.pt").digest != before.digest


class Planted:
    """Writes a file when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.write_text, (self.path, "it ran")


@pytest.mark.parametrize("protocol", [2, 4])
def test_a_planted_pickle_never_runs(tmp_path, root, new_catalog, pins, protocol):
    """Found, inspected, checked, pinned: whatever the daemon does with the file, its pickle stays bytes."""
    proof = tmp_path / "proof"
    planted = pickle.dumps({"step": 7, "model": Planted(proof)}, protocol=protocol)
    with zipfile.ZipFile(root / "m-5.pt", "w") as archive:
        archive.writestr("m-5/data.pkl", planted)
        archive.writestr("m-5/data/0", b"weights")
        archive.writestr("m-5/version", b"3\n")
    (found,) = new_catalog(quiet_seconds=0).scan().found
    assert found.checkpoint.step == 7
    pinned = pin(found, pins, check=True)
    assert verify(pinned.folder, "m-5.pt", "torch_zip") == found.checkpoint.digest
    assert inspect_one(root / "m-5.pt").step == 7
    assert not proof.exists()
    pickle.loads(planted)
    assert proof.read_text() == "it ran"


@pytest.mark.torch
@pytest.mark.parametrize("called", [os.system, eval, getattr])
def test_a_planted_pickle_never_runs_in_a_worker(tmp_path, called):
    """It is refused by name, without the advice to allow it that other classes get."""
    import torch

    from sidecar.evaluation.backends.torch.weight_files import load
    from sidecar.evaluation.failures import EvaluationError

    proof = tmp_path / "proof"
    arguments = {os.system: (f"touch {proof}",), eval: (f"open({str(proof)!r}, 'w')",), getattr: (1, "real")}

    class Attack:
        def __reduce__(self):
            return called, arguments[called]

    torch.save({"model": Attack(), "step": 3}, tmp_path / "m.pt")
    with pytest.raises(EvaluationError) as caught:
        load(str(tmp_path / "m.pt"))
    assert called.__name__ in str(caught.value)
    assert "add_safe_globals" not in str(caught.value)
    assert not proof.exists()


@pytest.mark.torch
def test_the_advice_for_classes_of_the_user_works(tmp_path, monkeypatch):
    """Also for a class of the script that was started, and for classes of several modules."""
    import torch

    from sidecar.evaluation.backends.torch.weight_files import load
    from sidecar.evaluation.failures import EvaluationError

    (tmp_path / "words.py").write_text(
        "import argparse, pathlib, torch\n"
        "class Words:\n    pass\n"
        "if __name__ == '__main__':\n"
        "    torch.save({'w': Words(), 'o': argparse.Namespace(), 'p': pathlib.PurePosixPath()}, 'm.pt')\n"
    )
    subprocess.run([sys.executable, "words.py"], cwd=tmp_path, check=True, timeout=600)
    with pytest.raises(EvaluationError) as caught:
        load(str(tmp_path / "m.pt"))
    monkeypatch.syspath_prepend(tmp_path)
    try:
        exec(str(caught.value).partition("task's file: ")[2].replace("TRAINING_SCRIPT", "words"), {})
        loaded = load(str(tmp_path / "m.pt")).content
    finally:
        torch.serialization.clear_safe_globals()
    assert [type(each).__name__ for each in loaded.values()] == ["Words", "Namespace", "PurePosixPath"]


def test_the_daemons_code_has_no_way_to_unpickle():
    """No module of the formats has `pickle` or a framework in its process."""
    code = (
        "import sys; from sidecar.checkpoints.formats import FORMATS; from sidecar.checkpoints.catalog import Catalog; "
        "FORMATS['torch_zip'].inspect(__import__('pathlib').Path(sys.argv[1]), 'm-5.pt'); "
        "print([name for name in ('torch', 'numpy', 'tensorflow') if name in sys.modules])"
    )
    folder = Path(__file__).parents[1] / "recorded" / "kinds" / "torch_training"
    done = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("kind", "remedy"),
    [
        ("legacy", "_use_new_zipfile_serialization=False"),
        ("script", r"TorchScript.*state_dict"),
        ("exported", r"torch\.export.*state_dict"),
    ],
)
def test_other_files_of_torch_are_refused(recorded, root, new_catalog, clock, kind, remedy):
    """With the reason and what to do; they wait a while, and are corrupt then."""
    shutil.copytree(recorded.torch / kind, root, dirs_exist_ok=True)
    with pytest.raises(CorruptError, match=remedy):
        TORCH.inspect(root, "m-5.pt")
    catalog = new_catalog()
    assert [name for name, _ in catalog.scan().waiting] == ["m-5.pt"]
    clock.seconds += 61
    scan = catalog.scan()
    assert (scan.found, [given_up.name for given_up in scan.corrupt]) == ((), ["m-5.pt"])


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ({"a/readme.txt": b""}, "no data.pkl"),
        ({"data.pkl": b"", "a/data/0": b""}, "no data.pkl"),
        ({"a/data.pkl": b"", "b/data/0": b""}, "not one of torch.save"),
        ({"a/inner/data.pkl": b""}, "no data.pkl"),
    ],
)
def test_other_zip_archives_are_refused(tmp_path, members, reason):
    """Data sets and other archives with a suffix of checkpoints."""
    with zipfile.ZipFile(tmp_path / "m.pt", "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    with pytest.raises(CorruptError, match=reason):
        TORCH.inspect(tmp_path, "m.pt")


def test_compressed_members_are_refused(tmp_path):
    """PyTorch maps them into memory, and cannot if they are compressed."""
    with zipfile.ZipFile(tmp_path / "m.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("m/data.pkl", pickle.dumps({}))
        archive.writestr("m/data/0", bytes(1000))
    with pytest.raises(CorruptError, match="compressed"):
        TORCH.inspect(tmp_path, "m.pt")


PARTS = [
    "optimizer.pt",
    "optimizer_1.pt",
    "scheduler.pt",
    "scaler.pt",
    "rng_state.pth",
    "rng_state_3.pth",
    "training_args.bin",
    "optimizer.bin",
    "adapter_model.bin",
    "pytorch_model-00001-of-00002.bin",
    "mp_rank_00_optim_states.pt",
    "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt",
    "m.pt2",
]


@pytest.mark.parametrize("name", PARTS)
def test_parts_of_checkpoints_are_no_checkpoints(written, root, new_catalog, name):
    """The files that Trainers save next to the model are not taken for a model, whatever they contain."""
    shutil.copy(written / "torch_training" / "m-5.pt", root / name)
    assert file_group(name) is None
    scan = new_catalog(quiet_seconds=0).scan()
    assert (scan.found, scan.waiting) == ((), ())
    with pytest.raises(VanishedError):
        inspect_one(root / name)


@pytest.mark.parametrize(
    "name",
    [
        *("m.pt", "m.pth", "m.ckpt", "m.pt.tar", "m.pth.tar", "pytorch_model.bin", "pytorch_model_fsdp.bin"),
        *("optimizer-5.pt", "my_scheduler.pt", "last.ckpt", "model_best.pth.tar"),
    ],
)
def test_names_of_checkpoints(written, root, new_catalog, name):
    """As PyTorch's own examples, Lightning and Hugging Face name them."""
    shutil.copy(written / "torch_training" / "m-5.pt", root / name)
    (found,) = new_catalog(quiet_seconds=0).scan().found
    assert (found.checkpoint.name, found.checkpoint.step) == (name, 5)


def lightning(recorded, root: Path, kind: str) -> Path:
    """Copy a folder of Lightning, with its links."""
    shutil.copytree(recorded.torch / kind, root, dirs_exist_ok=True, symlinks=True)
    return root


@pytest.mark.parametrize(
    ("kind", "found", "other"),
    [
        ("lightning_last", ["epoch=0-step=5.ckpt", "epoch=1-step=10.ckpt"], "epoch=1-step=10.ckpt"),
        ("lightning_link", ["epoch=0-step=5.ckpt", "epoch=1-step=10.ckpt"], "epoch=1-step=10.ckpt"),
        ("lightning_best_and_last", ["epoch=0-step=5.ckpt"], "epoch=0-step=5.ckpt"),
    ],
)
def test_last_is_not_evaluated_twice(recorded, root, new_catalog, kind, found, other):
    """`last.ckpt` holds the state that was saved just before under its own name, whether it is a copy or a link."""
    lightning(recorded, root, kind)
    scan = new_catalog(quiet_seconds=0).scan()
    assert [each.checkpoint.name for each in scan.found] == found
    assert scan.left_out == (("last.ckpt", f"it has the training state of {other}"),)
    assert (scan.waiting, scan.corrupt) == ((), ())


def test_last_alone_is_evaluated(recorded, root, new_catalog):
    """As with `save_top_k=0`, or if another state is the best: no other name holds its state."""
    lightning(recorded, root, "lightning_last")
    (root / "epoch=1-step=10.ckpt").unlink()
    scan = new_catalog(quiet_seconds=0).scan()
    assert [each.checkpoint.name for each in scan.found] == ["epoch=0-step=5.ckpt", "last.ckpt"]
    assert [each.checkpoint.step for each in scan.found] == [5, 10]
    assert scan.left_out == ()


def test_last_stays_left_out_when_the_other_is_deleted(recorded, root, new_catalog, clock):
    """Training keeps the best few only; the state was evaluated under its own name. A new one under the name counts."""
    lightning(recorded, root, "lightning_last")
    catalog = new_catalog(quiet_seconds=0)
    catalog.scan()
    (root / "epoch=1-step=10.ckpt").unlink()
    for _ in range(3):
        clock.seconds += 100
        scan = catalog.scan()
        assert [each.checkpoint.name for each in scan.found] == ["epoch=0-step=5.ckpt"]
        assert [name for name, _ in scan.left_out] == ["last.ckpt"]
    shutil.copy(recorded.kinds / "lightning" / "m-5.ckpt", root / "last.ckpt")
    scan = catalog.scan()
    assert [each.checkpoint.name for each in scan.found] == ["epoch=0-step=5.ckpt", "last.ckpt"]


def test_last_counts_if_it_alone_is_looked_for(recorded, root, new_catalog):
    """The other name is not one that `checkpoint_glob` accepts."""
    lightning(recorded, root, "lightning_last")
    scan = new_catalog(quiet_seconds=0, checkpoint_glob=("last*",)).scan()
    assert [each.checkpoint.name for each in scan.found] == ["last.ckpt"]


def test_last_of_another_state_is_evaluated(recorded, root, new_catalog):
    """The same step and size, but other weights."""
    lightning(recorded, root, "lightning_last")
    shutil.copy(recorded.torch / "lightning_link" / "epoch=1-step=10.ckpt", root / "last.ckpt")
    scan = new_catalog(quiet_seconds=0).scan()
    assert "last.ckpt" in [each.checkpoint.name for each in scan.found]


@pytest.mark.parametrize("name", ["last-v1.ckpt", "last-v12.ckpt"])
def test_last_of_a_second_training(recorded, root, new_catalog, name):
    """Lightning counts versions if the file is there already."""
    lightning(recorded, root, "lightning_last")
    (root / "last.ckpt").rename(root / name)
    assert new_catalog(quiet_seconds=0).scan().left_out == (
        (name, "it has the training state of epoch=1-step=10.ckpt"),
    )


def test_other_names_of_the_same_state_are_checkpoints(recorded, root, new_catalog):
    """A copy that a user made under a name of their own is evaluated; a link is only another name."""
    lightning(recorded, root, "lightning_last")
    (root / "last.ckpt").rename(root / "mine.ckpt")
    (root / "best.ckpt").symlink_to("mine.ckpt")
    scan = new_catalog(quiet_seconds=0).scan()
    assert "mine.ckpt" in [each.checkpoint.name for each in scan.found]
    assert scan.left_out == (("best.ckpt", "it has the training state of mine.ckpt"),)


def test_last_is_compared_with_few_files(recorded, root):
    """In a folder of many files, those of a similar size that were written at about the same time."""
    lightning(recorded, root, "lightning_last")
    for number in range(50):
        shutil.copy(root / "epoch=0-step=5.ckpt", root / f"epoch={number + 9}.ckpt")
        os.utime(root / f"epoch={number + 9}.ckpt", (number, number))
    names = saved_before(root, "last.ckpt")
    assert (names[0], len(names)) == ("epoch=1-step=10.ckpt", 4)
    assert "last.ckpt" in list_files(root).files
