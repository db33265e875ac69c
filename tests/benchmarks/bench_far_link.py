"""Measure what a far link costs an evaluation, and what it costs a loop that meets in every step."""

import contextlib
import os
import statistics
import subprocess
import sys

from link import HOSTS, Link
from programs import Child, scratch
from table import Figure, Table
from worker_group import Place, WorkerGroup

BATCHES = 500
ROUND_TRIP_SECONDS = 0.020
HOW = f"""Two worker processes in two network namespaces form a group and evaluate {BATCHES} batches, warm, in turn
without delay and with a round trip of {ROUND_TRIP_SECONDS * 1000:.0f} ms between them. The link is a userspace
forwarder between two TUN devices. Beside it, over the same link, two processes that make one all-reduce of two
numbers (a total and a count) for each of {BATCHES} batches, as an evaluation does that meets in every step; nothing
else is in that loop. Seconds, medians."""
COLUMNS = ("", "no delay", "20 ms round trip", "added")


def measure(quick):
    rounds = 2 if quick else 8
    if os.geteuid() != 0:
        raise RuntimeError("network namespaces and TUN devices need root")
    with scratch() as folder, Link() as link:
        with contextlib.ExitStack() as stack:
            saver = stack.enter_context(Child("saver.py", "keras", "dense", folder=folder))
            path = saver.ask(folder=str(folder / "ckpts"), step=1)["path"]
            places = [_place(folder, link, number) for number in range(2)]
            worker_group = stack.enter_context(
                WorkerGroup(folder, "dense.py", places, env={"BENCH_BATCHES": str(BATCHES)})
            )
            ours = _in_turn(link, rounds, lambda: worker_group.evaluate(path)[1])
            link.delay = ROUND_TRIP_SECONDS / 2
            trips = [_round_trip(link, worker_group.members[1].address) for _ in range(5)]
        with contextlib.ExitStack() as stack:
            addresses = [f"{host}:24990" for host in HOSTS]
            ranks = [
                stack.enter_context(
                    Child("per_step.py", str(rank), *addresses, folder=folder, before=link.within(rank))
                )
                for rank in range(2)
            ]
            steps = 50 if quick else BATCHES
            each_step = _in_turn(link, 1 if quick else 2, lambda: _loop(ranks, steps) * BATCHES / steps)
    rows = [(f"evaluation of {BATCHES} batches", *ours), (f"{BATCHES} steps with an all-reduce in each", *each_step)]
    figures = [Figure("added to an evaluation", ours[2], 0.5, unit=" s")]
    notes = [f"A TCP connection across the link took {statistics.median(trips) * 1000:.1f} ms: one round trip."]
    return Table("A far link: 20 ms between two workers", HOW, COLUMNS, rows, figures, notes)


def _in_turn(link, rounds, run):
    """Medians without and with delay, and their difference."""
    found = {0.0: [], ROUND_TRIP_SECONDS / 2: []}
    for number in range(rounds + 1):
        for delay, seconds in found.items():
            link.delay = delay
            took = run()
            if number:  # the first warms up
                seconds.append(took)
    near, far = map(statistics.median, found.values())
    return near, far, far - near


def _loop(ranks, steps):
    for rank in ranks:
        rank.begin(steps=steps)
    return max(rank.answer()["seconds"] for rank in ranks)


def _place(folder, link, number):
    """At one end of the link: the interpreter is a script that goes there."""
    script = folder / f"python-{number}"
    script.write_text(f'#!/bin/sh\nexec {" ".join(link.within(number))} {sys.executable} "$@"\n')
    script.chmod(0o755)
    return Place(host=HOSTS[number], interpreter=str(script))


def _round_trip(link, address):
    """Seconds that a TCP connection from the first end to a worker at the second takes."""
    host, port = address.split(":")
    program = (
        f"import socket, time; begin = time.monotonic(); socket.create_connection(({host!r}, {port}), 10); "
        "print(time.monotonic() - begin)"
    )
    return float(subprocess.check_output([*link.within(0), sys.executable, "-c", program], text=True))
