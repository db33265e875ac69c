"""Checkpoints whose step nobody knows: numbered in order of writing, alike on all nodes, for ever."""

import pytest
from fakes import Node, failed, pass_time, restarted, save
from prometheus_client import CollectorRegistry

from sidecar.protocol.messages import Evaluate
from sidecar.publishing.prometheus import Exporter
from sidecar.publishing.report import rows

pytestmark = pytest.mark.usefixtures("nameless")


def numbers(node):
    """Name and number of each evaluation and each settled checkpoint, as `history` shows them."""
    return [(row["checkpoint"], row["step"], row["step_source"]) for row in rows(node.history)]


def gauges(node):
    """The step gauges of evaluated and newest, as they are scraped."""
    registry = CollectorRegistry()
    Exporter(registry, process_metrics=False).update(node.status, node.history)
    names = ("sidecar_eval_checkpoint_step", "sidecar_newest_checkpoint_step")
    return [registry.get_sample_value(name, {"run": node.status.identity.run}) for name in names]


def test_all_nodes_say_the_same_numbers_also_after_a_restart(tmp_path, clock):
    """They fold one journal; a node that comes later, and saw fewer checkpoints, numbers none anew."""
    nodes = [Node(tmp_path, clock, f"worker-{number}") for number in range(2)]
    for step in (30, 10, 20):
        save(nodes[0].checkpoint_dir, step)  # deletes the one before
        pass_time(15, *nodes)
    nodes.append(Node(tmp_path, clock, "worker-2"))
    nodes[0] = restarted(nodes[0], "again")
    pass_time(15, *nodes)
    save(nodes[0].checkpoint_dir, 5)
    pass_time(30, *nodes)
    expected = [(f"ckpt-{step}", number, "order") for number, step in enumerate((30, 10, 20, 5), start=1)]
    assert [numbers(node) for node in nodes] == [expected] * 3
    assert [gauges(node)[1] for node in nodes] == [4.0] * 3


def test_another_attempt_has_the_same_number(new_node):
    """It is the same checkpoint, though another one was evaluated in between."""
    node = new_node()
    reply, tried = node.reply, []

    def fail_once(process, command):
        if isinstance(command, Evaluate) and command.checkpoint.name == "ckpt-5" and not tried:
            tried.append(command)
            return failed("task_error", "because", command.plan, 0)
        return reply(process, command)

    node.reply = fail_once
    save(node.checkpoint_dir, 5)
    pass_time(5, node)
    save(node.checkpoint_dir, 6, keep=[5])
    pass_time(60, node)
    assert [(name, number) for name, number, _ in numbers(node)] == [("ckpt-5", 1), ("ckpt-6", 2), ("ckpt-5", 1)]


def test_it_decides_nothing(new_node):
    """The third checkpoint is not step 3: a run that ends at step 3 goes on."""
    node = new_node(stop_after_step=3)
    for step in (1, 2, 3, 4):
        save(node.checkpoint_dir, step)
        pass_time(15, node)
    assert [number for _, number, _ in numbers(node)] == [1, 2, 3, 4]
    assert node.exited is None
    assert gauges(node) == [4.0, 4.0]


def test_how_steps_were_found_is_told_once(new_node):
    """With what to set."""
    node = new_node()
    for step in (1, 2, 3):
        save(node.checkpoint_dir, step)
        pass_time(15, node)
    (told,) = node.log.of("steps_found")
    assert "ckpt-1" in told["how"]
    assert "step_pattern" in told["remedy"]
