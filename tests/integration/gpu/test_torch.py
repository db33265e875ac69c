"""A language model of PyTorch on a GPU: its numbers, its types, its memory, and processes that divide it over NCCL."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch

TASKS = Path(__file__).parents[2] / "tasks"
LIMIT_MB = 2048
RIGHT = """
import sys, torch
from divided_lm import build_model, test_set
torch.manual_seed(3)
model = build_model()
torch.save(model.state_dict(), sys.argv[1])
rows, labels = test_set().tensors
with torch.no_grad():
    scores = model.double().eval()(rows).logits[:, -1]
loss = torch.nn.functional.cross_entropy(scores, labels)
two = scores.topk(2).values
print(loss.item(), int((scores.argmax(1) == labels).sum()), float((two[:, 0] - two[:, 1]).min()))
"""


@pytest.fixture(scope="module")
def saved(device, tmp_path_factory):
    """A checkpoint, and what a loop over all examples in float64 finds on the CPU: loss, and right examples."""
    del device  # skipped before anything is started
    path = tmp_path_factory.mktemp("torch") / "step-10.pt"
    environment = os.environ | {"PYTHONPATH": str(TASKS), "CUDA_VISIBLE_DEVICES": "-1"}
    words = [sys.executable, "-W", "ignore", "-c", RIGHT, path]
    found = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=300, check=True).stdout
    loss, right, nearest = map(float, found.split())
    assert nearest > 1e-4, "no example may be right by rounding alone"
    return path, loss, right


@pytest.fixture(scope="module")
def evaluate(sidecar, device, saved, tasks):
    """Evaluates the checkpoint with some settings: the row, and what the log of each worker process tells."""

    def run(*options, **environ):
        words = ("eval", saved[0], "--task", f"{tasks}/torch_on_device.py:task", "--json", *options)
        given = {"SIDECAR_DEVICES": device, "SIDECAR_FRAMEWORK": "torch", "PYTHONPATH": str(TASKS)}
        program = sidecar.start(*words, **given | environ)
        ended = program.wait()
        assert ended.code == 0, ended.err
        log = "".join(path.read_text() for path in (program.folder / "logs").glob("*.log"))
        seen = [json.loads(line) for line in re.findall(r"^SEEN (.*)$", log, re.MULTILINE)]
        assert seen
        return json.loads(ended.out), seen, log

    return run


@pytest.fixture(scope="module")
def usual(evaluate):
    """One evaluation with the settings as they are."""
    return evaluate()


def numbers(row):
    return {name: each["hex"] for name, each in row["metrics"]["test"].items()}


def check(row, saved, precision):
    _, loss, right = saved
    assert row["examples"] == {"test": 45}
    assert row["metrics"]["test"]["loss"]["value"] == pytest.approx(loss, rel=precision)
    assert abs(row["metrics"]["test"]["accuracy"]["value"] - right / 45) < (1e-12 if precision < 1e-3 else 0.1)


def test_the_numbers_are_those_of_a_cpu(usual, saved, device):
    """Those of float64 within the precision of float32, computed on the device."""
    row, seen, _ = usual
    check(row, saved, 1e-4)
    wanted = ("cpu", 0) if device == "cpu" else ("cuda:0", 1)
    assert {(each["device"], each["gpus"]) for each in seen} == {wanted}
    assert (row["profile"]["device"] == "CPU") == (device == "cpu")


def test_the_numbers_are_repeatable(evaluate, usual):
    """To the bit, by another process."""
    assert numbers(evaluate()[0]) == numbers(usual[0])


def test_two_replicas_have_the_bits_of_one(evaluate, usual):
    """Both compute on the one device."""
    row, _, _ = evaluate("--replicas", "2", SIDECAR_SHARE_GPU="true")
    assert row["workers"] == 2
    assert numbers(row) == numbers(usual[0])


def test_bfloat16(evaluate, saved):
    """The weights have this type, and the numbers its precision."""
    row, seen, _ = evaluate(PRECISION="bfloat16")
    assert {each["type"] for each in seen} == {"torch.bfloat16"}
    check(row, saved, 2e-2)


@pytest.mark.usefixtures("only_gpu")
def test_memory_has_a_limit(evaluate, usual):
    """`gpu_memory_mb` is a part of the memory of the GPU; the numbers stay what they are."""
    query = ["nvidia-smi", "--id=0", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    total = int(subprocess.run(query, capture_output=True, text=True, timeout=60, check=True).stdout) * 1.048576
    row, seen, _ = evaluate(SIDECAR_GPU_MEMORY_MB=str(LIMIT_MB))
    if seen[0]["part"] is None:
        pytest.skip("this release of torch does not tell the part")
    assert seen[0]["part"] == pytest.approx(LIMIT_MB / total, rel=0.1)
    assert usual[1][0]["part"] == pytest.approx(1.0)
    assert numbers(row) == numbers(usual[0])


@pytest.mark.parametrize("way", ["tensor", "fully_shard"])
def test_two_processes_divide_the_model(evaluate, saved, device, two_gpus, way):
    """Over NCCL, as its own log shows, or over gloo on a CPU: two workers are only tried where there are four GPUs."""
    environ = {"SIDECAR_PROCESSES_PER_WORKER": "2", "SIDECAR_MODEL_PARALLEL": way, "NCCL_DEBUG": "INFO"}
    row, seen, log = evaluate(**environ | {"SIDECAR_DEVICES": two_gpus})
    check(row, saved, 1e-4)
    assert row["profile"]["model parallel"] == way
    assert {each["device"] for each in seen} == {"cpu" if device == "cpu" else "cuda:0"}
    assert bool(re.search(r"NCCL INFO .*nranks 2", log)) == (device != "cpu")
