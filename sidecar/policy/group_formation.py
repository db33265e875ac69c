"""Decide which worker processes form the group of the next evaluation. Pure."""

from collections.abc import Iterable, Sequence
from operator import itemgetter

from sidecar.coordination.journal_state import JournalState
from sidecar.policy.actions import Wait
from sidecar.policy.eligibility import candidates_for, choose_nodes, compatible_nodes
from sidecar.policy.rules import GroupRules
from sidecar.policy.view import View
from sidecar.protocol.heartbeat import Heartbeat
from sidecar.protocol.records import Checkpoint, Member


def form_group(checkpoint: Checkpoint, view: View, rules: GroupRules, now: float) -> tuple[Member, ...] | Wait:
    """Return the members of the group: the warm group if no worker could be added to it, else a new one of standbys."""
    candidates = candidates_for(checkpoint, view.nodes.ready, view.node, rules.min_workers)
    nodes = choose_nodes(candidates, view.history, rules.min_workers, checkpoint, view.task)
    warm = _warm_group(nodes, view.history)
    standbys = _standbys(nodes, view.history, rules.max_workers)
    if not warm and len(standbys) < rules.min_workers:  # then only a warm group that includes losing nodes can do
        warm = _warm_group(candidates, view.history)
    if warm and len(warm) >= max(rules.min_workers, len(standbys)):
        until = view.timers.turns_begin_at + rules.group_settle_seconds
        ending = now < until and _is_ending(nodes, view, rules)
        return Wait(until, "the group ends, to take in more workers", for_workers=True) if ending else warm
    if len(standbys) < rules.min_workers:
        return Wait(why=f"{len(standbys)} workers stand by, min_workers = {rules.min_workers}", for_workers=True)
    if len(standbys) == rules.max_workers:
        return standbys
    slots = sum(len(heartbeat.slots) for heartbeat in nodes)
    timers = view.timers
    if len(standbys) < slots and now < timers.first_standby_at + rules.join_timeout_seconds:
        until = timers.first_standby_at + rules.join_timeout_seconds
        return Wait(until, "more workers are about to stand by", for_workers=True)
    if now < timers.newest_standby_at + rules.group_settle_seconds:
        until = timers.newest_standby_at + rules.group_settle_seconds
        return Wait(until, "more workers may come soon", for_workers=True)
    return standbys


def is_outgrown(
    ready: Sequence[Heartbeat], history: JournalState, node: str, rules: GroupRules, task: str | None
) -> bool:
    """Return whether workers stand by that are not in the newest group, so that the next group would be larger."""
    compatible = compatible_nodes(ready, node)
    if history.newest is None or node not in (heartbeat.node for heartbeat in compatible):
        return False
    members = history.newest.plan.members or ()
    if len(members) >= rules.max_workers:
        return False
    nodes = choose_nodes(compatible, history, rules.min_workers, None, task)
    # A heartbeat may be late, and show a worker that was retired.
    used = {None, *(member.worker for member in members), *history.exclusions.retired_workers}
    return any(slot.standby not in used for heartbeat in nodes for slot in heartbeat.slots if slot.worker is None)


def _is_ending(nodes: Sequence[Heartbeat], view: View, rules: GroupRules) -> bool:
    """Return whether the nodes of the warm group keep no standbys and are about to kill it, because it is outgrown.

    A plan that lists it would fail.
    """
    keeps_standbys = any(slot.standby for heartbeat in nodes for slot in heartbeat.slots if slot.worker is not None)
    return not keeps_standbys and is_outgrown(view.nodes.ready, view.history, view.node, rules, view.task)


def _warm_group(nodes: Sequence[Heartbeat], history: JournalState) -> tuple[Member, ...]:
    """Return the members of the group that all active workers of these nodes form; empty if there is no such group."""
    members = _enumerate(
        (heartbeat.node, slot.worker, slot.address, slot.host) for heartbeat in nodes for slot in heartbeat.slots
    )
    newest = history.newest
    # A group that never succeeded has failed. The workers of other groups were killed when this one was formed.
    whole = newest is not None and newest.plan.members == members
    retired = history.exclusions.retired_workers
    return members if whole and not any(member.worker in retired for member in members) else ()


def _standbys(nodes: Sequence[Heartbeat], history: JournalState, most: int) -> tuple[Member, ...]:
    """Return workers that have never been in a group, also by the journal, because a heartbeat may be late.

    If there are more than `most`, take those of the nodes whose processors have the least to do, and of equal ones the
    first. Ranks follow the order of the nodes all the same.
    """
    newest = history.newest
    joined = {member.worker for member in (newest.plan.members or ())} if newest is not None else set[str]()
    retired = history.exclusions.retired_workers
    standbys = [
        (int(heartbeat.about.load or 0), place, (heartbeat.node, slot.standby, slot.standby_address, slot.host))
        for place, heartbeat in enumerate(nodes)
        for slot in heartbeat.slots
        if slot.standby is not None and slot.standby not in joined and slot.standby not in retired
    ]
    chosen = sorted(standbys, key=itemgetter(0))[:most]
    return _enumerate(worker for _, _, worker in sorted(chosen, key=itemgetter(1)))


def _enumerate(workers: Iterable[tuple[str, str | None, str | None, str | None]]) -> tuple[Member, ...]:
    """Return members with ranks from (node, worker, address, host), without workers that lack a process or address."""
    running = [
        (node, name, address, host) for node, name, address, host in workers if name is not None and address is not None
    ]
    return tuple(Member(rank, *each) for rank, each in enumerate(running))
