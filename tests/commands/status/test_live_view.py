"""Draw a live view on a terminal of any size."""

import re
from dataclasses import replace

import pytest
from commands.status.screens import evaluate, measured, screen

from sidecar.commands.status.live_view import fit
from sidecar.protocol.heartbeat import WorkerProgress


def test_everything_important_is_on_the_screen(halfway):
    """As text, line by line: results with their course, the plan with bars, the queue, nodes, and what ended."""
    status, workers = halfway
    assert [line.rstrip() for line in screen(status, workers)] == [
        "run mnist",
        "",
        "metric    newest  best (★)     course",
        "accuracy  0.625   0.75 at 200  ▁█▅  0.5 to 0.75",
        "loss      0.5     0.25 at 200  █▁▅  0.25 to 0.75",
        "",
        "plan 4: ckpt-400 (step 400), open for 16 s",
        "0 node-0 evaluate ━━━━━                9/33 4/s 6 s left",
        "1 node-1 evaluate ━━                   4/33",
        "",
        "waiting 0",
        "evaluated 3, failed 0, skipped 0, vanished 0, corrupt 0",
        "",
        "node    state  last change  role    active  standby  version",
        "node-0  ready  0.0 s ago    worker  1       1        1.0",
        "node-1  ready  0.0 s ago    worker  1       1        1.0",
        "node-0 proposes plans and publishes the numbers",
        "",
        "ended last, newest first",
        "  01-15 08:16 UTC  ckpt-300 ok, 1 worker",
        "  01-15 08:16 UTC  ckpt-200 ok, 1 worker",
        "  01-15 08:16 UTC  ckpt-100 ok, 1 worker",
    ]


@pytest.mark.usefixtures("halfway")
def test_a_new_plan_begins_anew(observer, writers, clock, checkpoint, progress):
    """The rate of the former one says nothing of it; who has not read it yet reports nothing of it."""
    writers.close(metrics={})
    writers.propose(checkpoint=checkpoint(500), nodes=("node-0",))
    clock.seconds += 2
    status = observer.collect()
    (line,) = progress.note(status)
    assert (line.phase, line.per_second, line.batches) == (None, None, 0)
    assert any("not reported" in shown for shown in screen(status, [line]))


@pytest.mark.parametrize("size", [(120, 40), (64, 24), (50, 15), (30, 8), (20, 5), (8, 3), (1, 1)])
def test_every_size_has_room_for_the_most_important(halfway, size):
    """No line is wider than the terminal, and there are no more lines than it has."""
    status, workers = halfway
    shown = screen(status, workers, *size)
    assert shown[0].startswith("run mnist"[: max(1, size[0] - 1)].strip()[:7]) or size[0] == 1


def test_a_run_that_never_was(observer):
    """The same sentence as once."""
    assert screen(observer.collect(), []) == ["run mnist: no daemon has started yet"]


@pytest.mark.parametrize(
    ("height", "wanted", "heights"),
    [
        (10, [(1, 1), (2, 5), (1, 9)], [1, 5, 4]),
        (4, [(1, 1), (2, 5), (1, 9)], [1, 2, 1]),
        (2, [(1, 1), (2, 5), (1, 9)], [1, 1, 0]),
        (0, [(1, 1)], [0]),
        (99, [(1, 1), (0, 0)], [1, 0]),
        (9, [], []),
    ],
)
def test_lines_are_divided_fairly(height, wanted, heights):
    """The least of each first, in order, then line by line."""
    assert fit(height, wanted) == heights


HOSTILE = "\x1b[2J\x1b]0;x\x07[red]\u202eabc\n\tx" + "y" * 300


def test_thirty_workers_do_not_hide_the_rest(observer, writers, checkpoint, progress):
    """The slowest are shown, with a sentence about the others."""
    nodes = tuple(f"node-{number}" for number in range(30))
    writers.propose(checkpoint=checkpoint(400), nodes=nodes)
    for number, node in enumerate(nodes):
        writers.beat(node, 1, plan=1, doing=(WorkerProgress(f"{node}.a.1", "evaluate", 99 - number, 100),))
    status = observer.collect()
    text = "\n".join(screen(status, progress.note(status)))
    more = re.search(r"and (\d+) more workers, further on", text)
    assert "29 node-29 evaluate" in text
    assert "0 node-0 evaluate" not in text.replace("10 node-10", "")
    assert int(more[1]) + len(re.findall(" evaluate ", text)) == 30
    assert "waiting 0" in text
    assert "node (8 of 30)  state" in text


def test_names_cannot_control_the_terminal(observer, writers, checkpoint, progress):
    """Those of checkpoints, nodes, metrics, eval sets and messages come from files that others write."""
    evaluate(writers, checkpoint, 100, **{HOSTILE: measured(0.5, "max")})
    writers.propose(checkpoint=checkpoint(200))
    writers.close("task_error", HOSTILE)
    writers.propose(checkpoint=replace(checkpoint(300), name=HOSTILE), nodes=("node-0",))
    doing = (WorkerProgress("node-0.a.1", HOSTILE, 10**400, 10**500),)
    writers.beat("node-0", 1, plan=3, version=HOSTILE, task=HOSTILE, doing=doing)
    writers.beat("node-1", 1, plan=3)
    status = observer.collect()
    for size in ((80, 24), (40, 10)):
        text = "\n".join(screen(status, progress.note(status), *size))
        assert all(character.isprintable() or character == "\n" for character in text), size
