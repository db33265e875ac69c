"""Read a journal whose old plans are in segments, also damaged ones."""

import gzip
import json

import pytest

from sidecar.coordination import snapshot_store
from sidecar.coordination.compaction import Compaction
from sidecar.coordination.journal import Journal, outcome_path, plan_path, read_history
from sidecar.coordination.segments import segment_path
from sidecar.coordination.snapshot import take
from sidecar.coordination.storage import PosixStorage
from sidecar.errors import RecordError, StorageError, StorageLostError


def numbers(storage, folder):
    return [int(name.split(".")[0]) for name in storage.names(folder)]


def records(storage, run):
    return list(Journal(storage, run).read_to_end())


def test_a_segment_ends_where_its_records_reach_a_size(storage, run, write, monkeypatch):
    """So memory is bounded: the next plan begins the next segment."""
    write(8)
    sizes = {
        number: len(storage.read(plan_path(number)) + (storage.read(outcome_path(number)) or b""))
        for number in range(1, 9)
    }
    monkeypatch.setattr("sidecar.coordination.segments.MOST_BYTES", sizes[1] + sizes[2] + 10)
    before = records(storage, run)
    Compaction(storage, run, kept_plans=2, most_plans=100).work(8, lambda: False)
    assert numbers(storage, "segments")[:2] == [1, 3]
    assert records(storage, run) == before


def test_the_journal_goes_on_behind_segments(storage, run, write, compact, new_plan):
    """The daemon that wrote goes on, and so does one that starts."""
    write(5)
    compact(5)
    write(9)
    compact(9)
    other = Journal(storage, run)
    assert len(other.read_new()) == 15
    assert other.propose(new_plan(10, "other"))


def test_a_snapshot_may_end_in_a_segment(storage, run, write, compact):
    """Its nonces are compared with those in the segment."""
    write(5)
    history = read_history(storage)
    snapshot_store.write(storage, take(history, run))
    write(9)
    compact(9)
    journal = Journal(storage, run)
    assert snapshot_store.resume(storage, journal).through == journal.through == 5
    assert [record.plan for record in journal.read_new()] == [6, 7, 7, 8, 8, 9]


def test_a_daemon_that_was_suspended_notices_that_it_is_behind(storage, run, write, compact):
    """No single file follows what it has read: what follows is in a segment."""
    write(4)
    late = Journal(storage, run)
    late.read_new()
    assert late.reaches_end()
    write(12)
    compact(12)
    assert not late.reaches_end()
    assert [record.plan for record in late.read_new()] == [5, 5, 6, 7, 7, 8, 8, 9, 10, 10, 11, 11, 12]


def test_records_are_not_lost_if_storage_fails_while_segments_are_looked_for(storage, run, write):
    """They are returned by the next call."""
    write(2)
    failing = {"segments"}

    class Failing(PosixStorage):
        def sync(self, folder):
            """Fail for some folders."""
            if folder in failing:
                raise StorageError(f"cannot sync {folder}")
            super().sync(folder)

    reader = Journal(Failing(storage.root), run)
    with pytest.raises(StorageError, match="cannot sync"):
        reader.read_new()
    failing.clear()
    assert [record.plan for record in reader.read_new()] == [1, 1, 2, 2]


@pytest.mark.parametrize("first", [1, 4, 7])
def test_a_segment_that_is_gone_is_named(storage, run, write, compact, first):
    """And what to do. The others stay."""
    write(11)
    compact(11)
    (storage.root / segment_path(first)).unlink()
    with pytest.raises((RecordError, StorageLostError), match=r"is missing"):
        records(storage, run)
    assert len(numbers(storage, "segments")) == 2


DAMAGES = {
    "empty": (lambda _: b"", ""),
    "other": (lambda _: b"{}", ""),
    "torn": (lambda whole: whole[:-9], ""),
    "many parts": (lambda _: gzip.compress(b"") * 100_000, "more parts"),
    "a long header": (lambda _: gzip.compress(bytes(32 << 20), 1), "header has more"),
}


@pytest.mark.parametrize("first", [1, 4, 7])
@pytest.mark.parametrize(("damage", "why"), DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_segment_is_named(storage, run, write, compact, first, damage, why):
    """No record is made up, and nothing is removed. An endless file is not read to its end."""
    write(11)
    compact(11)
    file = storage.root / segment_path(first)
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(RecordError, match=f"{segment_path(first)}.*{why}"):
        records(storage, run)
    assert numbers(storage, "segments") == [1, 4, 7]


def test_older_releases_refuse_the_plan_that_they_read_first(storage, run, write, compact):
    """Its number of the schema is newer, and the snapshot with which they would not read it is gone."""
    write(5)
    storage.replace("snapshot.json", b"{}")
    compact(5)
    assert json.loads(storage.read(plan_path(1))) == {
        "moved_to": segment_path(1),
        "run": run,
        "plan": 1,
        "schema": 3,
    }
    assert storage.read("snapshot.json") is None
