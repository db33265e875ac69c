"""Lengths that a file claims are never believed: the worst of each format takes bounded memory, time and reading."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from checkpoints.bounded import CAP_BYTES
from checkpoints.hostile import HOSTILE

pytestmark = pytest.mark.seconds

MOST_SECONDS = 20.0  # of CPU time; the slowest takes 4 on an idle core, and compares 250,000 tensors meanwhile
READ_FACTOR = 4  # the index once to inspect it, and twice to compare its tensors; small archives in a row once more
MIB = 1 << 20
READ_BYTES = 80 * MIB  # of files that are mostly holes: 4 KiB of each of 16,384 parts


@pytest.fixture(scope="module")
def runner():
    """Start bounded.py, and return a function that asks it to inspect a checkpoint."""
    with subprocess.Popen(
        [sys.executable, Path(__file__).with_name("bounded.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:

        def ask(folder, format_name, name):
            process.stdin.write(json.dumps({"folder": str(folder), "format": format_name, "name": name}) + "\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        yield ask
        process.stdin.close()


LONGEST = {"as_many_tensors_as_may_be", "graphs_of_as_many_fields_as_may_be"}
"""Takes five times as long as any other one: in `make test-all` alone."""


@pytest.mark.nightly
@pytest.mark.parametrize(
    "what", [pytest.param(what, marks=pytest.mark.nightly if what in LONGEST else ()) for what in HOSTILE]
)
def test_the_worst_is_bounded(runner, tmp_path, tally, what):
    """An answer or a CheckpointError, in little memory, and without reading more than there is."""
    format_name, name, said = HOSTILE[what](tmp_path)
    on_disk = sum(each.stat().st_blocks * 512 for each in tmp_path.rglob("*") if each.is_file())
    size = sum(each.stat().st_size for each in tmp_path.rglob("*") if each.is_file())
    answer = runner(tmp_path, format_name, name)
    tally.measured(what, answer)
    print(
        f"{what}: {size / MIB:.1f} MiB, {answer['seconds']:.2f} s, {answer['memory'] / MIB:.1f} MiB of memory, "
        f"{answer['read'] / MIB:.1f} MiB read: {answer['ended'][-1][:200]}"
    )
    *_, last = answer["ended"]
    for each in answer["ended"]:
        assert each == "whole" or each.split(":")[0] in ("CorruptError", "IncompleteError", "ChecksumError")
        assert len(each) < 1000
    assert said in last
    assert answer["memory"] < CAP_BYTES
    assert answer["seconds"] < MOST_SECONDS
    assert answer["read"] < max(READ_FACTOR * on_disk, min(READ_BYTES, size)) + 200_000
