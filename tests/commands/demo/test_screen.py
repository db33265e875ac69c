"""What is said while a demo runs."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from sidecar.commands.demo.screen import Scene, activity, opened
from sidecar.commands.demo.table import Evaluation

EVALUATION = Evaluation(
    checkpoint="ckpt-120",
    step=120,
    status="succeeded",
    accuracy=0.9,
    loss=0.2,
    examples=397,
    workers=2,
    phases={"detect": 0.01},
    lag=0.2,
)
EMPTY = Scene(
    evaluations=[],
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
        for scene in (EMPTY, EMPTY, replace(EMPTY, evaluations=[EVALUATION], step=240)):
            screen.show(scene)
            screen.show(scene)
    lines = console.file.getvalue().splitlines()
    assert lines == [
        "step 120: accuracy 0.9000, loss 0.2000, 397 examples, 2 workers, lag 0.20 s (detect 0.01)",
        "training ended after 240 steps",
    ]


def test_file_is_told_each_daemon_once_it_serves():
    """With its URL, which is not known before."""
    console = Console(file=io.StringIO(), width=80)
    with opened(console) as screen:
        screen.show(EMPTY)
        screen.show(replace(EMPTY, daemons={"chief": ("idles", "http://127.0.0.1:1")}))
    assert console.file.getvalue() == "chief's daemon: http://127.0.0.1:1, idles\n"


@pytest.mark.parametrize("width", [80, 100])
def test_terminal_gets_the_picture(width):
    """The last scene stays: numbers, both bars, both daemons, no line wider than the terminal."""
    console = Console(file=io.StringIO(), width=width, height=30, force_terminal=True, color_system=None)
    scene = replace(EMPTY, evaluations=[EVALUATION], training="240 of 240 steps", step=240)
    with opened(console) as screen:
        screen.show(scene)
    text = console.file.getvalue()
    for part in ("0.9000", "240 of 240 steps", "1 of 2 checkpoints", "chief's daemon", "worker's daemon"):
        assert part in text


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
