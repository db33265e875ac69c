"""A machine is lost in the middle of a run: another one restores the state from a bucket, and the run goes on."""

import shutil

import pytest
from bucket_server import BUCKET
from numpy_trainer import NUMPY

pytestmark = [pytest.mark.timeout(900), pytest.mark.nightly]


def start(sidecar, place, state, server):
    """Start a daemon whose state is sent to the bucket."""
    words = ("--state-dir", state, "--role", "worker", "--state-backup", f"s3://{BUCKET}/backups")
    return sidecar.run(place, *words, task="numpy_plain.py", **NUMPY, **server.environment)


def history(sidecar, place, state):
    """Return what `sidecar history --json` prints."""
    ended = sidecar.command("history", place, "--json", "--state-dir", state)
    assert ended.code == 0, ended.err
    return ended.out


def evaluated(daemon, count):
    """Wait until so many evaluations succeeded, as the log says."""
    daemon.logged("evaluation_succeeded", count)


def test_a_lost_machine(start_bucket, sidecar, numpy_trainer, place, tmp_path, until):
    """Server and daemon are killed; the history is equal, the next evaluation follows, and the old machine stops."""
    server, old, new = start_bucket("localbucket"), tmp_path / "old", tmp_path / "new"
    daemon = start(sidecar, place, old, server)
    numpy_trainer.save(place, 10)
    evaluated(daemon, 1)
    server.kill()
    numpy_trainer.save(place, 20)
    daemon.logged("sink_failed")
    evaluated(daemon, 2)
    server.start()
    daemon.logged("sink_recovered")
    until(lambda: "has all 2 plans" in sidecar.command("status", place, "--state-dir", old).out, "the backup")
    assert set(daemon.samples("sidecar_sink_pending_results").values()) == {0}
    daemon.process.kill()
    daemon.process.wait()
    before = history(sidecar, place, old)
    for marker in place.glob(".sidecar-run-*"):
        marker.unlink()  # the other machine has another disk, to which training copies its checkpoints
    words = ("restore-state", place, "--state-dir", new, "--state-backup", f"s3://{BUCKET}/backups")
    refused = start(sidecar, place, new, server).wait()
    assert refused.code == 4, refused.err
    assert "sidecar restore-state" in refused.sentence
    restored = sidecar.command(*words, **server.environment)
    assert restored.code == 0, restored.err
    assert history(sidecar, place, new) == before
    second = start(sidecar, place, new, server)
    numpy_trainer.save(place, 30)
    evaluated(second, 1)
    (plan,) = {line["plan"] for line in second.log("evaluation_succeeded")}
    assert plan == 3
    for marker in place.glob(".sidecar-run-*"):
        marker.unlink()
    stale = start(sidecar, place, old, server)
    assert "was restored from its backup" in stale.logged("sink_failed")[0]["reason"]
    for each in (second, stale):
        each.process.kill()
        each.process.wait()
    shutil.rmtree(new)
    again = sidecar.command(*words, **server.environment)
    assert (again.code, again.out.split()[0]) == (0, "restored"), again.err
    assert len(history(sidecar, place, new).splitlines()) >= len(before.splitlines())
