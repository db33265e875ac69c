"""The status of a daemon, from the names of its values, whichever part they are in."""

from dataclasses import fields

from sidecar.policy.node_identity import Identity
from sidecar.policy.roles import RoleDecision
from sidecar.publishing.status import (
    CheckpointsStatus,
    DiskUsage,
    EvaluationStatus,
    NodesStatus,
    Status,
    UnreadableEntries,
)

_PARTS = {
    "checkpoints": CheckpointsStatus,
    "evaluation": EvaluationStatus,
    "nodes": NodesStatus,
    "disk": DiskUsage,
    "unreadable": UnreadableEntries,
}
_PART_OF = {each.name: part for part, kind in _PARTS.items() for each in fields(kind)}


def make_status(
    run="mnist", node="n1", incarnation="i", version="0.1.0", role="worker", role_source="setting", **values
) -> Status:
    """Make a status; values that are not given have their defaults."""
    given = {part: {} for part in _PARTS}
    for name in _PART_OF.keys() & values.keys():
        given[_PART_OF[name]][name] = values.pop(name)
    return Status(
        identity=Identity(
            run=run, node=node, incarnation=incarnation, version=version, role=RoleDecision(role, role_source)
        ),
        **{part: kind(**given[part]) for part, kind in _PARTS.items()},
        **values,
    )
