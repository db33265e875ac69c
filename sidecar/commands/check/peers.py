"""Check the other nodes: which of them are alive, how late their heartbeats are seen here, and which group would form.

All facts come from the heartbeats on shared storage, because daemons do not answer each other's requests. The clocks of
two machines are never compared.
"""

from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import Final

from sidecar.commands.check.finding import Finding
from sidecar.commands.observed_nodes import ObservedNode, ObservedNodes
from sidecar.coordination.heartbeats import Heartbeats
from sidecar.coordination.run import read_run
from sidecar.coordination.storage import Storage
from sidecar.policy.eligibility import compatible_nodes, ready_workers, versions
from sidecar.protocol.export_rule import ExportRule
from sidecar.protocol.heartbeat import Heartbeat
from sidecar.system.clock import Clock
from sidecar.system.plain_text import listed

OBSERVED_BEATS: Final = 4.25  # enough for four changes of a heartbeat, so for three gaps, and some delay
_FIRST_BEATS: Final = 2.25  # a node whose heartbeat has not changed by then is not alive
_READING_SECONDS: Final = 0.03  # between two readings: the resolution of the measurement
_MOST_WATCHED: Final = 16  # nodes; with more, the time of the reading itself would distort the measurement
_RULES_SHOWN: Final = 5
_DIGEST_CHARACTERS: Final = 8


def watch(storage: Storage, clock: Clock, beat_seconds: float, pause: Callable[[float], None]) -> ObservedNodes:
    """Read the heartbeats for a few beats. Stop early if there are no nodes, or no heartbeat changes.

    Raises `StorageError` if the storage does not answer.
    """
    observed_nodes, run = ObservedNodes(), read_run(storage)
    if run is None:
        return observed_nodes
    members, begin = Heartbeats(storage, run), clock.now()
    observed_nodes.update(members.read_all(), begin)
    watched = [observed.heartbeat.node for observed in observed_nodes if not observed.left][:_MOST_WATCHED]
    while watched and (now := clock.now()) < begin + OBSERVED_BEATS * beat_seconds:
        if now >= begin + _FIRST_BEATS * beat_seconds and not any(observed.changed for observed in observed_nodes):
            break
        pause(_READING_SECONDS)
        observed_nodes.update(members.read(watched), clock.now())
    return observed_nodes


def visibility(
    observed_nodes: ObservedNodes, node: str, *, beat_seconds: float, lease_seconds: float
) -> Iterator[Finding]:
    """Report which other nodes are alive, and whether their heartbeats are seen here soon enough for the lease."""
    others = [observed for observed in observed_nodes if observed.heartbeat.node != node and not observed.left]
    beating = [observed for observed in others if observed.changed]
    if any(observed.changed and observed.heartbeat.node == node for observed in observed_nodes):
        text = f"a daemon named {node} is alive: that of this node, or another one that needs another name (--node)"
        yield Finding(what="nodes", ok=True, text=text)
    silent = [observed for observed in others if not observed.changed]
    if silent:
        watched_seconds = max(observed.silent_seconds for observed in silent)
        text = f"no heartbeat of {_names(silent)} was seen in {watched_seconds:.1f} s: down, or not visible here"
        yield Finding(what="nodes", ok=True, text=text)
    if not beating:
        yield Finding(what="nodes", ok=True, text="no other node is alive here")
        return
    yield _lateness(beating, beat_seconds, lease_seconds)


def _lateness(beating: list[ObservedNode], beat_seconds: float, lease_seconds: float) -> Finding:
    """Report how late heartbeats are seen here, and whether the lease is long enough for that."""
    measured = [(late, observed) for observed in beating if (late := observed.late_seconds(beat_seconds)) is not None]
    if not measured:
        text = f"{_names(beating)} sent too few heartbeats to say how late they are seen here"
        return Finding(what="nodes", ok=True, text=text)
    late, latest = max(measured, key=itemgetter(0))
    gaps = sorted(gap for _, observed in measured for gap in observed.gaps)
    every = gaps[len(gaps) // 2]
    if lease_seconds < 2 * late:
        text = (
            f"heartbeats of {latest.heartbeat.node} are seen up to {late:.1f} s late, and a lease of "
            f"{lease_seconds:g} s is less than twice that: live nodes would count as gone. Set lease_seconds to "
            f"{_lease_for(late):g} or more on all nodes, or mount the storage so that it shows changes sooner "
            "(actimeo=3, no nocto)"
        )
        return Finding(what="nodes", ok=False, text=text)
    which = "" if len(measured) == 1 else f" ({latest.heartbeat.node})"
    text = (
        f"heartbeats of {_names([observed for _, observed in measured])} are seen every {every:.1f} s, "
        f"at most {late:.1f} s late{which}; the lease of {lease_seconds:g} s is enough"
    )
    return Finding(what="nodes", ok=True, text=text)


def exports(
    observed_nodes: ObservedNodes, node: str, rule: ExportRule | None, *, lease_seconds: float
) -> Iterator[Finding]:
    """Report if live nodes export the best checkpoints by different settings. `rule`: by which this node does.

    That is no failure, because all nodes retain what any of them wants, and settings differ while they are changed. A
    node that exports nothing by its settings follows the others.
    """
    nodes_of_rule: dict[ExportRule, list[str]] = {} if rule is None else {rule: ["this node"]}
    for observed in observed_nodes:
        other, its_rule = observed.heartbeat.node, observed.heartbeat.checkpoints.exports
        if its_rule is not None and other != node and observed.fresh(lease_seconds):
            nodes_of_rule.setdefault(its_rule, []).append(other)
    if len(nodes_of_rule) > 1:
        found = "; ".join(
            f"export_best = {rule.count}, best_metric = {rule.metric}, best_by = {rule.by} on {listed(nodes)}"
            for rule, nodes in list(nodes_of_rule.items())[:_RULES_SHOWN]
        )
        more = f"; and {len(nodes_of_rule) - _RULES_SHOWN} more" if len(nodes_of_rule) > _RULES_SHOWN else ""
        text = f"nodes differ: {found}{more}. What any of them wants is retained: give all nodes the same settings"
        yield Finding(what="exports", ok=True, text=text)


def group(
    observed_nodes: ObservedNodes, this_node: Heartbeat, *, lease_seconds: float, min_workers: int
) -> Iterator[Finding]:
    """Report the eval group that this node's daemon would form with the daemons that are alive.

    `this_node`: its heartbeat once it is ready. Its numeric profile is not known yet.
    """
    alive = (observed.heartbeat for observed in observed_nodes if observed.fresh(lease_seconds))
    others = ready_workers(heartbeat for heartbeat in alive if heartbeat.node != this_node.node)
    same_code = [heartbeat for heartbeat in others if _code(heartbeat) == _code(this_node)]
    compatible = compatible_nodes([*same_code, this_node], this_node.node)
    peers = [heartbeat for heartbeat in compatible if heartbeat is not this_node]
    for heartbeat in others:
        if heartbeat not in peers and (why := _difference(heartbeat, this_node)):
            yield Finding(what="group", ok=True, text=f"{heartbeat.node} {why}: it would not be in the same group")
    largest = compatible_nodes([*others, this_node], this_node.node)
    if this_node not in largest:
        text = (
            f"this node would not take part: {len(largest)} nodes agree on other code or another task, "
            f"{len(peers) + 1} on those of this node. Copy the same code to all nodes"
        )
        yield Finding(what="group", ok=False, text=text)
        return
    workers = sum(len(heartbeat.slots) for heartbeat in (this_node, *peers))
    size = f"a group of {workers} worker process{'es' if workers > 1 else ''}"
    enough = "" if workers >= min_workers else f"; that is less than min_workers = {min_workers}: it would wait"
    if peers:
        names = ", ".join(heartbeat.node for heartbeat in peers)
        text = f"{names} {'have' if len(peers) > 1 else 'has'} the same code and task; with this node {size}{enough}"
    else:
        text = f"this node alone would form {size}{enough}"
    yield Finding(what="group", ok=True, text=text)


def _code(heartbeat: Heartbeat) -> tuple[str, str | None]:
    return heartbeat.code, heartbeat.task


def _difference(heartbeat: Heartbeat, this_node: Heartbeat) -> str | None:
    """Return how another node differs from this one; None if both could form a group."""
    if heartbeat.task is None:
        return "has not checked its task yet"
    if heartbeat.code != this_node.code:
        other_version, this_version = versions(heartbeat, this_node)
        return f"runs version {other_version}, this node {this_version}"
    if heartbeat.task != this_node.task:
        other_task, this_task = ((each.task or "")[:_DIGEST_CHARACTERS] for each in (heartbeat, this_node))
        return f"runs other code of the task ({other_task}, here {this_task})"
    return f"computes with other versions, devices or settings than most (numeric profile {heartbeat.numerics.profile})"


def _lease_for(late: float) -> float:
    """Return a lease in whole seconds that is long enough: twice the delay, and half as much again as a margin."""
    return float(round(3 * late + 0.5))


def _names(observed_nodes: list[ObservedNode]) -> str:
    return listed([observed.heartbeat.node for observed in observed_nodes])
