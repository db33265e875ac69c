import pytest
from fakes import Node, outcomes, pass_time, save

from sidecar.agreement.journal import read_history
from sidecar.commands.requeue import Wanted, requeue, what_next
from sidecar.commands.standing import Standing
from sidecar.errors import SettingsError, StorageError, VanishedError
from sidecar.records import Settlement


@pytest.fixture
def ask(storage, catalog, clock):
    """Requeue by name; what happens while it waits is up to the test. Returns what was written and what was told."""

    def asked(*names, all_failed=False, wait_seconds=300.0, meanwhile=lambda: None):
        told = []

        def pause(_):
            clock.seconds += 1.0
            meanwhile()

        written = requeue(
            storage,
            catalog,
            Wanted(names, all_failed=all_failed),
            by="node-9",
            clock=clock,
            wait_seconds=wait_seconds,
            pause=pause,
            tell=told.append,
        )
        return [(each.name, each.digest, each.reason) for each in written], told

    return asked


@pytest.fixture
def saved(place, catalog):
    """Checkpoints that lie there, by name."""

    def save_all(*steps):
        for step in steps:
            save(place, step, keep=steps)
        return {found.checkpoint.name: found.checkpoint for found in catalog.look().found}

    return save_all


def given_up(checkpoint, verdict="failed", task="t1"):
    return Settlement(checkpoint.name, checkpoint.digest, checkpoint.step, verdict, "task_error: no", task)


def test_a_requeued_checkpoint_needs_an_evaluation_again(storage, writers, saved, ask):
    """The journal holds both the end and the reopening, and the last word counts."""
    there = saved(5)["ckpt-5"]
    writers.propose(given_up(there))
    assert read_history(storage).is_settled(there.key, "t1")
    written, told = ask("ckpt-5")
    history = read_history(storage)
    assert written == [("ckpt-5", there.digest, "by node-9; it was failed")]
    assert told == []
    assert history.through == 2
    assert not history.is_settled(there.key, "t1")


def test_several_names_are_one_record(storage, writers, saved, ask):
    """And a name that was given twice is requeued once."""
    there = saved(5, 6, 7)
    writers.propose(*map(given_up, there.values()))
    written, _ = ask("ckpt-5", "ckpt-7", "ckpt-5")
    assert [name for name, _, _ in written] == ["ckpt-5", "ckpt-7"]
    history = read_history(storage)
    assert history.through == 2
    assert [key[0] for key in history.settled] == ["ckpt-6"]


def test_all_failed_are_those_that_failed_for_good(storage, writers, saved, checkpoint, ask):
    """What was skipped or evaluated since stays as it is; what is gone is told and left."""
    there = saved(5, 6, 7)
    writers.propose(given_up(there["ckpt-5"]), given_up(there["ckpt-6"], "skipped"), given_up(checkpoint(9)))
    written, told = ask(all_failed=True)
    assert [name for name, _, _ in written] == ["ckpt-5"]
    (sentence,) = told
    assert sentence.startswith(f"ckpt-9 (digest {'e' * 12}) is gone: its files are neither in the checkpoint directory")
    assert sentence.endswith(", so it stays given up")
    assert read_history(storage).through == 2


def test_all_failed_of_none(storage, writers, checkpoint, ask):
    """Nothing is written, and it says why."""
    writers.propose(given_up(checkpoint(9), "skipped"))
    assert ask(all_failed=True) == ([], ["no checkpoint failed for good: nothing to requeue"])
    assert read_history(storage).through == 1


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("ckpt-8", r"'ckpt-8' was not given up, .*; given up: ckpt-5"),
        ("ckpt-6", r"'ckpt-6' was evaluated, so there is nothing to requeue; given up: ckpt-5"),
        ("ckpt-7", r"'ckpt-7' is waiting already, so"),
    ],
)
def test_what_was_not_given_up_cannot_be_requeued(storage, writers, saved, ask, name, why):
    """The message says what became of it, and names those that were. Nothing is written, for none of the names."""
    there = saved(5, 6, 7)
    writers.propose(given_up(there["ckpt-5"]))
    writers.propose(checkpoint=there["ckpt-6"])
    writers.close()
    with pytest.raises(SettingsError, match=why):
        ask("ckpt-5", name)
    assert read_history(storage).through == 2


def test_what_is_gone_cannot_be_requeued(storage, writers, checkpoint, ask, place):
    """Neither in the directory nor pinned; another checkpoint under its name is not it."""
    writers.propose(given_up(checkpoint(5)))
    with pytest.raises(VanishedError, match=r"ckpt-5 \(digest e+\) is gone: its files are neither in .* nor pinned"):
        ask("ckpt-5")
    save(place, 5)
    with pytest.raises(VanishedError, match="what has its name now is another checkpoint"):
        ask("ckpt-5")
    assert read_history(storage).through == 1


def test_what_was_corrupt_is_tried_if_it_lies_there(writers, checkpoint, ask, place):
    """A broken one has no digest that could be compared."""
    writers.propose(given_up(checkpoint(5), "corrupt"))
    with pytest.raises(VanishedError):
        ask("ckpt-5")
    save(place, 5)
    assert ask("ckpt-5")[0] == [("ckpt-5", "e" * 64, "by node-9; it was corrupt")]


def test_of_several_contents_the_newest_that_is_there_is_taken(writers, saved, checkpoint, ask):
    """And it says which."""
    there = saved(5)["ckpt-5"]
    writers.propose(given_up(there))
    writers.propose(given_up(checkpoint(5)))
    written, told = ask("ckpt-5")
    assert [digest for _, digest, _ in written] == [there.digest]
    assert told == [
        f"ckpt-5 was given up with 2 contents: {there.digest[:12]} is taken, the newest that is there, not {'e' * 12}"
    ]


def test_an_open_plan_is_waited_for(storage, writers, saved, ask, clock):
    """Plan N+1 may not be created before outcome N; it is told once what is waited for."""
    there = saved(5, 6)
    writers.propose(given_up(there["ckpt-5"]), checkpoint=there["ckpt-6"])

    def meanwhile():
        if clock.seconds == 1005.0:
            writers.close()

    written, told = ask("ckpt-5", meanwhile=meanwhile)
    assert told == ["plan 1 (ckpt-6) is open: waiting for its end (at most --wait-seconds)"]
    assert len(written) == 1
    assert read_history(storage).through == 2


def test_the_wait_has_a_bound(storage, writers, saved, ask, clock):
    """A sentence says what was waited for; a mistake in a name is told before."""
    there = saved(5, 6)
    writers.propose(given_up(there["ckpt-5"]), checkpoint=there["ckpt-6"])
    with pytest.raises(StorageError, match=r"plan 1 \(ckpt-6\) is open, and a requeue can only follow its end"):
        ask("ckpt-5", wait_seconds=30.0)
    assert clock.seconds == 1030.0
    with pytest.raises(SettingsError, match="not given up"):
        ask("ckpt-55")
    assert clock.seconds == 1030.0
    assert read_history(storage).through == 1


def test_a_plan_that_was_faster_is_waited_for_too(storage, writers, saved, ask, clock):
    """Daemons with a queue propose at once; whoever lost tries again after the next one."""
    there = saved(5, 6, 7)
    writers.propose(given_up(there["ckpt-5"]), checkpoint=there["ckpt-6"])

    def meanwhile():
        if clock.seconds == 1003.0:
            writers.close()
            writers.propose(checkpoint=there["ckpt-7"])
        if clock.seconds == 1006.0:
            writers.close()

    written, told = ask("ckpt-5", meanwhile=meanwhile)
    assert len(told) == 2
    assert len(written) == 1
    assert outcomes(read_history(storage))[-1] == ("requeued", "ckpt-5")


def test_a_busy_queue_is_outlasted(storage, writers, saved, ask):
    """However many plans are faster, the wait alone is the bound; each is told once."""
    steps = range(5, 40)
    there = saved(*steps)
    writers.propose(given_up(there["ckpt-5"]), checkpoint=there["ckpt-6"])
    more = iter(there[f"ckpt-{step}"] for step in range(7, 40))

    def meanwhile():
        writers.close()
        if (faster := next(more, None)) is not None:
            writers.propose(checkpoint=faster)

    written, told = ask("ckpt-5", meanwhile=meanwhile)
    assert len(written) == 1
    assert len(told) == len(set(told)) == 34
    assert read_history(storage).through == 35


def test_requeue_where_no_daemon_was(ask):
    """It says so instead of creating a run."""
    with pytest.raises(SettingsError, match="there is no run here yet"):
        ask("ckpt-5")


def test_a_daemon_takes_up_what_was_requeued(tmp_path, clock):
    """The whole way: given up after its attempts, reopened, evaluated."""
    node = Node(tmp_path, clock, max_attempts=1, max_losses=1)
    node.silent = {"Evaluate"}
    save(node.checkpoint_dir, 1)
    pass_time(10, node)
    for process in node.alive():
        node.end(process, 1)
    pass_time(30, node)
    assert outcomes(node.history)[-1] == ("failed", "ckpt-1")
    node.silent = set()
    requeue(
        node.storage.storage,
        node.courier.keeper.catalog,
        Wanted(["ckpt-1"]),
        by="node-9",
        clock=clock,
        wait_seconds=0.0,
        pause=lambda _: None,
        tell=lambda _: None,
    )
    pass_time(30, node)
    assert outcomes(node.history)[-2:] == [("requeued", "ckpt-1"), ("succeeded", "ckpt-1")]


def test_what_happens_next_depends_on_who_is_there(onlooker, writers, clock, checkpoint):
    """The first live worker proposes it; without one it waits."""
    assert what_next(Standing("r")) == "no daemon beats: it will be evaluated when one runs"
    writers.beat("chief-0", 1, role="chief")
    writers.beat("node-0", 1, state="starting")
    onlooker.look()
    writers.beat("chief-0", 2, role="chief")
    clock.seconds += 1
    assert what_next(onlooker.look()).startswith("only the chief's daemon beats")
    writers.beat("node-0", 2, state="starting")
    assert what_next(onlooker.look()) == "it will be evaluated once a worker is ready: node-0 (starting)"
    writers.beat("node-0", 3)
    assert what_next(onlooker.look()) == "node-0 will take it up"
    writers.propose(checkpoint=checkpoint(6))
    assert what_next(onlooker.look()) == "node-0 will take it up after plan 1"
