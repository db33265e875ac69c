"""A live view that is drawn on a screen of any size."""

import io
import math

from rich.cells import cell_len
from rich.console import Console, Group

from sidecar.commands.status.live_view import live_view
from sidecar.protocol.records import Value


def screen(status, workers, width=80, height=24, *, encoding="utf-8"):
    """The lines of a terminal of this size."""
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = Console(width=width, height=height, color_system=None, file=file)
    with console.capture() as captured:
        console.print(Group(*live_view("mnist", status, workers, width=width, height=height)))
    shown = captured.get().splitlines()
    assert len(shown) <= height
    assert max(map(cell_len, shown)) <= width
    return shown


def measured(number, goal):
    return Value(value=number if math.isfinite(number) else None, hex=number.hex(), goal=goal)


def evaluate(writers, checkpoint, step, **metrics):
    writers.propose(checkpoint=checkpoint(step))
    writers.close(metrics=metrics)
