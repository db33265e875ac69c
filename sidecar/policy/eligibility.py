"""Decide which nodes take part in the next plan, and which are left out and why. Pure.

The decision follows from heartbeats and the journal, so nodes that read the same decide the same. The policy uses it to
list members, the daemon to decide which node removes pins, and `sidecar status` and `sidecar check` show it.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from sidecar.coordination.blame import blame, losers
from sidecar.coordination.journal_state import JournalState
from sidecar.protocol.heartbeat import Heartbeat, NumericProfiles
from sidecar.protocol.records import Checkpoint, place_of
from sidecar.protocol.states import FailureClass, NodeState
from sidecar.system.plain_text import listed

Reason = Literal["version", "task", "profile", "losses", "unreadable"]

MOST_UNREADABLE: Final = 32
"""The most names of unreadable checkpoints in one heartbeat: the first ones, sorted."""

_NAMES_SHOWN: Final = 3
_DIGEST_CHARACTERS: Final = 8


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Hold why a node takes no part: a reason of a closed list, and a sentence."""

    reason: Reason
    why: str


def is_ready(heartbeat: Heartbeat) -> bool:
    """Return whether a node offers its workers: it evaluates, and is neither starting nor about to leave."""
    return heartbeat.role == "worker" and heartbeat.state == NodeState.READY


def ready_workers(heartbeats: Iterable[Heartbeat]) -> list[Heartbeat]:
    """Return the nodes that offer their workers, in the order given."""
    return [heartbeat for heartbeat in heartbeats if is_ready(heartbeat)]


def compatible_nodes(workers: Iterable[Heartbeat], node: str | None = None) -> list[Heartbeat]:
    """Return the largest set of ready nodes with equal code, task and numeric profile; if equal, that of `node`.

    A node that does not know its profile yet, or not the part that joined workers add, is in each set to which it may
    belong.
    """
    ready = [heartbeat for heartbeat in ready_workers(workers) if heartbeat.task is not None]
    kinds = dict.fromkeys((heartbeat.code, heartbeat.task, heartbeat.numerics) for heartbeat in ready)
    if len(kinds) <= 1:  # as usual; this is asked for several times in each turn of the loop
        return ready
    sets = [[heartbeat for heartbeat in ready if _may_be_of(heartbeat, kind)] for kind in kinds]
    return max(sets, key=lambda nodes: (len(nodes), any(other.node == node for other in nodes)), default=[])


def can_read(heartbeat: Heartbeat, checkpoint: Checkpoint) -> bool:
    """Return whether a node can read a checkpoint; False if its heartbeat has no room to say that it cannot."""
    unreadable = heartbeat.checkpoints.unreadable
    is_beyond = len(unreadable) >= MOST_UNREADABLE and checkpoint.folder > unreadable[-1]
    return not is_beyond and checkpoint.folder not in unreadable


def candidates_for(
    checkpoint: Checkpoint | None, workers: Sequence[Heartbeat], node: str, min_workers: int = 1
) -> list[Heartbeat]:
    """Return the nodes that may evaluate a checkpoint: the largest compatible set, if enough of them can read it.

    Otherwise return the largest set of nodes that can read it and have the same code and task, because a set with
    another numeric profile computes correctly, too. Nodes are enough if they have at least `min_workers` worker
    processes. If no set has enough, a set that can read the checkpoint at all is preferred.
    """
    compatible = compatible_nodes(workers, node)
    if checkpoint is None:
        return compatible
    readers = [heartbeat for heartbeat in compatible if can_read(heartbeat, checkpoint)]
    if _workers_of(readers) >= min_workers:
        return compatible
    kinds = {(heartbeat.code, heartbeat.task) for heartbeat in compatible}
    alike = [heartbeat for heartbeat in workers if (heartbeat.code, heartbeat.task) in kinds]
    others = compatible_nodes([heartbeat for heartbeat in alike if can_read(heartbeat, checkpoint)], node)
    return others if others and (not readers or _workers_of(others) >= min_workers) else compatible


def choose_nodes(
    candidates: Sequence[Heartbeat],
    history: JournalState,
    min_workers: int,
    checkpoint: Checkpoint | None,
    task: str | None,
) -> list[Heartbeat]:
    """Return the nodes that should evaluate a checkpoint, or any, without places that would fail if enough are left.

    A node that commands the machines of a cluster is returned once for each machine, with the slots there.

    Otherwise nodes are added again until they are enough: first nodes that only lost plans of other checkpoints, then
    nodes that lost this checkpoint, by the number of losses, and last nodes that cannot read it.
    """
    losses = Counter[str]() if checkpoint is None else _losses_with(checkpoint, history, task)

    def trouble(place: str, heartbeat: Heartbeat) -> tuple[bool, int, bool]:
        cannot_read = checkpoint is not None and not can_read(heartbeat, checkpoint)
        return cannot_read, losses[place], history.is_left_out(place, heartbeat.incarnation)

    places = [each for heartbeat in candidates for each in by_place(heartbeat)]
    for most in sorted({trouble(*each) for each in places}):
        chosen = [heartbeat for place, heartbeat in places if trouble(place, heartbeat) <= most]
        if sum(bool(slot.worker or slot.standby) for heartbeat in chosen for slot in heartbeat.slots) >= min_workers:
            return chosen
    return list(candidates)


def by_place(heartbeat: Heartbeat) -> list[tuple[str, Heartbeat]]:
    """Return the places of a node, each with the node's heartbeat that lists the slots of this place alone."""
    hosts = dict.fromkeys(slot.host for slot in heartbeat.slots)
    if len(hosts) <= 1:
        return [(place_of(heartbeat.node, *(hosts or (None,))), heartbeat)]
    return [
        (
            place_of(heartbeat.node, host),
            replace(heartbeat, slots=tuple(slot for slot in heartbeat.slots if slot.host == host)),
        )
        for host in hosts
    ]


def places_of(heartbeats: Iterable[Heartbeat]) -> set[str]:
    """Return the places of several nodes."""
    return {place for heartbeat in heartbeats for place, _ in by_place(heartbeat)}


def versions(one: Heartbeat, other: Heartbeat) -> tuple[str, str]:
    """Return the versions of two nodes with different code; with digests if the versions read the same.

    They do if a clone was changed after its commit, or if sources were copied without their history.
    """
    if one.about.version != other.about.version:
        return one.about.version, other.about.version
    shown = [f"{each.about.version} (code {each.code[:_DIGEST_CHARACTERS]})" for each in (one, other)]
    return shown[0], shown[1]


def may_release_pins(compatible: Sequence[Heartbeat], node: str) -> bool:
    """Return whether a node may remove pins: whether it could propose, and no other node can read more than it."""
    own = next((heartbeat for heartbeat in compatible if heartbeat.node == node), None)
    return own is not None and (
        not own.checkpoints.unreadable or all(heartbeat.checkpoints.unreadable for heartbeat in compatible)
    )


def left_out(
    workers: Sequence[Heartbeat], history: JournalState, node: str | None, min_workers: int
) -> dict[str, LeftOut]:
    """Return the ready nodes, and machines of clusters, that take no part, or not in everything, and why."""
    compatible = compatible_nodes(workers, node)
    if not compatible:
        return {}
    names = {heartbeat.node for heartbeat in compatible}
    chosen = places_of(choose_nodes(compatible, history, min_workers, None, None))
    reasons = {}
    for heartbeat in ready_workers(workers):
        if heartbeat.task is None:
            continue
        if heartbeat.node not in names:
            reasons[heartbeat.node] = _difference(heartbeat, compatible)
            continue
        for place in [place for place, _ in by_place(heartbeat) if place not in chosen]:
            count = history.exclusions.losses[place, heartbeat.incarnation].count
            lost = "the last plan" if count == 1 else f"{count} plans in a row"
            reasons[place] = LeftOut("losses", f"it lost {lost}: the next goes without it")
        if heartbeat.node not in reasons and heartbeat.checkpoints.unreadable:
            unreadable = listed(heartbeat.checkpoints.unreadable, _NAMES_SHOWN)
            reasons[heartbeat.node] = LeftOut("unreadable", f"it cannot read {unreadable}")
    return reasons


def count_by_reason(reasons: dict[str, LeftOut]) -> dict[str, int]:
    """Return how many nodes are left out for each reason."""
    return dict(Counter(left.reason for left in reasons.values()))


def _workers_of(nodes: Iterable[Heartbeat]) -> int:
    """Return how many worker processes these nodes have once all are started."""
    return sum(len(heartbeat.slots) for heartbeat in nodes)


def _may_be_of(heartbeat: Heartbeat, kind: tuple[str, str | None, NumericProfiles]) -> bool:
    """Return whether a node has this code, task and numeric profile. An unknown profile fits any."""
    code, task, numerics = kind
    return heartbeat.numerics.fit(numerics) and (heartbeat.code, heartbeat.task) == (code, task)


def _losses_with(checkpoint: Checkpoint, history: JournalState, task: str | None) -> Counter[str]:
    """Count how often each place failed with a checkpoint.

    A failure that the task raised counts for that task only. A failure of the node counts for all tasks.
    """
    failures = [
        outcome
        for failed_task, outcomes in history.verdicts.failures.get(checkpoint.key, {}).items()
        for outcome in outcomes
        if failed_task == task or blame(outcome) != FailureClass.CHECKPOINT
    ]
    return Counter(place for outcome in failures for place in losers(outcome))


def _difference(heartbeat: Heartbeat, compatible: Sequence[Heartbeat]) -> LeftOut:
    """Return why a node is not in the largest compatible set."""
    most_nodes, task = compatible[0], compatible[0].task or ""
    if heartbeat.code != most_nodes.code:
        own, most = versions(heartbeat, most_nodes)
        return LeftOut("version", f"it runs version {own}, most nodes {most}")
    if heartbeat.task != task:
        own, most = (heartbeat.task or "")[:_DIGEST_CHARACTERS], task[:_DIGEST_CHARACTERS]
        return LeftOut("task", f"it runs other code of the task ({own}, most {most})")
    profile = next((other.numerics.shown for other in compatible if other.numerics.shown), "")
    profiles = f"{heartbeat.numerics.shown}, most {profile}"
    return LeftOut("profile", f"it computes with other versions, devices or settings (numeric profile {profiles})")
