"""Hold few events for a sink that is away, and read the others again."""

from itertools import chain

from journals import short_memories
from publishing.sinks.conftest import finish, publishing, until

from sidecar.coordination.run import open_run
from sidecar.publishing.sinks.sink import SinkUnavailableError
from sidecar.publishing.status import SinkStatus


def test_a_sink_that_is_far_behind(deliver, storage, sink):
    """The daemon remembers the newest entries only, so the journal is read."""
    *_, short = short_memories(storage, open_run(storage, 0.0), 9)
    assert len(short.entries) < 9
    finish(deliver(), short)
    assert sink.plans == list(range(1, 10))


def test_the_journal_is_read_once_for_one_that_is_away(deliver, storage, sink, journal_reads):
    """Each retry goes on with what was read; so does each new result."""
    histories = short_memories(storage, open_run(storage, 0.0), 12)
    eighth = [next(histories) for _ in range(8)][-1]
    sink.raises = [SinkUnavailableError("away") for _ in range(5)]
    delivery = deliver()
    for short in chain([eighth], histories):
        delivery.update(publishing(), short)
        until(lambda: delivery.has_delivered)
    assert (sink.plans, len(journal_reads)) == (list(range(1, 13)), 1)


def test_memory_is_bounded_for_one_that_is_away(deliver, storage, sink, journal_reads):
    """The journal is read once for so many events as may be in memory; the number of all that wait is known."""
    histories = short_memories(storage, open_run(storage, 0.0), 12)
    tenth = [next(histories) for _ in range(10)][-1]
    sink.hold.clear()
    sending = deliver(most_waiting=4)
    sending.update(publishing(), tenth)
    until(lambda: sending.status.pending == 10)
    for short in histories:
        sending.update(publishing(), short)
    assert sending.status.pending == 12
    sink.hold.set()
    until(lambda: sending.has_delivered)
    assert (sink.plans, len(journal_reads)) == (list(range(1, 13)), 2)
    assert sending.status == SinkStatus(name="notes")
