"""Ask in a training loop whether the sidecar found that training no longer improves.

    from sidecar.early_stop import should_stop

    for step in range(steps):
        train(step)
        if signal := should_stop("ckpts"):
            print(signal.reason)
            break

It needs nothing but the standard library, and obstore for a signal in a bucket. In a job of several processes only one
may ask, and it must pass its answer on to the others, because a file becomes visible on two machines at two moments:
docs/how-to/early-stop.md shows how.
"""

import os
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Final

from sidecar.errors import RecordError
from sidecar.protocol.codec import loads
from sidecar.protocol.records import SCHEMA
from sidecar.system.bucket_folder import BucketFolder
from sidecar.system.bucket_url import is_url, split_url
from sidecar.system.name_clash import require_own_package
from sidecar.system.plain_text import one_line

require_own_package()

FILE: Final = "early_stop.json"
"""The name of the signal in the run's state directory. A person withdraws the signal by deleting the file."""

_MOST_BYTES: Final = 64 * 1024
_PAUSE_SECONDS: Final = 10.0  # between two reads of a bucket
_BUCKET_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StopSignal:
    """Hold the advice to stop training. Its JSON is the content of the file.

    Args:
        reason: Why, as a sentence for people. `should_stop` adds the path of the file, and how to train on.
        metric: EVAL_SET/METRIC that did not improve.
        best: The best value of the metric so far.
        best_step: The training step of the checkpoint with that value, if it has one.
        best_checkpoint: The name of that checkpoint.
        step: The training step of the checkpoint after which the signal was given.
        checkpoint: The name of that checkpoint.
        patience: The number of evaluations without an improvement that led to the signal.
        run: The id of the run.
        created_at: When the signal was given, in RFC 3339, UTC.
    """

    reason: str
    metric: str
    best: float | None
    best_step: int | None
    best_checkpoint: str
    step: int | None
    checkpoint: str
    patience: int
    run: str
    created_at: str
    schema: int = SCHEMA


def should_stop(
    checkpoint_dir: str | os.PathLike[str],
    run: str | None = None,
    *,
    state_dir: str | os.PathLike[str] | None = None,
) -> StopSignal | None:
    """Return the signal to stop training; None if there is none.

    It costs one look for a file, so a loop may ask at every step. It never raises an error of storage: training goes on
    if the file cannot be read. On storage that hangs it waits as any other access would.

    Args:
        checkpoint_dir: Directory in which training saves its checkpoints, or its URL, as the sidecar has it.
        run: Name of the run, if the sidecar has the setting `run`. Default: the name of the directory.
        state_dir: The sidecar's setting `state_dir`, or the URL of its setting `state_backup`: a bucket is asked at
            most every ten seconds. Default: `.sidecar` in the checkpoint directory; for a URL, the folder of this
            user's that a sidecar on this machine has by default.
    """
    try:
        if state_dir is not None and is_url(state_dir):
            return _in_bucket(str(state_dir), Path(checkpoint_dir).name if run is None else run).signal()
        path = _path(os.fspath(checkpoint_dir), run, None if state_dir is None else os.fspath(state_dir))
        if not stat.S_ISREG(os.lstat(path).st_mode):
            return None
        return _read(path)
    except (OSError, RecordError, ValueError, RuntimeError):  # a null character; a loop of links, or no home directory
        return None


@lru_cache(maxsize=64)
def _path(checkpoint_dir: str, run: str | None, state_dir: str | None) -> str:
    """Return the path of the signal. It is computed once, so that a question costs one call of the system."""
    directory = Path(checkpoint_dir).expanduser().absolute()
    beside = BucketFolder.of(checkpoint_dir).state_dir if is_url(checkpoint_dir) else directory / ".sidecar"
    parent = (beside if state_dir is None else Path(state_dir)).expanduser().absolute()
    return str(parent / (directory.resolve().name if run is None else run) / FILE)


class _InBucket:
    """Read the signal in a backup of the state, from time to time."""

    def __init__(self, url: str, run: str) -> None:
        from sidecar.system.object_store import ObjectStore, ObjectStoreRules  # noqa: PLC0415 - obstore is optional

        scheme, bucket, prefix = split_url(url)
        rules = ObjectStoreRules(bucket_timeout_seconds=_BUCKET_SECONDS)
        self._store = ObjectStore(scheme=scheme, bucket=bucket, prefix=f"{prefix}/{run}".strip("/"), rules=rules)
        self._signal: StopSignal | None = None
        self._next = 0.0

    def signal(self) -> StopSignal | None:
        """Return the signal of the newest look. Raises `OSError` and `RecordError`."""
        if (now := time.monotonic()) >= self._next:
            self._next, self._signal = now + _PAUSE_SECONDS, None
            with ThreadPoolExecutor(1) as thread:  # a notebook has an event loop in its own
                data = thread.submit(self._store.content, FILE, _MOST_BYTES).result()
            if data:
                self._signal = _with_remedy(parse_signal(data), f"{FILE} in the sidecar's state directory")
        return self._signal


@lru_cache(maxsize=64)
def _in_bucket(url: str, run: str) -> _InBucket:
    return _InBucket(url, run)


def _read(path: str) -> StopSignal | None:
    """Return the signal in a file. A link is not followed, and no more than some KB are read."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        return _with_remedy(parse_signal(file.read(_MOST_BYTES + 1)), path)


def _with_remedy(signal: StopSignal, path: str) -> StopSignal:
    """Return the signal with the way to withdraw it: a resumed training that stops at once has no other message."""
    withdraw = f"to train on, delete {path}, which was written at {signal.created_at}"
    return replace(signal, reason=one_line(f"{signal.reason}; {withdraw}"))


def parse_signal(data: bytes) -> StopSignal:
    """Return the signal in the content of the file. Raises `RecordError` if it is not a signal."""
    if len(data) > _MOST_BYTES:
        raise RecordError(f"a signal has at most {_MOST_BYTES} bytes")
    return loads(StopSignal, data)
