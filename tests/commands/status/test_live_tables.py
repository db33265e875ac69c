"""Fit the tables of nodes and workers into any terminal."""

import re
from dataclasses import replace

from commands.status.screens import evaluate, measured, screen

from sidecar.protocol.heartbeat import WorkerProgress

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
