"""Measure what the journal of a year takes on disk: as single files, and with segments."""

import time

from long_journal import records
from table import Figure, Table

from sidecar.coordination.segments import KEPT_PLANS, Segment, SegmentWriter, segment_path
from sidecar.protocol.codec import dumps

HOW = """The journal of a year of one evaluation in five minutes: 105,000 plans that all succeeded, with ten metrics
and a group of two, as daemons write it. Nothing is evaluated, and the records are not written: their sizes are
added up, in blocks of 4 KiB. Segments are made as daemons make them, and read back whole. Saves are not in it."""
COLUMNS = ("", "plans", "inodes", "MB", "CPU s to make", "CPU s to unpack all")
_BLOCK = 4096


def measure(quick):
    plans = 10_000 if quick else 105_000
    segments, left, single_bytes, raw = [], [], 0, 0
    begin, writer = time.process_time(), SegmentWriter("r", 1)
    writing = 0.0
    for number in range(1, plans + 1):
        made = tuple(map(dumps, records(number, "r", metrics=10)))
        sizes = sum(map(_on_disk, map(len, made)))
        single_bytes, raw = single_bytes + sizes, raw + sum(map(len, made))
        since = time.process_time()
        if not writer.takes(*made):
            segments.append((writer.first, writer.content()))
            writer, left = SegmentWriter("r", number), []
        writer.add(*made)
        writing += time.process_time() - since
        left.append(sizes)
        if len(left) == KEPT_PLANS and number + KEPT_PLANS > plans:
            break
    rest = plans - sum(len(_plans(*each)) for each in segments)
    per_plan = single_bytes / number
    since = time.process_time()
    for first, content in segments:
        Segment(segment_path(first), content).check_whole()
    unpacking = time.process_time() - since
    single = "single files", plans, 2 * plans, per_plan * plans / 1e6, 0.0, 0.0
    in_segments = sum(_on_disk(len(content)) for _, content in segments) + rest * per_plan
    moved = (
        "segments and the newest single files",
        plans,
        len(segments) + 2 * rest,
        in_segments / 1e6,
        writing,
        unpacking,
    )
    figures = [
        Figure("inodes of the journal of a year", moved[2], 4500),
        Figure("MB of the journal of a year", moved[3], 150, unit=" MB"),
    ]
    notes = [
        f"The records themselves are {raw / number * plans / 1e6:.0f} MB.",
        f"To make up the records took most of {time.process_time() - begin:.0f} s.",
    ]
    return Table("The journal of a year", HOW, COLUMNS, [single, moved], figures, notes)


def _plans(first, content):
    header = Segment(segment_path(first), content).header
    return range(header.first, header.last + 1)


def _on_disk(length):
    return -(-length // _BLOCK) * _BLOCK
