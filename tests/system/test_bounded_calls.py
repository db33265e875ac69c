"""A call that hangs costs one thread and its own entry: the others are answered, and so is it, when it comes back."""

import errno
import gc
import threading

import pytest

from sidecar.system.bounded_calls import BoundedCalls, HangingError
from sidecar.system.entry_errors import Entry, Meaning, meaning


@pytest.fixture
def gate():
    """Return what a hanging call waits for; opened at the end, so that no thread is left."""
    opened = threading.Event()
    yield opened
    opened.set()


def hang(gate, value="late"):
    """Return a call that ends when the gate opens; it has a bound of its own."""

    def wait():
        assert gate.wait(60)
        return value

    return wait


def test_a_call_returns_what_its_function_returns():
    """And raises what it raises."""
    calls = BoundedCalls()
    assert calls("a", lambda: 42) == 42
    with pytest.raises(ZeroDivisionError):
        calls("a", lambda: 1 / 0)
    assert calls("a", lambda: 43) == 43


def test_one_thread_serves_all_calls_that_end():
    """Thousands of entries must not start thousands of threads."""
    calls = BoundedCalls()
    assert len({calls(str(number), threading.get_ident) for number in range(100)}) == 1


def test_a_hanging_entry_is_unknown_and_the_others_are_read(gate):
    """The table of errors must not take it for gone, nor for a failure of the whole request."""
    calls = BoundedCalls(patience_seconds=0.01)
    with pytest.raises(HangingError) as raised:
        calls("bad", hang(gate))
    assert raised.value.errno == errno.ETIMEDOUT
    assert raised.value.filename == "bad"
    assert meaning(Entry.PIN, raised.value) is Meaning.UNKNOWN
    assert BoundedCalls(patience_seconds=60)("good", lambda: 1) == 1
    calls.patience_seconds = 60
    assert calls("good", lambda: 1) == 1


def test_a_hanging_entry_is_waited_for_once(gate):
    """Each further scan must not lose its patience on it again."""
    calls = BoundedCalls(patience_seconds=0.01)
    with pytest.raises(HangingError):
        calls("bad", hang(gate))
    calls.patience_seconds = 60
    for _ in range(1000):
        with pytest.raises(HangingError):
            calls("bad", lambda: pytest.fail("it is begun once"))


def test_what_comes_late_is_handed_over_to_who_asks_again(gate):
    """Slow storage is no hanging storage: in the end each entry is read."""
    calls = BoundedCalls(patience_seconds=0.01)
    with pytest.raises(HangingError):
        calls("slow", hang(gate))
    late = calls.late["slow"]
    gate.set()
    assert late.done.wait(60)
    assert calls("slow", lambda: "anew") == "late"
    assert calls.hanging == []


def test_no_more_threads_hang_than_allowed(gate):
    """When so many entries hang it is the storage: nothing more is begun, and it says which they are."""
    calls = BoundedCalls(patience_seconds=0.01, most_hanging=2)
    for name in ("first", "second"):
        with pytest.raises(HangingError):
            calls(name, hang(gate))
    with pytest.raises(HangingError, match="first, second"):
        calls("third", lambda: pytest.fail("nothing more is begun"))


def test_results_that_nobody_asks_for_are_forgotten(gate):
    """Entries that are removed while they are read are never asked for again."""
    calls = BoundedCalls(patience_seconds=0.001, most_hanging=1000)
    for number in range(200):
        with pytest.raises(HangingError):
            calls(str(number), hang(gate))
    late = list(calls.late.values())
    gate.set()
    assert all(each.done.wait(60) for each in late)
    again = threading.Event()
    with pytest.raises(HangingError):
        calls("one more", hang(again))
    again.set()
    assert len(calls.late) <= 65


def test_the_thread_ends_with_its_owner():
    """A daemon of many runs makes owners again and again, as runs end, fail and begin anew."""
    calls = BoundedCalls()
    thread = calls("a", threading.current_thread)
    assert thread.is_alive()
    del calls
    gc.collect()
    thread.join(240)
    assert not thread.is_alive()
