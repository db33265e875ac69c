"""Train with PyTorch until the early stop."""

import re
import sys

import pytest
from commands.demo.trainers import ROOT, train

TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")

pytestmark = [pytest.mark.seconds, pytest.mark.nightly, pytest.mark.timeout(900)]


@pytest.mark.torch
def test_the_trainer_of_pytorch(told):
    """In both processes: one that went on would wait for the other for ever."""
    module = ("-m", "sidecar.commands.demo.train_torch", "--checkpoints", str(told))
    module += ("--save-every", "20", "--steps", "100")
    said = train(*TORCHRUN, *module, folder=told.parent)
    assert "step 20: the sidecar saw no improvement" in said
    assert [path.name for path in told.glob("*.pt")] == ["step-20.pt"]


@pytest.mark.torch
def test_the_example_of_pytorch(told):
    """Both processes stop after the same epoch."""
    said = train(*TORCHRUN, "early_stop_train.py", str(told), folder=ROOT / "examples")
    assert re.findall(r"process (\d) stops after epoch (\d+)", "\n".join(sorted(said.splitlines()))) == [
        ("0", "1"),
        ("1", "1"),
    ]
