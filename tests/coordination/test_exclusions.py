"""Leave out nodes that lose plans, and workers that failed."""

from dataclasses import replace

import pytest
from records import failure, fold, make_plan, success

from sidecar.coordination.exclusions import LOSERS_KEPT, Losses
from sidecar.coordination.journal_state import JournalState


def test_workers_of_a_failed_plan_are_spent():
    """They are never listed again; those of a success stay warm."""
    history = fold(make_plan(1, workers=("w1", "w2")), failure(1), make_plan(2, workers=("w3",)), success(2))
    assert list(history.exclusions.retired_workers) == ["w1", "w2"]


def tried(number, ended, *workers):
    """An attempt with one worker each of these daemons, given as `node.incarnation`."""
    listed = [f"{worker}.{number}" for worker in workers]
    return make_plan(number, workers=listed), replace(ended, plan=number)


def lose(*times, node="n2"):
    """A history in which n2 lost plans with these numbers, and no other plan tried anything."""
    history = JournalState()
    for number in range(1, max(times) + 1):
        ended = failure(number, node=node) if number in times else failure(number, "deadline")
        for record in tried(number, ended, "n1.i", "n2.i"):
            history.apply(record)
    return history


@pytest.mark.parametrize(("losses", "plans"), [(1, 1), (2, 2), (3, 3), (4, 5), (5, 9), (6, 17), (7, 17), (2000, 17)])
def test_a_node_that_loses_plans_in_a_row_is_left_out_of_ever_more(losses, plans):
    """The next plan goes without it; from the second loss on further plans do, up to sixteen."""
    history = lose(*range(1, losses + 1))
    for number in range(losses + 1, losses + 40):
        left_out = number <= losses + plans
        assert history.is_left_out("n2", "i") == left_out
        assert not history.is_left_out("n1", "i")
        assert not history.is_left_out("n2", "another incarnation")
        history.apply(make_plan(number, None))


def test_a_success_together_with_others_ends_the_losses_in_a_row():
    """Alone a node proves nothing: its links may be what is broken."""
    history = lose(1, 2)
    for record in tried(3, success(3), "n2.i"):
        history.apply(record)
    assert history.exclusions.losses == {("n2", "i"): Losses("n2", "i", 2, 4)}
    for record in tried(4, success(4), "n1.i", "n2.i"):
        history.apply(record)
    assert history.exclusions.losses == {}


def test_only_plans_of_several_nodes_are_lost_by_one():
    """And only by the nodes that are to blame, of those that were in the plan."""
    history = fold(*tried(1, failure(1, node="n2"), "n2.i"), *tried(2, failure(2), "n1.i", "n2.i"))
    assert history.exclusions.losses == {}
    for record in tried(3, failure(3, "mismatch", node="n1", odd=("n2", "n9")), "n1.i", "n2.i", "n3.i"):
        history.apply(record)
    assert history.exclusions.losses == {("n2", "i"): Losses("n2", "i", 1, 4)}


def test_no_more_losers_are_kept_than_are_there_at_once():
    """A node that crashes again and again has another incarnation each time."""
    history = JournalState()
    for number in range(1, LOSERS_KEPT + 10):
        for record in tried(number, failure(number, node="n2"), "n1.i", f"n2.{number}"):
            history.apply(record)
    assert len(history.exclusions.losses) == LOSERS_KEPT
    assert ("n2", str(LOSERS_KEPT + 9)) in history.exclusions.losses


def test_a_machine_of_a_cluster_loses_without_its_daemon():
    """Its daemon commands the other machines, which may succeed without it."""
    plan = make_plan(1, workers=("n1.i.1", "n1.i.2"))
    members = tuple(replace(member, node="n1", host=host) for member, host in zip(plan.members, "xy", strict=True))
    history = fold(replace(plan, members=members), failure(1, node="n1/y"))
    assert history.is_left_out("n1/y", "i")
    assert not history.is_left_out("n1/x", "i")
    assert not history.is_left_out("n1", "i")
