"""The first GPU; where there is none, tests are skipped with the reason. `TEST_GPU_ON=cpu` tries the tests on a CPU."""

import os
import shutil
import subprocess

import pytest


@pytest.fixture(scope="session")
def device():
    """Return what `devices` is set to: "0", the first GPU; "cpu" on request."""
    if os.environ.get("TEST_GPU_ON") == "cpu":
        return "cpu"
    program = shutil.which("nvidia-smi")
    listed = subprocess.run([program, "-L"], capture_output=True, text=True).stdout if program else ""
    if "GPU 0:" not in listed:
        pytest.skip("NO GPU HERE, nothing was tried: nvidia-smi finds none")
    return "0"


@pytest.fixture(scope="session")
def two_gpus(device):
    """Return what `devices` is set to for two processes, each with a GPU of its own."""
    if device == "cpu":
        return "cpu"
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60, check=True).stdout
    if "GPU 1:" not in listed:
        pytest.skip("ONE GPU HERE: processes that divide a model over NCCL were not tried")
    return "0,1"


@pytest.fixture
def only_gpu(device):
    """Skips what has no meaning on a CPU."""
    if device == "cpu":
        pytest.skip("only a GPU can be taken by others")


def pytest_terminal_summary(terminalreporter):
    """Say what was not tried."""
    reasons = dict.fromkeys(report.longrepr[2] for report in terminalreporter.stats.get("skipped", []))
    for line in (*reasons, "No test tries a server of vLLM itself, several nodes over NCCL, or MIG"):
        terminalreporter.write_line(f"!!! NOT TRIED: {line.removeprefix('Skipped: ')}")
