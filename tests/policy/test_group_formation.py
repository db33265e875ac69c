"""Choose the workers of a group."""

import pytest
from policy.views import NOW, A, B, C, decided, failures, fold, listed, node, outcome, plan, slot
from rules import make_rules

from sidecar.policy.actions import Propose, Wait
from sidecar.policy.group_formation import is_outgrown


def test_a_group_without_standbys_is_used_even_if_one_of_its_nodes_lost_the_checkpoint():
    """It has evaluated another since; nobody could take its place, so all would wait for ever."""
    history = failures("member_lost", nodes=("n2",))
    history.apply(plan(2, B, ("n1.i.1", "n2.i.1")))
    history.apply(outcome(2))
    group = [node(name, slot(worker=f"{name}.i.1", group="g")) for name in ("n1", "n2")]
    action = decided(history=history, ready=group, now=NOW + 1000)
    assert (action.checkpoint, [member.worker for member in action.members]) == (A, ["n1.i.1", "n2.i.1"])


@pytest.mark.parametrize("kind", ["corrupt", "crashed", "vanished"])
def test_one_node_that_cannot_read_a_checkpoint_is_left_out(kind):
    """The proposer holds it: whoever does not see it must not end it for all, nor fail the next plan as well."""
    action = decided(history=failures(kind, nodes=("n2",)), ready=[node("n1"), node("n2"), node("n3")], now=NOW + 1000)
    assert action.checkpoint == A
    assert [member.node for member in action.members] == ["n1", "n3"]


WARM = [node("n1", slot("n1.i.2", "n1.i.1", "g")), node("n2", slot("n2.i.2", "n2.i.1", "g"))]

SUCCEEDED = fold(plan(1, B, ("n1.i.1", "n2.i.1")), outcome(1))


def test_the_warm_group_is_used_again():
    """Same members in the same order, though standbys are there."""
    assert listed(decided(history=SUCCEEDED, ready=WARM)) == ["n1.i.1", "n2.i.1"]


@pytest.mark.parametrize(
    ("there", "workers"),
    [
        ([*WARM, node("n3")], ["n1.i.2", "n2.i.2", "n3.i.1"]),
        (WARM[:1], ["n1.i.2"]),
        ([WARM[0], node("n2", slot("n2.i.2"))], ["n1.i.2", "n2.i.2"]),
        ([WARM[0], node("n2", slot("n2.i.4", "n2.i.3", "other"))], ["n1.i.2", "n2.i.4"]),
    ],
    ids=["one could be added", "one is gone", "one died", "one is in another group"],
)
def test_a_group_that_could_be_better_is_formed_anew(there, workers):
    """Wait for none that stand by: a warm group takes nobody in."""
    assert listed(decided(history=SUCCEEDED, ready=there)) == workers


def test_more_workers_are_not_waited_for_while_a_group_is_warm():
    """A node whose standby is still importing does not delay the warm group."""
    assert listed(decided(history=SUCCEEDED, ready=[*WARM, node("n3", slot())])) == ["n1.i.1", "n2.i.1"]


def test_workers_that_were_in_a_group_are_never_taken_for_standbys():
    """A heartbeat may be older than the journal: spent in a failed plan, or active since the newest success."""
    late = [node("n1", slot("n1.i.1")), node("n2", slot("n2.i.9"))]
    assert listed(decided(history=SUCCEEDED, ready=late)) == ["n2.i.9"]
    spent = fold(plan(1, B, ("n1.i.1",)), outcome(1, "stalled"))
    assert listed(decided(history=spent, ready=late)) == ["n2.i.9"]
    replaced = fold(plan(1, B, ("n1.i.1",)), outcome(1), plan(2, C, ("n3.i.1",)), outcome(2))
    assert listed(decided(history=replaced, ready=late)) == ["n2.i.9"]


def test_a_group_that_its_nodes_are_about_to_end_is_not_listed():
    """Without standbys they end it for the worker that came; nobody waits for that longer than for other workers."""
    history = fold(plan(1, B, ("n1.i.1", "n2.i.1")), outcome(1))
    group = [node(name, slot(worker=f"{name}.i.1", group="g")) for name in ("n1", "n2")]
    seen = {"history": history, "work_waiting_since": NOW - 1}
    assert isinstance(decided(ready=[*group, node("n3")], **seen), Wait)
    assert listed(decided(ready=[*group, node("n3")], now=NOW + 2, **seen)) == ["n1.i.1", "n2.i.1"]
    assert listed(decided(ready=group, **seen)) == ["n1.i.1", "n2.i.1"]


def test_a_group_has_at_least_min_workers():
    """Fewer are waited for without an end."""
    there = [node("n1"), node("n2")]
    assert isinstance(decided(make_rules(min_workers=3), ready=there), Wait)
    assert len(listed(decided(make_rules(min_workers=2), ready=there))) == 2


def test_a_group_has_at_most_max_workers():
    """The first ones by name, as soon as they stand by; the warm group of them is used again, and is not outgrown."""
    there = [node("n1"), node("n2"), node("n3"), node("n10")]
    rules = make_rules(max_workers=2)
    assert listed(decided(rules, ready=there, newest_standby_at=NOW)) == ["n1.i.1", "n2.i.1"]
    assert isinstance(decided(make_rules(max_workers=5), ready=there, newest_standby_at=NOW), Wait)
    history = fold(plan(1, B, ("n1.i.1", "n2.i.1")), outcome(1))
    warm = [node("n1", slot("n1.i.2", "n1.i.1")), node("n2", slot("n2.i.2", "n2.i.1")), *there[2:]]
    assert listed(decided(rules, history=history, ready=warm)) == ["n1.i.1", "n2.i.1"]
    assert not is_outgrown(warm, history, "n3", rules.groups, "t")
    assert is_outgrown(warm, history, "n3", make_rules(max_workers=3).groups, "t")


def test_a_group_is_formed_of_the_nodes_with_the_least_load():
    """Ranks follow the names; a fraction of a processor makes no difference, and neither does load if all take part."""
    loads = {"n1": 2.5, "n2": 0.9, "n3": None, "n10": 0.0, "n11": 1.5}
    there = [node(name, load=load) for name, load in loads.items()]
    assert listed(decided(make_rules(max_workers=2), ready=there)) == ["n2.i.1", "n3.i.1"]
    assert listed(decided(make_rules(max_workers=4), ready=there)) == ["n2.i.1", "n3.i.1", "n10.i.1", "n11.i.1"]
    assert listed(decided(make_rules(max_workers=5), ready=there)) == [f"{name}.i.1" for name in loads]


def test_the_largest_set_with_equal_version_and_task_is_listed():
    """Ours among equals, since each proposes for its own."""
    there = [node("n1", version="2"), node("n2"), node("n3")]
    assert listed(decided(node="n2", ready=there)) == ["n2.i.1", "n3.i.1"]
    assert listed(decided(ready=there[:2])) == ["n1.i.1"]
    assert listed(decided(node="n2", ready=there[:2])) == ["n2.i.1"]


def test_slots_that_are_about_to_stand_by_are_waited_for_but_not_for_ever():
    """For as long as a join may take, counted from the first that stood by."""
    there = [node("n1", slot("n1.i.1"), slot())]
    assert decided(ready=there, first_standby_at=NOW - 119).until == NOW + 1
    assert listed(decided(ready=there, first_standby_at=NOW - 120)) == ["n1.i.1"]


def test_others_may_still_come_for_a_moment():
    """Nodes that start together land in one group."""
    assert decided(newest_standby_at=NOW - 2).until == NOW + 1
    assert isinstance(decided(newest_standby_at=NOW - 3), Propose)


def test_nodes_that_lost_a_plan_are_left_out_while_enough_others_are_there():
    """For that checkpoint; and if they are all there is, they are used."""
    there = [node("n1"), node("n2"), node("n3")]
    lost = failures("stalled", nodes=("n2",))
    assert listed(decided(history=lost, ready=there)) == ["n1.i.1", "n3.i.1"]
    assert listed(decided(make_rules(min_workers=3), history=lost, ready=there)) == ["n1.i.1", "n2.i.1", "n3.i.1"]
    assert len(listed(decided(history=lost, ready=there, complete=[B]))) == 3
    blamed = failures("task_error", nodes=("n2",))
    assert listed(decided(history=blamed, ready=there)) == ["n1.i.1", "n3.i.1"], "its data may be other data"
    corrected = failures("task_error", nodes=("n2",), task="old")
    assert len(listed(decided(history=corrected, ready=there))) == 3
