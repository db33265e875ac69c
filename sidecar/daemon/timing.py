"""Define the settings of the daemon's own waits."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Hold the settings of the daemon's own waits. The fields have the names of the settings."""

    beat_seconds: float
    lease_seconds: float
    loop_timeout_seconds: float
    sweep_seconds: float
    storage_timeout_seconds: float
    pin_wait_seconds: float
    result_turn_seconds: float
    drain_seconds: float
    nothing_seen_seconds: float = 300.0
    quiet_seconds: float = 3.0
    sink_timeout_seconds: float = 0.0
    # Not a setting: how long a node may take to download a checkpoint that it has found, and to upload its saves. None:
    # the nodes share pins and saves.
    transfer_seconds: float | None = None
    # Not a setting: how many times longer the interval between heartbeats is while nobody waits for them; less than 3
    quiet_factor: float = 1.0
