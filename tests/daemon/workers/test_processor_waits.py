"""How long the threads of a process waited for a processor, as the kernel counts it."""

import os
import subprocess
import sys

from sidecar.daemon.workers.processor_waits import WaitMeter, processor_waits

TWO_ON_ONE = """
import os, subprocess, sys, time
os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[0]})
busy = "import time\\nend = time.monotonic() + 1.5\\nwhile time.monotonic() < end: pass"
other = subprocess.Popen([sys.executable, "-c", busy])
exec(busy)
other.wait()
sys.stdout.write("done\\n")
sys.stdout.flush()
sys.stdin.read()
"""


def test_a_process_that_shares_its_processor_waits():
    """Two processes want one processor for a second and a half; a process that sleeps waits for nothing."""
    with subprocess.Popen([sys.executable, "-c", TWO_ON_ONE], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"done\n"
        waits = processor_waits(process.pid)
        process.stdin.close()
    assert waits[process.pid] > 0.2
    assert os.getpid() in processor_waits(os.getpid())


def test_a_process_that_has_ended_is_unknown():
    """Its number may be read at any time."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    assert processor_waits(process.pid) == {}


def test_the_thread_that_waited_most_counts():
    """Threads wait at the same time, so their times do not add up; a new thread counts from its second measurement."""
    meter = WaitMeter()
    meter.measure(lambda: {1: 100.0, 2: 5.0}, 10.0)
    assert meter.seconds == 0.0
    meter.measure(lambda: {1: 103.0, 2: 9.0, 3: 50.0}, 20.0)
    assert meter.seconds == 4.0
    meter.measure(lambda: {3: 80.0}, 25.0)
    assert meter.seconds == 9.0, "no longer than the time that went by"
    assert meter.share == 1.0
    meter.measure(lambda: {3: 81.0}, 35.0)
    assert (meter.seconds, meter.share) == (10.0, 0.1)


def test_measurements_have_a_second_between_them():
    """A process may have hundreds of threads, and the daemon's loop many turns."""
    meter, read = WaitMeter(), []
    for tenth in range(25):
        meter.measure(lambda: read.append(1) or {}, tenth / 10)
    assert len(read) == 3
