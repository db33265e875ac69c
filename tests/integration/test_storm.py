"""Checkpoints come faster than they are evaluated, the trainer deletes them, the daemon is killed: nothing is lost."""

import json
import signal
import time
from dataclasses import dataclass

import pytest
from numpy_trainer import NUMPY

pytestmark = pytest.mark.nightly

STORM = tuple(range(10, 110, 10))
APART_SECONDS = 0.5
MAX_TO_KEEP = 2
KEEP_SAVES = 2
PHASES = ("join", "build", "read", "restore", "hello", "evaluate")  # before a result


@dataclass(frozen=True)
class Storm:
    """Hold what the trainer saved, who evaluated it, and how the daemon's journal looked when the queue was empty."""

    saved: list
    history: list
    pids: list
    seen_while_busy: int


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("storm") / "ckpts"


@pytest.fixture(scope="module")
def run(sidecar, folder):
    """Starts a daemon with two workers on the slow task; no data are kept, so every evaluation takes a second."""
    return lambda: sidecar.run(folder, "--replicas", 2, task="numpy_slow.py", SIDECAR_CACHE_BYTES="0", **NUMPY)


@pytest.fixture(scope="module")
def daemon(run, numpy_trainer, folder):
    """Warm: one checkpoint was evaluated before the storm."""
    found = run()
    found.evaluated(*numpy_trainer.save(folder, 1, max_to_keep=MAX_TO_KEEP))
    return found


@pytest.fixture(scope="module")
def storm(daemon, numpy_trainer, folder):
    pids = [set(daemon.worker_pids())]
    numpy_trainer.begin(folder, *STORM, max_to_keep=MAX_TO_KEEP, every=APART_SECONDS)
    saved = numpy_trainer.saved(len(STORM))
    pending = daemon.status()["pending"]
    daemon.evaluated(*saved)
    daemon.until(lambda: daemon.status()["pending"] == 0, "an empty queue")
    return Storm(saved, daemon.history(), [*pids, set(daemon.worker_pids())], pending)


@dataclass(frozen=True)
class Killed:
    """The journal when the daemon was killed, its orphans five seconds later, and its successor."""

    saved: list
    before: list
    interrupted: dict
    left: dict
    orphans: list
    successor: object


@pytest.fixture(scope="module")
def killed(storm, daemon, run, numpy_trainer, folder, alive, until, sidecar):
    assert storm.saved  # it is over
    numpy_trainer.begin(folder, 200, 210, 220, max_to_keep=MAX_TO_KEEP, every=APART_SECONDS)
    saved = numpy_trainer.saved(3)
    interrupted = daemon.evaluating()
    pids = daemon.children()
    before = daemon.history()
    assert len(pids) == 4  # two workers, and the guard of each
    daemon.end(signal.SIGKILL)
    gone = time.monotonic() + 5
    until(lambda: not alive(pids) or time.monotonic() > gone, "five seconds", 6)
    orphans = alive(pids)
    left = json.loads(sidecar.command("status", "--checkpoint-dir", folder, "--json", "--no-wait", **NUMPY).out)
    successor = run()
    successor.evaluated(*saved)
    return Killed(saved, before, interrupted, left, orphans, successor)


def test_every_checkpoint_of_the_storm_is_evaluated(storm, daemon):
    """A checkpoint that was seen complete is evaluated even if the trainer deletes it while others wait before it."""
    seen = {line["checkpoint"] for line in daemon.log("checkpoint_found")}
    evaluated = [row["checkpoint"] for row in storm.history if row["status"] == "succeeded"]
    assert storm.seen_while_busy > MAX_TO_KEEP  # else nothing was at stake
    assert seen <= set(evaluated)
    assert set(evaluated[1:]) == {each["name"] for each in storm.saved}
    assert [row for row in storm.history if row["status"] != "succeeded"] == []


def test_nothing_is_evaluated_twice(storm):
    """One plan per checkpoint, each the first attempt, all examples, the numbers of that very checkpoint."""
    rows = {row["checkpoint"]: row for row in storm.history}
    assert len(rows) == len(storm.history)
    assert {row["attempt"] for row in storm.history} == {1}
    for each in storm.saved:
        row = rows[each["name"]]
        assert row["examples"] == {"test": each["examples"]}
        assert row["metrics"]["test"]["accuracy"]["value"] == each["correct"] / each["examples"]
        assert row["metrics"]["test"]["loss"]["value"] == pytest.approx(each["loss"], rel=1e-12)


def test_evaluations_took_longer_than_the_time_between_saves(storm):
    """Else this would be no storm."""
    assert min(row["phases"]["evaluate"] for row in storm.history) > APART_SECONDS


def test_the_storm_is_evaluated_by_the_same_processes(storm, daemon):
    """Eleven evaluations: two processes, two models."""
    assert storm.pids[0] == storm.pids[1] == {line["pid"] for line in daemon.log("worker_started")[:2]}
    assert len({row["group"] for row in storm.history}) == 1


def test_pins_are_gone_when_the_queue_is_empty(storm, daemon):
    """Nothing is held any more; the newest evaluations and the best keep weights, others metric states alone."""
    folders = sorted(daemon.run_dir.glob("evaluations/*/plan-*/worker-*"))
    assert len(folders) == 2 * len(storm.history)
    daemon.until(lambda: not list(daemon.run_dir.glob("pins/*")), "pins to go")
    best = max(storm.history, key=lambda row: row["metrics"]["test"]["accuracy"]["value"])  # of equals the first
    kept = {best["plan"], *(row["plan"] for row in storm.history[-KEEP_SAVES:])}

    def with_weights():
        return [int(path.parent.name.removeprefix("plan-")) for path in folders if any(path.glob("weights*"))]

    daemon.until(lambda: sorted(with_weights()) == sorted(2 * list(kept)), "old weights to be removed")


def test_status_tells_what_a_dead_daemon_left(killed):
    """From storage alone: the plan that nobody has closed yet, what its workers were at, and what waits behind it."""
    plan = killed.left["plan"]
    assert (plan["plan"], plan["checkpoint"]) == (killed.interrupted["plan"], killed.interrupted["checkpoint"])
    assert plan["phase"] in PHASES
    assert plan["open_seconds"] > 0
    (member,) = killed.left["nodes"]
    assert [doing["worker"].split(".")[0] for doing in member["doing"]] == [member["node"]] * 2
    names = [each["name"] for each in killed.saved]
    assert [each["checkpoint"] for each in killed.left["queue"]] == names[names.index(plan["checkpoint"]) :]


def test_a_killed_daemon_leaves_no_orphans(killed):
    """Worker processes end with their daemon, however it ends."""
    assert killed.orphans == []


def test_its_successor_goes_on(killed):
    """The interrupted plan is closed as `restarted`, and all that was waiting is evaluated, exactly."""
    history = killed.successor.history()
    closed = next(row for row in history if row["plan"] == killed.interrupted["plan"])
    assert (closed["status"], closed["kind"], closed["final"]) == ("failed", "restarted", False)
    for each in killed.saved:
        (row,) = [row for row in history if row["checkpoint"] == each["name"] and row["status"] == "succeeded"]
        assert row["metrics"]["test"]["accuracy"]["value"] == each["correct"] / each["examples"]
        assert row["examples"] == {"test": each["examples"]}


def test_its_successor_repeats_nothing_that_was_settled(killed):
    """The journal before is the beginning of the journal after; every checkpoint succeeded once."""
    history = killed.successor.history()
    assert history[: len(killed.before)] == killed.before
    succeeded = [row["checkpoint"] for row in history if row["status"] == "succeeded"]
    assert len(succeeded) == len(set(succeeded))


@dataclass(frozen=True)
class Drained:
    """A daemon that was interrupted with two checkpoints to go: the plan that was open, its processes, how it ended."""

    saved: list
    plan: dict
    pids: list
    ended: object
    history: list


@pytest.fixture(scope="module")
def drained(killed, numpy_trainer, folder):
    daemon = killed.successor
    saved = numpy_trainer.save(folder, 300, 310, max_to_keep=MAX_TO_KEEP)
    plan = daemon.evaluating()
    pids = daemon.children()
    ended = daemon.end(signal.SIGINT)
    return Drained(saved, plan, pids, ended, daemon.history())


def test_ctrl_c_finishes_the_evaluation_and_ends_with_zero(drained, alive, until):
    """SIGINT drains: the open plan ends well, the next one is not begun, no process is left."""
    assert (drained.ended.code, drained.ended.said) == (0, "")
    newest = drained.history[-1]
    assert (newest["plan"], newest["status"]) == (drained.plan["plan"], "succeeded")
    assert newest["checkpoint"] == drained.saved[0]["name"]
    assert len(drained.pids) >= 2
    until(lambda: not alive(drained.pids), "the guards' end, which follows that of the daemon", 10)
