"""Evaluations on a GPU: what is taken of it, who else may be there, what the numbers are. `make test-gpu`."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass

import pytest

pytestmark = pytest.mark.tensorflow

LIMIT_MB = 2048
SHARED = {"SIDECAR_SHARE_GPU": "true", "SIDECAR_GPU_MEMORY_MB": str(LIMIT_MB)}
HOLD = """
import tensorflow as tf
tf.config.experimental.set_memory_growth(tf.config.list_physical_devices("GPU")[0], True)
kept = tf.random.normal([1000, 1000]) @ tf.ones([1000, 1000])
print("HELD", flush=True)
input()
"""


@dataclass(frozen=True)
class Evaluated:
    """Hold what `sidecar eval` printed, and what its workers saw."""

    row: dict
    seen: list

    @property
    def numbers(self):
        """Every number to the bit."""
        return {name: each["hex"] for name, each in self.row["metrics"]["test"].items()}


def seen_in(log):
    return [json.loads(line.removeprefix("SEEN ")) for line in log.splitlines() if line.startswith("SEEN ")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("gpu") / "ckpts"


@pytest.fixture(scope="module")
def saved(device, writer, folder):
    del device  # skipped before anything is started
    (found,) = writer.save(folder, 10)
    return found


@pytest.fixture(scope="module")
def evaluate(sidecar, device, saved, folder, tasks):
    """Evaluates the checkpoint on the device with some settings."""

    def run(**environ):
        words = ("eval", folder / saved["name"], "--task", f"{tasks}/on_device.py:task", "--json")
        program = sidecar.start(*words, **{"SIDECAR_DEVICES": device} | environ)
        ended = program.wait()
        assert ended.code == 0, ended.err
        logs = "".join(path.read_text() for path in (program.folder / "logs").glob("*.log"))
        return Evaluated(json.loads(ended.out), seen_in(logs))

    return run


@pytest.fixture(scope="module")
def usual(evaluate):
    """One evaluation with the settings as they are."""
    return evaluate()


@pytest.fixture
def daemons(sidecar, device, folder, tmp_path):
    """Starts two daemons, as on two nodes, on a fresh state directory; the second may have other settings."""

    def start(**second):
        state = tmp_path / "state"
        common = {"SIDECAR_DEVICES": device, **SHARED}
        return [
            sidecar.run(
                folder,
                *("--node", f"node-{index}", "--host", "127.0.0.1", "--state-dir", state),
                task="on_device.py",
                **common | more,
            )
            for index, more in enumerate(({}, second))
        ]

    return start


def rows(sidecar, folder, tmp_path):
    """Return what the journal of those daemons holds."""
    ended = sidecar.command(
        "history", "--json", "--checkpoint-dir", folder, "--state-dir", tmp_path / "state", "--run", folder.name
    )
    return json.loads(ended.out or "[]")


def check(numbers, saved):
    """Counts are those of plain Keras on a CPU; the loss is so within the precision of float32."""
    assert numbers["accuracy"]["value"] == saved["correct"] / saved["examples"]
    assert numbers["loss"]["value"] == pytest.approx(saved["loss"], rel=1e-4)


def test_the_numbers_are_those_of_a_cpu(usual, saved, device):
    """And they were computed on the device."""
    check(usual.row["metrics"]["test"], saved)
    assert usual.row["examples"] == {"test": saved["examples"]}
    assert [each["computed_on"] for each in usual.seen] == ["CPU:0" if device == "cpu" else "GPU:0"]


def test_memory_is_taken_as_it_is_needed(usual, device):
    """TensorFlow's own habit is to take all; a trainer beside it needs the rest."""
    (seen,) = usual.seen
    if device == "cpu":
        assert (seen["gpus"], seen["growth"]) == (0, [])
    else:
        assert (seen["gpus"], seen["growth"], seen["limits"]) == (1, [True], [])
        query = ["nvidia-smi", "--id=0", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
        total = int(subprocess.run(query, capture_output=True, text=True, check=True).stdout)
        assert seen["used_mb"] < total / 4


def test_memory_has_a_limit(evaluate, usual, device):
    """`gpu_memory_mb` makes a logical device of that size; the numbers stay what they are."""
    limited = evaluate(SIDECAR_GPU_MEMORY_MB=str(LIMIT_MB))
    assert [each["limits"] for each in limited.seen] == ([[]] if device == "cpu" else [[LIMIT_MB]])
    assert limited.numbers == usual.numbers


@pytest.mark.usefixtures("only_gpu")
def test_a_gpu_on_which_another_computes(sidecar, device, folder, tasks, usual):
    """Refused with the process that is there; `share_gpu` permits it."""
    words = ("check", "--checkpoint-dir", folder, "--task", f"{tasks}/on_device.py:task")
    with subprocess.Popen(
        [sys.executable, "-c", HOLD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"},
    ) as other:
        assert "HELD" in other.stdout.readline(), usual
        refused = sidecar.command(*words, SIDECAR_DEVICES=device)
        permitted = sidecar.command(*words, SIDECAR_DEVICES=device, SIDECAR_SHARE_GPU="true")
        other.kill()
    assert refused.code == 2
    assert "computes on it" in refused.err
    assert "share_gpu = true" in refused.err
    assert permitted.code == 0, permitted.err


def test_two_replicas_on_logical_devices_of_one_gpu(daemons, sidecar, saved, folder, usual, tmp_path):
    """Each with its own part of the memory and of the data: the same bits as one."""
    first, second = daemons()
    first.until(lambda: rows(sidecar, folder, tmp_path), "an evaluation by both")
    (row,) = rows(sidecar, folder, tmp_path)
    assert (row["status"], row["workers"]) == ("succeeded", 2), row
    check(row["metrics"]["test"], saved)
    assert {name: each["hex"] for name, each in row["metrics"]["test"].items()} == usual.numbers
    limits = [seen["limits"] for each in (first, second) for seen in seen_in(each.worker_logs())]
    assert limits == [usual.seen[0]["gpus"] * [LIMIT_MB]] * 2


def test_other_devices_are_refused(daemons, sidecar, saved, folder, device, tmp_path):
    """A group of a GPU and a CPU has no numbers, and the failure names both nodes; on a CPU, other threads do."""
    first, _ = daemons(**({"SIDECAR_THREADS": "3"} if device == "cpu" else {"SIDECAR_DEVICES": "cpu"}))
    first.until(lambda: rows(sidecar, folder, tmp_path), "a failed attempt")
    row = rows(sidecar, folder, tmp_path)[0]
    assert (row["status"], row["kind"], row["checkpoint"]) == ("failed", "mismatch", saved["name"]), row
    entry, other = ("threads is '2'", "'3'") if device == "cpu" else ("device is '1 x ", "'CPU'")
    assert entry in row["message"]
    assert f"rank 0 on node-0 against {other} for rank 1 on node-1" in row["message"]


def test_nccl(evaluate, usual):
    """A group over NCCL; of one rank, since two of them on one GPU is what NCCL refuses."""
    found = evaluate(SIDECAR_COLLECTIVES="nccl", SIDECAR_ALWAYS_CLUSTER="true")
    assert found.numbers == usual.numbers
