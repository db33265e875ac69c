"""Deliveries run in threads of their own, end together in time, and tell what happens once."""

import threading
import time

import pytest
from fakes import ListLog

from sidecar.publishing.sinks.delivery_thread import DeliveryThread, close

PATIENCE_SECONDS = 240.0


class Parcel(DeliveryThread):
    """Fail for some reasons, and then succeed twice; or hang until the test lets it go on."""

    def __init__(self, *reasons, hangs=False):
        super().__init__("parcel", ListLog(), thread="parcel")
        self.reasons, self.goes_on = reasons, threading.Event()
        if not hangs:
            self.goes_on.set()

    def work(self):
        """Tell all of that at the end."""
        assert self.goes_on.wait(PATIENCE_SECONDS)
        for reason in self.reasons:
            self._note_failure(reason)
        self._note_success()
        self._note_success()


def test_one_that_cannot_be_broken_off_holds_up_nobody():
    """Such a thread ends with the process: the wait is over after the time."""
    slow, quick = Parcel(hangs=True), Parcel()
    slow.start()
    quick.start()
    close([slow, quick], 0.1)
    assert [each.join(0.0) for each in (slow, quick)] == [False, True]
    slow.goes_on.set()
    assert slow.join(time.monotonic() + PATIENCE_SECONDS)


def test_one_that_was_never_started_is_closed_at_once():
    """A daemon may end before its deliveries begin."""
    Parcel().close(PATIENCE_SECONDS)


@pytest.mark.parametrize("reasons", [("away",), ("away", "away"), ("away", "full")])
def test_each_reason_is_told_once_and_the_end_of_all(reasons):
    """A full disk may follow a receiver that is down."""
    parcel = Parcel(*reasons)
    parcel.start()
    parcel.close(PATIENCE_SECONDS)
    assert parcel.log.names() == ["sink_failed"] * len(set(reasons)) + ["sink_recovered"]
