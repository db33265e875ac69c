"""Ask for checkpoints to be evaluated again."""

import json
import shlex
from argparse import Namespace
from dataclasses import replace
from pathlib import Path, PurePath

import pytest
from catalogs import make_catalog
from fakes import FakeClock, Node, outcomes, pass_time, restarted, save

from sidecar.commands.requeue import Request, folder_and_names, outlook, requeue
from sidecar.commands.status.collect import RunStatus
from sidecar.coordination.journal import Journal, read_history
from sidecar.coordination.journal_state import Closed, Settled
from sidecar.errors import SettingsError, StorageError, VanishedError
from sidecar.protocol.export_rule import ExportRule
from sidecar.protocol.records import Settlement, Value


@pytest.fixture
def ask(storage, catalog, clock):
    """Requeue by name; what happens while it waits is up to the test. Returns what was written and what was told."""

    def asked(*names, wait_seconds=300.0, meanwhile=lambda: None, dry_run=False, **wanted):
        told = []

        def pause(_):
            clock.seconds += 1.0
            meanwhile()

        written = requeue(
            storage,
            catalog,
            Request(names, **wanted),
            by="node-9",
            clock=clock,
            wait_seconds=wait_seconds,
            pause=pause,
            report=told.append,
            dry_run=dry_run,
        )
        return [(each.name, each.digest, each.reason) for each in written], told

    return asked


@pytest.fixture
def saved(place, catalog):
    """Checkpoints that lie there, by name."""

    def save_all(*steps):
        for step in steps:
            save(place, step, keep=steps)
        return {found.checkpoint.name: found.checkpoint for found in catalog.scan().found}

    return save_all


def given_up(checkpoint, verdict="failed", task="t1"):
    return Settlement(
        name=checkpoint.name,
        digest=checkpoint.digest,
        step=checkpoint.step,
        verdict=verdict,
        reason="task_error: no",
        task=task,
    )


def test_a_requeued_checkpoint_needs_an_evaluation_again(storage, writers, saved, ask):
    """The journal holds both the end and the reopening, and the last word counts."""
    there = saved(5)["ckpt-5"]
    writers.propose(given_up(there))
    assert read_history(storage).verdicts.is_settled(there.key, "t1")
    written, told = ask("ckpt-5")
    history = read_history(storage)
    assert written == [("ckpt-5", there.digest, "by node-9; it was failed")]
    assert told == []
    assert history.through == 2
    assert not history.verdicts.is_settled(there.key, "t1")


def test_several_names_are_one_record(storage, writers, saved, ask):
    """And a name that was given twice is requeued once."""
    there = saved(5, 6, 7)
    writers.propose(*map(given_up, there.values()))
    written, _ = ask("ckpt-5", "ckpt-7", "ckpt-5")
    assert [name for name, _, _ in written] == ["ckpt-5", "ckpt-7"]
    history = read_history(storage)
    assert history.through == 2
    assert [key[0] for key in history.verdicts.settled] == ["ckpt-6"]


def test_all_failed_are_those_that_failed_for_good(storage, writers, saved, checkpoint, ask):
    """Skipped and evaluated checkpoints stay as they are; a failed one that is gone is named and stays given up."""
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
        ("ckpt-8", r"'ckpt-8'.*not given up.*ckpt-5\b"),
        ("ckpt-6", r"'ckpt-6'.*`sidecar requeue --again ckpt-6`.*ckpt-5\b"),
        ("ckpt-7", r"'ckpt-7'.*waiting.*ckpt-5\b"),
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
    with pytest.raises(VanishedError, match=r"ckpt-5 \(digest e+\).*\bpinned\b"):
        ask("ckpt-5")
    save(place, 5)
    with pytest.raises(VanishedError, match=r"ckpt-5 \(digest e+\).*another checkpoint"):
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
        f"ckpt-5 was given up with 2 contents: {there.digest[:12]} is requeued, the newest that exists, not {'e' * 12}"
    ]


@pytest.fixture
def evaluate(writers):
    """The journal says that these were evaluated, one after the other."""

    def all_of(*checkpoints):
        for each in checkpoints:
            writers.propose(checkpoint=each)
            writers.close()

    return all_of


def test_an_evaluated_checkpoint_is_requeued_if_that_is_said(storage, writers, saved, evaluate, ask):
    """Together with others, whatever their end was."""
    there = saved(5, 6, 7)
    evaluate(there["ckpt-5"], there["ckpt-6"])
    writers.propose(given_up(there["ckpt-7"], "skipped"))
    written, told = ask("ckpt-5", "ckpt-7", again=True)
    assert [(name, reason) for name, _, reason in written] == [
        ("ckpt-5", "by node-9; it was evaluated"),
        ("ckpt-7", "by node-9; it was skipped"),
    ]
    assert told == []
    left = read_history(storage).verdicts.unsettled([each.key for each in there.values()], "t1")
    assert left == [there["ckpt-5"].key, there["ckpt-7"].key]


def test_who_asks_again_before_it_ran_is_told(storage, saved, evaluate, ask):
    """It waits already, and is evaluated once."""
    evaluate(saved(5)["ckpt-5"])
    ask("ckpt-5", again=True)
    with pytest.raises(SettingsError, match=r"'ckpt-5'.*waiting"):
        ask("ckpt-5", again=True)
    assert ask(again=True, all_evaluated=True)[0] == []
    assert read_history(storage).through == 2


def test_all_evaluated_are_those_that_are_there(storage, writers, saved, checkpoint, evaluate, ask):
    """One sentence names those that are gone; other ends stay as they are."""
    there = saved(5, 6, 7)
    evaluate(*there.values(), *map(checkpoint, range(10, 15)))
    writers.propose(given_up(checkpoint(20)))
    written, told = ask(again=True, all_evaluated=True)
    assert [name for name, _, _ in written] == ["ckpt-5", "ckpt-6", "ckpt-7"]
    assert told == ["not requeued, as their files are gone: ckpt-10, ckpt-11, ckpt-12 and 2 more"]
    assert read_history(storage).verdicts.without_result == {checkpoint(20).key}


@pytest.mark.usefixtures("run")
def test_all_evaluated_of_none(storage, ask):
    """Nothing is written, and it says why."""
    written, (sentence,) = ask(again=True, all_evaluated=True)
    assert (written, read_history(storage).through) == ([], 0)
    assert "no checkpoint was evaluated" in sentence


def test_what_one_record_cannot_hold_is_requeued_in_pieces(storage, saved, evaluate, ask, monkeypatch):
    """Names are left out once they are written, and what ended meanwhile is looked at again."""
    monkeypatch.setattr("sidecar.commands.requeue.PlanRules", lambda: Namespace(most_settled=2))
    there = saved(*range(5, 10))
    evaluate(*there.values())
    daemon, propose = iter([there["ckpt-5"], there["ckpt-6"]]), Journal.propose

    def propose_and_evaluate(journal, record):
        created = propose(journal, record)
        if record.checkpoint is None and (faster := next(daemon, None)) is not None:
            evaluate(faster)
        return created

    monkeypatch.setattr(Journal, "propose", propose_and_evaluate)
    written, _ = ask("ckpt-7", again=True, all_evaluated=True)
    assert [name for name, _, _ in written] == ["ckpt-5", "ckpt-6", "ckpt-7", "ckpt-8", "ckpt-9"]
    assert [len(entries) for entries in pieces(read_history(storage))] == [2, 2, 1]


def pieces(history):
    """The names that each plan requeues."""
    plans = {entry.plan.plan: [] for entry in history.entries if isinstance(entry, Settled)}
    for entry in history.entries:
        if isinstance(entry, Settled):
            plans[entry.plan.plan].append(entry.settlement.name)
    return plans.values()


@pytest.mark.parametrize("again", [{"again": True, "all_evaluated": True}, {"all_failed": True}])
def test_a_dry_run_writes_nothing_and_waits_for_nothing(storage, writers, saved, evaluate, ask, clock, again):
    """It says what would be requeued as of now, also while a plan is open."""
    there = saved(5, 6, 7)
    evaluate(there["ckpt-5"])
    writers.propose(given_up(there["ckpt-7"]), checkpoint=there["ckpt-6"])
    written, told = ask(dry_run=True, **again)
    assert [name for name, _, _ in written] == ["ckpt-7" if "all_failed" in again else "ckpt-5"]
    assert (told, clock.seconds, read_history(storage).through) == ([], 1000.0, 2)


def test_an_evaluated_checkpoint_that_is_gone_cannot_be_requeued(checkpoint, evaluate, ask, place):
    """Neither if what has its name is broken, or another checkpoint."""
    evaluate(checkpoint(5))
    with pytest.raises(SettingsError, match=r"'ckpt-5'.*evaluated.*gone"):
        ask("ckpt-5")
    with pytest.raises(VanishedError, match=r"ckpt-5 \(digest e+\).*\bpinned\b"):
        ask("ckpt-5", again=True)
    (place / "ckpt-5.index").write_bytes(b"broken")
    with pytest.raises(VanishedError, match=r"ckpt-5 \(digest e+\)"):
        ask("ckpt-5", again=True)
    save(place, 5)
    with pytest.raises(VanishedError, match=r"ckpt-5 \(digest e+\).*another checkpoint"):
        ask("ckpt-5", again=True)


def test_what_lies_in_a_sub_folder_may_not_be_looked_for(checkpoint, evaluate, ask):
    """The command's own `checkpoint_glob` decides, which need not be the daemons'."""
    evaluate(replace(checkpoint(5), name="epoch_1/m-5"))
    with pytest.raises(SettingsError, match=r"'epoch_1/m-5'.*gone.*checkpoint_glob"):
        ask("epoch_1/m-5")
    with pytest.raises(VanishedError, match=r"epoch_1/m-5 \(digest e+\).*pinned.*checkpoint_glob"):
        ask("epoch_1/m-5", again=True)
    _, (sentence,) = ask(again=True, all_evaluated=True)
    assert "checkpoint_glob" in sentence


def test_a_checkpoint_without_a_step_has_none_when_it_is_requeued(storage, saved, evaluate, ask):
    """Its number is its place in the journal's order, and stays."""
    there = replace(saved(5)["ckpt-5"], step=None)
    evaluate(there)
    assert ask("ckpt-5", again=True)[0]
    history = read_history(storage)
    assert [entry.settlement.step for entry in history.entries if isinstance(entry, Settled)] == [None]
    assert history.ordinals == {there.key: 1}


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
    with pytest.raises(StorageError, match=r"plan 1 \(ckpt-6\).*open"):
        ask("ckpt-5", wait_seconds=30.0)
    assert clock.seconds == 1030.0
    with pytest.raises(SettingsError, match=r"'ckpt-55'.*not given up"):
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
    with pytest.raises(SettingsError, match=r"no run.*--checkpoint-dir"):
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
        node.storage_thread.reconciler.checkpoints.catalog,
        Request(["ckpt-1"]),
        by="node-9",
        clock=clock,
        wait_seconds=0.0,
        pause=lambda _: None,
        report=lambda _: None,
    )
    pass_time(30, node)
    assert outcomes(node.history)[-2:] == [("requeued", "ckpt-1"), ("succeeded", "ckpt-1")]


def ask_again(node, *names, **wanted):
    """A person types `sidecar requeue --again`."""
    return requeue(
        node.storage.storage,
        make_catalog(node.checkpoint_dir, node.run_dir / "pins", quiet_seconds=3.0, clock=node.clock),
        Request(names, again=True, **wanted),
        by="node-9",
        clock=node.clock,
        wait_seconds=0.0,
        pause=lambda _: None,
        report=lambda _: None,
    )


def test_daemons_evaluate_again_what_was_evaluated(tmp_path, clock):
    """Each once more, the old one first, into a folder of its own; a daemon that starts later comes to the same."""
    node = Node(tmp_path, clock)
    save(node.checkpoint_dir, 1)
    pass_time(10, node)
    save(node.checkpoint_dir, 2, keep=(1,))
    pass_time(10, node)
    assert not list((node.run_dir / "pins").iterdir())
    ask_again(node, all_evaluated=True)
    fresh = restarted(node, "i2")
    pass_time(30, fresh)
    names = ["ckpt-1", "ckpt-2"]
    assert outcomes(fresh.history) == [(end, name) for end in ("succeeded", "requeued", "succeeded") for name in names]
    first, *_, second, _ = [entry.plan.folder for entry in fresh.history.entries if isinstance(entry, Closed)]
    assert first.rpartition("/")[0] == second.rpartition("/")[0]
    assert first != second
    result = json.loads((fresh.run_dir / second).parent.joinpath("result.json").read_text())
    assert result["plan"]["plan"] == 4
    assert fresh.history.newest.plan.checkpoint.name == "ckpt-2"
    other = Node(tmp_path, clock, "worker-2")
    pass_time(10, other)
    assert other.state.history.newest == fresh.history.newest
    succeeded = fresh.history.verdicts.succeeded
    assert other.state.history.verdicts.succeeded == succeeded == fresh.history.totals.checkpoints["evaluated"]


def test_what_is_to_be_evaluated_again_may_vanish(tmp_path, clock):
    """As any other that waits; and is taken up if it comes back. Its first number stays in the history."""
    node = Node(tmp_path, clock)
    save(node.checkpoint_dir, 1)
    pass_time(10, node)
    node.silent = {"Evaluate"}
    save(node.checkpoint_dir, 2, keep=(1,))
    ask_again(node, "ckpt-1")
    pass_time(1, node)
    files = {path: path.read_bytes() for path in node.checkpoint_dir.glob("ckpt-1.*")}
    for path in [*files, *(node.run_dir / "pins").glob("ckpt-1@*/*")]:
        path.unlink()
    pass_time(5, node)
    node.silent = set()
    for process in node.alive():
        node.end(process, 1)
    pass_time(100, node)
    assert ("vanished", "ckpt-1") in outcomes(node.history)
    assert outcomes(node.history)[0] == ("succeeded", "ckpt-1")
    for path, data in files.items():
        path.write_bytes(data)
    pass_time(30, node)
    assert outcomes(node.history)[-2:] == [("requeued", "ckpt-1"), ("succeeded", "ckpt-1")]


@pytest.mark.parametrize(
    ("typed", "names"),
    [
        ("ckpt-5", ["ckpt-5"]),
        ("ckpts/ckpt-5.index", ["ckpt-5"]),
        ("epoch_1/model.keras", ["epoch_1/model.keras"]),
        ("ckpts/epoch_1/saved/", ["epoch_1/saved"]),
    ],
)
def test_in_a_directory_that_is_given_names_may_be_paths(typed, names):
    """As the history has them, or below that directory."""
    assert folder_and_names([typed], "ckpts") == (None, names)
    assert folder_and_names([typed], "./ckpts/") == (None, names)


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("ckpt-5", (None, ["ckpt-5"])),
        ("ckpts/ckpt-5", (None, ["ckpt-5"])),
        ("epoch_1/model.keras", (None, ["epoch_1/model.keras"])),
        ("other/ckpt-5", (Path("other"), ["ckpt-5"])),
    ],
)
def test_a_path_leads_into_the_configured_directory_unless_it_leads_elsewhere(tmp_path, monkeypatch, typed, expected):
    """With `checkpoint_dir` in a settings file, names are typed as the history has them, too."""
    for folder in ("ckpts/epoch_1", "other"):
        (tmp_path / folder).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert folder_and_names([typed], None, Path("ckpts")) == expected


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        (["ckpts", "ckpt-5", "ckpts/ckpt-6"], (Path("ckpts"), ["ckpt-5", "ckpt-6"])),
        (["ckpts"], (Path("ckpts"), [])),  # it holds the state of a run
        (["other", "ckpt-5"], (Path("other"), ["ckpt-5"])),
        (["other"], (None, ["other"])),  # a checkpoint may be a folder
        (["ckpts/saved-1", "ckpts/saved-2"], (Path("ckpts"), ["saved-1", "saved-2"])),
    ],
)
def test_the_directory_may_come_first(tmp_path, monkeypatch, typed, expected):
    """As in all other commands."""
    for folder in ("ckpts/.sidecar", "ckpts/saved-1", "ckpts/saved-2", "other"):
        (tmp_path / folder).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert folder_and_names(typed) == expected


@pytest.mark.parametrize("folder", ["", "epoch_1"])
def test_the_refusal_names_a_command_that_works(tmp_path, clock, type_, folder):
    """Whichever directory, sub-folder and run it is about."""
    node = Node(tmp_path, clock, checkpoint_glob=("*", "epoch_*/*"))
    save(node.checkpoint_dir / folder, 5)
    pass_time(10, node)
    (tmp_path / "sidecar.toml").write_text('checkpoint_glob = ["*", "epoch_*/*"]')
    name = str(PurePath(folder, "ckpt-5"))
    code, _, refusal = type_("requeue", "-d", "checkpoints", "--run", "run", name)
    assert (code, refusal.count("`")) == (2, 2)
    _, *words = shlex.split(refusal.split("`")[1])
    assert words[:3] == ["requeue", "checkpoints", name]
    for option, done in (("--dry-run", "would be"), ("--no-wait", "is")):
        code, out, _ = type_(*words, option)
        assert (code, out.partition(" (")[0]) == (0, f"{name} {done} requeued")
    pass_time(30, node)
    assert outcomes(node.history) == [("succeeded", name), ("requeued", name), ("succeeded", name)]
    code, out, _ = type_("requeue", "--again", "--all", "-d", "checkpoints", "--run", "run", "--no-wait")
    assert (code, out.splitlines()[1:]) == (0, ["1 is requeued"])


def test_what_happens_next_depends_on_who_is_there(observer, writers, clock, checkpoint):
    """The first live worker proposes it; without one it waits."""
    assert outlook(RunStatus(run_id="r")) == "no daemon is alive: the evaluation begins once one runs"
    writers.beat("chief-0", 1, role="chief")
    writers.beat("node-0", 1, state="starting")
    observer.collect()
    writers.beat("chief-0", 2, role="chief")
    clock.seconds += 1
    assert outlook(observer.collect()).startswith("only the chief's daemon is alive")
    writers.beat("node-0", 2, state="starting")
    assert outlook(observer.collect()) == "it will be evaluated once a worker node is ready: node-0 (starting)"
    writers.beat("node-0", 3)
    assert outlook(observer.collect()) == "node-0 will plan its evaluation"
    writers.propose(checkpoint=checkpoint(6))
    assert outlook(observer.collect()) == "node-0 will plan its evaluation after plan 1"


def test_a_checkpoint_of_which_only_the_export_exists_is_requeued(tmp_path):
    """A daemon with export_best turns the export into a pin again; without exports its files are gone."""
    node = Node(tmp_path, FakeClock(), exports=ExportRule(metric="test/accuracy", count=1))
    node.numbers["ckpt-1"] = Value(value=0.9, hex=(0.9).hex(), goal="max")
    for step in (1, 2):
        save(node.checkpoint_dir, step)
        pass_time(12, node)
    storage = node.storage.storage
    catalog = node.storage_thread.reconciler.checkpoints.catalog
    (export,) = node.run_dir.glob("exports/ckpt-1@*")

    def again(**exported):
        return requeue(
            storage,
            catalog,
            Request(["ckpt-1"], again=True),
            by="me",
            clock=node.clock,
            wait_seconds=0.0,
            pause=lambda _: None,
            report=lambda _: None,
            **exported,
        )

    with pytest.raises(VanishedError):
        again()
    (settlement,) = again(exported=[export.name])
    assert settlement.verdict == "requeued"
    pass_time(20, node)
    assert len(outcomes(node.history)) == 4
    assert export.is_dir()
