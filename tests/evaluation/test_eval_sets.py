"""Choose the eval sets that take part in an evaluation."""

from sidecar import EvalSet, Task


def good(**changes):
    return Task(**{"build_model": print, "eval_sets": {"test": print}} | changes)


def test_each_set_takes_part_in_its_own_rhythm():
    """All of them in the first evaluation, then each in every nth."""
    task = good(eval_sets={"big": EvalSet(print, every_nth=3), "test": print, "half": EvalSet(print, every_nth=2)})
    assert [list(task.sets(evaluated)) for evaluated in range(7)] == [
        *(["big", "test", "half"], ["test"], ["test", "half"], ["big", "test"], ["test", "half"], ["test"]),
        ["big", "test", "half"],
    ]
