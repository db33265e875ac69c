"""What `sidecar check` finds of other nodes: who beats, how late that is seen here, and which group would form.

From shared storage alone, and without comparing clocks: other daemons answer nobody, but they beat.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from sidecar.agreement.members import Members
from sidecar.agreement.run import read_run
from sidecar.agreement.storage import Storage
from sidecar.clock import Clock
from sidecar.commands.finding import Finding
from sidecar.commands.pulses import Pulse, Pulses
from sidecar.eligibility import largest_alike
from sidecar.records import Heartbeat

LOOK_BEATS: Final = 4.25  # four beats are three gaps, whatever the moment of the first look
_FIRST_BEATS: Final = 2.25  # who has not changed by then does not beat
_GLANCE_SECONDS: Final = 0.03  # what is measured is as coarse as this
_WATCHED: Final = 16  # nodes: more would be read so often that reading is what is measured
_NAMED: Final = 5
_DIGEST_LETTERS: Final = 8


@dataclass(frozen=True, slots=True)
class Here:
    """This node, as it would be in a group."""

    node: str
    version: str
    task: str | None
    replicas: int
    min_workers: int


def watch(storage: Storage, clock: Clock, beat_seconds: float, pause: Callable[[float], None]) -> Pulses:
    """Look at members' files for a few beats; it ends early where nobody beats, or nobody is.

    Raises `StorageError` if storage does not answer.
    """
    pulses, run = Pulses(), read_run(storage)
    if run is None:
        return pulses
    members, begin = Members(storage, run), clock.now()
    pulses.look(members.read_all(), begin)
    watched = [pulse.heartbeat.node for pulse in pulses if not pulse.left][:_WATCHED]
    while watched and (now := clock.now()) < begin + LOOK_BEATS * beat_seconds:
        if now >= begin + _FIRST_BEATS * beat_seconds and not any(pulse.changed for pulse in pulses):
            break
        pause(_GLANCE_SECONDS)
        pulses.look(members.read(watched), clock.now())
    return pulses


def visibility(pulses: Pulses, node: str, *, beat_seconds: float, lease_seconds: float) -> Iterator[Finding]:
    """Who beats beside this node, and whether that is seen here soon enough for the lease."""
    others = [pulse for pulse in pulses if pulse.heartbeat.node != node and not pulse.left]
    beating = [pulse for pulse in others if pulse.changed]
    if any(pulse.changed and pulse.heartbeat.node == node for pulse in pulses):
        text = f"a daemon beats as {node}: this node's own, or one that should have another name (--node)"
        yield Finding("nodes", ok=True, text=text)
    silent = [pulse for pulse in others if not pulse.changed]
    if silent:
        looked = max(pulse.silent_seconds for pulse in silent)
        text = f"{_names(silent)} did not beat in {looked:.1f} s: down, or not seen here"
        yield Finding("nodes", ok=True, text=text)
    if not beating:
        yield Finding("nodes", ok=True, text="no other node beats here")
        return
    yield _lateness(beating, beat_seconds, lease_seconds)


def _lateness(beating: list[Pulse], beat_seconds: float, lease_seconds: float) -> Finding:
    measured = [(late, pulse) for pulse in beating if (late := pulse.late_seconds(beat_seconds)) is not None]
    if not measured:
        return Finding("nodes", ok=True, text=f"{_names(beating)} beat, too seldom to say how late that is seen here")
    late, latest = max(measured, key=lambda each: each[0])
    gaps = sorted(gap for _, pulse in measured for gap in pulse.gaps)
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
        f"beats of {_names([pulse for _, pulse in measured])} are seen every {every:.1f} s, "
        f"at most {late:.1f} s late{which}; the lease of {lease_seconds:g} s is enough"
    )
    return Finding("nodes", ok=True, text=text)


def group(pulses: Pulses, here: Here) -> Iterator[Finding]:
    """Which eval group would form of this node's daemon and those that beat now."""
    others = [
        pulse.heartbeat
        for pulse in pulses
        if pulse.changed
        and pulse.heartbeat.node != here.node
        and pulse.heartbeat.role == "worker"
        and pulse.heartbeat.state == "ready"
    ]
    same = [each for each in others if _kind(each) == (here.version, here.task)]
    alike = largest_alike(same)  # what this node would compute with is not asked here
    for each in others:
        if each not in alike and (why := _difference(each, here)):
            yield Finding("group", ok=True, text=f"{each.node} {why}: it would not be in the same group")
    rivals = Counter(_kind(each) for each in others if each not in same and each.task is not None)
    if rivals and max(rivals.values()) > len(alike) + 1:
        text = (
            f"this node would not take part: {max(rivals.values())} nodes agree on another version or task, "
            f"{len(alike) + 1} on this one's. Bring the same code to all nodes"
        )
        yield Finding("group", ok=False, text=text)
        return
    workers = here.replicas + sum(len(each.slots) for each in alike)
    formed = f"a group of {workers} worker process{'es' if workers > 1 else ''}"
    enough = (
        "" if workers >= here.min_workers else f"; that is less than min_workers = {here.min_workers}: it would wait"
    )
    if alike:
        there = f"{', '.join(each.node for each in alike)} {'are' if len(alike) > 1 else 'is'} there"
        text = f"{there}, with the same version and task; with this node {formed}{enough}"
    else:
        text = f"this node alone would form {formed}{enough}"
    yield Finding("group", ok=True, text=text)


def _kind(each: Heartbeat) -> tuple[str, str | None]:
    return each.version, each.task


def _difference(each: Heartbeat, here: Here) -> str | None:
    if each.task is None:
        return "has not tried its task yet"
    if _kind(each) == (here.version, here.task):
        return f"computes with other versions, devices or settings than most (numeric profile {each.profile})"
    if each.version != here.version:
        return f"runs version {each.version}, this node {here.version}"
    return f"runs other code of the task ({each.task[:_DIGEST_LETTERS]}, here {(here.task or '')[:_DIGEST_LETTERS]})"


def _lease_for(late: float) -> float:
    """A lease that is enough, with half as much again for a worse day, in whole seconds."""
    return float(round(3 * late + 0.5))


def _names(pulses: list[Pulse]) -> str:
    names = [pulse.heartbeat.node for pulse in pulses]
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
