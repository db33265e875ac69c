"""Forty rounds: daemons and their processes are killed while checkpoints come and every sink is in trouble."""

import json
import random
import signal

import psutil
import pytest
from integration.trial import kill
from receivers import raw_server

pytestmark = pytest.mark.timeout(1800)

ROUNDS = 40
NODES = ("worker-0", "worker-1")


def silent(connection, ended):
    """Take a connection, and say nothing."""
    ended.wait(0.2)
    connection.recv(1 << 20)


def test_forty_rounds_of_kills(trial, tmp_path, until):
    """Each checkpoint is evaluated once and right, each result is in TensorBoard once, and nothing is left over."""
    choose = random.Random(4711)
    with raw_server(silent) as hole:
        hooks = {"result": {"url": hole, "timeout_seconds": 1}, "best": ["sleep", "600"], "failure": ["false"]}
        settings = {
            "SIDECAR_HOOKS": json.dumps(hooks),
            "SIDECAR_BEST_METRIC": "test/loss",
            "SIDECAR_REMOTE_WRITE": f"{hole}/api/v1/write",
            "SIDECAR_TENSORBOARD_DIR": str(tmp_path / "board"),
            "SIDECAR_SINK_TIMEOUT_SECONDS": "2",
            "SIDECAR_MAX_ATTEMPTS": "20",
        }
        for node in NODES:
            trial.start(node, **settings)
        for _ in range(ROUNDS):
            trial.save(choose.randint(1, 3))
            node = choose.choice(NODES)
            daemon = trial.daemons[node]
            if choose.random() < 0.6:
                daemon.end(signal.SIGKILL)
                trial.start(node, **settings)
            elif children := daemon.children():
                kill(choose.choice(children))
            done = successes(trial)
            until(
                lambda done=done: successes(trial) > done or successes(trial) == len(trial.saved),
                lambda: f"one more success; they said:\n{trial.words()}",
            )
        trial.judge(failures=2 * ROUNDS, lines=600, unfinished=True)
    assert [process for process in psutil.process_iter() if _is_left(process, hole)] == []


def successes(trial):
    """Return the number of evaluations so far; they may be all that there are to come before a round is over."""
    return len([row for row in trial.rows() if row["status"] == "succeeded"])


def _is_left(process, hole):
    """Return whether a process of the trial lives, of whatever daemon."""
    try:
        return hole in process.environ().get("SIDECAR_REMOTE_WRITE", "")
    except (psutil.Error, ProcessLookupError):
        return False
