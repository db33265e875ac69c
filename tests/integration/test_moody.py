"""The user's task goes wrong while the daemon runs: that evaluation fails, with their words; the daemon goes on."""

import json
import shlex
import signal

import pytest
from numpy_trainer import NUMPY

pytestmark = pytest.mark.nightly

ATTEMPTS = 2


class Moody:
    """A daemon whose task is in the mood that a file names."""

    def __init__(self, daemon, folder, mood, trainer):
        self.daemon, self._folder, self._mood, self._trainer = daemon, folder, mood, trainer
        self._step = 0

    def feel(self, *moods):
        """One mood for each worker to come; the last stays."""
        self._mood.write_text(" ".join(moods))

    def save(self):
        """Save one more checkpoint."""
        self._step += 1
        return self._trainer.save(self._folder, self._step)[0]

    def failures(self, saved):
        """Rows of a checkpoint, once the last of its attempts has failed for good."""

        def look():
            rows = [row for row in self.daemon.history() if row["checkpoint"] == saved["name"]]
            return rows if rows and rows[-1]["final"] else None

        return self.daemon.until(look, f"the end of {saved['name']}")


@pytest.fixture(scope="module")
def moody(sidecar, numpy_trainer, tmp_path_factory, tasks):
    """Started before its checkpoint directory exists, and waiting for it."""
    folder = tmp_path_factory.mktemp("moody")
    (folder / "mood").write_text("fine")
    (folder / "sidecar.toml").write_text(f'task = "{tasks}/numpy_moody.py:task"\nmax_attempts = {ATTEMPTS}\n')
    environ = {"MOOD": str(folder / "mood"), "SIDECAR_CACHE_BYTES": "0", "SIDECAR_STANDBY": "true"}
    daemon = sidecar.run(folder / "ckpts", "--config", folder / "sidecar.toml", **environ, **NUMPY)
    return Moody(daemon, folder / "ckpts", folder / "mood", numpy_trainer)


def test_a_missing_checkpoint_directory_is_waited_for(moody):
    """The log warns once, /readyz says why, and the first save is evaluated without further ado."""
    daemon = moody.daemon
    missing = "the checkpoint directory does not exist yet\n"
    daemon.until(lambda: daemon.get("/readyz") == (503, missing), "/readyz to say what is missing")
    (line,) = daemon.log("checkpoint_dir_missing")
    assert line["level"] == "warning"
    assert daemon.get("/healthz") == (200, "ok\n")
    daemon.evaluated(moody.save())
    daemon.until(lambda: daemon.get("/readyz") == (200, "ok\n"), "readiness")
    assert len(daemon.log("checkpoint_dir_missing")) == 1


MOODS = {
    "dataset": ("task_error", ["IndexError: list index out of range", "numpy_moody.py", "in look_up", "Traceback"]),
    "metric": ("task_error", ["ZeroDivisionError: this metric had a bad day", "numpy_moody.py", "in add", "Trace"]),
    "empty": ("task_error", ["eval set 'test' is empty"]),
    "unseeded": ("stream_differs", ["its function draws random numbers", "random_state=0"]),
    "endless": ("count", ["eval set 'test' has more than 103 examples, EvalSet says 103"]),
}


@pytest.mark.parametrize("moods", [("dataset", "dataset"), ("metric", "empty"), ("unseeded", "endless")])
def test_moods_fail_one_checkpoint(moody, sidecar, moods):
    """After `max_attempts` it is final, and told with the user's own traceback in journal, log and history."""
    daemon = moody.daemon
    moody.feel(*moods)
    saved = moody.save()
    rows = moody.failures(saved)
    kinds = [MOODS[mood][0] for mood in moods]
    assert [(row["status"], row["kind"], row["attempt"]) for row in rows] == [
        ("failed", kind, attempt) for attempt, kind in enumerate(kinds, start=1)
    ]
    history = "history", "--checkpoint-dir", daemon.run_dir.parents[1]
    printed = {row["plan"]: row for row in json.loads(sidecar.command(*history, "--json").out)}
    table = sidecar.command(*history).out
    logged = {line["plan"]: line for line in daemon.log("plan_failed")}
    for mood, row in zip(moods, rows, strict=True):
        plan, message = row["plan"], row["message"]
        outcome = json.loads((daemon.run_dir / "outcomes" / f"{plan:012d}.json").read_text())
        assert message == outcome["message"] == logged[plan]["message"] == printed[plan]["message"]
        for part in MOODS[mood][1]:
            assert part in message
        assert "Trace" in MOODS[mood][1][-1] or "\n" not in message
        assert "sidecar/evaluation" not in message
    last = rows[-1]
    assert f"\n{saved['name']}, attempt {ATTEMPTS}: failed: {last['kind']}\n{last['message']}\n" in table
    assert not daemon.log("worker_exited")


def test_the_next_checkpoint_is_evaluated(moody):
    """The daemon lives, and what failed for good is not tried again."""
    daemon = moody.daemon
    moody.feel("fine")
    before = [row for row in daemon.history() if row["status"] == "failed"]
    daemon.evaluated(moody.save())
    assert [row for row in daemon.history() if row["status"] == "failed"] == before
    assert daemon.status()["pending"] == 0


def test_failures_are_counted(moody):
    """/metrics counts failed plans by kind, and checkpoints that failed for good."""
    daemon = moody.daemon
    rows = [row for row in daemon.history() if row["status"] == "failed"]
    if not rows:
        pytest.skip("needs the failures of the tests before")
    by_kind = {(("kind", kind),): sum(row["kind"] == kind for row in rows) for kind in {row["kind"] for row in rows}}
    assert {labels: count for labels, count in daemon.samples("sidecar_plans_failed_total").items() if count} == by_kind
    assert daemon.samples("sidecar_checkpoints_failed_total") == {(): len(rows) / ATTEMPTS}


def test_what_failed_for_good_is_requeued(moody, sidecar):
    """While the queue is not empty: the requeue waits for the end of a plan, and the daemon takes all of it up."""
    daemon = moody.daemon
    failed = {row["checkpoint"] for row in daemon.history() if row["status"] == "failed"}
    if not failed:
        pytest.skip("needs the failures of the tests before")
    more = [moody.save(), moody.save()]
    done = sidecar.command("requeue", "--all-failed", "--checkpoint-dir", daemon.run_dir.parents[1], **NUMPY)
    assert done.code == 0, done.err
    told = done.out.splitlines()
    assert {line.split(" is requeued (by ")[0] for line in told[:-1]} == failed
    assert told[-1].startswith(f"{daemon.status()['node']} will plan its evaluation")
    daemon.evaluated(*more, *({"name": name} for name in failed))
    again = sidecar.command("requeue", min(failed), "--checkpoint-dir", daemon.run_dir.parents[1], **NUMPY)
    assert again.code == 2
    assert f"{min(failed)!r} was evaluated" in again.sentence


def test_what_was_evaluated_is_evaluated_again(moody, sidecar):
    """By the command that the refusal names; the history has both evaluations, counters and the status count one."""
    daemon = moody.daemon
    moody.feel("fine")
    name, count = daemon.evaluated(moody.save()).popitem()[0], daemon.status()["evaluated"]
    refused = sidecar.command("requeue", name, "--checkpoint-dir", daemon.run_dir.parents[1], **NUMPY)
    assert refused.code == 2
    _, *words = shlex.split(refused.sentence.split("`")[1])
    assert (words[0], words[2:4]) == ("requeue", [name, "--again"])
    dry = sidecar.command(*words, "--dry-run", **NUMPY)
    assert dry.out.startswith(f"{name} would be requeued (by ")
    assert daemon.status()["evaluated"] == count
    again = sidecar.command(*words, **NUMPY)
    assert again.code == 0, again.err
    assert again.out.startswith(f"{name} is requeued (by ")

    def more():
        return [row for row in daemon.successes() if row["checkpoint"] == name][1:]

    (second,) = daemon.until(more, f"a second evaluation of {name}")
    daemon.until(lambda: daemon.status()["evaluated"] == count, "the status")
    assert daemon.status()["evaluation"]["plan"] == second["plan"]
    assert daemon.samples("sidecar_checkpoints_evaluated_total") == {(): count}


def test_it_ends_well(moody):
    """After all that, SIGTERM still drains and ends with 0."""
    daemon = moody.daemon
    daemon.logged("task_checked")
    done = daemon.end(signal.SIGTERM)
    assert (done.code, done.said) == (0, "")
