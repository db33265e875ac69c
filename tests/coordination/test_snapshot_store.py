"""Start from the snapshot in shared storage, if it belongs to the journal."""

import gzip
import json
import random
from dataclasses import replace

import pytest
from coordination.random_journals import closed_journal, fold, random_journal
from fakes import FaultyStorage

from sidecar.coordination import snapshot_store
from sidecar.coordination.journal import Journal, outcome_path, plan_path
from sidecar.coordination.segments import segment_path
from sidecar.coordination.snapshot import Snapshot, encode, take
from sidecar.coordination.storage import PosixStorage
from sidecar.protocol.codec import dumps, loads
from sidecar.protocol.records import Outcome, Plan, Value


@pytest.fixture
def storage(tmp_path):
    """A journal of ten plans, and the snapshot of it."""
    storage, records = PosixStorage(tmp_path), random_journal(1, 10)
    for record in records:
        storage.create(plan_path(record.plan) if isinstance(record, Plan) else outcome_path(record.plan), dumps(record))
    snapshot_store.write(storage, take(fold(records), "r"))
    return storage


def test_a_start_reads_only_what_came_after(storage):
    """The newest plan and its outcome, to know that they are the same, and the names that would come next."""
    storage = FaultyStorage(storage)
    journal = Journal(storage, "r")
    history = snapshot_store.resume(storage, journal)
    assert history.through == journal.through == 10
    assert journal.read_new() == []
    next_segment = segment_path(1)
    assert storage.asked["read"] == [snapshot_store.PATH, next_segment, plan_path(10), outcome_path(10), plan_path(11)]


@pytest.mark.parametrize(
    "damage", [b"", b"{", b"[]", b'{"schema":99}', gzip.compress(b"{", mtime=0), gzip.compress(b"[]", mtime=0)[:-3]]
)
def test_what_is_no_snapshot_is_not_believed(storage, damage):
    """Torn by a crash, or of a newer version: the journal is read from its beginning."""
    storage.replace(snapshot_store.PATH, damage)
    journal = Journal(storage, "r")
    assert snapshot_store.resume(storage, journal) is None
    assert len(journal.read_new()) == len(random_journal(1, 10))


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


def test_what_is_too_long_for_a_record_is_not_written(storage, monkeypatch):
    """The one before it stays."""
    before = storage.read(snapshot_store.PATH)
    monkeypatch.setattr("sidecar.coordination.storage.MAX_RECORD_BYTES", 1000)
    problem = snapshot_store.write(storage, take(fold(random_journal(2, 10)), "r"))
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


@pytest.mark.seconds
@pytest.mark.nightly
def test_a_snapshot_of_many_checkpoints_fits(storage):
    """350,000 evaluations: three years at one in five minutes."""
    history = fold(random_journal(1, 10))
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
    read = loads(Snapshot, b"".join(encode(take(history, "r"))))
    assert read.newest_task.goals["e" * 1024 + "/" + "m" * 1024] == "max"
