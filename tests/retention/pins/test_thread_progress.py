"""Tell a thread that wakes again and again from one that hangs in a request."""

import threading

from sidecar.retention.pins.thread_progress import turns_of


def test_turns_grow_while_a_thread_works_and_stand_while_it_hangs():
    """Count the context switches of one thread only."""
    go, done, stop = threading.Event(), threading.Event(), threading.Event()

    def work():
        while not stop.is_set():
            go.wait()
            go.clear()
            done.set()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    before = turns_of(thread)
    for _ in range(20):
        done.clear()
        go.set()
        assert done.wait(timeout=30)
    assert turns_of(thread) >= before + 20
    stop.set()
    go.set()
    thread.join(timeout=30)
    assert turns_of(thread) is None
