"""Decide whether another node finds a checkpoint whole that this node gave up. Pure: heartbeats name checkpoints."""

from collections.abc import Sequence

from sidecar.protocol.heartbeat import Heartbeat
from sidecar.protocol.records import Settlement, folder_name
from sidecar.protocol.states import Verdict


def is_disputed(
    settlement: Settlement, node: str, workers: Sequence[Heartbeat], *, liveness_unknown: bool = False
) -> bool:
    """Return whether another node finds a checkpoint whole that `node` gave up, or may find it whole.

    A node that cannot name all checkpoints that it finds may find this one. So may a node whose liveness is unknown.
    """
    if settlement.verdict not in (Verdict.VANISHED, Verdict.CORRUPT):
        return False
    others = [heartbeat for heartbeat in workers if heartbeat.node != node]
    return liveness_unknown or any(other.checkpoints.sees_more or _names(other, settlement) for other in others)


def is_seen_by_others(settlement: Settlement, node: str, workers: Sequence[Heartbeat]) -> bool:
    """Return whether another node reports that it finds a checkpoint whole that `node` gave up."""
    return any(_names(heartbeat, settlement) for heartbeat in workers if heartbeat.node != node)


def _names(heartbeat: Heartbeat, settlement: Settlement) -> bool:
    """Return whether a heartbeat lists the checkpoint. A corrupt one has no comparable digest, so its name counts."""
    folder = folder_name(settlement.key)
    if settlement.verdict == Verdict.CORRUPT:
        name = folder.rpartition("@")[0]
        return any(visible.rpartition("@")[0] == name for visible in heartbeat.checkpoints.sees)
    return folder in heartbeat.checkpoints.sees
