"""Choose the nodes that may evaluate together."""

from dataclasses import replace

import pytest
from heartbeats import make_heartbeat

from sidecar.coordination.exclusions import Exclusions, Losses
from sidecar.coordination.journal_state import JournalState
from sidecar.policy.eligibility import (
    MOST_UNREADABLE,
    candidates_for,
    choose_nodes,
    compatible_nodes,
    left_out,
    may_release_pins,
)
from sidecar.policy.proposers import proposal_order
from sidecar.protocol.heartbeat import CheckpointSightings, Slot
from sidecar.protocol.records import Checkpoint, Outcome

A = Checkpoint(name="ckpt-1", digest="a" * 64, step=1, format="tf_object", pin="pins/x")


def node(name, profile="p", **changes):
    slots = (Slot(worker=None, group=None, address=None, standby=f"{name}.i.1", standby_address="h:1"),)
    return make_heartbeat(node=name, slots=slots, profile=profile, **changes)


def names(nodes):
    return "".join(each.node for each in nodes)


@pytest.mark.parametrize(
    ("there", "me", "alike"),
    [
        ([node("a"), node("b"), node("c")], "a", "abc"),
        ([node("a", "q"), node("b"), node("c")], "a", "bc"),
        ([node("a", None), node("b"), node("c", "q"), node("d")], "a", "abd"),
        ([node("a", None), node("b"), node("c", "q")], "c", "ac"),
        ([node("a", None), node("b"), node("c", "q")], "b", "ab"),
        ([node("a", None), node("b", None)], "a", "ab"),
        ([node("a", "q"), node("b")], "b", "b"),
        ([node("a", "q"), node("b")], "a", "a"),
        ([node("a", joined_profile="j"), node("b"), node("c", joined_profile="k"), node("d")], "c", "bcd"),
        ([node("a", joined_profile="j"), node("b", "q"), node("c")], "b", "ac"),
        ([node("a", task="u"), node("b", None), node("c")], "a", "bc"),
        ([node("a", version="2"), node("b"), node("c")], "a", "bc"),
        ([node("a", evaluation_code="x"), node("b", evaluation_code="x", version="2"), node("c")], "c", "ab"),
        ([node("a", evaluation_code="x"), node("b", evaluation_code="y"), node("c", evaluation_code="y")], "a", "bc"),
        ([node("a", state="draining"), node("b", task=None)], "a", ""),
    ],
    ids=[
        *("all alike", "one differs", "one that does not know yet is with most", "or with ours", "or with ours again"),
        *("nobody knows", "one each: ours", "and the other's", "workers that joined differ", "one has not joined"),
        *(
            "another task",
            "another version",
            "another version of the same code",
            "the same version of other code",
            "nobody is ready",
        ),
    ],
)
def test_the_largest_set_of_nodes_that_compute_alike_takes_part(there, me, alike):
    """A group of different profiles would refuse to evaluate, checkpoint for checkpoint."""
    assert names(compatible_nodes(there, me)) == alike


def test_those_that_read_everything_have_the_first_turn():
    """The others take turns: each may be the only one that reads what the others cannot."""
    there = [node("a", unreadable=("x",)), node("b"), node("c", unreadable=("y",)), node("d")]
    assert [names(proposal_order(there, plans)) for plans in (0, 1, 2)] == ["bdac", "bdca", "bdac"]
    assert proposal_order([], 3) == []


def test_those_that_can_read_it_evaluate_what_most_cannot():
    """Nodes of another profile take part, of the same release and task."""
    blind = {"unreadable": (A.folder,)}
    most = [node("a", **blind), node("b", **blind)]
    for other, expected in (
        (node("c", "q"), "c"),
        (node("c", "q", **blind), "ab"),
        (node("c", "q", version="2"), "ab"),
        (node("c", "q", evaluation_code="x"), "ab"),
        (node("c", "q", task="u"), "ab"),
    ):
        assert names(candidates_for(A, [*most, other], "c")) == expected
    assert names(candidates_for(None, [*most, node("c", "q")], "c")) == "ab"
    assert names(candidates_for(A, [most[0], node("b"), node("c", "q")], "c")) == "ab"


def former_group(there, me):
    """The set that the release before this one formed, which compared versions and knew no digest of the code."""
    kinds = {(each.about.version, each.task) for each in there}
    sets = [[each for each in there if (each.about.version, each.task) == kind] for kind in kinds]
    return max(sets, key=lambda nodes: (len(nodes), any(each.node == me for each in nodes)))


@pytest.mark.parametrize("upgraded", range(5))
def test_former_releases_and_this_one_never_mix(upgraded):
    """During an upgrade each node, of either release, lists nodes that run what it runs, or waits."""
    former = [node(f"f{number}", version="0.1.0") for number in range(4 - upgraded)]
    digest = {"version": "0.2.0.dev7+g4a3370ab", "evaluation_code": "x" * 64}
    current = [node(f"n{number}", **digest) for number in range(upgraded)]
    there, releases = [*former, *current], [former, current]
    for own in filter(None, releases):
        decide = former_group if own is former else compatible_nodes
        group = decide(there, own[0].node)
        assert group == own or (group in releases and len(group) > len(own))


def test_enough_nodes_must_read_it():
    """With `min_workers`, one reader among many blind nodes is of no use, if others could form a group of readers."""
    blind = {"unreadable": (A.folder,)}
    most = [node("a"), node("b", **blind), node("c", **blind)]
    others = [node("d", "q"), node("e", "q")]
    assert names(candidates_for(A, [*most, *others], "a", 1)) == "abc"
    assert names(candidates_for(A, [*most, *others], "a", 2)) == "de"
    assert names(candidates_for(A, [*most, *others], "d", 2)) == "de"
    assert names(candidates_for(A, [*most, others[0]], "d", 2)) == "abc", "they are not enough, either"
    blind_most = [node("a", **blind), *most[1:]]
    assert names(candidates_for(A, [*blind_most, others[0]], "d", 2)) == "d"


def test_a_heartbeat_without_room_for_all_names_hides_nothing():
    """A node that lists as many unreadable checkpoints as fit may be unable to read those that come later."""
    listed = tuple(f"ckpt-0{number:02}@{'b' * 12}" for number in range(MOST_UNREADABLE))
    full, short = {"unreadable": listed}, {"unreadable": listed[1:]}
    before = replace(A, name="a")
    assert listed[0] > before.folder
    assert A.folder > listed[-1]
    for said, what, expected in ((full, A, "c"), (short, A, "ab"), (full, before, "ab")):
        assert names(candidates_for(what, [node("a", **said), node("b", **said), node("c", "q")], "c")) == expected
    assert names(choose_nodes([node("a", **full), node("b")], history(), 1, A, "t")) == "b"


def test_only_who_could_propose_lets_go_of_pins():
    """Nobody of the minority; and nobody who cannot read all, unless nobody can."""
    there = [node("a", unreadable=("x",)), node("b")]
    assert [may_release_pins(there, each) for each in "abc"] == [False, True, False]
    assert may_release_pins(there[:1], "a")


def history(*failures, losses=()):
    known = JournalState(exclusions=Exclusions(losses={(name, "i"): Losses(name, "i", 2, 9) for name in losses}))
    if failures:
        known.verdicts.failures[A.key] = {
            "t": [
                Outcome(plan=1, run="r", nonce="o", status="failed", closed_by="n", completed_at="now", **each)
                for each in failures
            ]
        }
    return known


STALLED = {"kind": "stalled", "node": "a"}
WRONG = {"kind": "mismatch", "node": "b", "odd": ("b",)}
DIFFERS = {"kind": "stream_differs", "node": "b", "odd": ("b", "c")}


@pytest.mark.parametrize(
    ("past", "least", "members"),
    [
        (history(), 1, "abc"),
        (history(STALLED), 1, "bc"),
        (history(DIFFERS), 1, "a"),
        (history(DIFFERS), 2, "abc"),
        (history(STALLED, DIFFERS), 1, "abc"),
        (history(STALLED, DIFFERS, DIFFERS), 1, "a"),
        (history(STALLED, STALLED, DIFFERS), 1, "bc"),
        (history(STALLED, STALLED, DIFFERS), 3, "abc"),
        (history(STALLED, STALLED, WRONG, losses="c"), 2, "bc"),
        (history(losses="b"), 1, "ac"),
        (history(losses="b"), 3, "abc"),
        (history(STALLED, losses="b"), 1, "c"),
        (history(STALLED, losses="bc"), 1, "bc"),
        (history({"kind": "deadline"}), 1, "abc"),
    ],
)
def test_nodes_that_would_fail_are_left_out_while_enough_are_left(past, least, members):
    """Losses with other checkpoints are forgotten first, then those with this one, of those that lost it least."""
    there = [node(name) for name in "abc"]
    assert names(choose_nodes(there, past, least, A, "t")) == members
    blind = [replace(there[0], checkpoints=CheckpointSightings(unreadable=(A.folder,))), *there[1:]]
    assert "a" not in names(choose_nodes(blind, past, 1, A, "t"))


def test_who_is_left_out_is_told_with_the_reason():
    """Each node that takes no part, or not in everything."""
    there = [node(name) for name in "abcd"]
    others = [
        node("v", version="2"),
        node("t", task="another"),
        node("p", "q"),
        node("u", unreadable=("w@1", "x@1", "y@1", "z@1")),
        node("s", task=None),
    ]
    found = left_out([*there, *others], history(losses="bd"), "a", 1)
    assert {name: each.reason for name, each in found.items()} == {
        "b": "losses",
        "d": "losses",
        "v": "version",
        "t": "task",
        "p": "profile",
        "u": "unreadable",
    }
    assert found["u"].why == "it cannot read w@1, x@1, y@1 and 1 more"
    assert "lost 2 plans in a row" in found["b"].why
    assert found["v"].why == "it runs version 2, most nodes 1"
    same = [node("a", evaluation_code="x" * 64), node("b", evaluation_code="x" * 64), node("c", evaluation_code="y")]
    assert left_out(same, history(), "a", 1)["c"].why == "it runs version 1 (code y), most nodes 1 (code xxxxxxxx)"
    assert left_out(there[:2], history(losses="ab"), "a", 1) == {}, "without both nobody would be left"
    assert left_out([], JournalState(), None, 1) == {}


def cluster(*hosts, name="a"):
    """A node that commands one worker on each of these machines of a cluster."""
    slots = [
        Slot(worker=None, group=None, address=None, standby=f"{name}.i.{n}", standby_address=f"{host}:1", host=host)
        for n, host in enumerate(hosts)
    ]
    return make_heartbeat(node=name, slots=tuple(slots), profile="p")


@pytest.mark.parametrize(("min_workers", "hosts"), [(1, ["x", "z"]), (2, ["x", "z"]), (3, ["x", "y", "z"])])
def test_a_machine_of_a_cluster_that_lost_is_left_out_alone(min_workers, hosts):
    """Its daemon and the other machines take part; it is added again if they are not enough."""
    history = JournalState(exclusions=Exclusions(losses={("a/y", "i"): Losses("a/y", "i", 2, 9)}))
    chosen = choose_nodes([cluster("x", "y", "z")], history, min_workers, None, None)
    assert [slot.host for heartbeat in chosen for slot in heartbeat.slots] == hosts


def test_a_machine_that_is_left_out_is_named():
    """By the node that commands it and its own address."""
    history = JournalState(exclusions=Exclusions(losses={("a/y", "i"): Losses("a/y", "i", 2, 9)}))
    assert left_out([cluster("x", "y")], history, "a", 1).keys() == {"a/y"}


def test_a_machine_that_lost_a_checkpoint_is_not_asked_again_for_it():
    """Failures count for the machine that they are blamed on."""
    history = JournalState()
    failed = Outcome(
        plan=1, run="r", nonce="n", status="failed", closed_by="a", completed_at="", kind="worker_died", node="a/x"
    )
    history.verdicts.failures[A.key] = {None: [failed]}
    chosen = choose_nodes([cluster("x", "y")], history, 1, A, None)
    assert [slot.host for heartbeat in chosen for slot in heartbeat.slots] == ["y"]
