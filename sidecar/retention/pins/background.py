"""Pin checkpoints in threads: a link is made at once, a copy of 500 GB continues in the background.

The reconciler owns this. One checkpoint is pinned at a time, so that copies leave bandwidth to training. Checkpoints
whose files hang do not count. `UnfinishedPins` finds those that no node works on any more, because their makers died or
could not remove them: it compares the storage's times with each other only.
"""

import contextlib
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from sidecar.checkpoints.scan import DiscoveredCheckpoint
from sidecar.errors import StorageError
from sidecar.protocol.records import Checkpoint, Key
from sidecar.retention.exports.exports import Exports
from sidecar.retention.pins.names import is_owned_by
from sidecar.retention.pins.pin import TOUCH_SECONDS, pin, remove_rest, unpin
from sidecar.retention.pins.usage import Progress, bytes_copied, in_the_making, pins_bytes, pins_bytes_alone
from sidecar.system.bounded_calls import Calls, call_directly
from sidecar.system.clock import Clock, SystemClock

_MOST: Final = 4
"""The most checkpoints that are pinned at once, all except one of them hanging: each takes a thread without an end."""


class MakePin(Protocol):
    """Make one pin, with the errors of `pins.pin.pin`."""

    def __call__(
        self, discovered: DiscoveredCheckpoint, pins: Path, /, *, copies: bool, owner: str
    ) -> DiscoveredCheckpoint:
        """Make the pin. `copies`: also if much must be copied."""


@dataclass(slots=True, kw_only=True)
class _Work:
    """Hold one unfinished pin. `turns`: the count of its thread's progress at the time `moved_at`."""

    checkpoint: Checkpoint
    thread: threading.Thread
    moved_at: float
    turns: int | None = None
    pinned: DiscoveredCheckpoint | None = None
    error: Exception | None = None


@dataclass(slots=True)
class _Unfinished:
    """Hold the state of an unfinished pin in the last scan. Times are seconds of this node's clock."""

    progress: Progress
    began_at: float
    grew_at: float
    changed_at: float


@dataclass(slots=True)
class UnfinishedPins:
    """Remember how unfinished pins grew. `owner`: the name of this node."""

    owner: str
    _seen: dict[str, _Unfinished] = field(default_factory=dict)

    def observe(self, making: Mapping[str, Progress], now: float) -> None:
        """Note the present state of all unfinished pins."""
        self._seen = {name: self._follow(name, progress, now) for name, progress in making.items()}

    def idle(self, now: float, turn_seconds: float) -> frozenset[str]:
        """Return the names of unfinished pins that no longer grow, so that no room is reserved for them.

        A whole copy does not grow while it is made durable and checked, which takes no longer than copying it.
        """
        return frozenset(
            name for name, pin in self._seen.items() if now >= pin.grew_at + turn_seconds + pin.grew_at - pin.began_at
        )

    def abandoned(self, now: float, turn_seconds: float) -> list[str]:
        """Return the names of unfinished pins that nobody has touched for long, and that may be removed."""
        return [name for name, pin in self._seen.items() if now >= pin.changed_at + self._bound(name, turn_seconds)]

    def _bound(self, name: str, turn_seconds: float) -> float:
        """Return the seconds without a change after which an unfinished pin is abandoned."""
        return _OWN_SECONDS if is_owned_by(name, self.owner) else max(_OTHERS_SECONDS, _TURNS * turn_seconds)

    def _follow(self, name: str, progress: Progress, now: float) -> _Unfinished:
        """Return the new state of an unfinished pin, by its state in the last scan."""
        before = self._seen.get(name)
        if before is None:
            return _Unfinished(progress, now, now, now)
        grew_at = now if progress.size > before.progress.size else before.grew_at
        changed_at = now if progress != before.progress else before.changed_at
        return _Unfinished(progress, before.began_at, grew_at, changed_at)


@dataclass(slots=True, kw_only=True)
class BackgroundPinner:
    """Pin checkpoints in threads, and wait for each thread only as long as links take."""

    pins: Path
    owner: str = ""  # this node's name, which marks the pins that it left unfinished in a former life
    patience_seconds: float = 1.0  # links to hundreds of shards on slow storage
    make: MakePin = pin
    hangs_after_seconds: float = 30.0  # without any progress: disks that sleep, and servers that change over, take less
    clock: Clock = field(default_factory=SystemClock)
    calls: Calls = call_directly  # makes calls that may hang
    exports: Exports | None = None  # retains the pins of the best checkpoints
    _work: dict[Key, _Work] = field(default_factory=dict)
    _leftovers: UnfinishedPins = field(init=False)
    _idle: frozenset[str] = frozenset()  # folders of unfinished pins that do not grow

    def __post_init__(self) -> None:
        self._leftovers = UnfinishedPins(self.owner)

    def pin(self, discovered: DiscoveredCheckpoint, *, copies: bool) -> DiscoveredCheckpoint | None:
        """Return the pinned checkpoint, or None while pinning is not finished; the next scan asks again.

        `copies`: whether the checkpoint may be copied if it cannot be linked; ignored once pinning has begun. Raises
        the errors of `pins.pin.pin`, and `StorageError` if too many checkpoints hang already.
        """
        key = discovered.checkpoint.key
        work = self._work.get(key)
        if work is None:
            self._forget_finished()
            hanging = self.hanging()
            if len(self._work) > len(hanging):
                return None
            if len(hanging) >= _MOST:
                names = ", ".join(sorted(work.checkpoint.name for work in self._work.values()))
                raise StorageError(f"not begun, because reading {_MOST} others hangs: {names}")
            work = self._work[key] = self._begin(discovered, copies=copies)
            work.thread.join(self.patience_seconds)
        if work.thread.is_alive():
            return None
        del self._work[key]
        if work.error is not None:
            raise work.error
        return work.pinned

    def works_on(self, key: Key) -> bool:
        """Return whether a checkpoint is being pinned."""
        return key in self._work

    def hanging(self) -> Mapping[str, str]:
        """Return the checkpoints whose reading hangs, by the names of their pins, and a sentence about each."""
        now, hanging = self.clock.now(), {}
        for work in self._work.values():
            if (turns := turns_of(work.thread)) != work.turns:
                work.turns, work.moved_at = turns, now
            if work.thread.is_alive() and now >= work.moved_at + self.hangs_after_seconds:
                hanging[work.checkpoint.folder] = f"reading {work.checkpoint.name} hangs: check its storage"
        return hanging

    def unpin(self, checkpoint: Checkpoint) -> None:
        """Remove a pin, with the errors of `pins.pin.unpin`."""
        self.calls(f"/unpin {checkpoint.folder}", partial(unpin, checkpoint, self.pins))

    def bytes(self) -> int:
        """Return what all pins hold together, but for those that were begun and do not grow."""
        return self.calls("/bytes", partial(pins_bytes, self.pins, self._idle))

    def bytes_alone(self) -> int:
        """Return what of it the trainer deleted, or what was copied."""
        return self.calls("/bytes alone", partial(pins_bytes_alone, self.pins, self._idle))

    def bytes_copied(self) -> Mapping[str, int]:
        """Return the bytes of unfinished pins of all nodes, by the first 12 digits of the checkpoints' digests."""
        return bytes_copied(self.pins)

    def clean(self, now: float, turn_seconds: float) -> None:
        """Scan the unfinished pins, and remove those that no node works on any more. Raises `StorageError`.

        `now`: seconds of the node's clock. `turn_seconds`: how long a copy may stay without growing.
        """
        self._leftovers.observe(in_the_making(self.pins), now)
        self._idle = self._leftovers.idle(now, turn_seconds)
        for name in self._leftovers.abandoned(now, turn_seconds):
            with contextlib.suppress(OSError):
                remove_rest(name, self.pins)

    def _begin(self, discovered: DiscoveredCheckpoint, *, copies: bool) -> _Work:
        """Start a thread that pins a checkpoint."""

        def run() -> None:
            try:
                work.pinned = self.make(discovered, self.pins, copies=copies, owner=self.owner)
            except Exception as error:  # noqa: BLE001 - `pin` raises it
                work.error = error

        thread = threading.Thread(target=run, name="pin", daemon=True)
        work = _Work(checkpoint=discovered.checkpoint, thread=thread, moved_at=self.clock.now())
        thread.start()
        return work

    def _forget_finished(self) -> None:
        """Forget finished pins that nobody asks for, because the checkpoint vanished or was settled."""
        for key in [key for key, work in self._work.items() if not work.thread.is_alive()]:
            del self._work[key]


def turns_of(thread: threading.Thread) -> int | None:
    """Return the context switches of a thread, which grow as long as it makes progress; None if they are unknown.

    A thread that copies or compares checksums sleeps and wakes, or is interrupted, again and again. A thread that hangs
    in a single request to storage is not. Linux only: on other systems every thread seems to hang.
    """
    try:
        status = Path(f"/proc/self/task/{thread.native_id}/status").read_text()
    except OSError:
        return None
    return sum(int(line.split()[1]) for line in status.splitlines() if "ctxt_switches" in line)


_OWN_SECONDS: Final = 4 * TOUCH_SECONDS  # for pins of this node, which touches them while it makes them
_OTHERS_SECONDS: Final = 600.0  # far more than the time between two touches by a live maker on a slow machine
_TURNS: Final = 10
