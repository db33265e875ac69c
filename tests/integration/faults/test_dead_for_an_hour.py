"""Every receiver is dead for an hour of the daemon's clock: it is asked about once a minute, and has all in the end.

The clock of the daemon and of its processes is made faster for that time, so that the test takes two minutes.
"""

import json
import time

import pytest
from integration.clock import Clock
from publishing.sinks.mlflow_runs import _clean, client, points, runs_of, server
from receivers import receiver

__all__ = ["_clean", "client", "server"]

pytestmark = pytest.mark.timeout(900)

HOUR_SECONDS = 3600.0
RATE = 60.0
SINKS = {"hook_result", "mlflow", "remote_write"}

# All bounds in which something has to happen on the real machine are longer than that hour.
LONG = {
    "SIDECAR_BEAT_SECONDS": "2",
    "SIDECAR_LEASE_SECONDS": str(2 * HOUR_SECONDS),
    "SIDECAR_STALL_SECONDS": str(2 * HOUR_SECONDS),
    "SIDECAR_STORAGE_TIMEOUT_SECONDS": str(2 * HOUR_SECONDS),
    "SIDECAR_SINK_TIMEOUT_SECONDS": "60",
}


class Answers(list):
    """The answers of a receiver: none of its own, or `503` while it is dead. Each of those is counted."""

    def __init__(self):
        super().__init__()
        self.dead, self.tries = False, 0

    def __bool__(self):
        return self.dead

    def pop(self, _):
        """Count a request, and refuse it."""
        self.tries += 1
        return 503


def pending(daemon):
    """Return how many events each sink lacks."""
    return {dict(labels)["sink"]: count for labels, count in daemon.samples("sidecar_sink_pending_results").items()}


def test_every_receiver_is_dead_for_an_hour(trial, tmp_path, server, client):
    """The log says twice what happened, and each result is delivered once, in order, when they are back."""
    clock = Clock(tmp_path / "clock")
    with receiver() as webhook, receiver() as samples:
        asked = webhook.answers, samples.answers = Answers(), Answers()
        hooks = {"result": {"url": webhook.url, "deadline_seconds": 24 * HOUR_SECONDS}}
        daemon = trial.start(
            SIDECAR_HOOKS=json.dumps(hooks),
            SIDECAR_REMOTE_WRITE=samples.url,
            SIDECAR_MLFLOW_TRACKING_URI=server.uri,
            **LONG,
            **clock.environ,
        )
        trial.save(2)
        trial.evaluated()
        daemon.until(lambda: pending(daemon) == dict.fromkeys(SINKS, 0), "the first results to be delivered")

        server.kill()
        for answers in asked:
            answers.dead = True
        trial.save(4)
        trial.evaluated()
        daemon.until(lambda: {line["sink"] for line in daemon.log("sink_failed")} == SINKS, "every sink to fail")
        tries = [answers.tries for answers in asked]
        began = time.monotonic()
        clock.set(0, RATE)
        daemon.until(lambda: RATE * (time.monotonic() - began) > HOUR_SECONDS, "an hour to be over")
        minutes = RATE * (time.monotonic() - began) / 60
        for before, answers in zip(tries, asked, strict=True):
            assert 10 <= answers.tries - before <= minutes + 10
        assert pending(daemon) == dict.fromkeys(SINKS, 4)
        assert daemon.get("/healthz") == (200, "ok\n")

        clock.set(0)
        server.start()
        for answers in asked:
            answers.dead = False
        daemon.until(lambda: {line["sink"] for line in daemon.log("sink_recovered")} == SINKS, "every sink to recover")
        trial.judge(*SINKS)

    # A request that a receiver refused is there, too, as often as it was sent.
    steps = [each["step"] for each in trial.saved]
    posted = [json.loads(request.body)["checkpoint"]["step"] for request in webhook.requests]
    assert posted == [*steps[:2], *[steps[2]] * webhook.answers.tries, *steps[2:]]
    assert len(samples.requests) == len(steps) + samples.answers.tries
    (run,) = runs_of(client, trial.run_dir)
    found = [(row["step"], row["metrics"]["test"]["loss"]["hex"]) for row in trial.rows()]
    assert [(step, bits) for step, _, bits in points(client, run.info.run_id, "test/loss")] == found
    for sink in SINKS:
        assert len([line for line in daemon.log("sink_failed") if line["sink"] == sink]) <= 3
        assert len([line for line in daemon.log("sink_recovered") if line["sink"] == sink]) == 1
