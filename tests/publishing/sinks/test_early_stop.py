"""Signal an early stop once, whichever node decides and whatever lies in its place."""

import json
import math

import pytest
from fakes import FaultyStorage, ListLog
from journals import Journal
from training_curves import REST_IS_TWO_POINTS, curves, stop_of

from sidecar.coordination.storage import PosixStorage
from sidecar.early_stop import FILE, should_stop
from sidecar.errors import StorageError
from sidecar.protocol.records import Value
from sidecar.publishing.sinks.early_stop import EarlyStop, _line, has_levelled_off
from sidecar.publishing.sinks.journal_events import event_of, placed
from sidecar.publishing.sinks.sink import SinkUnavailableError


@pytest.fixture
def log():
    return ListLog()


@pytest.fixture
def place(tmp_path):
    """A checkpoint directory with the state directory of its run."""
    run = tmp_path / "ckpts" / ".sidecar" / "ckpts"
    run.mkdir(parents=True)
    return tmp_path / "ckpts"


@pytest.fixture
def storage(place):
    return FaultyStorage(PosixStorage(place / ".sidecar" / "ckpts"))


@pytest.fixture
def make(storage, log):
    return lambda patience=2, **more: EarlyStop(**({"storage": storage, "log": log, "patience": patience} | more))


def evaluations(*numbers, names=None, goal="max", data=None):
    journal = Journal("0123456789abcdef")
    for step, number in enumerate(numbers):
        finite = math.isfinite(number)
        value = Value(value=number if finite else None, hex=number.hex() if finite else str(number), goal=goal)
        name = f"ckpt-{step}" if names is None else names[step]
        journal.evaluate(name, 100 * step, {"accuracy": value}, data=None if data is None else data[step])
    return [event_of(entry, at, "run", 0) for at, entry in placed(journal.history.entries)]


def given_at(sink, events, place):
    """The index of the evaluation after which the signal is there; None if it never is."""
    for index, event in enumerate(events):
        sink.write(event)
        if should_stop(place) is not None:
            return index
    return None


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ((0.5, 0.4, 0.3), 2),
        ((0.5, 0.5, 0.5), 2),
        ((0.5, 0.4, 0.6, 0.5, 0.5), None),  # the line through them still rises
        ((0.5, 0.4, 0.6, 0.5, 0.5, 0.4, 0.5, 0.4, 0.5), None),  # nine numbers are too few
        ((0.5, 0.4, 0.6, 0.5, 0.5, 0.4, 0.5, 0.4, 0.5, 0.4), 9),
        ((0.5, 0.4, 0.6, 0.65, 0.5, 0.55), None),
        ((1e308, -1e308, -1e308), None),  # of three numbers, the interval of the slope decides
        ((1e308, *[-1e308] * 9), 9),
        ((0.1, 0.2, 0.3, 0.4), None),
        ((0.5, math.nan, math.nan), 2),
        ((math.nan, math.nan), 1),
        ((0.5, 0.4), None),
    ],
)
def test_the_signal_comes_after_patience_evaluations_without_an_improvement(make, place, numbers, expected):
    """In a row, once the metric has levelled off; NaN is none."""
    assert given_at(make(), evaluations(*numbers), place) == expected


@pytest.mark.parametrize(
    ("numbers", "data", "patience", "expected"),
    [
        ((0.9, 0.5, 0.4, 0.3), "aabb", 2, None),  # by itself the second set of data has only one without an improvement
        ((0.9, 0.5, 0.4, 0.3, 0.2), "aabbb", 2, 4),
        ((0.9, 0.8, 0.1, 0.2, 0.3), "aabbb", 2, None),
        ((0.9, math.nan), "ab", 1, 1),
    ],
)
def test_patience_begins_anew_with_other_data(make, place, numbers, data, patience, expected):
    """A harder test set is no plateau."""
    assert given_at(make(patience), evaluations(*numbers, data=data), place) == expected


def test_the_signal_says_why(make, place, log):
    """As a sentence, and with the numbers; the log has it, too."""
    sink = make()
    assert given_at(sink, evaluations(0.25, 0.5, math.nan, math.nan), place) == 3
    signal = should_stop(str(place))
    assert (signal.metric, signal.best, signal.best_step, signal.step) == ("test/accuracy", 0.5, 100, 300)
    assert (signal.best_checkpoint, signal.checkpoint, signal.patience) == ("ckpt-1", "ckpt-3", 2)
    assert signal.run == "0123456789abcdef"
    assert "2 evaluations" in signal.reason
    assert log.names() == ["early_stop_signalled"]
    assert sink.signalled


def test_an_improvement_may_have_to_be_larger(make, place):
    """An improvement of at most `early_stop_min_delta` does not count as one."""
    assert given_at(make(min_delta=0.25), evaluations(0.0, 0.125, 0.25, 0.375), place) == 2


def test_a_checkpoint_does_not_count_twice(make, place):
    """A checkpoint that was requeued and evaluated again counts only once."""
    events = evaluations(0.5, 0.4, 0.4, 0.4, 0.3, names=["a", "b", "b", "b", "c"])
    assert given_at(make(), events, place) == 4


@pytest.mark.parametrize("restarted_at", range(1, 5))
def test_another_daemon_decides_the_same(make, place, restarted_at):
    """After a restart, or on another node: the journal is read from its beginning."""
    events = evaluations(0.5, 0.6, 0.45, 0.3, 0.15)
    sink = make(patience=3)
    for event in events[:restarted_at]:
        sink.write(event)
    again = make(patience=3)
    again.resume(events[:restarted_at])
    assert given_at(again, events[restarted_at:], place) == 4 - restarted_at


def test_an_evaluation_that_comes_twice_counts_once(make, place):
    """The daemon was killed before it could note how far it was."""
    events = evaluations(0.5, 0.4, 0.3)
    sink = make(patience=3)
    for event in events:
        sink.write(event)
        sink.write(event)
    again = make(patience=3)
    again.resume(events[:2])
    again.write(events[2])
    assert should_stop(place) is None


def test_a_signal_is_never_replaced(make, storage, log):
    """Training reads one reason, however long it goes on."""
    events = evaluations(*[0.5] * 9)
    sink = make()
    for event in events[:3]:
        sink.write(event)
    first = storage.read(FILE)
    for event in events[3:]:
        sink.write(event)
    assert storage.read(FILE) == first
    assert len(log.events) == 1


def test_a_signal_that_was_withdrawn(make, place, storage):
    """It is not given again for the same evaluation, only after as many more without an improvement."""
    events = evaluations(*[0.5] * 9)
    sink = make()
    for event in events[:3]:
        sink.write(event)
    storage.remove(FILE)
    sink.write(events[2])  # after a crash, for instance
    assert should_stop(place) is not None  # the delivery was not recorded, so nobody knows of the file
    storage.remove(FILE)
    restarted = make()
    restarted.resume(events[:3])
    assert (should_stop(place), restarted.signalled) == (None, False)
    restarted.write(events[3])
    assert should_stop(place) is None
    restarted.write(events[4])
    assert should_stop(place) is not None


def test_further_evaluations_count_from_the_newest_signal(make, place, storage):
    """Training went on with the signal for a while, and then a person withdrew it."""
    events = evaluations(*[0.5] * 12)
    sink = make(patience=3)
    for event in events[:6]:
        sink.write(event)
    storage.remove(FILE)
    restarted = make(patience=3)
    restarted.resume(events[:6])
    for daemon in (sink, restarted):
        assert given_at(daemon, events[6:], place) == 2
        storage.remove(FILE)


def test_an_improvement_ends_the_plateau(make, place, storage):
    """After a signal that was withdrawn, too."""
    events = evaluations(0.5, 0.5, 0.5, 0.6, 0.6, 0.5, 0.5, 0.5, 0.4, 0.4, 0.4)
    sink = make()
    for event in events[:3]:
        sink.write(event)
    storage.remove(FILE)
    assert given_at(sink, events[3:], place) == 6


@pytest.mark.parametrize("before", [None, 10])
def test_a_patience_that_is_lowered_on_a_plateau(make, place, before):
    """Or first set there: the next evaluation gives the signal."""
    events = evaluations(*[0.5] * 8)
    if before is not None:
        first = make(patience=before)
        for event in events[:6]:
            first.write(event)
    sink = make(patience=4)
    sink.resume(events[:6])
    assert should_stop(place) is None
    assert given_at(sink, events[6:], place) == 0


@pytest.mark.parametrize("record", [b"", b"{", b'{"id": 3}', b'{"id": "another-3"}'])
def test_a_record_that_is_damaged(make, place, storage, record):
    """It counts as none."""
    events = evaluations(*[0.5] * 4)
    storage.replace("sinks/early_stop.signalled.json", record)
    sink = make()
    sink.resume(events[:3])
    assert given_at(sink, events[3:], place) == 0


@pytest.mark.parametrize("content", [b"", b"{", b"null", b"x" * 100_000, b'{"reason": "' + b"x" * 70_000 + b'"}'])
def test_a_file_that_is_not_a_signal(make, place, storage, content):
    """Training would not see it, so a person must hear of it; then the signal comes."""
    events = evaluations(0.5, 0.4, 0.3)
    storage.replace(FILE, content)
    sink = make()
    sink.resume(events[:1])
    assert not sink.signalled
    sink.resume(events[:2])
    with pytest.raises(SinkUnavailableError) as caught:
        sink.write(events[2])
    assert FILE in str(caught.value)
    assert "delete" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not sink.signalled
    storage.remove(FILE)
    sink.write(events[2])
    assert sink.signalled
    assert should_stop(place) is not None


def test_a_link_in_its_place(make, place, storage):
    """Training does not follow it, and neither does the daemon."""
    real = place / "real.json"
    real.write_bytes(b"{}")
    (storage.root / FILE).symlink_to(real)
    sink = make()
    sink.signalled = True
    with pytest.raises(StorageError):
        sink.write(evaluations(0.5)[0])
    assert not sink.signalled


def test_two_nodes_give_one_signal(make, log):
    """The node that creates the file has given it."""
    events = evaluations(0.5, 0.4, 0.3)
    first, second = make(), make()
    for event in events:
        first.write(event)
    second.resume(events[:2])
    second.write(events[2])
    assert len(log.events) == 1
    assert second.signalled


def test_storage_that_is_full(make, place, storage):
    """The evaluation is delivered again, and the signal comes then."""
    events = evaluations(0.5, 0.4, 0.3)
    sink = make()
    for event in events[:2]:
        sink.write(event)

    storage.fails = {"create"}
    with pytest.raises(StorageError):
        sink.write(events[2])
    storage.fails = set()
    sink.write(events[2])
    assert should_stop(place) is not None


def test_the_file_is_whole_and_durable(make, place, storage, system_calls):
    """It is synced before its name exists."""
    order = []
    for name in ("fsync", "link"):
        system_calls.observe(name, lambda *_, called=name, **__: order.append(called))
    given_at(make(), evaluations(0.5, 0.4, 0.3), place)
    assert order.index("fsync") < order.index("link")
    assert order[-1] == "fsync"
    assert json.loads(storage.read(FILE))["schema"] == 1


def test_a_smaller_number_may_be_better(make, place):
    """A loss that falls goes on, and one that has stopped falling does not."""
    losses = 0.9, 0.7, 0.8, 0.6, 0.7, 0.65, 0.6, 0.7, 0.75, 0.8, 0.7, 0.9
    assert given_at(make(), evaluations(*losses, goal="min"), place) == 11


@pytest.mark.parametrize("numbers", [[1e308 * (-1) ** at for at in range(12)], [0.1] * 12, [5e-324, 0.0] * 6])
def test_a_line_is_laid_through_any_numbers(numbers):
    """Nothing overflows, and numbers that are equal rise by exactly 0."""
    assert all(has_levelled_off(numbers[:count], 4, 0.0) for count in (5, 8, 12) if numbers[0] == numbers[1])
    slope, error = _line([*enumerate(numbers)])
    assert math.isfinite(slope)
    assert math.isfinite(error)


def test_the_line_is_that_of_least_squares():
    """With the standard error of scipy."""
    scipy = pytest.importorskip("scipy.stats")
    numbers = [0.31, 0.72, 0.55, 0.91, 0.4, 0.77, 0.8]
    expected = scipy.linregress(range(7), numbers)
    assert _line([*enumerate(numbers)]) == pytest.approx((expected.slope, expected.stderr), rel=1e-12)


@pytest.mark.parametrize(("curve", "fewest", "most"), [("rises", 0, 12), ("flat", 96, 100)])
def test_a_slow_rise_is_told_from_a_plateau(curve, fewest, most):
    """0.2 points per checkpoint on 1,000 examples: few of 100 runs end with more than 2 of 10 points to come."""
    stops = [stop_of(numbers, 5) for numbers in curves(curve, 100, seed=5)]
    assert fewest <= sum(stop is not None and stop < REST_IS_TWO_POINTS for stop in stops) <= most
