"""Record how far a sink is, and believe no record that is damaged."""

import json

import pytest
from journals import Journal
from publishing.sinks.conftest import PATIENCE_SECONDS, finish, publishing, until

from sidecar.coordination.run import open_run
from sidecar.coordination.storage import PosixStorage
from sidecar.errors import StorageError
from sidecar.publishing.sinks.progress import Progress, write_progress


def test_a_damaged_record_with_a_copy(deliver, storage, sink, log):
    """The copy says what the sink has. The log names the damaged file."""
    journal = Journal(open_run(storage, 0.0))
    journal.evaluate("ckpt-1", 100)
    finish(deliver(), journal.history)
    assert sink.plans == [1]
    storage.replace("sinks/notes.json", b"{")
    journal.evaluate("ckpt-2", 200)
    finish(deliver(), journal.history)
    assert sink.plans == [1, 2]
    assert log.names() == ["sink_progress_damaged"]
    assert [fields["path"] for fields in log.of("sink_progress_damaged")] == ["sinks/notes.json"]


def test_a_result_whose_progress_was_not_recorded_comes_again(deliver, storage, sink):
    """With the same time and numbers, so that a sink can tell."""
    journal = Journal()
    journal.evaluate("ckpt-1", 100)

    class Full(PosixStorage):
        def replace(self, *_, **__):
            raise StorageError("full")

    failing = deliver(storage=Full(storage.root))
    failing.update(publishing(), journal.history)
    until(lambda: sink.got)
    failing.close(PATIENCE_SECONDS)
    again = len(sink.got)
    finish(deliver(), journal.history)
    assert len(sink.got) == again + 1
    assert sink.got[-1] == sink.got[0]


@pytest.mark.parametrize(
    "content", [b"", b"{", b'{"run":"n","plan":-1}', b'{"run":"other run","plan":7}', b"\xff" * 99]
)
def test_a_damaged_record_of_the_progress(deliver, storage, sink, content):
    """Results come again, and none is lost; so it is when the record is about another run."""
    storage.replace("sinks/notes.json", content)
    journal = Journal()
    journal.evaluate("ckpt-1", 100)
    finish(deliver(), journal.history)
    assert sink.plans == [1]


@pytest.mark.parametrize(
    "numbers",
    [
        {"milliseconds": 10**400},
        {"milliseconds": 10**15},
        {"milliseconds": -1},
        {"plan": 10**30},
        {"plan": -1},
        {"plan": 1, "settled": 10**30},
        {"plan": 1, "settled": -1},
        {"ended": 10**30},
    ],
)
def test_impossible_numbers_in_the_progress(deliver, storage, sink, numbers):
    """Others may write the file: it counts as damaged, or no result would ever be delivered."""
    run = open_run(storage, 0.0)
    storage.replace("sinks/notes.json", json.dumps({"run": run} | numbers).encode())
    journal = Journal(run)
    journal.evaluate("ckpt-1", 100)
    finish(deliver(), journal.history)
    assert sink.plans == [1]


def test_progress_beyond_the_journal(deliver, storage, sink):
    """Another node may know more for a moment; else a person hears that the file is wrong, and how to go on."""
    run = open_run(storage, 0.0)
    write_progress(storage, "notes", Progress(run=run, plan=7))
    journal = Journal(run)
    journal.evaluate("ckpt-1", 100)
    made = deliver()
    made.update(publishing(), journal.history)
    until(lambda: made.status.failing is not None)
    assert "sinks/notes.json" in made.status.failing
    assert "delete" in made.status.failing
    storage.remove("sinks/notes.json")
    until(lambda: made.has_delivered)
    assert sink.plans == [1]
