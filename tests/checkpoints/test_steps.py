"""Where the step of a checkpoint is found: in real files of all kinds, and in the names that people write."""

import os
import random
import shutil
from dataclasses import replace

import pytest

from sidecar.checkpoints.discovery_rules import DiscoveryRules
from sidecar.checkpoints.formats.keras_iterations import iterations
from sidecar.checkpoints.inspect import inspect_one
from sidecar.checkpoints.step_names import NamedSteps, step_in_name
from sidecar.checkpoints.step_sources import StepSources
from sidecar.protocol.records import Checkpoint
from sidecar.retention.pins.pin import pin

NAMES = {
    "model.03-0.21": 3,
    "mnist.03-0.21": 3,
    "weights.12-1.75": 12,
    "weights-improvement-05-0.83": 5,
    "m-05--0.83": 5,
    "model_01": 1,
    "epoch_3": 3,
    "epoch3": 3,
    "fraud_model_at_epoch_3": 3,
    "modelEpoch3": 3,
    "epoch_03.0.21": 3,
    "cp-0001": 1,
    "cp-0001.ckpt": 1,
    "ckpt-500": 500,
    "m-500": 500,
    "model.5": 5,
    "0001": 1,
    "weights500": 500,
    "rl_model_500_steps": 500,
    "model_500steps": 500,
    "epoch=3-step=1200": 1200,
    "run3-ckpt-5": 5,
    "run-7/12": 12,
    "vit-b-16/3": 3,
    "epoch_3/model": 3,
    "checkpoints/epoch_03/variables": 3,
    "resnet-50_epoch_3": 3,
    "2026-11-22_step_7": 7,
    "modèle_époque-4": 4,
    "vit-b-16": None,
    "resnet-50": None,
    "ResNet50": None,
    "vit_base_patch16_224": None,
    "gpt-2": None,
    "llama-7b": None,
    "cifar-10": None,
    "seed-42": None,
    "v2": None,
    "model-2026-11-22": None,
    "2026-11-22": None,
    "20261122-120000": None,
    "m-1718900000": None,
    "m-1e-05": None,
    "1e-05": None,
    "lr_0.001": None,
    "m-12-75": None,
    "m-[5]-5": 5,
    "m-1234567890123456789012": None,
    "best": None,
    "": None,
}


@pytest.mark.parametrize("name", NAMES)
def test_a_name_alone(name):
    """Epochs, steps and counters are found; dates, exponents and the numbers of models and settings are not."""
    assert step_in_name(name) == NAMES[name]


@pytest.mark.parametrize(
    "steps",
    [
        {"m-12-75": 12, "m-13-71": 13},
        {"vit-b-16-3": 3, "vit-b-16-4": 4},
        {"resnet-50-3": 3, "resnet-50-4": 4},
        {"resnet-3": 3, "resnet-4": 4},
        {"model_1_500": 500, "model_1_1000": 1000},
        {"lr-1e-05_bs-32-3": 3, "lr-1e-05_bs-32-4": 4},
        {"fold-3-0.91": None, "fold-3-0.87": None},
        {"m-3-0.91": None, "m-3-0.87": None},
        {"epoch_3-0.91": 3, "epoch_3-0.87": 3},
        {"epoch-5-seed-1": 5, "epoch-5-seed-2": 5},
        {"foo12": 12, "foo13": 13},
        {"2026-11-22_3": 3, "2026-11-23_4": 4},
        {"m-2026-11-22": None, "m-2026-11-23": None},
        {"resnet-50": None, "vit-b-16": None, "best": None},
    ],
    ids=lambda steps: next(iter(steps)),
)
def test_names_compared(steps):
    """What is the same in all names of one shape is not the step; what differs may be, a model's number too."""
    names = NamedSteps()
    for each in steps:
        names.add(each)
    assert {each: names.step(each) for each in steps} == steps


def test_any_name_is_answered():
    """Names are anybody's: no error, and nothing that a record could not carry."""
    letters, chance = "0129.-_eE epochstepckptresnetv\udcff\n٣²", random.Random(1)
    names = NamedSteps()
    for _ in range(5000):
        name = "".join(chance.choice(letters) for _ in range(chance.randint(0, 60)))
        names.add(name)
        for step in (step_in_name(name), names.step(name)):
            assert step is None or 0 <= step < 10**15


@pytest.fixture(scope="session")
def optimizers(recorded):
    """Real files of Keras 3 and tf_keras."""
    return recorded.optimizers


def checkpoints(folder):
    """Each checkpoint in a folder, by its name."""
    names = {entry.name.removesuffix(".index") for entry in folder.iterdir() if ".data-" not in entry.name}
    return {name: inspect_one(folder / name) for name in sorted(names) if "_0000" not in name and name != "checkpoint"}


def test_optimizers_tell_the_step(optimizers):
    """Of every kind of file, also where one optimizer wraps another or is never used."""
    found = {name: (each.step, each.step_source) for name, each in checkpoints(optimizers).items()}
    expected = dict.fromkeys(found, (8, "optimizer"))
    expected["gan"] = expected["gan.weights.h5"] = (7, "optimizer")
    expected["many.weights.h5"] = (None, "order")  # a layout that is not read: no error
    assert found == expected
    assert len(found) > 30
    assert {each.format for each in checkpoints(optimizers).values()} == {
        "tf_object",
        "keras",
        "hdf5",
        "keras_shards",
        "saved_model",
    }


def test_settings_come_first(optimizers):
    """`step_key`, then `step_pattern`, then what the file holds, then the name."""
    path = optimizers / "keras_adam"
    assert inspect_one(path).step_source == "optimizer"
    key = "optimizer/_iterations"
    found = inspect_one(path, rules=DiscoveryRules(step_key=key, step_pattern="(2)"))
    assert (found.step, found.step_source) == (8, "step_key")
    shutil.copy(optimizers / "keras_adam.keras", optimizers.parent / "epoch_2.keras")
    found = inspect_one(optimizers.parent / "epoch_2.keras", rules=DiscoveryRules(step_pattern=r"epoch_(\d+)$"))
    assert (found.step, found.step_source) == (2, "step_pattern")
    found = inspect_one(optimizers.parent / "epoch_2.keras", rules=DiscoveryRules(step_pattern=r"other_(\d+)$"))
    assert (found.step, found.step_source) == (8, "optimizer")


def test_damaged_hdf5_has_no_step_and_no_error(optimizers, tmp_path):
    """Whatever bytes are wrong: a count, or none, in bounded time."""
    contents = [(optimizers / name).read_bytes() for name in ("keras_wrapped.weights.h5", "tf_keras_adam.h5")]
    contents.append((optimizers / "few.weights.h5").read_bytes())
    chance, path, told = random.Random(1), tmp_path / "m.h5", set()
    for number in range(3000):
        content = bytearray(contents[number % len(contents)])
        for _ in range(chance.randint(1, 20)):
            at = chance.randrange(min(len(content), 4096) if chance.random() < 0.7 else len(content))
            content[at] = chance.choice((0, 1, 0x7F, 0xFF, chance.randrange(256)))
        path.write_bytes(content[: chance.randrange(len(content)) if chance.random() < 0.1 else None])
        with path.open("rb", buffering=0) as file:
            told.add(iterations(file, 0, path.stat().st_size))
    assert {8, None} <= told
    assert all(each is None or 0 <= each < 2**63 for each in told)


def test_a_group_within_itself_is_bounded(optimizers, tmp_path):
    """An inner optimizer that is the outer one, which has made no steps."""
    content = (optimizers / "keras_wrapped.weights.h5").read_bytes()
    path = tmp_path / "m.h5"
    for name in (b"inner_optimizer\0", b"vars\0"):
        path.write_bytes(content.replace(name, b"\0" * len(name)))
        with path.open("rb", buffering=0) as file:
            assert iterations(file, 0, len(content)) in (0, 8, None)


def test_the_name_where_the_file_holds_no_count(optimizers, root, new_catalog, clock):
    """Compared with the others that lie there; a file whose optimizer never stepped is believed last."""
    for name in ("m-12-75", "m-13-71", "best"):
        shutil.copy(optimizers / "many.weights.h5", root / f"{name}.weights.h5")
    for place, entry in enumerate(sorted(root.iterdir())):
        with entry.open("r+b") as file:  # another content each, of a value that nobody reads
            file.seek(-1 - place, os.SEEK_END)
            file.write(b"\x01")
    catalog = new_catalog()
    catalog.scan()
    clock.seconds += 3
    found = {each.checkpoint.name: each.checkpoint for each in catalog.scan().found}
    assert {name: (each.step, each.step_source) for name, each in found.items()} == {
        "m-12-75.weights.h5": (12, "name"),
        "m-13-71.weights.h5": (13, "name"),
        "best.weights.h5": (None, "order"),
    }


def test_nodes_that_saw_other_names_agree_about_a_pin(put, root, pins, new_catalog):
    """The one that made the pin says it for all: what training deleted before they looked they cannot compare."""
    put("step", "none-1*")
    for entry in list(root.glob("none-1*")):
        for name in ("m-12-75", "m-13-71"):
            shutil.copy(entry, root / entry.name.replace("none-1", name))
        entry.unlink()
    first = new_catalog(quiet_seconds=0)
    by_name = {each.checkpoint.name: each for each in first.scan().found}
    assert by_name["m-13-71"].checkpoint.step == 13
    pin(by_name["m-13-71"], pins)
    for entry in root.glob("m-*"):
        entry.unlink()
    for catalog in (first, new_catalog(quiet_seconds=0)):
        (found,) = catalog.scan().found
        assert (found.checkpoint.step, found.checkpoint.step_source) == (13, "name")
        assert found.checkpoint.pin


def test_a_step_stays_what_it_was(put, root, new_catalog):
    """What was found before there was something to compare with keeps its step: it may be in the journal by now."""
    put("step", "none-1*")
    for entry in list(root.glob("none-1*")):
        entry.rename(root / entry.name.replace("none-1", "m-12-75"))
    catalog = new_catalog(quiet_seconds=0)
    assert [each.checkpoint.step for each in catalog.scan().found] == [None]
    for entry in list(root.glob("m-12*")):
        shutil.copy(entry, root / entry.name.replace("12-75", "13-71"))
    os.utime(root / "m-12-75.index")
    assert {each.checkpoint.name: each.checkpoint.step for each in catalog.scan().found} == {
        "m-12-75": None,
        "m-13-71": 13,
    }


def test_without_steps_the_order_is_that_of_writing(put, root, new_catalog):
    """Not that of the alphabet; and steps of two kinds say nothing of one another."""
    put("step", "none-1*")
    for seconds, name in enumerate(("zebra", "best", "ckpt-7")):
        for entry in list(root.glob("none-1*")):
            copy = root / entry.name.replace("none-1", name)
            shutil.copy(entry, copy)
            os.utime(copy, (1_700_000_000 + seconds, 1_700_000_000 + seconds))
    for entry in list(root.glob("none-1*")):
        entry.unlink()
    names = [each.checkpoint.name for each in new_catalog(quiet_seconds=0).scan().found]
    assert names == ["zebra", "best", "ckpt-7"]


def test_how_steps_were_found_in_one_sentence():
    """With an example of each that is about names; what is new is told again, and doubt is told as such."""
    one = Checkpoint(name="a.keras", digest="d", step=8, format="keras", step_source="optimizer")
    found = StepSources()
    assert found.add([one, one])
    assert not found.are_doubtful
    assert not found.add([one])
    assert found.add([replace(one, name="epoch_3.keras", step=3, step_source="name")])
    assert found.summary() == "step = the optimizer's iterations for 3; the name for 1 (epoch_3.keras is step 3), of 4"
    assert found.are_doubtful
    assert found.add([replace(one, name="best.keras", step=None, step_source="order")])
    assert "a number in order of writing for 1 (best.keras), of 5" in found.summary()
