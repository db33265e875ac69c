"""Findings that numbers depend on batches become notes, and are refused where workers change the batches."""

import pytest

from sidecar.evaluation.batch_dependence import MODEL, UNTESTED, BatchDependence
from sidecar.evaluation.failures import EvaluationError


def test_findings_of_any_rank_hold_for_all():
    """Notes name what one rank found, in this and in later evaluations, for its eval set alone."""
    finder, other = BatchDependence(["auc", "loss"]), BatchDependence(["auc", "loss"])
    finder.add("test", ["auc", MODEL])
    for _ in range(2):
        states = finder.states()
        for rank in (finder, other):
            rank.add_to(states, "test")
        first, second = finder.notes(states)
        assert first.startswith("auc depends")
        assert "predictions" in second
        assert all("another batch size gives another number" in note for note in (first, second))
    states = finder.states()
    finder.add_to(states, "train")
    assert finder.notes(states) == ()


def test_batches_of_the_number_of_workers_are_refused():
    """Findings are refused for sets that divide themselves; "cannot be tested" stays a note."""
    dependence = BatchDependence(["auc"])
    dependence.add("test", ["auc"])
    dependence.add("train", [UNTESTED])
    states = dependence.states()
    dependence.add_to(states, "test")
    dependence.refuse(states, "test", "batches")
    with pytest.raises(EvaluationError, match=r"'auc' of eval set 'test'"):
        dependence.refuse(states, "test", "own")
    states = dependence.states()
    dependence.add_to(states, "train")
    dependence.refuse(states, "train", "files")
    assert "not known" in dependence.notes(states)[0]
