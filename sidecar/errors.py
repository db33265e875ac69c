"""Define the error tree. Each class knows its exit code and whether a retry can help. Imports no other module of ours.

Each message names the offending value and the remedy. Failures inside a worker process are not raised in the daemon:
they cross the process border as data (`sidecar.protocol.messages.Failed`) and become the outcome of a plan.
"""

from collections.abc import Mapping
from typing import ClassVar, Final

EXIT_CODES: Final[Mapping[int, str]] = {
    0: "The command succeeded, or the daemon was stopped.",
    1: "A checkpoint or an evaluation failed, or `sidecar check` found a problem.",
    2: "A setting, an option, an argument or the environment cannot be used.",
    3: "The task cannot be found, imported or understood.",
    4: "Storage cannot be used now, this user has no right to a path, or memory, open files or processes are used up.",
    5: "Records of the run are missing or broken, contradict each other, or come from a newer release.",
    6: "Another daemon runs under this node's name.",
    70: "This program has a bug; the traceback is on standard error.",
    130: "The command was interrupted by Ctrl-C.",
}
"""Exit codes of `sidecar` and their meaning."""


class SidecarError(Exception):
    """Report a problem to the user in one sentence instead of a traceback."""

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


class ShortageError(SidecarError):
    """This machine, or the limit of this process, has too few descriptors, processes or bytes of memory now."""

    exit_code = 4
    retryable = True


class StateUnavailableError(StorageError):
    """The run's state is missing or unreadable for now: a daemon waits for it, also when it starts."""


class StorageLostError(StorageError):
    """The run's records contradict each other, or some are missing: no decision may be based on them."""

    exit_code = 5
    retryable = False


class RunReplacedError(StorageLostError):
    """The state directory was deleted or now holds another run: the daemon is rebuilt for the new run."""


class NodeNameTakenError(SidecarError):
    """Another live daemon writes heartbeats under this node's name."""

    exit_code = 6


class RecordError(SidecarError):
    """A record in shared storage does not match its schema."""

    exit_code = 5


class VoidRecordError(RecordError):
    """A record is whole, but breaks a limit or an invariant, so that no daemon wrote it."""

    def __init__(self, message: str, run: object = None, plan: object = None) -> None:
        """Hold the fields `run` and `plan` of the record; None if they are unknown."""
        super().__init__(message)
        self.run, self.plan = run, plan


class NewerSchemaError(RecordError):
    """A record was written by a newer release: this release can only stand by."""


class CheckpointError(SidecarError):
    """A checkpoint cannot be used."""

    exit_code = 1


class IncompleteError(CheckpointError):
    """Some of the checkpoint's files are not there yet: a later scan may find it complete."""

    retryable = True


class UnreadableError(IncompleteError):
    """Storage does not let this node read the checkpoint now: the checkpoint itself may be intact."""


class CorruptError(CheckpointError):
    """The checkpoint's structure contradicts itself: reading it again cannot help."""


class ChecksumError(CorruptError):
    """The content does not match the checksum that the checkpoint contains."""


class VanishedError(CheckpointError):
    """The checkpoint was there and has been removed."""


class NoRoomError(CheckpointError):
    """The checkpoint does not fit within the limits for pins: try again when other pins are released."""

    retryable = True


class MustCopyError(CheckpointError):
    """The checkpoint cannot be linked, only copied, and the settings do not allow copies."""

    retryable = True


class NoExportError(CheckpointError):
    """There is no exported checkpoint, or it is not the one that was evaluated."""


class NothingExportedError(NoExportError):
    """No checkpoint was exported so far."""


class EvaluationFailedError(SidecarError):
    """An evaluation ended without a result."""

    exit_code = 1
