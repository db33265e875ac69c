"""Which checkpoints are evaluated and held, how much room they may take, and how a run ends: as histories."""

import errno
import os
import threading

import pytest
from fakes import Node, failed, outcomes, pass_time, restarted, save
from prometheus_client import CollectorRegistry

from sidecar.errors import IncompleteError
from sidecar.protocol.messages import Evaluate
from sidecar.publishing.prometheus import Exporter
from sidecar.publishing.report import rows
from sidecar.retention.pins import link_or_copy
from sidecar.retention.pins import pin as pin_module


def pinned(node):
    """The steps of what is pinned."""
    return sorted(int(path.name.split("@")[0].removeprefix("ckpt-")) for path in (node.run_dir / "pins").iterdir())


def ends(node):
    """How each checkpoint ended: steps by verdict, in the order of the journal."""
    told = {}
    for verdict, name in outcomes(node.history):
        if name and name.startswith("ckpt-"):
            told.setdefault(verdict, []).append(int(name.removeprefix("ckpt-")))
    return told


def settled_lines(node):
    """Return what the log was told of settled checkpoints."""
    return [entry.settlement.name for entry in node.log.entries if hasattr(entry, "settlement")]


def counted(node, end):
    """The counter of that end, as it is scraped."""
    registry = CollectorRegistry()
    Exporter(registry).update(node.status, node.state.history)
    return registry.get_sample_value(f"sidecar_checkpoints_{end}_total", {"run": "run"})


def storm(node, *steps, keep=()):
    """Save these, a second apart, each deleting the one before."""
    for step in steps:
        save(node.checkpoint_dir, step, keep=keep)
        node.wake()
        pass_time(1, node, step=0.5)


def one_size(folder):
    """Bytes of one checkpoint."""
    return sum(path.stat().st_size for path in folder.glob("ckpt-1.*"))


# -- queue and every_steps -------------------------------------------------------------------------------------------


def test_with_every_steps_what_lies_between_is_let_go_when_it_is_settled(new_node):
    """During an evaluation nothing can be settled, so what was pinned as the newest stays until then."""
    node = new_node(every_steps=100)
    node.silent = {"Evaluate"}
    storm(node, 90, 95)
    pass_time(5, node)
    storm(node, 99, 105, 107, 190, 199, 203, 210)
    pass_time(5, node)
    assert pinned(node) == [90, 95, 99, 105, 107, 190, 199, 203, 210]
    assert node.status.checkpoints.pending == 3
    node.silent = set()
    pass_time(20, node)
    assert ends(node) == {"succeeded": [90, 105, 203], "skipped": [95, 99, 107, 190, 199]}
    assert pinned(node) == [210]
    assert node.status.checkpoints.pending == 0
    assert sorted(settled_lines(node)) == sorted(f"ckpt-{step}" for step in (95, 99, 107, 190, 199))
    assert counted(node, "skipped") == 5
    assert counted(node, "vanished") == 0
    reasons = {row["checkpoint"]: row["message"] for row in rows(node.history) if row["status"] == "skipped"}
    assert "reaches no new multiple of 100 (every_steps)" in reasons["ckpt-190"]


def test_every_steps_goes_on_where_the_journal_ends(new_node):
    """A restart knows nothing but the journal; training that was set back is evaluated again."""
    node = new_node(every_steps=100)
    storm(node, 90, 95, 110)
    pass_time(10, node)
    node = restarted(node, "i2", every_steps=100)
    storm(node, 120, 130, 205, 210)
    pass_time(20, node)
    assert ends(node) == {"succeeded": [90, 110, 205], "skipped": [95, 120, 130]}
    save(node.checkpoint_dir, 100)  # the same step again would be other content: here it is one that was not there
    pass_time(5, node)
    storm(node, 150, 200)
    pass_time(10, node)
    assert ends(node) == {"succeeded": [90, 110, 205, 100, 200], "skipped": [95, 120, 130, 210, 150]}


@pytest.mark.usefixtures("nameless")
def test_a_step_that_nobody_knows_is_evaluated_and_that_is_said(new_node):
    """Checkpoints without a known step are evaluated, and one log event names the setting that would find the step."""
    node = new_node(every_steps=100)
    storm(node, 1, 2, 3)
    pass_time(10, node)
    assert ends(node) == {"succeeded": [1, 2, 3]}
    (told,) = node.log.of("step_unknown")
    assert "step_pattern" in told["remedy"]


def test_with_latest_what_waits_gives_way_and_is_let_go(new_node):
    """However many come during one evaluation: the newest is evaluated, the others are skipped, none has vanished."""
    node = new_node(queue="latest")
    node.silent = {"Evaluate"}
    storm(node, 1)
    pass_time(5, node)
    storm(node, *range(2, 30))
    pass_time(5, node)
    assert pinned(node) == list(range(1, 30)), "until a plan has settled them: other nodes may want each"
    node.silent = set()
    pass_time(10, node)
    assert ends(node) == {"succeeded": [1, 29], "skipped": list(range(2, 29))}
    assert pinned(node) == []
    assert counted(node, "skipped") == 27
    assert len(settled_lines(node)) == 27
    assert {row["message"] for row in rows(node.history) if row["checkpoint"] == "ckpt-28"} == {
        "superseded by ckpt-29 (queue=latest)"
    }


def test_a_node_with_another_queue_lets_nothing_go_that_the_proposer_wants(new_node):
    """Settings may differ between nodes: only who proposes lets go what is not settled."""
    first, second = new_node("worker-1"), new_node("worker-2", queue="latest")
    first.silent = second.silent = {"Evaluate"}
    save(first.checkpoint_dir, 1)
    pass_time(30, first, second)
    for step in (2, 3, 4):
        save(first.checkpoint_dir, step)
        pass_time(4, first, second)
    assert pinned(first) == [1, 2, 3, 4]
    first.silent = second.silent = set()
    pass_time(60, first, second)
    assert ends(first) == {"succeeded": [1, 2, 3, 4]}


def test_what_pins_hold_is_known_though_another_node_let_go(new_node):
    """The first node removes a pin; the others must not show its bytes for ever."""
    nodes = first, second = new_node("worker-1"), new_node("worker-2")
    first.silent = second.silent = {"Evaluate"}
    storm(first, 5)
    pass_time(10, *nodes)
    assert first.status.disk.pins_bytes == second.status.disk.pins_bytes > 0
    first.silent = second.silent = set()
    pass_time(30, *nodes)
    assert ends(first) == {"succeeded": [5]}
    assert first.status.disk.pins_bytes == second.status.disk.pins_bytes == 0


def test_one_that_cannot_be_read_holds_up_no_other(new_node, monkeypatch):
    """A bad block: those after it are held and evaluated. It is no verdict, however long it lasts, and it may heal."""
    node, open_file = new_node(), link_or_copy.open_file

    def refused(folder, name):
        if name == "ckpt-5.index":
            raise OSError(errno.EIO, "Input/output error")
        return open_file(folder, name)

    monkeypatch.setattr(link_or_copy, "open_file", refused)
    save(node.checkpoint_dir, 5)
    save(node.checkpoint_dir, 6, keep=[5])
    pass_time(10, node)
    assert ends(node) == {"succeeded": [6]}
    pass_time(100, node)
    assert ends(node) == {"succeeded": [6]}
    (told,) = node.status.unreadable.sentences
    assert (told.partition("@")[0], "cannot be read: Input/output error" in told) == ("ckpt-5", True)
    monkeypatch.undo()
    pass_time(40, node)
    assert ends(node) == {"succeeded": [6, 5]}


def test_one_whose_copy_takes_long_and_fails_is_given_up_all_the_same(new_node):
    """While it is copied once more nobody knows whether it will fail again, but since when it does."""
    node = new_node()
    pinner = node.storage_thread.reconciler.pinner

    def copy(found, *_, **__):
        threading.Event().wait(0.02)
        raise IncompleteError(f"{found.checkpoint.name} has other content than when it was found")

    pinner.make, pinner.patience_seconds = copy, 0.0
    save(node.checkpoint_dir, 5)
    for _ in range(1000):
        if node.history.verdicts.settled:
            break
        pass_time(1, node)
    assert ends(node) == {"corrupt": [5]}


def test_start_new_counts_from_the_first_start_of_the_run(new_node):
    """Not from that of the node that comes second, though nothing was evaluated yet."""
    second = new_node("worker-2", start_new=True, min_workers=2)
    save(second.checkpoint_dir, 5)
    pass_time(20, second)
    save(second.checkpoint_dir, 6, keep=[5])
    pass_time(20, second)
    first = new_node("worker-1", start_new=True, min_workers=2)
    pass_time(40, first, second)
    assert ends(first) == {"skipped": [5], "succeeded": [6]}


def test_start_new_holds_for_what_takes_several_records(new_node):
    """Also if who drew the line dies before it ends; who comes meanwhile does not evaluate what is behind it."""
    settings = {"start_new": True, "min_workers": 2, "most_settled": 2}
    second = new_node("worker-2", **settings)
    for step in range(1, 8):
        save(second.checkpoint_dir, step, keep=range(1, step))
    while second.history.through < 2:
        if not second.turn():
            second.clock.seconds += 1.0
    assert second.history.backlog_cutoff_pending
    assert ends(second) == {"skipped": [1, 2, 3, 4]}
    fresh, first = restarted(second, "i2", **settings), new_node("worker-1", **settings)
    pass_time(40, first, fresh)
    save(second.checkpoint_dir, 9, keep=range(1, 8))
    pass_time(20, first, fresh)
    assert ends(first) == {"skipped": [*range(1, 8)], "succeeded": [9]}
    assert not first.history.backlog_cutoff_pending


def test_start_new_in_an_empty_directory_counts_all_that_comes(new_node):
    """The journal says that nothing was there."""
    node = new_node("worker-2", start_new=True, min_workers=2)
    node.checkpoint_dir.mkdir(parents=True)
    pass_time(20, node)
    save(node.checkpoint_dir, 5)
    pass_time(5, node)
    fresh, other = restarted(node, "i2", start_new=True, min_workers=2), new_node(start_new=True, min_workers=2)
    pass_time(60, fresh, other)
    assert ends(fresh) == {"succeeded": [5]}


def test_a_pin_that_nobody_can_read_any_more_is_given_up(new_node):
    """It is all that is left of a checkpoint whose plan failed, and who found that is gone: it blocks nothing."""
    node = new_node(max_losses=5)
    node.silent = {"Evaluate"}
    storm(node, 5)
    pass_time(5, node)
    (index,) = (node.run_dir / "pins").glob("*/*.index")
    index.write_bytes(b"broken")
    for path in node.checkpoint_dir.glob("ckpt-5.*"):
        path.unlink()
    fresh = restarted(node, "i2", wait=False)
    pass_time(50, fresh)
    assert fresh.exited is None
    assert ends(fresh) == {}
    pass_time(60, fresh)
    assert (fresh.exited, ends(fresh)) == (1, {"corrupt": [5]})
    assert counted(fresh, "corrupt") == 1


# -- room ------------------------------------------------------------------------------------------------------------


def failing(node):
    """Replies as a worker whose task raises."""
    reply = node.reply

    def raise_(process, command):
        if isinstance(command, Evaluate):
            return failed("task_error", "no such label", command.plan, 0)
        return reply(process, command)

    return raise_


def test_pins_for_a_task_that_has_no_turn_block_nothing(tmp_path, clock):
    """Two groups with different tasks, for ever: the larger fails each checkpoint, the smaller one waits for its turn.

    Its checkpoints are held as long as there is room, and then give way.
    """
    save(tmp_path / "checkpoints", 1)
    room = {"pin_max_bytes": 2 * one_size(tmp_path / "checkpoints"), "max_attempts": 1}
    nodes = [Node(tmp_path, clock, f"worker-{number}", **room) for number in (1, 2, 3)]
    for node in nodes[:2]:
        node.reply = failing(node)
    nodes[2].task = "t2"
    pass_time(40, *nodes)
    for step in range(2, 8):
        save(tmp_path / "checkpoints", step, keep=range(1, step))
        pass_time(15, *nodes)
        assert len(pinned(nodes[0])) <= 2
    pass_time(60, *nodes)
    assert ends(nodes[0])["failed"] == [1, 2, 3, 4, 5, 6, 7]
    assert ends(nodes[0])["skipped"] == [1, 2, 3, 4, 5]
    assert pinned(nodes[0]) == [6, 7]
    assert not any(each.exited for each in nodes)


@pytest.mark.parametrize("also", ["restarted", "never seen before"])
def test_a_pin_that_rots_before_anybody_could_evaluate_it_is_given_up(new_node, also):
    """Its content is not readable any more and nobody else has it, but it still says what it was."""
    node = new_node(min_workers=2)  # nothing is evaluated
    save(node.checkpoint_dir, 1)
    pass_time(10, node)
    (pin,) = (node.run_dir / "pins").iterdir()
    index = pin / "ckpt-1.index"
    index.write_bytes(index.read_bytes()[:-7])
    save(node.checkpoint_dir, 2, keep=())
    fresh = restarted(node, "i2") if also == "restarted" else new_node("worker-2")
    pass_time(30, fresh)
    assert ends(fresh) == {"succeeded": [2]}
    pass_time(60, fresh)
    assert ends(fresh) == {"succeeded": [2], "corrupt": [1]}
    assert pinned(fresh) == []
    assert counted(fresh, "corrupt") == 1


def test_what_is_never_as_it_was_found_is_given_up(new_node, monkeypatch):
    """Its files look the same, but hold something else each time they are read: no evaluation could be trusted."""
    node, verify = new_node(), pin_module.verify
    digests, steady = iter(range(1000)), set()
    other = lambda folder, *of: verify(folder, *of) if steady else f"other {next(digests)}"  # noqa: E731
    monkeypatch.setattr(pin_module, "verify", other)
    save(node.checkpoint_dir, 1)
    pass_time(50, node)
    assert ends(node) == {}
    steady.add("now")
    pass_time(30, node)
    assert ends(node) == {"succeeded": [1]}
    steady.clear()
    save(node.checkpoint_dir, 2)
    pass_time(80, node)
    assert ends(node) == {"succeeded": [1], "corrupt": [2]}
    (settled,) = [entry.settlement for entry in node.log.entries if hasattr(entry, "settlement")]
    assert "has other content than when it was found" in settled.reason


def test_what_is_being_copied_drives_nobody_out(new_node, monkeypatch):
    """A copy may take an hour; there is room for all of them."""
    node = new_node(min_workers=2)  # nothing is evaluated
    pinner = node.storage_thread.reconciler.pinner
    storm(node, 1, 2, keep=range(1, 9))
    monkeypatch.setattr(type(pinner), "pin", lambda *_, **__: None)
    storm(node, 3, keep=range(1, 9))
    pass_time(20, node)
    assert pinned(node) == [1, 2]
    assert ends(node) == {}
    monkeypatch.undo()
    pass_time(10, node)
    assert pinned(node) == [1, 2, 3]


def test_pins_give_way_before_the_disk_is_full(new_node):
    """They hold what training deleted: the oldest goes as long as too little is free, and it is told once."""
    node = new_node(keep_free_bytes=10_000)
    node.silent = {"Evaluate"}
    node.free = 20_000
    storm(node, 1, 2, 3)
    pass_time(5, node)
    assert pinned(node) == [1, 2, 3]
    node.free = 9_999
    storm(node, 4, 5)
    pass_time(5, node)
    (told,) = node.log.of("checkpoint_not_held")
    assert told["checkpoint"] == "ckpt-4"
    assert "less than keep_free_bytes = 10000" in told["reason"]
    assert pinned(node) == [1, 2, 3]
    node.report(node.active, failed("stalled"))
    pass_time(10, node)
    node.free, node.silent = 20_000, set()
    pass_time(80, node)
    assert ends(node)["skipped"][:1] == [1]
    assert 5 in ends(node)["succeeded"]
    assert ends(node)["vanished"] == [4]
    assert counted(node, "vanished") == 1


def test_small_checkpoints_on_a_small_disk_are_held(new_node):
    """It never had what is to be kept free: a hundredth of what there is may be used."""
    node = new_node(keep_free_bytes=1 << 30)
    node.free = 1 << 20
    storm(node, 1, 2, 3)
    pass_time(20, node)
    assert ends(node) == {"succeeded": [1, 2, 3]}


def test_a_copy_that_would_fill_the_disk_waits_for_room(new_node, system_calls):
    """Links are refused, and there is no room for a copy: said once, tried at each look, evaluated when there is."""
    node = new_node(keep_free_bytes=10_000)
    node.free = 10_000
    system_calls.refuse("link", errno.EPERM, lambda _, target, **__: "ckpt-" in str(target))  # not the journal's
    storm(node, 1, 2, keep=[1])
    pass_time(60, node)
    assert not (node.run_dir / "pins").exists() or pinned(node) == []
    (told,) = node.log.of("checkpoint_not_held")
    assert "keep_free_bytes" in told["reason"]
    assert (node.status.checkpoints.pending, node.status.unready) == (2, None)
    node.free = 20_000
    pass_time(10, node)
    assert ends(node) == {"succeeded": [1, 2]}


# -- the end of a run ------------------------------------------------------------------------------------------------

ENDINGS = {
    "stop_after_step": {"stop_after_step": 6},
    "stop_idle": {"stop_idle_seconds": 90.0},
    "no_wait": {"wait": False},
    "done": {},
}


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize(("what", "code"), [("well", 0), ("failed", 1), ("corrupt", 1), ("vanished", 0)])
def test_the_exit_code_says_whether_all_could_be_evaluated(new_node, ending, what, code):
    """However a run ends. Checkpoints that training deleted too soon count as vanished; nothing failed."""
    node = new_node(max_attempts=1, **ENDINGS[ending])
    for step in (5, 6):
        save(node.checkpoint_dir, step, keep=range(5, step))
    if what == "failed":
        node.reply = failing(node)
    if what == "corrupt":
        (node.checkpoint_dir / "ckpt-5.index").write_bytes(b"broken")
    if what == "vanished":
        pinner = node.storage_thread.reconciler.pinner
        make = pinner.make

        def make_too_late(found, pins, **how):
            for path in node.checkpoint_dir.glob("ckpt-5.*"):
                path.unlink()
            return make(found, pins, **how)

        pinner.make = make_too_late
    if ending == "done":
        (node.checkpoint_dir / "DONE").touch()
    pass_time(250, node)
    assert node.exited == code
    expected = {"well": "succeeded", "failed": "failed", "corrupt": "corrupt", "vanished": "vanished"}[what]
    assert 5 in ends(node)[expected]
    assert counted(node, expected if what != "well" else "evaluated") >= 1
    assert settled_lines(node).count("ckpt-5") == (what != "well")
    statuses = [row["status"] for row in rows(node.history) if row["checkpoint"] == "ckpt-5"]
    assert statuses == [expected]
    assert pinned(node) == []


def test_without_a_marker_a_daemon_serves(new_node):
    """For ever; and the marker counts when it comes."""
    node = new_node()
    save(node.checkpoint_dir, 5)
    pass_time(600, node, step=5)
    assert node.exited is None
    (node.checkpoint_dir / "DONE").write_text("step 5")
    pass_time(10, node)
    assert node.exited == 0
    assert node.log.of("run_ended") == [
        {"reason": "the trainer's marker exists, and all checkpoints are evaluated (done_marker)", "failed": 0}
    ]


def test_a_marker_that_goes_away_before_the_end_ends_nothing(new_node):
    """A new run began in the same directory."""
    node = new_node()
    node.silent = {"Evaluate"}
    save(node.checkpoint_dir, 5)
    (node.checkpoint_dir / "DONE").touch()
    pass_time(20, node)
    assert node.exited is None
    (node.checkpoint_dir / "DONE").unlink()
    node.silent = set()
    pass_time(60, node)
    assert node.exited is None
    assert ends(node) == {"succeeded": [5]}


def test_what_is_still_being_written_is_waited_for(new_node):
    """The marker, or the step, may come before the last file is whole; one that stays broken is a failure."""
    node = new_node()
    save(node.checkpoint_dir, 5)
    save(node.checkpoint_dir, 6, keep=[5])
    index = node.checkpoint_dir / "ckpt-6.index"
    whole = index.read_bytes()
    index.write_bytes(whole[:20])
    (node.checkpoint_dir / "DONE").touch()
    pass_time(40, node)
    assert node.exited is None
    index.write_bytes(whole)
    pass_time(10, node)
    assert (node.exited, ends(node)) == (0, {"succeeded": [5, 6]})


def test_the_last_one_of_a_run_is_evaluated_whatever_its_step(new_node):
    """With every_steps: it is the result of the training."""
    node = new_node(every_steps=100)
    storm(node, 90, 150, 190)
    pass_time(10, node)
    assert ends(node) == {"succeeded": [90, 150]}
    (node.checkpoint_dir / "DONE").touch()
    pass_time(20, node)
    assert (node.exited, ends(node)) == (0, {"succeeded": [90, 150, 190]})
    assert pinned(node) == []


@pytest.mark.parametrize(("fails", "code"), [(False, 0), (True, 1)])
@pytest.mark.parametrize("ending", ENDINGS)
def test_all_nodes_end(new_node, ending, fails, code):
    """Also those that never propose; with one code."""
    nodes = [new_node(f"worker-{number}", max_attempts=1, **ENDINGS[ending]) for number in (1, 2, 3)]
    for node in nodes:
        node.reply = failing(node) if fails else node.reply
    save(nodes[0].checkpoint_dir, 6)
    (nodes[0].checkpoint_dir / "DONE").touch() if ending == "done" else None
    pass_time(200, *nodes)
    assert [node.exited for node in nodes] == [code] * 3


# -- what nobody saw -------------------------------------------------------------------------------------------------


def test_what_training_deleted_while_the_daemon_stood_still_is_counted_and_told(new_node):
    """24, then 33 and 34: the numbers in between, with a remedy, once what came after them is evaluated."""
    node = new_node()
    for step in range(1, 35):
        save(node.checkpoint_dir, step, keep=[step - 1])
        for path in node.checkpoint_dir.glob(f"ckpt-{step}.*"):
            os.utime(path, (node.clock.wall(), node.clock.wall()))  # written by the clock that the node looks at
        if step < 25:
            node.wake()
            pass_time(5, node)
        else:  # the daemon is stopped
            node.clock.seconds += 5.0
    node.wake()
    pass_time(20, node)
    assert ends(node) == {"succeeded": [*range(1, 25), 33, 34]}
    (told,) = node.log.of("checkpoints_deleted_unseen")
    assert (told["count"], told["numbers"]) == (8, list(range(25, 33)))
    assert "max_to_keep" in told["remedy"]
    assert counted(node, "unseen") == 8


def test_what_another_node_saw_was_seen(new_node):
    """One stands still, the other evaluates: nothing is missing, and with every_steps nothing is either."""
    one, other = new_node("worker-1", every_steps=3), new_node("worker-2", every_steps=3)
    both = one, other
    pass_time(5, *both)
    for step in range(1, 8):
        save(one.checkpoint_dir, step)
        pass_time(2, *both)
    for step in range(8, 20):
        save(one.checkpoint_dir, step)
        other.wake()
        pass_time(2, other)
    pass_time(60, *both)
    for step in range(20, 24):
        save(one.checkpoint_dir, step)
        pass_time(2, *both)
    pass_time(60, *both)
    assert counted(one, "unseen") == 0
    assert counted(other, "unseen") == 0
    assert not one.log.of("checkpoints_deleted_unseen")
