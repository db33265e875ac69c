"""Show what is said while a demo runs."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from sidecar.commands.demo.screen import Scene, activity, opened
from sidecar.commands.status.collect import RunStatus
from sidecar.protocol.records import Value
from sidecar.publishing.report import rows

ROW = {
    "step": 120,
    "status": "succeeded",
    "kind": None,
    "metrics": {"test": {"loss": {"value": 0.2}, "accuracy": {"value": 0.9}}},
    "examples": {"test": 397},
    "workers": 2,
    "phases": {"detect": 0.01, "evaluate": 0.2},
}
FAILED = ROW | {"status": "failed", "kind": "stalled", "metrics": {}}
EMPTY = Scene(
    run="digits",
    status=RunStatus(run_id=None),
    rows=[],
    training="imports TensorFlow",
    step=0,
    steps=240,
    checkpoints=2,
    daemons={"chief": ("starts", ""), "worker": ("starts", "")},
)
CHIEF = {"role": "chief", "role_source": "TF_CONFIG task chief:0", "workers": [], "pending": 0}
WORKER = {"role": "worker", "workers": [{"state": "idle"}, {"state": "standby"}, {"state": "idle"}], "pending": 3}


def test_file_gets_one_plain_line_for_each_evaluation():
    """However often a scene is shown, and without anything that steers a terminal."""
    console = Console(file=io.StringIO(), width=80)
    with opened(console) as screen:
        for scene in (EMPTY, EMPTY, replace(EMPTY, rows=[ROW, FAILED], step=240)):
            screen.show(scene)
            screen.show(scene)
    lines = console.file.getvalue().splitlines()
    assert lines == [
        "step 120: accuracy 0.9000, loss 0.2000, 397 examples, 2 workers, 0.21 s (detect 0.01, evaluate 0.20)",
        "step 120: failed: stalled",
        "training ended after 240 steps",
    ]


def test_file_is_told_each_daemon_once_it_serves():
    """With its URL, which is not known before."""
    console = Console(file=io.StringIO(), width=80)
    with opened(console) as screen:
        screen.show(EMPTY)
        screen.show(replace(EMPTY, daemons={"chief": ("idles", "http://127.0.0.1:1")}))
    assert console.file.getvalue() == "chief's daemon: http://127.0.0.1:1, idles\n"


@pytest.mark.parametrize(("width", "height"), [(80, 30), (100, 12)])
def test_terminal_gets_the_picture_of_status(observer, writers, checkpoint, width, height):
    """The last scene stays: both bars, both daemons and the numbers of the run, in the lines that there are."""
    writers.propose(checkpoint=checkpoint(120))
    writers.close(metrics={"accuracy": Value(value=0.9, hex=(0.9).hex(), goal="max")})
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=True, color_system=None)
    status = observer.collect()
    scene = replace(EMPTY, status=status, rows=rows(status.history), training="240 of 240 steps", step=240)
    with opened(console) as screen:
        screen.show(scene)
    text = console.file.getvalue()
    for part in ("0.9", "240 of 240 steps", "1 of 2 checkpoints", "chief's daemon", "worker's daemon"):
        assert part in text
    first_frame, _, _ = text.partition("\x1b[1A")  # the cursor goes up before the second one
    assert first_frame.count("\n") < height


def test_terminal_shows_the_demo_before_its_run_begins():
    """No daemon has written anything yet."""
    console = Console(file=io.StringIO(), width=80, height=24, force_terminal=True, color_system=None)
    with opened(console) as screen:
        screen.show(EMPTY)
    assert "imports TensorFlow" in console.file.getvalue()


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({}, "starts"),
        (CHIEF, "idles: TF_CONFIG task chief:0"),
        (WORKER, "workers 2 idle, 1 standby; queue 3"),
        (WORKER | {"workers": []}, "workers none; queue 3"),
    ],
)
def test_daemon_is_told_in_a_few_words(status, expected):
    """From what it says of itself."""
    assert activity(status) == expected
