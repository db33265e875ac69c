import json
import math
from dataclasses import replace
from functools import partial

import pytest
from fakes import Node as FakeNode
from fakes import pass_time, save
from statuses import make_status

from sidecar.commands.from_settings import make_catalog
from sidecar.commands.hints import no_run
from sidecar.commands.load import check_place
from sidecar.commands.status.collect import RunObserver, observe_for
from sidecar.commands.status.render import as_json, lines
from sidecar.coordination.run import open_run
from sidecar.coordination.storage import PosixStorage
from sidecar.errors import SettingsError
from sidecar.protocol.heartbeat import WorkerProgress
from sidecar.protocol.records import EvalData, Settlement, Value, folder_name
from sidecar.protocol.states import NodeState, WorkerPhase
from sidecar.publishing.report import status_json
from sidecar.settings import Settings


def shown(found, width=100):
    """What a person sees."""
    from rich.console import Console, Group

    console = Console(width=width, color_system=None)
    with console.capture() as captured:
        console.print(Group(*lines("mnist", found)))
    return captured.get()


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


def test_a_run_of_another_name_is_told(catalog, clock, place):
    """Most likely `--run` was mistyped."""
    settings = Settings(checkpoint_dir=place, run="statf")
    open_run(PosixStorage(settings.state_dir / "state"), 0.0)
    observer = RunObserver(
        PosixStorage(settings.run_dir), catalog, clock, lease_seconds=10.0, no_run=partial(no_run, settings)
    )
    told = " ".join(shown(observer.collect()).split())
    assert told.startswith("run statf: no daemon has started yet; runs in ")
    assert told.endswith(": state")


def test_a_place_that_does_not_exist_is_a_mistake(tmp_path):
    """Neither checkpoints nor a run: the sentence names the path. Either of them is enough."""
    ckpts, run_dir = tmp_path / "ckpst", tmp_path / "state" / "ckpst"
    with pytest.raises(SettingsError, match=rf"'{ckpts}'.*{run_dir}"):
        check_place(ckpts, run_dir)
    run_dir.mkdir(parents=True)
    check_place(ckpts, run_dir)


def test_who_beats_is_found_out_by_looking_twice(observer, writers, clock):
    """A change proves life, on the looker's own clock; who does not change is silent for as long as was looked."""
    writers.beat("node-0", 1)
    writers.beat("node-1", 1)
    writers.beat("node-2", 9, state="left")
    beats = iter(range(2, 100))

    def pause(seconds):
        clock.seconds += seconds
        if clock.seconds > 1001.0:
            writers.beat("node-0", next(beats))

    observe_for(observer, 4.5, pause)
    found = observer.collect()
    assert clock.seconds == pytest.approx(1004.5, abs=0.2)
    members = {each["node"]: each for each in strict(found)["nodes"]}
    assert [members[f"node-{index}"]["fresh"] for index in range(3)] == [True, None, False]
    assert members["node-1"]["silent_seconds"] == pytest.approx(4.5, abs=0.2)
    assert members["node-0"]["silent_seconds"] < 0.2
    assert found.proposer == strict(found)["proposer"] == "node-0"
    told = shown(found)
    assert "node-0 proposes plans and publishes" in told
    assert "over 4.5 s ago" in told or "over 4.6 s ago" in told


def test_the_look_ends_once_all_are_known(observer, writers, clock):
    """A person does not wait longer than needed."""
    writers.beat("node-0", 1)
    writers.beat("node-1", 3, state="left")

    def pause(seconds):
        clock.seconds += seconds
        writers.beat("node-0", 2)

    observe_for(observer, 4.5, pause)
    assert clock.seconds < 1000.5
    assert observer.collect().proposer == "node-0"


def test_who_did_not_observe_concludes_nothing(observer, writers, clock):
    """Without a second look, and in the first moment of --watch: no daemon is said to be down."""
    writers.beat("node-0", 1)
    observer.collect()
    clock.seconds += 0.01
    told = shown(observer.collect())
    assert "seem to be down" not in told
    assert "not observed" in told
    clock.seconds += 4.0
    assert "no heartbeat changed for 4.0 s: the daemons seem to be down" in shown(observer.collect())


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


def test_silence_of_a_lease_means_gone(observer, writers, clock):
    """As with --watch: what changed once may end."""
    writers.beat("node-0", 1)
    observer.collect()
    writers.beat("node-0", 2)
    clock.seconds += 2
    assert observer.collect().members[0].fresh(10.0)
    clock.seconds += 10
    found = observer.collect()
    assert found.members[0].fresh(10.0) is False
    assert found.proposer is None
    assert "no heartbeat changed for 10.0 s" in shown(found)


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


def test_a_beat_of_the_past_is_no_sign_of_life(observer, writers, clock):
    """Storage may show an old version of the file once more."""
    writers.beat("node-0", 5)
    observer.collect()
    writers.beat("node-0", 4)
    clock.seconds += 2
    assert not observer.collect().members[0].changed


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


def test_what_cannot_be_read_is_told(observer, writers, monkeypatch):
    """On this node; others may read it."""
    writers.beat("node-0", 1)
    look = observer.catalog.scan
    unknown = {f"ckpt-{number}@e": "Input/output error" for number in range(7)}
    monkeypatch.setattr(observer.catalog, "scan", lambda: replace(look(), unknown=unknown))
    found = observer.collect()
    assert strict(found)["unknown"][0] == "ckpt-0@e: Input/output error"
    text = shown(found)
    assert "cannot be read here now: ckpt-0@e: Input/output error" in text
    assert "and 2 more" in text


def test_each_record_is_read_once(observer, writers, checkpoint, storage):
    """With --watch a long journal costs its new end only."""
    for step in range(5):
        writers.propose(checkpoint=checkpoint(step))
        writers.close()
    assert observer.collect().verdicts["evaluated"] == 5
    asked = []
    observer._reader._journal.storage = Recording(storage, asked)
    writers.propose(checkpoint=checkpoint(9))
    assert observer.collect().history.open.checkpoint.name == "ckpt-9"
    plan, outcome = "plans/000000000006.json", "outcomes/000000000006.json"
    assert asked == [plan, outcome, plan]  # again once it is durable


class Recording:
    """Storage that notes what is read."""

    def __init__(self, storage, asked):
        self.storage, self.asked = storage, asked

    def read(self, path, limit=None):
        """Note it."""
        self.asked.append(path)
        return self.storage.read(path, limit)

    def sync(self, folder):
        """As it is."""
        self.storage.sync(folder)


def test_another_run_in_the_same_place_is_looked_at_anew(observer, writers, storage, checkpoint):
    """Somebody deleted the state directory while --watch looked on."""
    import shutil

    writers.propose(checkpoint=checkpoint(1))
    assert observer.collect().history.open is not None
    shutil.rmtree(storage.root)
    assert observer.collect().run_id is None


def test_a_torn_heartbeat_is_told(observer, writers, storage):
    """The node is there, and cannot be read."""
    writers.beat("node-0", 1)
    storage.replace("members/node-1.json", b"{")
    found = observer.collect()
    assert "node-1" in strict(found)["unread"]["node-1"]
    assert "node-1" in shown(found)


def test_real_daemons_tell_what_their_workers_do(tmp_path, clock):
    """What a worker does rides along with the next beat, and makes none of its own."""
    node = FakeNode(tmp_path, clock)
    node.silent = {"Join"}
    save(node.checkpoint_dir, 1)
    pass_time(20, node)
    assert node.history.open is not None
    observer = RunObserver(
        node.storage.storage, node.storage_thread.reconciler.checkpoints.catalog, clock, lease_seconds=10.0
    )
    (member,) = observer.collect().members
    (doing,) = member.heartbeat.doing
    assert (doing.phase, doing.worker) == ("join", node.history.open.members[0].worker)
    assert observer.collect().phase == "join"
    beats = member.heartbeat.beat
    node.daemon.supervisor.workers.find(doing.worker).progress.enter(WorkerPhase.RESTORE, clock.now())
    node.settle()
    assert observer.collect().members[0].heartbeat.beat == beats
    pass_time(2, node)
    assert observer.collect().phase == "restore"


def test_who_looks_once_calls_nothing_unfinished_that_is_whole(place):
    """A daemon waits whether somebody still writes what no state file names; here that would be said for ever."""
    save(place, 7)
    (place / "checkpoint").unlink()
    settings = Settings(checkpoint_dir=place)
    look = make_catalog(settings, once=True).scan()
    assert ([each.checkpoint.name for each in look.found], look.waiting) == (["ckpt-7"], ())
    assert make_catalog(settings).scan().found == ()


def test_what_only_the_daemons_look_for_is_named_with_the_remedy(observer, writers, clock):
    """An empty queue would say that all is done, where this command lacks the daemons' checkpoint_pattern."""
    for beat in (1, 2):
        writers.beat("node-0", beat, sees=("model-5.npz@0123456789ab",))
        clock.seconds += 1
        found = observer.collect()
    assert found.queue == ()
    text = " ".join(shown(found).split())
    assert "model-5.npz@0123456789ab: the daemons find it" in text
    assert "--checkpoint-pattern" in text


def test_what_the_daemons_find_and_the_journal_settled_since_is_not_missed(observer, writers, clock):
    """A heartbeat may be older than the journal."""
    settled = Settlement(name="ckpt-5", digest="e" * 64, step=5, verdict="vanished", reason="gone")
    writers.propose(settled)
    for beat in (1, 2):
        writers.beat("node-0", beat, sees=(folder_name(settled.key),))
        clock.seconds += 1
        found = observer.collect()
    assert found.unknown == {}
