"""Holds checkpoints without holding up the rest: a link is made at once, a copy of 500 GB goes on beside it.

Owned by the keeper. One checkpoint is pinned at a time, so that copies do not take the storage away from training.
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from sidecar.checkpoints.found import Found
from sidecar.checkpoints.pin import bytes_copied, clean, pin, pins_bytes, pins_bytes_alone, unpin
from sidecar.records import Checkpoint, Key


class Make(Protocol):
    """Makes one pin; raises what `checkpoints.pin.pin` raises."""

    def __call__(self, found: Found, pins: Path, /, *, copies: bool, owner: str) -> Found:
        """Make it, if `copies` also where it takes a copy of much."""
        ...


@dataclass(slots=True)
class _Work:
    """One pin in the making."""

    thread: threading.Thread
    pinned: Found | None = None
    error: Exception | None = None


@dataclass(slots=True)
class Pinner:
    """Pins in a thread of its own, which is waited for only as long as links take."""

    pins: Path
    owner: str = ""  # this node's name: what it left half pinned in a former life is told by that
    patience_seconds: float = 1.0  # links to hundreds of shards on slow storage
    make: Make = pin
    _work: dict[Key, _Work] = field(default_factory=dict)

    def pin(self, found: Found, *, copies: bool) -> Found | None:
        """The pinned checkpoint, or None while it is not finished: then ask again at the next look.

        `copies`: whether it may be copied if it cannot be linked; of no matter once it has begun. Raises what
        `checkpoints.pin.pin` raises.
        """
        key = found.checkpoint.key
        work = self._work.get(key)
        if work is None:
            if self._work:
                self._forget_finished()
            if self._work:
                return None
            work = self._work[key] = self._begin(found, copies=copies)
            work.thread.join(self.patience_seconds)
        if work.thread.is_alive():
            return None
        del self._work[key]
        if work.error is not None:
            raise work.error
        return work.pinned

    def works_on(self, key: Key) -> bool:
        """Whether it is being pinned."""
        return key in self._work

    def unpin(self, checkpoint: Checkpoint) -> None:
        """Let it go; raises what `checkpoints.pin.unpin` raises."""
        unpin(checkpoint, self.pins)

    def bytes(self) -> int:
        """What all pins hold together."""
        return pins_bytes(self.pins)

    def bytes_alone(self) -> int:
        """What of it the trainer deleted, or what was copied."""
        return pins_bytes_alone(self.pins)

    def bytes_copied(self) -> Mapping[str, int]:
        """How far pins in the making are, on any node, by the first 12 digits of the checkpoints' digests."""
        return bytes_copied(self.pins)

    def clean(self) -> None:
        """Remove what was left half pinned by nodes that are gone, and by this one in former lives."""
        clean(self.pins, owner=self.owner)

    def _begin(self, found: Found, *, copies: bool) -> _Work:
        def run() -> None:
            try:
                work.pinned = self.make(found, self.pins, copies=copies, owner=self.owner)
            except Exception as error:  # noqa: BLE001 - raised where it is asked for
                work.error = error

        work = _Work(threading.Thread(target=run, name="pin", daemon=True))
        work.thread.start()
        return work

    def _forget_finished(self) -> None:
        """What nobody asks for any more: it vanished, or others settled it. A pin that stands is found anyway."""
        for key in [key for key, work in self._work.items() if not work.thread.is_alive()]:
            del self._work[key]
