"""Hooks leave processes in sessions of their own, and one of them never ends: nobody waits for them, or ends them."""

import json
import signal

import pytest
from integration.trial import kill

pytestmark = pytest.mark.timeout(900)

# The process begins a session, says so, and keeps the output of its hook open. TRIAL would make it one of the trial.
LEAVES = """
cat >> {got}; echo >> {got}
env --unset=TRIAL setsid sh -c 'touch {left}/$$; exec sleep 600' &
until test -e {left}/$!; do sleep 0.05; done
"""


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_hooks_leave_sessions_behind(trial, tmp_path, until, alive):
    """Each event comes once and in order, also over a kill, and the daemon ends in time: the sessions live on."""
    left, got, hung = tmp_path / "left", tmp_path / "got", tmp_path / "hung"
    left.mkdir()
    hooks = {
        "result": ["sh", "-c", LEAVES.format(got=got, left=left)],
        "best": {"command": ["sh", "-c", LEAVES.format(got=hung, left=left) + "sleep 600"], "timeout_seconds": 5},
    }
    settings = {
        "SIDECAR_HOOKS": json.dumps(hooks),
        "SIDECAR_BEST_METRIC": "test/loss",
        "SIDECAR_SINK_TIMEOUT_SECONDS": "3",
    }
    try:
        daemon = trial.start(**settings)
        trial.save(3)
        trial.evaluated()
        until(lambda: len(lines(got)) == 3, "three results to be delivered")
        daemon.logged("sink_failed")
        daemon.end(signal.SIGKILL)
        trial.start(**settings)
        trial.save(2)
        trial.evaluated()
        until(lambda: lines(got)[-1]["checkpoint"]["step"] == trial.saved[-1]["step"], "all results to be delivered")
        trial.judge("hook_best", unfinished=True)
        steps = [each["checkpoint"]["step"] for each in lines(got)]
        assert list(dict.fromkeys(steps)) == [each["step"] for each in trial.saved]
        assert len(steps) <= len(trial.saved) + 1  # the newest one may come twice after SIGKILL
        pids = [int(each.name) for each in left.iterdir()]
        assert len(pids) > len(steps)
        assert alive(pids) == pids
    finally:
        for each in left.iterdir():
            kill(int(each.name))
