"""The state of a daemon that has joined a run, and what its scans, its journal and other nodes tell it."""

from pathlib import Path

from heartbeats import make_heartbeat
from records import make_plan

from sidecar.checkpoints.scan import DiscoveredCheckpoint, ScanResult
from sidecar.coordination.liveness import HeartbeatReadings
from sidecar.daemon.checkpoint_tracker import CheckpointTracker
from sidecar.daemon.known_nodes import KnownNodes
from sidecar.daemon.shutdown import Shutdown
from sidecar.daemon.state import DaemonState
from sidecar.policy.node_identity import Identity
from sidecar.policy.roles import RoleDecision
from sidecar.protocol.heartbeat import Slot, WorkerProgress
from sidecar.protocol.records import Checkpoint, Settlement


def new_world(*, start_new=False, role="worker"):
    state = DaemonState(
        identity=Identity(run="run", node="n1", incarnation="i1", version="1", role=RoleDecision(role, "setting")),
        shutdown=Shutdown(drain_seconds=25.0, beat_seconds=2.0, storage_seconds=10.0),
        started=False,
        nodes=KnownNodes(node="n1", lease_seconds=10.0),
        tracker=CheckpointTracker(start_new=start_new),
    )
    state.run, state.task, state.caught_up = "r", "t1", True
    return state


def found(step, *, pinned=True):
    name = f"ckpt-{step}"
    checkpoint = Checkpoint(
        name=name, digest=f"{step:064d}", step=step, format="tf_object", pin=f"pins/{name}" if pinned else None
    )
    return DiscoveredCheckpoint(checkpoint=checkpoint, folder=Path("/pins"), written_at=100.0, seen_at=0.0)


def look(*steps, waiting=(), missing=False):
    return scan_of(*map(found, steps), waiting=tuple((name, "not yet") for name in waiting), missing=missing)


def scan_of(*checkpoints, **rest):
    return ScanResult(by_key={each.checkpoint.key: each for each in checkpoints}, **rest)


def given_up(step, verdict):
    checkpoint = found(step).checkpoint
    return Settlement(name=checkpoint.name, digest=checkpoint.digest, step=step, verdict=verdict, reason="because")


def heartbeat(node, beat=1, **changes):
    slots = (Slot(worker=None, group=None, address=None, standby=f"{node}.i1.1", standby_address="h:1"),)
    return make_heartbeat(**{"node": node, "beat": beat, "incarnation": "i1", "task": "t1", "slots": slots} | changes)


def meet(state, now, *others):
    state.record_heartbeats(heartbeat("n1", int(now)), HeartbeatReadings(heartbeats=tuple(others)), now)


def plan(number, step=1, *, members=("n1.i1.1",), settles=(), task="t1"):
    checkpoint = found(step).checkpoint if members else None
    return make_plan(number, checkpoint, workers=members, settles=settles, task=task)


def holds(state, now, *steps):
    """The steps of those that are to be pinned, of these that a look found."""
    decision = state.pin_policy(now).decide({each.checkpoint.key: each for each in map(found, steps)})
    return [step for step in steps if found(step).checkpoint.key in decision.pin]


def view(state, now):
    return state.view(now, draining=False)


def waiting(state, now, number, *phases):
    """Both nodes say what their rank does in a plan."""
    own, other = (
        heartbeat(node, int(now), plan=number, outcome=number - 1, doing=(WorkerProgress(f"{node}.i1.1", phase),))
        for node, phase in zip(("n1", "n2"), phases, strict=True)
    )
    state.record_heartbeats(own, HeartbeatReadings(heartbeats=(other,)), now)
