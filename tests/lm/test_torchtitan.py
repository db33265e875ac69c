"""The recipe for torchtitan with torchtitan itself, whose models can be imported with triton alone."""

import json
import sys

import pytest
from lm.test_recipe import PYTHON, ROOT, recipe  # noqa: F401 - a fixture

PACKAGES = ROOT / ".venv-titan" / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
"""Where `make .venv-titan/.ready` installs torchtitan; `make test-all` does not, as triton takes 700 MB."""

WRITE = """
import numpy, torch
import torch.distributed.checkpoint as dcp
from titan_task import build_model
numpy.random.default_rng(1).integers(0, 2048, 1500).astype("uint16").tofile("val.bin")
torch.manual_seed(2)
model = build_model()
model.init_states()
states = {"train_state": {"step": torch.tensor(20)}, **model.state_dict()}
dcp.save(states, checkpoint_id="outputs/checkpoint/step-20")
"""

pytestmark = [pytest.mark.torch, pytest.mark.nightly, pytest.mark.filterwarnings("ignore")]


@pytest.mark.timeout(1800)
def test_workers_of_two_processes(recipe):  # noqa: F811
    """Tensor parallel by the plan of the page, or divided by rows: the numbers of one process, which joins layers."""
    if not (PACKAGES / "torchtitan").is_dir():
        pytest.skip("NO TORCHTITAN HERE, nothing was tried: make .venv-titan/.ready installs it (700 MB)")
    folder, run, _ = recipe
    surroundings = ("env", f"PYTHONPATH={ROOT}:{PACKAGES}:{folder}", "TORCHDYNAMO_DISABLE=1")
    run(*surroundings, PYTHON, "-c", WRITE)

    def evaluated(task, replicas, settings=""):
        (folder / "own.toml").write_text(settings)
        words = ("eval", "outputs/checkpoint", "--config", "own.toml", "--task", task, "--replicas", replicas, "--json")
        found = json.loads(run(*surroundings, sys.executable, "-m", "sidecar", *words))
        return found["metrics"]["perplexity"]["loss"]["value"], found["profile"].get("model parallel")

    plan, rows = (f'processes_per_worker = 2\nmodel_parallel = "{way}"\n' for way in ("tensor", "fully_shard"))
    alone, _ = evaluated("titan_task.py:task", 1)
    assert evaluated("titan_parallel_task.py:task", 1, rows) == (alone, "fully_shard")
    one, two = (evaluated("titan_parallel_task.py:task", replicas, plan) for replicas in (1, 2))
    assert one == two
    assert one == (pytest.approx(alone, rel=1e-6), "tensor")
