"""Training of PyTorch under torchrun, with the daemon beside it: each number is that of a plain loop."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from examples.example_programs import SIDECAR, copied, run

pytestmark = [pytest.mark.torch, pytest.mark.seconds, pytest.mark.timeout(900)]

TORCHRUN = str(Path(sys.executable).with_name("torchrun"))
TASKS = {"ddp": "ddp_task", "lightning": "lightning_task", "hugging_face": "hugging_face_task", "dcp": "ddp_task"}
SAVED = {
    "ddp": {"step-14.pt": 14, "step-28.pt": 28, "step-42.pt": 42},
    "lightning": {"step=14.ckpt": 14, "step=28.ckpt": 28, "step=42.ckpt": 42},
    "hugging_face": {"checkpoint-28": 28, "checkpoint-42": 42},
    "dcp": {"step-14": 14, "step-28": 28, "step-42": 42},
}
"""Return the checkpoints after the training, with their steps. The Trainer has deleted its first checkpoint by then."""

PATIENCE_SECONDS = 600.0


def evaluated(folder):
    """The rows of `sidecar history` about evaluations."""
    done = subprocess.run(
        [SIDECAR, "history", "ckpts", "--json"], cwd=folder, capture_output=True, text=True, timeout=240, check=False
    )
    rows = json.loads(done.stdout) if done.returncode == 0 else []
    return {row["checkpoint"]: row for row in rows if row["status"] == "succeeded"}


@pytest.fixture(params=[pytest.param(kind, marks=pytest.mark.nightly if kind != "ddp" else ()) for kind in SAVED])
def trained(request, tmp_path):
    """A kind, the folder in which it was trained and evaluated, and the rows of the evaluations."""
    kind, folder = request.param, copied(tmp_path / "examples")
    shutil.copy(Path(__file__).with_name("plain_loop.py"), folder)
    (folder / "ckpts").mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SIDECAR_")}
    environment |= {"OMP_NUM_THREADS": "1"}
    command = [SIDECAR, "run", "ckpts", "--task", f"{TASKS[kind]}.py:task", "--replicas", "2", "--http", "127.0.0.1:0"]
    with (folder / "daemon.log").open("w") as log:
        daemon = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
    try:
        run(folder, TORCHRUN, "--standalone", "--nproc-per-node", "2", f"{kind}_train.py", "ckpts")
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not SAVED[kind].keys() <= (rows := evaluated(folder)).keys():
            assert daemon.poll() is None, (folder / "daemon.log").read_text()[-4000:]
            assert time.monotonic() < deadline, (folder / "daemon.log").read_text()[-4000:]
            time.sleep(0.5)
    finally:
        daemon.send_signal(signal.SIGINT)
        daemon.wait(240)
    return kind, folder, rows


@pytest.mark.nightly
def test_each_number_is_that_of_a_plain_loop(trained):
    """Counts are equal, and the mean loss to its last digits; each checkpoint once, with its step, by two workers."""
    kind, folder, rows = trained
    assert {name: rows[name]["step"] for name in SAVED[kind]} == SAVED[kind]
    assert not [name for name in rows if "last" in name], "the same state again"
    for name in SAVED[kind]:
        found = rows[name]["metrics"]["test"]
        plain = json.loads(run(folder, sys.executable, "plain_loop.py", kind, f"ckpts/{name}").splitlines()[-1])
        accuracy, loss = ("val_accuracy", "val_loss") if kind == "lightning" else ("accuracy", "loss")
        assert round(found[accuracy]["value"] * 397, 3) == plain["right"]
        assert found[loss]["value"] == pytest.approx(plain["loss"], rel=1e-6)
        assert (rows[name]["workers"], rows[name]["examples"]) == (2, {"test": 397})
    if kind == "ddp":
        cells = json.loads((folder / "results.ipynb").read_text())["cells"]
        code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
        accuracy = rows["step-42.pt"]["metrics"]["test"]["accuracy"]["value"]
        assert run(folder, sys.executable, "-c", code) == f"{accuracy} True\n", "the bits of the daemon's number"
