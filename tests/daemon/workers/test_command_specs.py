"""Build commands to workers from what is known at start and what a plan adds."""

import pytest
from records import A, make_members

from sidecar.daemon.workers.command_specs import EvaluateSpec, TaskSpec, cannot_be_used

TASK = TaskSpec(task="task.py:task", framework="torch", search_path="/code", threads=2, options={"devices": "cpu"})


def test_all_commands_of_a_task_name_the_same_task():
    """Check a task as the group will run it."""
    members = make_members("n1.i.1", "n2.i.1")
    check, join = TASK.check(), TASK.join(group="g", members=members, rank=1)
    for name in ("task", "framework", "search_path", "threads", "options"):
        assert getattr(check, name) == getattr(join, name) == getattr(TASK, name)
    assert (join.group, join.members, join.rank) == ("g", members, 1)


def test_an_evaluation_has_the_settings_of_its_node():
    """Add what the plan says."""
    spec = EvaluateSpec(save_weights="first", progress_seconds=2.0, most_batches=3, keep_batches_seconds=4.0)
    command = spec.evaluate(plan=7, checkpoint=A, path="/pins/a", save_to="/saves/a", save_root="/saves", attempt=2)
    assert (command.save_weights, command.progress_seconds, command.most_batches) == ("first", 2.0, 3)
    assert command.keep_batches_seconds == 4.0
    assert (command.plan, command.checkpoint, command.path, command.attempt) == (7, A, "/pins/a", 2)


@pytest.mark.parametrize("message", ["no module named x", "task 'task.py:task' is not there"])
def test_a_task_is_named_once(message):
    """Repeat nothing that the worker's message says already."""
    said = cannot_be_used("task.py:task", message)
    assert said.count("task.py:task") == 1
    assert said.endswith(message)
