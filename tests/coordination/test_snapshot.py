"""A daemon that starts with a snapshot knows what one knows that read the whole journal."""

import dataclasses
import gzip
import hashlib
import json
import random
import typing
from dataclasses import replace

import pytest
from record_fields import field_types

from sidecar.coordination import snapshot_store
from sidecar.coordination.checkpoint_verdicts import BEFORE_START
from sidecar.coordination.journal import Journal, outcome_path, plan_path
from sidecar.coordination.journal_state import EntryLog, JournalState
from sidecar.coordination.segments import segment_path
from sidecar.coordination.snapshot import FILE_FIELDS, FOLD, RECENT, Snapshot, encode, restore, take
from sidecar.coordination.storage import PosixStorage
from sidecar.errors import RecordError
from sidecar.protocol import records
from sidecar.protocol.codec import dumps, loads
from sidecar.protocol.records import (
    PHASES,
    Checkpoint,
    EvalData,
    Member,
    Nonfinite,
    Outcome,
    Plan,
    Result,
    Settlement,
    Value,
    group_id,
)
from sidecar.protocol.states import FAILURE_CLASSES


def journal(seed, length):
    """Records of a journal in which everything happens: names as users choose them, all kinds, requeues, two tasks."""
    choose, records = random.Random(seed), []
    keys = [(f"sub dir/ckpt-{number}\udc80", f"{number:064x}") for number in range(30)]
    for number in range(1, length + 1):
        settles = tuple(settlement(choose, keys) for _ in range(choose.choice([0, 0, 1, 2])))
        name, digest = choose.choice(keys)
        checkpoint = (
            Checkpoint(name=name, digest=digest, step=choose.choice([None, number]), format="tf")
            if choose.random() < 0.8
            else None
        )
        members = tuple(Member(rank, f"n{rank}", f"n{rank}.i.{number}", "h:1") for rank in range(2))
        task = "t1" if number < length / 2 else choose.choice(["t1", "t2", None])
        plan = Plan(
            plan=number,
            run="r",
            nonce=f"p{number}",
            checkpoint=checkpoint,
            attempt=1,
            members=checkpoint and members,
            settles=settles,
            task=task,
            proposer="n0",
            proposed_at="now",
        )
        records.append(plan)
        if checkpoint is not None:
            records.append(outcome(choose, number, group_id(members)))
    return records


def settlement(choose, keys):
    verdict = choose.choice(["skipped", "vanished", "corrupt", "failed", "requeued"])
    name, digest = choose.choice(keys)
    step = choose.randrange(100)
    reason = BEFORE_START if verdict == "skipped" and step % 2 else "why"
    return Settlement(
        name=name,
        digest=digest,
        step=step if step > 20 else None,
        verdict=verdict,
        reason=reason,
        task=choose.choice([None, "t1", "t2"]),
    )


def outcome(choose, number, group):
    ended = Outcome(
        plan=number, run="r", nonce=f"o{number}", status="failed", closed_by="n0", completed_at="2026-01-01T00:00:00Z"
    )
    if choose.random() < 0.4:
        return replace(
            ended,
            kind=choose.choice([*FAILURE_CLASSES, "of a newer version", None]),
            message="why",
            node="n1",
            rank=1,
            lasting=choose.choice([None, "checkpoint", "task"]),
        )
    return replace(ended, status="succeeded", result=result(choose, group))


def result(choose, group):
    sets = choose.choice([("test",), ("test", "rare")])
    number = choose.choice([choose.random(), float("inf"), float("nan")])
    finite = number if abs(number) < float("inf") else None
    metrics = {
        name: {"loss": Value(value=finite, hex=number.hex(), goal="min"), "rows": Value(value=1.0, hex="0x1p0")}
        for name in sets
    }
    return Result(
        group=group,
        workers=2,
        examples=dict.fromkeys(sets, 10),
        metrics=metrics,
        phases=dict.fromkeys(PHASES, choose.random()),
        variables="v",
        task="t",
        profile={"cpu": "x"},
        saves=(),
        data={name: EvalData(choose.choice(["f1", "f2", None]), 3, "batches") for name in sets},
        changed=choose.choice([(), ("test",)]),
        nonfinite=choose.choice([{}, {"test": {"label": Nonfinite(1, 0, 0)}}]),
    )


def fold(records, history=None):
    history = history or JournalState(log=EntryLog(keep=RECENT))
    for record in records:
        history.apply(record)
    return history


def known(history):
    """All of it, but for how much of the past is still kept."""
    return replace(history, log=replace(history.log, entries=history.entries[-RECENT:], _profiles={}))


@pytest.mark.parametrize("seed", range(20))
def test_a_snapshot_and_the_rest_are_the_whole(seed):
    """Wherever it was taken, through a file."""
    records = journal(seed, 150)
    whole = fold(records)
    history, rest = JournalState(log=EntryLog(keep=RECENT)), iter(records)
    at = random.Random(seed).randrange(1, len(records))
    for record in rest:
        history.apply(record)
        at -= 1
        if at <= 0 and history.open is None:
            break
    restored = restore(loads(Snapshot, encode(take(history, "r"))))
    assert known(restored) == known(history)
    assert known(fold(rest, restored)) == known(whole)
    assert list(restored.exclusions.retired_workers) == list(whole.exclusions.retired_workers)


@pytest.fixture
def storage(tmp_path):
    """A journal of ten plans, and the snapshot of it."""
    storage, records = PosixStorage(tmp_path), journal(1, 10)
    for record in records:
        storage.create(plan_path(record.plan) if isinstance(record, Plan) else outcome_path(record.plan), dumps(record))
    snapshot_store.write(storage, take(fold(records), "r"))
    return storage


def test_a_start_reads_only_what_came_after(storage, monkeypatch):
    """The newest plan and its outcome, to know that they are the same, and the names that would come next."""
    read, asked = storage.read, []
    monkeypatch.setattr(storage, "read", lambda path, *limit: (asked.append(path), read(path, *limit))[1])
    journal = Journal(storage, "r")
    history = snapshot_store.resume(storage, journal)
    assert history.through == journal.through == 10
    assert journal.read_new() == []
    next_segment = segment_path(1)
    assert asked == [snapshot_store.PATH, next_segment, plan_path(10), outcome_path(10), plan_path(11)]


@pytest.mark.parametrize(
    "damage", [b"", b"{", b"[]", b'{"schema":99}', gzip.compress(b"{", mtime=0), gzip.compress(b"[]", mtime=0)[:-3]]
)
def test_what_is_no_snapshot_is_not_believed(storage, damage):
    """Torn by a crash, or of a newer version: the journal is read from its beginning."""
    storage.replace(snapshot_store.PATH, damage)
    journal = Journal(storage, "r")
    assert snapshot_store.resume(storage, journal) is None
    assert len(journal.read_new()) == len(globals()["journal"](1, 10))


@pytest.mark.parametrize(
    "change",
    [
        {"run": "another"},
        {"fold": 0},
        {"through": 9},
        {"through": 11},
        {"plan_nonce": "another"},
        {"outcome_nonce": "another"},
        {"outcome_nonce": None},
        {"settled": {"of a newer version": ["d/n"]}},
    ],
)
def test_a_snapshot_of_another_past_is_not_believed(storage, change):
    """The journal may have been brought back from a backup, or folded by another version."""
    changed = json.loads(gzip.decompress(storage.read(snapshot_store.PATH))) | change
    storage.replace(snapshot_store.PATH, gzip.compress(json.dumps(changed).encode()))
    journal = Journal(storage, "r")
    assert snapshot_store.resume(storage, journal) is None
    assert (journal.through, journal.open) == (0, None)


def test_a_snapshot_folded_in_another_way_is_refused():
    """By its number, not by chance."""
    taken = take(fold(journal(1, 3)), "r")
    with pytest.raises(RecordError, match=r"\b99\b"):
        restore(replace(taken, fold=99))


def test_what_is_too_long_for_a_record_is_not_written(storage, monkeypatch):
    """The one before it stays."""
    before = storage.read(snapshot_store.PATH)
    monkeypatch.setattr("sidecar.coordination.storage.MAX_RECORD_BYTES", 1000)
    problem = snapshot_store.write(storage, take(fold(journal(2, 10)), "r"))
    monkeypatch.undo()
    assert storage.read(snapshot_store.PATH) == before
    assert "snapshot.json.gz is not written any more" in problem


def test_a_snapshot_of_a_release_that_did_not_compress_it_is_believed(storage):
    """An upgrade does not begin with the whole journal."""
    storage.replace(snapshot_store.PLAIN_PATH, gzip.decompress(storage.read(snapshot_store.PATH)))
    storage.remove(snapshot_store.PATH)
    assert snapshot_store.resume(storage, Journal(storage, "r")).through == 10


def test_a_snapshot_unpacks_to_a_bounded_length(storage, monkeypatch):
    """A forged one costs no memory."""
    monkeypatch.setattr(snapshot_store, "_MOST_BYTES", 1000)
    journal = Journal(storage, "r")
    assert snapshot_store.resume(storage, journal) is None


def test_a_snapshot_of_many_checkpoints_fits(storage):
    """350,000 evaluations: three years at one in five minutes."""
    history = fold(journal(1, 10))
    digests = random.Random(1)
    history.totals.checkpoints["evaluated"] |= {
        (f"ckpt-{number * 1000}", f"{digests.getrandbits(256):064x}") for number in range(350_000)
    }
    history.verdicts.succeeded |= history.totals.checkpoints["evaluated"]
    assert snapshot_store.write(storage, take(history, "r")) is None
    assert len(storage.read(snapshot_store.PATH)) > 10_000_000
    read = snapshot_store.resume(storage, Journal(storage, "r"))
    assert read.verdicts.succeeded == history.verdicts.succeeded


def test_a_snapshot_of_the_longest_names_is_read(storage):
    """An outcome may have them, and the snapshot joins those of the eval set and the metric."""
    before = closed_journal()
    while not (isinstance(before[-1], Outcome) and before[-1].result is not None):
        before.pop()
    outcome = before.pop()
    value = Value(value=0.5, hex=(0.5).hex(), goal="max")
    longest = {"e" * 1024: {"m" * 1024: value}}
    result = replace(outcome.result, examples={"e" * 1024: 10}, metrics=longest)
    history = fold([*before, loads(Outcome, dumps(replace(outcome, result=result)))])
    assert snapshot_store.write(storage, take(history, "r")) is None
    assert loads(Snapshot, encode(take(history, "r"))).newest_task.goals["e" * 1024 + "/" + "m" * 1024] == "max"


def test_a_snapshot_of_the_release_before_is_believed():
    """It says nothing of losses in a row: they count from there on."""
    history = fold(journal(1, 10))
    assert history.exclusions.losses
    told = json.loads(encode(take(history, "r")))
    del told["losses"]
    restored = restore(loads(Snapshot, json.dumps(told).encode()))
    exclusions = replace(history.exclusions, losses={})
    assert known(restored) == replace(known(history), exclusions=exclusions)


FOLDS = {
    7: ("7e0cd7f7c213f286", "61d42a57740053b1"),
    8: ("7e0cd7f7c213f286", "c05648fe145338da"),
    9: ("c242ceb3e379ef08", "57ace4bc8ef3e015"),
    10: ("a31af16e106ceaf9", "0ea84c59c997a0e6"),
    11: ("59c75443ca84f2d4", "87a18a89d5bda38b"),
    12: ("59c75443ca84f2d4", "ef7398a97af54c4f"),
}
"""By `FOLD`: digests of the fields in the file, and of the file that one journal makes. A new FOLD gets a new line."""


def fields_below(kind, known=()):
    """Return the fields of a file by name, with their types, down to the journal's records, which have a schema."""
    if dataclasses.is_dataclass(kind) and kind not in known and kind.__module__ != records.__name__:
        return sorted((name, fields_below(hint, (*known, kind))) for name, hint in field_types(kind).items())
    if typing.get_origin(kind) is typing.Annotated:  # a limit, which is in no file
        return fields_below(typing.get_args(kind)[0], known)
    below = [fields_below(inner, known) for inner in typing.get_args(kind)]
    return [kind.__name__ if isinstance(kind, type) else str(typing.get_origin(kind) or kind), *below]


def digest_of(data):
    return hashlib.sha256(data).hexdigest()[:16]


def test_a_change_of_the_fold_raises_its_version():
    """A snapshot of another version is not believed, so daemons of two releases never mix what they made of a journal.

    If this fails, raise FOLD in `sidecar.coordination.snapshot` and add its line above: the digests are in the message.
    """
    shape = digest_of(repr(fields_below(Snapshot)).encode())
    result = digest_of(encode(take(fold(closed_journal()), "r")))
    assert FOLDS[FOLD] == (shape, result)


def test_the_file_has_each_field_once():
    """A field that is added to a part must be added to the file's order as well."""
    assert sorted(FILE_FIELDS) == sorted(field_types(Snapshot))


def closed_journal():
    """Return a journal without an open plan."""
    newest_last = journal(7, 150)
    while fold(newest_last).open is not None:
        newest_last.pop()
    return newest_last
