"""Heartbeats of tests, with defaults; fields are named as in the file, whichever part of the record holds them."""

from dataclasses import fields

from sidecar.protocol.heartbeat import AboutNode, CheckpointSightings, Heartbeat, JournalPosition, NumericProfiles

PARTS = {
    "about": AboutNode,
    "journal": JournalPosition,
    "numerics": NumericProfiles,
    "checkpoints": CheckpointSightings,
}

DEFAULTS = {
    "run": "r",
    "node": "n1",
    "incarnation": "i",
    "beat": 1,
    "role": "worker",
    "role_source": "setting",
    "state": "ready",
    "version": "1",
    "task": "t",
    "plan": 0,
    "outcome": 0,
    "slots": (),
}


def make_heartbeat(**given):
    """Return a heartbeat with these fields, and defaults for the others."""
    values = DEFAULTS | given
    for part, kind in PARTS.items():
        values[part] = kind(**{each.name: values.pop(each.name) for each in fields(kind) if each.name in values})
    return Heartbeat(**values)
