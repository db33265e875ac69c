"""The error tree. Each class knows its exit code and whether trying again can help; it imports nothing.

Messages name the offending value and what to do. What fails inside a worker process is not raised here: it crosses the
border as data (`sidecar.workers.messages.Failed`) and ends as the outcome of a plan.
"""

from collections.abc import Mapping
from typing import ClassVar, Final

EXIT_CODES: Final[Mapping[int, str]] = {
    0: "The command succeeded, or the daemon was stopped.",
    1: "A checkpoint or an evaluation failed, or `sidecar check` found a problem.",
    2: "A setting, an option, an argument or the environment cannot be used.",
    3: "The task cannot be found, imported or understood.",
    4: "Shared storage cannot be used now, or this user has no right to a path.",
    5: "Records of the run are missing or broken, contradict each other, or come from a newer release.",
    6: "Another daemon runs under this node's name.",
    70: "This program has a bug; the traceback is on standard error.",
    130: "The command was interrupted by Ctrl-C.",
}
"""Exit codes of `sidecar`, and what each means."""


class SidecarError(Exception):
    """Anything this program says to its user in one sentence instead of a traceback."""

    exit_code: ClassVar[int] = 70
    retryable: ClassVar[bool] = False


class SettingsError(SidecarError):
    """A setting, an option or an environment variable cannot be used."""

    exit_code = 2


class TaskError(SidecarError):
    """The user's task cannot be found, imported or understood."""

    exit_code = 3


class StorageError(SidecarError):
    """Shared storage cannot be read or written now."""

    exit_code = 4
    retryable = True


class StateUnavailableError(StorageError):
    """The run's state is away, or cannot be understood, for now: it is waited for, also at the start of a daemon."""


class StorageLostError(StorageError):
    """The run's records contradict each other, or some of them are missing: nothing may be built on them."""

    exit_code = 5
    retryable = False


class RunReplacedError(StorageLostError):
    """The state directory was deleted, or holds another run by now: a daemon is built anew for the run that follows."""


class NodeNameTakenError(SidecarError):
    """Another live daemon writes heartbeats under this node's name."""

    exit_code = 6


class RecordError(SidecarError):
    """A record in shared storage is not what its schema says."""

    exit_code = 5


class NewerSchemaError(RecordError):
    """A record was written by a newer release: this one can only stand by."""


class CheckpointError(SidecarError):
    """A checkpoint cannot be used."""

    exit_code = 1


class IncompleteError(CheckpointError):
    """Not all of the checkpoint is there yet: look again later."""

    retryable = True


class UnreadableError(IncompleteError):
    """Storage does not let this node read the checkpoint now: that says nothing about the checkpoint."""


class CorruptError(CheckpointError):
    """The checkpoint's own structure contradicts itself and will not get better."""


class ChecksumError(CorruptError):
    """The content is not what the checkpoint's own checksum says."""


class VanishedError(CheckpointError):
    """The checkpoint was there and is gone."""


class NoRoomError(CheckpointError):
    """The checkpoint cannot be held within the bounds that pins have: try again when others are let go."""

    retryable = True


class MustCopyError(CheckpointError):
    """The checkpoint cannot be linked, only copied, and that was not asked for."""

    retryable = True


class EvaluationFailedError(SidecarError):
    """An evaluation ended without a result."""

    exit_code = 1
