"""A command that only reads asks a store few times, and much at once."""

import hashlib

import pytest
from state_places import Place

from sidecar.coordination import snapshot_store
from sidecar.coordination.journal import Journal, read_history
from sidecar.coordination.object_storage import ObjectStorage
from sidecar.coordination.read_ahead import ReadAhead
from sidecar.coordination.run import read_run
from sidecar.coordination.snapshot import take
from sidecar.protocol.record_limits import HEARTBEAT
from sidecar.system.object_store import StoredObject


class Rounds:
    """The objects of a state directory; each call is one round of requests at the same time."""

    def __init__(self, contents):
        self.contents, self.rounds = contents, []

    def together(self, most_of, folders):
        """Return all answers."""
        self.rounds.append({*most_of, *folders})
        found = {key: self.contents.get(key) for key in most_of}
        listed = {
            folder: [StoredObject(key, 1, 0, "e") for key in self.contents if key.startswith(f"{folder}/")]
            for folder in folders
        }
        answers = {
            key: data and (data[: most_of[key]], hashlib.sha256(data).hexdigest()) for key, data in found.items()
        }
        return answers, listed


@pytest.mark.parametrize(("snapshot", "most"), [(False, 2), (True, 2)])
def test_a_journal_takes_a_few_rounds(tmp_path, snapshot, most):
    """The run, its snapshot and the listings come first, then records and heartbeats together; nothing stays old."""
    place = Place(tmp_path, "s3://b/state")
    place.evaluate(*range(30), saves=0)
    run, history = read_run(place.storage), read_history(place.storage)
    if snapshot:
        assert snapshot_store.write(place.storage, take(history, run)) is None
        place.evaluate(*range(30, 60), saves=0)
        history = read_history(place.storage)
    now, objects = [100.0], Rounds(place.files() | {"members/n.json": b"a heartbeat"})
    storage = ObjectStorage(ReadAhead(objects, lambda: now[0]), "s3://b/state")
    assert read_run(storage) == run
    journal = Journal(storage, run)
    found = snapshot_store.resume(storage, journal)
    records = list(journal.read_to_end())
    assert (found is not None, journal.through, len(records)) == (snapshot, history.through, 60)
    assert [storage.read(f"members/{name}", HEARTBEAT.size) for name in storage.names("members")] == [b"a heartbeat"]
    assert len(objects.rounds) <= most, objects.rounds
    assert not any("snapshot.json.gz" in asked for asked in objects.rounds[1:])
    place.evaluate(99, saves=0)
    objects.contents = place.files()
    assert journal.read_new() == []
    now[0] += 1.1
    assert len(journal.read_new()) == 2


def test_an_object_that_was_cut_is_read_again():
    """More of it may be asked for than before; an absent one is absent for a moment, whatever is asked."""
    objects = Rounds({"a": b"12345"})
    storage = ObjectStorage(ReadAhead(objects, lambda: 0.0), "s3://b/state")
    assert [storage.read("a", most) for most in (1, 0, 3)] == [b"12", b"1", b"1234"]
    assert [storage.read("b", most) for most in (1, 9)] == [None, None]
    assert len(objects.rounds) == 3
