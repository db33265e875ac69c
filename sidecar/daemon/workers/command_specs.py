"""Hold the parts of commands to workers that are known at start. A plan adds the group, the ranks and the paths."""

from dataclasses import dataclass, field

from sidecar.protocol.messages import BackendOptions, Check, Evaluate, Join
from sidecar.protocol.records import Checkpoint, Member
from sidecar.protocol.saved_weights import SaveWeights


def cannot_be_used(task: str, message: str) -> str:
    """Return the sentence about a task that a worker process could not import. `message`: the reason it reported."""
    names_it = message.startswith("task ")
    return message if names_it else f"task {task!r} cannot be used: {message}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSpec:
    """Describe the task as every worker of this node runs it."""

    task: str
    framework: str
    search_path: str  # where modules of the task are found: the folder the daemon was started in
    threads: int
    cache_bytes: int = 0  # the most bytes of prepared batches that are retained between checkpoints
    options: BackendOptions = field(default_factory=dict)
    processes: int = 1  # that divide the model of one worker

    def check(self) -> Check:
        """Return the command that imports the task and reports whether it can be used."""
        return Check(
            task=self.task,
            framework=self.framework,
            search_path=self.search_path,
            threads=self.threads,
            options=self.options,
            processes=self.processes,
        )

    def join(self, *, group: str, members: tuple[Member, ...], rank: int) -> Join:
        """Return the command with which one rank joins a group."""
        return Join(
            group=group,
            members=members,
            rank=rank,
            task=self.task,
            framework=self.framework,
            search_path=self.search_path,
            threads=self.threads,
            cache_bytes=self.cache_bytes,
            options=self.options,
            processes=self.processes,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateSpec:
    """Describe how every checkpoint is evaluated on this node."""

    save_weights: SaveWeights  # the ranks that save their weights
    progress_seconds: float  # at most one Progress report per this many seconds
    most_batches: int | None = None  # of each eval set, to try a task out
    keep_batches_seconds: float = 30.0  # between two times that finished batches are written

    def evaluate(
        self,
        *,
        plan: int,
        checkpoint: Checkpoint,
        path: str,
        save_to: str,
        save_root: str,
        evaluated: int = 0,
        attempt: int = 1,
        finished_sets: str = "",
    ) -> Evaluate:
        """Return the command that evaluates one checkpoint. The arguments are the fields of `Evaluate`."""
        return Evaluate(
            plan=plan,
            checkpoint=checkpoint,
            path=path,
            save_to=save_to,
            save_weights=self.save_weights,
            progress_seconds=self.progress_seconds,
            evaluated=evaluated,
            save_root=save_root,
            attempt=attempt,
            finished_sets=finished_sets,
            most_batches=self.most_batches,
            keep_batches_seconds=self.keep_batches_seconds,
        )
