"""A trainer that saves ten times a second and keeps one checkpoint, beside a daemon that takes longer for each."""

import os
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

INTEGRATION = Path(__file__).parent
APART_SECONDS = 0.1
START_SECONDS = 240.0  # for TensorFlow, on a busy machine


@dataclass(frozen=True)
class Rapid:
    """Hold what the trainer saved, how the daemon's run ended, and what it said on the way."""

    saved: list
    ended: object
    history: list
    log: list
    pins: list

    @property
    def ends(self):
        """How many checkpoints came to which end."""
        return Counter(row["status"] for row in self.history)

    def of(self, status):
        """The rows of one end."""
        return [row for row in self.history if row["status"] == status]

    def table(self):
        """For people: what became of the saves."""
        found = sum(line["event"] == "checkpoint_found" for line in self.log)
        counts = {"saved": len(self.saved), "found": found, **self.ends}
        waits = sorted(row["phases"]["detect"] for row in self.of("succeeded") if "detect" in row["phases"])
        counts |= {"detect_median": waits[len(waits) // 2], "detect_longest": waits[-1]} if waits else {}
        return ", ".join(f"{name} {number:.3g}" for name, number in counts.items())


def rapid(sidecar, folder, queue, seconds):
    """Let the trainer save for so long; returns when the daemon has ended because of the marker."""
    folder.mkdir()
    options = ("--queue", queue, "--done-marker", "DONE", "--role", "worker")
    daemon = sidecar.run(folder, *options, task="stepped.py", SIDECAR_CACHE_BYTES="0")
    environ = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "KERAS_BACKEND": "tensorflow"}
    with subprocess.Popen(
        [sys.executable, INTEGRATION / "rapid_writer.py", folder, str(seconds), str(APART_SECONDS)],
        env=environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as trainer:
        try:
            daemon.logged("worker_ready")
            out, err = trainer.communicate("begin\n", START_SECONDS + 2 * seconds)
        finally:
            trainer.kill()
    assert trainer.returncode == 0, err[-4000:]
    saved = [int(line) for line in out.splitlines()]
    ended = daemon.wait(START_SECONDS + 10 * seconds)
    return Rapid(saved, ended, daemon.history(), daemon.log(), list(daemon.run_dir.glob("pins/*")))


def judge(found, queue, seconds):
    """Not one restore failed, every number is that of the checkpoint whose step it bears, all are accounted for."""
    told = found.table()
    sys.stderr.write(f"queue={queue}: {told}\n")
    assert found.ends["failed"] == found.ends["corrupt"] == 0, told
    assert {row["attempt"] for row in found.of("succeeded")} == {1}, told
    for row in found.of("succeeded"):
        assert row["metrics"]["test"]["step"]["value"] == row["step"]
    assert len({row["checkpoint"] for row in found.history}) == len(found.history)
    assert {line["checkpoint"] for line in found.log if line["event"] == "checkpoint_found"} <= {
        row["checkpoint"] for row in found.history
    }
    assert len(found.saved) >= 0.5 * seconds / APART_SECONDS, told  # else it was no storm
    assert max(row["step"] for row in found.of("succeeded")) == found.saved[-1], told
    missed = len(found.saved) - found.ends["succeeded"] - found.ends["skipped"]  # too quick to be seen or held
    assert missed <= 0.5 * len(found.saved), told  # on a machine that does other things, too; idle it is next to none
    if queue == "latest":
        assert found.ends["skipped"] > 0.2 * len(found.saved), told
    else:
        assert found.ends["skipped"] == 0, told
    assert (found.ended.code, found.pins) == (0, []), told
