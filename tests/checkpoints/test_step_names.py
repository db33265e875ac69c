"""Read a step out of a file's name, alone and compared with the names next to it."""

import random

import pytest

from sidecar.checkpoints.step_names import NamedSteps, step_in_name

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
    """A number that all names of one shape share is not the step; one that differs may be."""
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
