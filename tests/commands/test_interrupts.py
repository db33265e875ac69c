"""Hold signals back while something must be finished."""

import signal

import pytest

from sidecar.commands.interrupts import EndedError, Interrupts


def test_a_signal_within_a_held_block_waits_for_its_end():
    """A change of the terminal is complete before the exception."""
    interrupts, done = Interrupts(), []

    def change():
        with interrupts.held():
            with interrupts.held():
                signal.raise_signal(signal.SIGINT)
            done.append("all of it")

    with interrupts.received():
        with pytest.raises(KeyboardInterrupt):
            change()
        signal.raise_signal(signal.SIGINT)
    assert done == ["all of it"], "and a second one does not disturb the end"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_signal_outside_raises_at_once():
    """Nothing has to be waited for."""
    interrupts = Interrupts()
    with interrupts.received(), pytest.raises(EndedError) as ended:
        signal.raise_signal(signal.SIGTERM)
    assert ended.value.number == signal.SIGTERM


def test_what_was_ignored_stays_ignored():
    """A command that was started under nohup goes on ignoring SIGHUP."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupts().received():
            signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_ctrl_z_is_noted():
    """The process stops later, once the terminal was given back."""
    interrupts = Interrupts()
    with interrupts.suspendable():
        signal.raise_signal(signal.SIGTSTP)
        assert interrupts.wants_suspension
