"""20,000 mutants of recorded checkpoints: each has an answer, soon, and in little memory."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from checkpoints.recorded import RECORDED

KINDS = sorted(path.name for path in (RECORDED / "kinds").iterdir())
MUTANTS = -(-20_000 // len(KINDS))
MOST_SECONDS = 1.0  # of CPU time, for one call
MOST_BYTES = 50 << 20
SEEDS = 20_000_000  # far from those of other tests


def tried(kind: str, count: int, first: int, work: Path) -> dict:
    """Return what the program found."""
    program = Path(__file__).with_name("mutants.py")
    command = [sys.executable, program, RECORDED / "kinds" / kind, count, first, work / kind]
    environ = os.environ | {"PYTHONPATH": str(program.parents[1])}
    ended = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, text=True, check=True, env=environ)
    return json.loads(ended.stdout)


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", KINDS)
def test_mutants_have_an_answer(tmp_path, kind, record_property):
    """A `CheckpointError` or an inspection, whatever was changed."""
    found = tried(kind, MUTANTS, SEEDS, tmp_path)
    record_property("calls", found["calls"])
    assert found["unhandled"] == {}
    assert found["slowest"][0] < MOST_SECONDS, found["slowest"]
    assert found["grown"] < MOST_BYTES


@pytest.mark.seconds
@pytest.mark.parametrize("kind", ["safetensors_shards", "dcp_sharded", "torch_training", "tf_object_sharded"])
def test_some_mutants_have_an_answer(tmp_path, kind):
    """As above, a few of each group of formats."""
    found = tried(kind, 30, SEEDS // 2, tmp_path)
    assert found["calls"] >= 90
    assert (found["unhandled"], found["grown"] < MOST_BYTES) == ({}, True)
