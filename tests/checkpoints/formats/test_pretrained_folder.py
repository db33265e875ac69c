"""Folders of Hugging Face's Trainer and of `save_pretrained`, as the real libraries wrote them."""

import json
import os
import shutil
from pathlib import Path

import pytest

from sidecar.checkpoints.formats import FORMATS
from sidecar.checkpoints.inspect import inspect_one
from sidecar.errors import ChecksumError, CorruptError, IncompleteError, VanishedError

FOLDER = FORMATS["pretrained_folder"]


@pytest.fixture
def trainer(written, root) -> Path:
    """One checkpoint of the Trainer, under the name that it has."""
    return Path(shutil.copytree(written / "trainer" / "m-5", root / "checkpoint-5"))


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        ("trainer", "variable"),
        ("pretrained", "name"),
        ("pretrained_shards", "name"),
        ("pretrained_bin_shards", "name"),
    ],
)
def test_the_step(written, kind, source):
    """From the Trainer's state if there is one, else from the name."""
    found = inspect_one(written / kind / "m-5")
    assert (found.format, found.step, found.step_source) == ("pretrained_folder", 5, source)


def test_the_step_without_a_number_in_the_name(trainer, root):
    """As `trainer.save_model("best")` with the state beside it."""
    trainer.rename(root / "best")
    assert inspect_one(root / "best").step == 5


def test_the_marker_makes_it_complete_at_once(trainer, new_catalog):
    """Nothing is newer than `trainer_state.json`, which is written last; newer weights wait until they are quiet."""
    now = (trainer / "trainer_state.json").stat().st_mtime_ns
    for path in trainer.iterdir():
        os.utime(path, ns=(now, now))
    assert [found.checkpoint.name for found in new_catalog().scan().found] == ["checkpoint-5"]
    os.utime(trainer / "model.safetensors", ns=(now + 1, now + 1))
    ((name, reason),) = new_catalog().scan().waiting
    assert name == "checkpoint-5"
    assert "unchanged for 3 s" in reason


def test_only_weights_and_descriptions_are_needed(trainer):
    """The optimizer is not read, not pinned, and may be any size."""
    names = {file.rpartition("/")[2] for file in FOLDER.inspect(trainer.parent, "checkpoint-5").files}
    assert names == {"model.safetensors", "config.json", "trainer_state.json"}


@pytest.mark.parametrize("begun", ["optimizer.pt", "scheduler.pt", "rng_state.pth", "rng_state_3.pth"])
def test_the_trainer_has_not_finished(trainer, begun):
    """As after a kill: the Trainer itself could not go on from it."""
    for path in trainer.iterdir():
        if path.name not in ("model.safetensors", "config.json", "training_args.bin"):
            path.unlink()
    FOLDER.inspect(trainer.parent, "checkpoint-5")
    (trainer / begun).touch()
    with pytest.raises(IncompleteError) as caught:
        FOLDER.inspect(trainer.parent, "checkpoint-5")
    assert "trainer_state.json" in str(caught.value)
    (trainer / "training_args.bin").unlink()
    FOLDER.inspect(trainer.parent, "checkpoint-5")


def test_a_checkpoint_just_in_time(trainer):
    """The Trainer's sentinel stands while it saves before a preemption."""
    (trainer / "checkpoint-is-incomplete.txt").touch()
    with pytest.raises(IncompleteError):
        FOLDER.inspect(trainer.parent, "checkpoint-5")


@pytest.mark.parametrize("content", [b"", b"{", b'{"global_step": 5', b"{}", b'{"global_step": null}', b"[" * 50_000])
def test_a_state_that_is_cut_off(trainer, content):
    """Or that has no step."""
    (trainer / "trainer_state.json").write_bytes(content)
    with pytest.raises(IncompleteError):
        FOLDER.inspect(trainer.parent, "checkpoint-5")


def test_a_state_of_weeks(trainer):
    """Read the beginning and the end of a long log only."""
    state = json.loads((trainer / "trainer_state.json").read_text())
    state["log_history"] = [{"step": step, "loss": 0.5} for step in range(20_000)]
    content = json.dumps(state, indent=2, sort_keys=True) + "\n"  # as transformers writes it
    (trainer / "trainer_state.json").write_text(content)
    assert FOLDER.inspect(trainer.parent, "checkpoint-5").step == 5
    at = len(content) // 2
    for cut in (len(content) - 2, content.index("}", at) + 1):
        (trainer / "trainer_state.json").write_text(content[:cut])
        with pytest.raises(IncompleteError):
            FOLDER.inspect(trainer.parent, "checkpoint-5")


def test_a_checkpoint_that_is_being_deleted(trainer, new_catalog, clock):
    """Weights go before the marker: nothing is found, and nothing is corrupt as long as the deletion goes on."""
    catalog = new_catalog(quiet_seconds=0)
    assert catalog.scan().found
    for name in ("model.safetensors", "config.json", "optimizer.pt", "trainer_state.json"):
        (trainer / name).unlink()
        clock.seconds += 1
        scan = catalog.scan()
        assert (scan.found, scan.corrupt) == ((), ())


@pytest.mark.parametrize(
    ("inner", "error", "remedy"),
    [
        ("global_step5", CorruptError, "stage3_gather_16bit_weights_on_model_save"),
        ("pytorch_model_fsdp_0", IncompleteError, "checkpoint_glob"),
        ("other", IncompleteError, "no weights"),
    ],
)
def test_folders_without_whole_weights(trainer, inner, error, remedy):
    """Shards that only the program that trains can read are refused with the remedy."""
    (trainer / "model.safetensors").unlink()
    (trainer / inner).mkdir()
    with pytest.raises(error) as caught:
        FOLDER.inspect(trainer.parent, "checkpoint-5")
    assert remedy in str(caught.value)


@pytest.mark.parametrize(
    "name",
    [
        "mp_rank_00_model_states.pt",
        "zero_pp_rank_0_mp_rank_00_model_states.pt",
        "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt",
    ],
)
def test_folders_of_deepspeed_are_refused(root, new_catalog, clock, name):
    """Each once, with the remedy, and not in silence."""
    (root / "global_step5").mkdir()
    (root / "global_step5" / name).write_bytes(b"legacy")
    (root / "latest").write_text("global_step5")
    catalog = new_catalog()
    ((waiting, reason),) = catalog.scan().waiting
    assert waiting == "global_step5"
    assert "zero_to_fp32" in reason
    clock.seconds += 60
    assert [each.name for each in catalog.scan().corrupt] == ["global_step5"]


def test_adapters(written, tmp_path):
    """Peft writes `adapter_model.safetensors`, then `adapter_config.json`."""
    (tmp_path / "step-7").mkdir()
    shutil.copy(written / "safetensors" / "m-5.safetensors", tmp_path / "step-7" / "adapter_model.safetensors")
    with pytest.raises(IncompleteError):
        FOLDER.inspect(tmp_path, "step-7")
    (tmp_path / "step-7" / "adapter_config.json").write_text('{"r": 8}')
    assert inspect_one(tmp_path / "step-7").step == 7


def test_check_finds_a_flipped_weight_where_there_are_checksums(written, tmp_path):
    """Files of `torch.save` have them."""
    shutil.copytree(written / "pretrained_bin_shards", tmp_path, dirs_exist_ok=True)
    path = tmp_path / "m-5" / "pytorch_model-00001-of-00002.bin"
    content = bytearray(path.read_bytes())
    content[content.find(b"data/0") + 100] ^= 1
    path.write_bytes(content)
    FOLDER.inspect(tmp_path, "m-5")
    with pytest.raises(ChecksumError):
        FOLDER.check(tmp_path, "m-5")


def test_what_is_no_such_folder(root, new_catalog, tmp_path):
    """An empty folder, one of logs, a link to a good one."""
    (root / "empty").mkdir()
    (root / "runs").mkdir()
    (root / "runs" / "events.out.tfevents.1").touch()
    (root / "link").symlink_to(tmp_path)
    assert new_catalog(quiet_seconds=0).scan().found == ()
    for name in ("empty", "runs", "link", "nowhere"):
        with pytest.raises(VanishedError):
            FOLDER.inspect(root, name)
