"""Tell people how a run stands."""

import json
import math
from dataclasses import replace

import pytest
from commands.conftest import shown
from fakes import ScannedCatalog, save
from statuses import make_status

from sidecar.commands.status.collect import RunObserver
from sidecar.commands.status.render import as_json
from sidecar.protocol.heartbeat import WorkerProgress
from sidecar.protocol.records import EvalData, Settlement, Value
from sidecar.protocol.states import NodeState
from sidecar.publishing.report import status_json


def strict(found):
    return json.loads(json.dumps(as_json("mnist", found), allow_nan=False))


def test_a_run_that_never_was_has_nothing_to_show(observer, tmp_path):
    """Looking creates nothing, not even the state directory."""
    found = observer.collect()
    assert (found.run_id, found.members, found.queue) == (None, (), ())
    assert not (tmp_path / "state").exists()
    assert "no daemon has started yet" in shown(found)
    assert strict(found)["nodes"] == []


def test_both_status_documents_have_the_same_keys_for_the_same_facts(observer):
    """A script that reads one of them can read the other."""
    found = observer.collect()
    of_the_run = strict(found)
    status = make_status("mnist", "n1", "i1", "1", state=NodeState.READY)
    of_the_node = status_json(status, found.history)
    common = {
        "run",
        "plan",
        "evaluation",
        "best",
        "evaluated",
        "settled",
        "pending",
        "members",
        "nodes",
        "left_out",
        "recent",
    }
    assert of_the_run.keys() & of_the_node.keys() == common | {"unknown", "unknown_count", "failing", "set_aside"}
    assert {key: of_the_run[key] for key in common} == {key: of_the_node[key] for key in common}


def test_the_best_of_other_data_is_told_apart(observer, writers, checkpoint):
    """It is no best one any more, and cannot be compared."""
    for step, accuracy, data in ((100, 0.9, "a"), (200, 0.8, "a"), (300, 0.5, "b"), (400, 0.4, "b")):
        writers.propose(checkpoint=checkpoint(step))
        value = Value(value=accuracy, hex=accuracy.hex(), goal="max")
        writers.close(metrics={"accuracy": value}, data={"test": EvalData(data, 1, "batches")})
    text = shown(observer.collect())
    assert "best    ckpt-300 (step 300)  accuracy 0.5" in text
    assert "before  ckpt-100 (step 100)  accuracy 0.9: of other data or another task" in text


def test_the_newest_and_the_best_are_told(observer, writers, checkpoint):
    """Each with its step; the newest is marked where it is the best itself, and NaN is no number of JSON."""
    for step, accuracy, loss in ((100, 0.75, 0.5), (200, 0.875, 0.25), (300, 0.5, 0.125)):
        writers.propose(checkpoint=checkpoint(step))
        value = {"accuracy": accuracy, "loss": loss, "odd": math.nan}
        goals = {"accuracy": "max", "loss": "min", "odd": "none"}
        metrics = {
            name: Value(
                value=None if math.isnan(each) else each,
                hex="nan" if math.isnan(each) else each.hex(),
                goal=goals[name],
            )
            for name, each in value.items()
        }
        writers.close(metrics=metrics)
    found = observer.collect()
    text = shown(found)
    assert "newest  ckpt-300 (step 300)  accuracy 0.5  loss 0.125 (best)  odd nan" in text
    assert "best    ckpt-200 (step 200)  accuracy 0.875" in text
    numbers = strict(found)["evaluation"]["metrics"]["test"]
    assert {name: each["value"] for name, each in numbers.items()} == {"accuracy": 0.5, "loss": 0.125, "odd": None}
    assert numbers["odd"]["hex"] == "nan"
    best = strict(found)["best"]
    assert {name: (each["value"], each["step"], each["checkpoint"]) for name, each in best.items()} == {
        "test/accuracy": (0.875, 200, "ckpt-200"),
        "test/loss": (0.125, 300, "ckpt-300"),
    }
    assert [(each["hex"], each["goal"], each["plan"]) for each in best.values()] == [
        ((0.875).hex(), "max", 2),
        ((0.125).hex(), "min", 3),
    ]


def test_a_file_of_long_ago_is_told_as_a_hint(storage, catalog, clock, writers):
    """By the storage's clock, so nothing is decided on it; a young file says no more than the look."""
    ages = {"members/node-0.json": 3 * 86400.0, "members/node-1.json": 5.0}
    observer = RunObserver(
        storage, catalog, clock, lease_seconds=10.0, written_at=lambda path: clock.wall() - ages.get(path, 0.0)
    )
    for node in ("node-0", "node-1"):
        writers.beat(node, 1)
    observer.collect()
    clock.seconds += 3
    found = observer.collect()
    assert [each["file_age_seconds"] for each in strict(found)["nodes"]] == [3 * 86400.0, 5.0]
    assert "over 3.0 s ago (file: 3 d old)" in shown(found)
    assert shown(found).count("file:") == 1


def test_the_open_plan_tells_its_phase_by_its_slowest_worker(observer, writers, clock, checkpoint):
    """Heartbeats tell what their workers do; those of nodes that have not read the plan say nothing of it."""
    writers.propose(checkpoint=checkpoint(600), nodes=("node-0", "node-1"))
    writers.beat("node-0", 2, plan=1, doing=(WorkerProgress("node-0.a.1", "evaluate", 12, 103),))
    writers.beat("node-1", 2, plan=1, doing=(WorkerProgress("node-1.a.1", "restore"),))
    writers.beat("node-2", 2, plan=0, doing=(WorkerProgress("node-2.a.1", "join"),))
    found = observer.collect()
    plan = strict(found)["plan"]
    assert plan["phase"] == "restore"
    assert (plan["plan"], plan["checkpoint"], plan["attempt"], plan["nodes"]) == (
        1,
        "ckpt-600",
        1,
        ["node-0", "node-1"],
    )
    assert plan["open_seconds"] == pytest.approx(clock.wall() - 1_800_000_990, abs=0.1)
    told = shown(found)
    assert "plan 1: ckpt-600 (step 600), attempt 1, 2 workers on node-0, node-1" in told
    assert "in phase restore" in told
    assert "evaluate 12/103" in told
    assert "join" not in told


def test_an_older_daemon_does_not_tell_the_phase(observer, writers, checkpoint):
    """The field is optional in both directions."""
    writers.propose(checkpoint=checkpoint(600))
    writers.beat("node-0", 2, plan=1)
    found = observer.collect()
    assert strict(found)["plan"]["phase"] is None
    assert "phase unknown" in shown(found)


def test_ends_queue_and_past_are_told(observer, writers, place):
    """Verdicts count checkpoints as they stand; the message of a failure is one line."""
    for step in (100, 700, 800):
        save(place, step, keep=(100, 700))
    waiting = {each.checkpoint.name: each.checkpoint for each in observer.catalog.scan().found}
    writers.propose(checkpoint=waiting["ckpt-700"])
    writers.close("task_error", "Traceback (most recent call last):\n  File x\nKeyError: 'heavy'\n")
    writers.propose(checkpoint=waiting["ckpt-100"])
    writers.close()
    ends = [("a", "failed"), ("b", "skipped"), ("c", "vanished"), ("d", "corrupt"), ("e", "failed")]
    writers.propose(
        *(Settlement(name=name, digest="f" * 64, step=None, verdict=end, reason="because") for name, end in ends)
    )
    writers.propose(Settlement(name="e", digest="f" * 64, step=None, verdict="requeued", reason="by x"))
    writers.beat("node-0", 1)
    found = observer.collect()
    told = strict(found)
    assert told["verdicts"] == {"evaluated": 1, "failed": 1, "skipped": 1, "vanished": 1, "corrupt": 1}
    assert ([each["checkpoint"] for each in told["queue"]], told["pending"]) == (["ckpt-700", "ckpt-800"], 2)
    assert [each["failed_attempts"] for each in told["queue"]] == [1, 0]
    assert (told["evaluated"], told["settled"], told["evaluation"]["checkpoint"], told["plan"]) == (
        1,
        4,
        "ckpt-100",
        None,
    )
    assert [row["checkpoint"] for row in told["recent"]][-2:] == ["ckpt-100", "ckpt-700"]
    text = shown(found, 200)
    assert "waiting 2: ckpt-700 (step 700), failed 1 x, ckpt-800 (step 800)" in text
    assert "evaluated 1, failed 1, skipped 1, vanished 1, corrupt 1" in text
    assert "no plan is open" in text
    assert "e requeued: by x" in text


def test_a_failure_is_told_by_its_last_line(observer, writers, checkpoint):
    """That is where a traceback says what was raised; nothing in it steers the terminal."""
    writers.propose(checkpoint=checkpoint(5))
    writers.close("task_error", "Traceback (most recent call last):\n  File x\nKeyError: 'hea\x1b[2Jvy [red]'\n")
    assert r"ckpt-5 failed (task_error): KeyError: 'hea\x1b[2Jvy [red]'" in shown(observer.collect(), 200)


def test_attempts_that_fail_alike_say_so_once(observer, writers, checkpoint):
    """The newest tells why, and that it was the last."""
    for _ in range(2):
        writers.propose(checkpoint=checkpoint(5))
        writers.close("task_error", "no")
    writers.propose(
        Settlement(name="ckpt-5", digest="e" * 64, step=5, verdict="failed", reason="task_error: no", task="t1")
    )
    text = shown(observer.collect())
    assert "ckpt-5 failed for good (task_error): no" in text
    assert "ckpt-5 failed (task_error)\n" in text


def test_workers_of_a_node_in_one_phase_are_added_up(observer, writers, checkpoint):
    """Eight GPUs are one line; who does not know its batches yet hides the sum."""
    writers.propose(checkpoint=checkpoint(600))
    doing = [
        WorkerProgress("a", "evaluate", 12, 100),
        WorkerProgress("b", "evaluate", 10, 100),
        WorkerProgress("c", "restore"),
        WorkerProgress("d", "idle"),
    ]
    writers.beat("node-0", 1, plan=1, doing=tuple(doing))
    assert "evaluate 22/200, restore " in shown(observer.collect())
    writers.beat("node-0", 2, plan=1, doing=(WorkerProgress("a", "read", 12, 100), WorkerProgress("b", "read", 9)))
    text = shown(observer.collect())
    assert " read " in text
    assert "/100" not in text


def test_nodes_with_another_task_are_told(observer, writers):
    """They would not stand in one group."""
    writers.beat("node-0", 1)
    writers.beat("node-1", 1, task="t2")
    text = shown(observer.collect())
    assert "nodes with different code of the task cannot form one group: t1 on node-0; t2 on node-1" in text


def test_nodes_that_are_left_out_are_told_with_the_reason(observer, writers, clock):
    """By name, of those that are known to be there: whoever looks cannot say it of others."""
    told = {"node-2": {"profile": "q"}, "node-3": {"unreadable": ("ckpt-5@eeee",)}, "node-4": {"version": "0.9"}}
    for beat in (1, 2):
        for node in ("node-0", "node-1", *told):
            writers.beat(node, beat, **({"profile": "p"} | told.get(node, {})))
        clock.seconds += 1
        found = observer.collect()
    left_out = strict(found)["left_out"]
    assert sorted(left_out) == ["node-2", "node-3", "node-4"]
    assert left_out["node-3"] == "it cannot read ckpt-5@eeee"
    assert "node-3 is left out of evaluations: it cannot read ckpt-5@eeee" in shown(found)


def test_what_cannot_be_read_is_told(observer, writers):
    """On this node; others may read it."""
    writers.beat("node-0", 1)
    unknown = {f"ckpt-{number}@e": "Input/output error" for number in range(7)}
    observer.catalog = ScannedCatalog(observer.catalog)
    observer.catalog.around = lambda look: replace(look(), unknown=unknown)
    found = observer.collect()
    assert strict(found)["unknown"][0] == "ckpt-0@e: Input/output error"
    text = shown(found)
    assert "cannot be read here now: ckpt-0@e: Input/output error" in text
    assert "and 2 more" in text


def test_a_torn_heartbeat_is_told(observer, writers, storage):
    """The node is there, and cannot be read."""
    writers.beat("node-0", 1)
    storage.replace("members/node-1.json", b"{")
    found = observer.collect()
    assert "node-1" in strict(found)["unread"]["node-1"]
    assert "node-1" in shown(found)
