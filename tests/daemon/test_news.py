"""What is new is told on, so that nobody goes through all that lies there: what that saves, that nothing is missed."""

import os
import random
import shutil

import pytest
from fakes import FakeClock, Node, failed, pass_time, save

from sidecar.coordination.journal_state import JournalState
from sidecar.daemon.storage_thread import CreatePlan
from sidecar.errors import IncompleteError, VanishedError
from sidecar.pins.reconciler import PinReconciler
from sidecar.records import Plan, Settlement

MANY = 300


@pytest.fixture
def clock(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)
    return FakeClock()


@pytest.fixture
def looked_through(monkeypatch):
    """How many checkpoints the journal was asked about, each time."""
    counts, original = [], JournalState.unsettled

    def counting(history, keys, task):
        keys = list(keys)
        counts.append(len(keys))
        return original(history, keys, task)

    monkeypatch.setattr(JournalState, "unsettled", counting)
    return counts


def test_one_more_beside_many_is_looked_at_alone(tmp_path, clock, looked_through):
    """By who pins it and by who decides, until it is evaluated."""
    node = Node(tmp_path, clock, start_new=True)
    save(node.checkpoint_dir, 0)
    for number in range(1, MANY):
        for ending in ("data-00000-of-00001", "index"):
            shutil.copyfile(node.checkpoint_dir / f"ckpt-0.{ending}", node.checkpoint_dir / f"ckpt-{number}.{ending}")
    save(node.checkpoint_dir, MANY - 1, keep=range(MANY))
    pass_time(60.0, node)
    assert max(looked_through) >= MANY, "once all of them are looked through"
    assert len(node.state.history.settled) == MANY
    looked_through.clear()
    save(node.checkpoint_dir, MANY, keep=range(MANY))
    pass_time(60.0, node)
    assert len(node.state.history.succeeded) == 1
    assert 0 < max(looked_through) < 10


@pytest.fixture
def compared(monkeypatch):
    """Whoever is asked about news is asked about everything, too, and must say the same; returns how often."""
    original, times = PinReconciler._choose, []

    def comparing(reconciler, look, choose):
        chosen, wanted = original(reconciler, look, choose), choose(look.by_key)
        assert chosen.wanted.hold == wanted.hold
        assert chosen.wanted.keep == wanted.keep
        concerned = {*wanted.hold, *look.pinned, *reconciler._pinning.damaged}
        assert chosen.concerned == [key for key in look.by_key if key in concerned]
        times.append(len(look.by_key))
        return chosen

    monkeypatch.setattr(PinReconciler, "_choose", comparing)
    return times


def reopen(node, name, digest) -> None:
    """A person asks for a checkpoint again."""
    settles = (Settlement(name, digest, None, "requeued", "why not"),)
    number = node.state.history.through + 1
    plan = Plan(number, node.state.run, f"a person {number}", None, 0, None, settles, None, "a person", "now")
    node.daemon.observe(node.storage_thread.answer(CreatePlan(plan)))


def gone_for_once(pinner, attempts):
    """As if files were not there for a moment, and then changed: they are found as they were, which no look tells."""
    make, errors = pinner.make, iter([VanishedError("it is gone"), *[IncompleteError("it changed")] * attempts])

    def attempt(found, pins, **how):
        if (error := next(errors, None)) is not None:
            raise error
        pinner.make = make
        return make(found, pins, **how)

    return attempt


def disturb(choose, nodes, step) -> None:
    """Something happens to the directory, or to a node."""
    folder, node = nodes[0].checkpoint_dir, choose.choice(nodes)
    there = sorted({int(path.name.split(".")[0].removeprefix("ckpt-")) for path in folder.glob("ckpt-*.index")})
    match choose.randrange(8):
        case 0 | 1:
            save(folder, step, keep=choose.sample(there, choose.randint(0, len(there))))
        case 2:
            save(folder, choose.choice(there), keep=there)  # again, with the same content
        case 3:
            folder.rename(folder.with_name("away"))
            pass_time(3.0, *nodes)
            shutil.rmtree(folder, ignore_errors=True)
            folder.with_name("away").rename(folder)
        case 4 if node.state.history.settled or node.state.history.succeeded:
            reopen(node, *choose.choice(sorted(node.state.history.settled.keys() | node.state.history.succeeded)))
        case 5:
            node.storage_thread.reconciler.pinner.make = gone_for_once(
                node.storage_thread.reconciler.pinner, choose.randrange(20)
            )
        case 6:
            node.task = choose.choice(["t1", "t2"])
            node.silent = set(choose.choice([(), ("Evaluate",)]))
        case _:
            for process in node.processes.values():
                if not process.exited and process.commands:
                    node.report(process, failed("task_error", plan=node.state.history.through))


@pytest.mark.parametrize("rules", [{}, {"queue": "latest"}, {"every_steps": 3}, {"start_new": True}])
@pytest.mark.parametrize("seed", range(2))
def test_news_say_what_looking_through_all_would(tmp_path, clock, compared, seed, rules):
    """Which are held and let go, and which are decided on, in which order, whatever comes, goes or comes back."""
    choose = random.Random(seed)
    nodes = [Node(tmp_path, clock, f"worker-{number}", state_dir=tmp_path / "state", **rules) for number in range(2)]
    save(nodes[0].checkpoint_dir, 1)
    for step in range(2, 25):
        disturb(choose, nodes, step)
        pass_time(choose.choice([1.0, 4.0, 20.0]), *nodes)
        for node in nodes:
            state, now = node.state, clock.now()
            full = {*state.history.unsettled(state.found, state.task), *state.tracker._look.pinned}
            told = [each.key for each in state.view(now, draining=False).checkpoints.complete]
            assert told == [key for key in state.found if key in full]
    assert len(compared) > 50
    assert max(compared) > 1
