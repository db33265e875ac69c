"""Check the other nodes: which of them beat, how late that is seen here, and which group would form.

Everything comes from shared storage, and no clocks are compared: other daemons answer no requests, but they beat.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from sidecar.clock import Clock
from sidecar.commands.check.finding import Finding
from sidecar.commands.observed_nodes import ObservedNode, ObservedNodes
from sidecar.coordination.heartbeats import Heartbeats
from sidecar.coordination.run import read_run
from sidecar.coordination.storage import Storage
from sidecar.policy.eligibility import compatible_nodes, ready_workers
from sidecar.records import Heartbeat
from sidecar.states import NodeState

OBSERVED_BEATS: Final = 4.25  # four beats are three gaps, whenever the first reading is
_FIRST_BEATS: Final = 2.25  # a node that has not changed by then does not beat
_GLANCE_SECONDS: Final = 0.03  # the resolution of the measurement
_WATCHED: Final = 16  # nodes; with more of them the reading itself would be measured
_NAMED: Final = 5
_DIGEST_CHARACTERS: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Here:
    """Describe this node as it would be in a group."""

    node: str
    version: str
    task: str
    replicas: int
    min_workers: int
    lease_seconds: float

    @property
    def heartbeat(self) -> Heartbeat:
        """Return what this node's daemon would say once it is ready. Its numeric profile is not known here."""
        return Heartbeat(
            run="",
            node=self.node,
            incarnation="",
            beat=0,
            role="worker",
            role_source="",
            state=NodeState.READY,
            version=self.version,
            task=self.task,
            plan=0,
            outcome=0,
            slots=(),
        )


def watch(storage: Storage, clock: Clock, beat_seconds: float, pause: Callable[[float], None]) -> ObservedNodes:
    """Read the heartbeats for a few beats. Stop early if no node beats, or there is none.

    Raises `StorageError` if the storage does not answer.
    """
    observed_nodes, run = ObservedNodes(), read_run(storage)
    if run is None:
        return observed_nodes
    members, begin = Heartbeats(storage, run), clock.now()
    observed_nodes.update(members.read_all(), begin)
    watched = [observed.heartbeat.node for observed in observed_nodes if not observed.left][:_WATCHED]
    while watched and (now := clock.now()) < begin + OBSERVED_BEATS * beat_seconds:
        if now >= begin + _FIRST_BEATS * beat_seconds and not any(observed.changed for observed in observed_nodes):
            break
        pause(_GLANCE_SECONDS)
        observed_nodes.update(members.read(watched), clock.now())
    return observed_nodes


def visibility(
    observed_nodes: ObservedNodes, node: str, *, beat_seconds: float, lease_seconds: float
) -> Iterator[Finding]:
    """Report which other nodes beat, and whether that is seen here soon enough for the lease."""
    others = [observed for observed in observed_nodes if observed.heartbeat.node != node and not observed.left]
    beating = [observed for observed in others if observed.changed]
    if any(observed.changed and observed.heartbeat.node == node for observed in observed_nodes):
        text = f"a daemon beats as {node}: this node's own, or one that should have another name (--node)"
        yield Finding("nodes", ok=True, text=text)
    silent = [observed for observed in others if not observed.changed]
    if silent:
        looked = max(observed.silent_seconds for observed in silent)
        text = f"{_names(silent)} did not beat in {looked:.1f} s: down, or not seen here"
        yield Finding("nodes", ok=True, text=text)
    if not beating:
        yield Finding("nodes", ok=True, text="no other node beats here")
        return
    yield _lateness(beating, beat_seconds, lease_seconds)


def _lateness(beating: list[ObservedNode], beat_seconds: float, lease_seconds: float) -> Finding:
    measured = [(late, observed) for observed in beating if (late := observed.late_seconds(beat_seconds)) is not None]
    if not measured:
        return Finding("nodes", ok=True, text=f"{_names(beating)} beat, too seldom to say how late that is seen here")
    late, latest = max(measured, key=lambda each: each[0])
    gaps = sorted(gap for _, observed in measured for gap in observed.gaps)
    every = gaps[len(gaps) // 2]
    if lease_seconds < 2 * late:
        text = (
            f"{latest.heartbeat.node}'s beats are seen up to {late:.1f} s late, and a lease of {lease_seconds:g} s is "
            f"less than twice that: live nodes would be given up. Set lease_seconds to {_lease_for(late):g} or more on "
            "all nodes, or mount the storage so that it shows changes sooner (actimeo=3, no nocto)"
        )
        return Finding("nodes", ok=False, text=text)
    which = "" if len(measured) == 1 else f" ({latest.heartbeat.node})"
    text = (
        f"beats of {_names([observed for _, observed in measured])} are seen every {every:.1f} s, "
        f"at most {late:.1f} s late{which}; the lease of {lease_seconds:g} s is enough"
    )
    return Finding("nodes", ok=True, text=text)


def group(observed_nodes: ObservedNodes, here: Here) -> Iterator[Finding]:
    """Report which eval group this node's daemon would form with those that beat now."""
    alive = (observed.heartbeat for observed in observed_nodes if observed.fresh(here.lease_seconds))
    others, own = ready_workers(heartbeat for heartbeat in alive if heartbeat.node != here.node), here.heartbeat
    same = [heartbeat for heartbeat in others if _kind(heartbeat) == _kind(own)]
    peers = [heartbeat for heartbeat in compatible_nodes([*same, own], here.node) if heartbeat is not own]
    for heartbeat in others:
        if heartbeat not in peers and (why := _difference(heartbeat, here)):
            yield Finding("group", ok=True, text=f"{heartbeat.node} {why}: it would not be in the same group")
    largest = compatible_nodes([*others, own], here.node)
    if own not in largest:
        text = (
            f"this node would not take part: {len(largest)} nodes agree on another version or task, "
            f"{len(peers) + 1} on this one's. Bring the same code to all nodes"
        )
        yield Finding("group", ok=False, text=text)
        return
    workers = here.replicas + sum(len(heartbeat.slots) for heartbeat in peers)
    formed = f"a group of {workers} worker process{'es' if workers > 1 else ''}"
    enough = (
        "" if workers >= here.min_workers else f"; that is less than min_workers = {here.min_workers}: it would wait"
    )
    if peers:
        there = f"{', '.join(heartbeat.node for heartbeat in peers)} {'are' if len(peers) > 1 else 'is'} there"
        text = f"{there}, with the same version and task; with this node {formed}{enough}"
    else:
        text = f"this node alone would form {formed}{enough}"
    yield Finding("group", ok=True, text=text)


def _kind(heartbeat: Heartbeat) -> tuple[str, str | None]:
    return heartbeat.version, heartbeat.task


def _difference(heartbeat: Heartbeat, here: Here) -> str | None:
    if heartbeat.task is None:
        return "has not tried its task yet"
    if heartbeat.version != here.version:
        return f"runs version {heartbeat.version}, this node {here.version}"
    if heartbeat.task != here.task:
        there, own = heartbeat.task[:_DIGEST_CHARACTERS], here.task[:_DIGEST_CHARACTERS]
        return f"runs other code of the task ({there}, here {own})"
    return f"computes with other versions, devices or settings than most (numeric profile {heartbeat.profile})"


def _lease_for(late: float) -> float:
    """Return a lease that is long enough, with a margin of half of it, in whole seconds."""
    return float(round(3 * late + 0.5))


def _names(observed_nodes: list[ObservedNode]) -> str:
    names = [observed.heartbeat.node for observed in observed_nodes]
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
