"""Both trainers of the demo, and the example, stop when the sidecar says so, all processes at the same step."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
SIGNAL = dict.fromkeys(("metric", "best_checkpoint", "checkpoint", "run", "created_at"), "x") | {
    "reason": "no improvement",
    "best": 0.5,
    "best_step": 1,
    "step": 2,
    "patience": 3,
    "schema": 1,
}

pytestmark = [pytest.mark.seconds, pytest.mark.nightly, pytest.mark.timeout(300)]


@pytest.fixture
def told(tmp_path):
    """A checkpoint directory in which the signal is there."""
    folder = tmp_path / "ckpts" / ".sidecar" / "ckpts"
    folder.mkdir(parents=True)
    (folder / "early_stop.json").write_text(json.dumps(SIGNAL))
    return tmp_path / "ckpts"


def train(*command, folder):
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SIDECAR_", "TF_CONFIG"))}
    environment |= {"OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.mark.tensorflow
def test_the_trainer_of_tensorflow(told):
    """After the first checkpoint, which it saves before it asks."""
    module = ("-m", "sidecar.commands.demo.train", "--checkpoints", str(told), "--save-every", "20", "--steps", "100")
    said = train(sys.executable, *module, folder=told.parent)
    assert "step 20: the sidecar saw no improvement" in said
    assert sorted(path.name for path in told.glob("*.index")) == ["ckpt-20.index"]


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
