"""Define the settings of a daemon: one frozen `Settings`, whose every field is followed by its documentation.

That documentation is the source of docs/reference/settings.md: the meaning, and after "Default:" the reason for the
default. A comment on lines of its own begins a group of fields. Only checked values are here; `sources` reads them. It
imports neither a framework nor the command line: every command pays for it at start-up.
"""

import hashlib
import ipaddress
import json
import os
import re
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from sidecar.errors import SettingsError
from sidecar.records import Role, SaveWeights

PREFIX: Final = "SIDECAR_"
CONFIG: Final = "config"  # says where the file is, so it is no setting and cannot stand in the file

FLAGS: Final[Mapping[str, str]] = {
    "--checkpoint-dir": "checkpoint_dir",
    "--state-dir": "state_dir",
    "--run": "run",
    "--task": "task",
    "--node": "node",
    "--role": "role",
    "--host": "host",
    "--port-range": "port_range",
    "--replicas": "replicas",
    "--min-workers": "min_workers",
    "--http": "http",
    "--queue": "queue",
    "--every-steps": "every_steps",
    "--start": "start",
    "--stop-after-step": "stop_after_step",
    "--stop-idle-seconds": "stop_idle_seconds",
    "--done-marker": "done_marker",
    "--log-format": "log_format",
    "--once": "wait",
}
"""Options that scripts rely on, and the settings they give; `--config` beside them. The others live in the file."""

FORMATS: Final = ("tf_object", "keras", "hdf5", "keras_shards", "orbax", "saved_model")
"""Checkpoint formats, as `formats` names them."""

MOST_PARTS: Final = 4
"""Names in one path of `checkpoint_glob`: three folders and the checkpoint."""

_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")  # a file name on any storage, never hidden, never `..`
_HOST: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_YES: Final = frozenset({"true", "yes", "y", "on", "t", "1"})
_NO: Final = frozenset({"false", "no", "n", "off", "f", "0"})
_MAX_PORT: Final = 65535
_DERIVED: Final[Any] = None  # a default that a validator makes of other settings

RENAMED: Final[Mapping[str, tuple[str, ...]]] = {
    "settle_seconds": ("quiet_seconds", "group_settle_seconds"),
    "proposal_patience_seconds": ("proposal_turn_seconds", "copy_turn_seconds", "result_turn_seconds"),
}
"""Names of earlier versions, which are refused, and the settings that replace them."""

_FOLLOWS: Final[Mapping[str, tuple[str, float]]] = {
    "run_lost_seconds": ("lease_seconds", 1.0),
    "group_settle_seconds": ("beat_seconds", 1.5),
    "proposal_turn_seconds": ("lease_seconds", 1.0),
    "copy_turn_seconds": ("lease_seconds", 1.0),
    "result_turn_seconds": ("lease_seconds", 1.0),
    "corrupt_after_seconds": ("visibility_seconds", 1.0),
    "vanished_after_seconds": ("visibility_seconds", 1.0),
    "pin_wait_seconds": ("visibility_seconds", 1.0),
    "suspended_timeout_seconds": ("lease_seconds", 1.0),
    "loop_timeout_seconds": ("lease_seconds", 1.0),
}
"""Durations whose default is a multiple of another duration, which is declared before them."""


def _no_boolean(value: Any) -> Any:
    """Without this `replicas = true` would be read as 1."""
    if isinstance(value, bool):
        raise ValueError("write a number")  # noqa: TRY004 - pydantic collects ValueError only
    return value


Count = Annotated[int, Field(ge=1), BeforeValidator(_no_boolean)]
Whole = Annotated[int, Field(ge=0), BeforeValidator(_no_boolean)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False), BeforeValidator(_no_boolean)]


class Settings(BaseSettings):
    """Hold every setting of a daemon, checked. `load` reads them; the constructor looks at its arguments only."""

    model_config = SettingsConfigDict(
        frozen=True, extra="forbid", validate_default=True, env_prefix=PREFIX, enable_decoding=False
    )

    # Directories. A relative path starts at the current directory, wherever it is written; it is made absolute.
    checkpoint_dir: Path
    """Directory in which training saves its checkpoints. Default: none, since a guess helps nobody."""
    state_dir: Path = _DERIVED
    """Directory that the daemons of all nodes share, with one folder for each run. Default: `.sidecar` in
    `checkpoint_dir`, since all nodes share that storage already."""
    run: str = _DERIVED
    """Name of the training run, in file names and in the metrics' labels. Default: the name of `checkpoint_dir`, which
    is how people call the run."""

    # Task
    task: str | None = None
    """Task to evaluate with, as `path/file.py:attr` or `package.module:attr`. Default: only the user knows it;
    every command that evaluates asks for it, and a daemon on the chief does without."""
    framework: Literal["tensorflow", "python"] = "tensorflow"
    """Framework that the worker processes import: `tensorflow`, or `python` for a task that loads its models itself
    with any library. Default: only TensorFlow restores a checkpoint without code of yours."""

    # Node. Settings that are not set are found out from the environment of the training job.
    node: str | None = None
    """Name of this node among the daemons of the run. Default: its task in TF_CONFIG, such as `worker-1`, else the host
    name: both are unique within a job."""
    role: Role | None = None
    """Whether this node may evaluate (`worker`) or not (`chief`). Default: the role that the training job's environment
    gives to this node, so that the chief is never slowed down."""
    chief_nodes: tuple[str, ...] = ()
    """Names or globs of the nodes that must not evaluate, so that one file serves all nodes. Default: nobody
    can guess the names of nodes."""
    host: str | None = None
    """Address or name at which the other nodes reach this one, without a port. Default: the address from TF_CONFIG,
    else the one that this machine sends from, since these are reachable in nearly every network."""

    # Group and ports
    replicas: Count = 1
    """Worker processes on this node. Default: one suits a node without GPUs; a node with GPUs takes one for each
    GPU."""
    min_workers: Count = 1
    """Smallest number of worker processes that forms a group and evaluates. Default: a result now, from one worker, is
    better than a wait for all of them."""
    port_range: str = "21000-21999"
    """Ports that the worker processes of this node may serve on, as FIRST-LAST. Default: below 32768, where Linux
    begins to take ports for outgoing connections."""
    http: str = "127.0.0.1:19108"
    """Address of the HTTP server, as HOST:PORT; port 0 takes a free port. Default: reachable from this machine only,
    since the metrics say how good a model is."""
    http_hosts: tuple[str, ...] = ()
    """Further names or globs that the HTTP server accepts in the `Host` header. Default: none are needed for addresses,
    names without a dot, this machine's own names and names of private networks. Any other name could belong to a page
    in a browser that attacks this daemon (DNS rebinding)."""

    # Choice of checkpoints, and the end of the run
    queue: Literal["every", "latest"] = "every"
    """Waiting checkpoints that are evaluated: `every` one, or only the `latest` one. Default: no checkpoint is skipped
    unless the user asks for it."""
    every_steps: Count | None = None
    """Interval of training steps: of the checkpoints between two multiples of it, the first one is evaluated, and so is
    the last one of a run that ends. Default: all checkpoints are evaluated, since none is skipped unless the user asks
    for it."""
    start: Literal["all", "new"] = "all"
    """Whether checkpoints that exist before the first start of the run are evaluated (`all`) or skipped (`new`).
    Default: a daemon that starts late evaluates the checkpoints that it missed."""
    stop_after_step: Whole | None = None
    """Training step after which the daemon ends, once its checkpoint is evaluated. Default: a daemon serves until it is
    stopped."""
    stop_idle_seconds: Seconds | None = None
    """Time without any work after which the daemon ends. Default: a daemon serves until it is stopped."""
    done_marker: str | None = None
    """Name of the file in `checkpoint_dir` by which training reports that its last checkpoint is saved; the daemon then
    evaluates the rest and ends. Default: a file that an earlier run left must not end the daemon at each start."""
    wait: bool = True
    """Whether `sidecar run` waits for further checkpoints; `--once` turns that off. Default: a daemon serves until it
    is stopped."""

    # Log
    log_format: Literal["console", "json"] | None = None
    """Format of the log: sentences for people (`console`), or one JSON object a line (`json`). Default: `console` on a
    terminal, which a person reads, and `json` elsewhere, where a program does."""

    # Worker processes
    worker_python: Path = Path(sys.executable)
    """Python interpreter of the worker processes. Default: the daemon's own interpreter; give the one of the training
    environment if the framework is installed only there."""
    worker_logs: Path = _DERIVED
    """Directory for the logs of the worker processes. Default: a folder of this user in the system's temporary
    directory, since logs do not belong on shared storage."""
    worker_env: dict[str, str | None] = {}
    """Environment variables that worker processes get in addition to the daemon's; `false` in TOML, or `null` in JSON,
    removes a variable. Default: workers run in the daemon's environment unless the user changes it."""
    devices: Literal["cpu", "gpu"] | tuple[int | str, ...] = "cpu"
    """Devices of the worker processes: `cpu`, `gpu` for all GPUs that the daemon sees, or a list of GPUs by number or
    UUID. Default: the GPUs belong to training until the user says otherwise."""
    share_gpu: bool = False
    """Whether workers may use a GPU on which another process runs. Default: a training process that shares its GPU may
    run out of memory and die."""
    gpu_memory_mb: Count | None = None
    """Most memory in MB that a worker process takes of its GPU. Default: no limit; memory is taken as it is needed."""
    release_idle_seconds: Seconds = 600.0
    """Time without work after which worker processes end and free their GPUs; workers on the CPU stay. Default: longer
    than most intervals between checkpoints, so that a busy run stays warm and a paused one frees its GPUs."""
    standby: bool = True
    """Whether each worker process has a second one that has already imported the framework and can replace it. Default:
    540 MB of memory for a group that forms again in 0.4 s instead of 5 s."""
    threads: Count = 2
    """Threads that a worker process computes with. Default: a fixed number, since sums over other numbers of threads
    are rounded differently and nodes with other bits form no group; 2 gave the same bits as 1, where 3 and 8 did not,
    and leaves the other cores to training."""
    collectives: Literal["auto", "ring", "nccl"] = "ring"
    """Implementation of TensorFlow's collective operations between workers. Default: a few KB for each evaluation do
    not need NCCL."""
    always_cluster: bool = False
    """Whether a group of one worker forms a TensorFlow cluster, too. Default: one worker has nobody to sum with; tests
    turn it on."""

    # Reading of checkpoints
    trust_saved_graph: bool = False
    """Whether the graph that a SavedModel holds may be run, by its own signature; all nodes of a group must agree.
    Default: a graph can do all that the daemon's user can, such as writing files, so only weights are read."""
    step_key: str | None = None
    """Name of the variable of an object checkpoint that holds the training step. Default: the optimizer's iterations,
    or a variable with a usual name, hold it in nearly every checkpoint."""
    step_pattern: str | None = None
    r"""Regular expression for a checkpoint's name, whose one group is the training step, such as `epoch_(\d+)`.
    Default: the step comes from the files, then from the usual ways to write a step in a name; `step_key` and
    `step_pattern` come before both."""
    verify: Literal["structure", "full"] = "structure"
    """Check of a checkpoint before it is pinned: its `structure`, or the checksums of its `full` content. Default:
    TensorFlow compares checksums when it restores anyway, and `full` reads every file one more time."""
    checkpoint_glob: tuple[str, ...] = ("*",)
    """Globs of the paths below `checkpoint_dir` that may be checkpoints, such as `epoch_*/*`. Default: the directory
    itself; sub-folders hold backups and exports as well, so only the user knows which of them count."""
    formats: tuple[str, ...] = ()
    """Checkpoint formats to look for: some of `tf_object`, `keras`, `hdf5`, `keras_shards`, `orbax` and `saved_model`.
    Default: all of them, since a directory of checkpoints holds little else."""
    checkpoint_pattern: str | None = None
    """Glob of the names of files and folders that are checkpoints, whatever their format, such as `model-*.joblib`; it
    replaces `formats`. Default: only the user knows names whose format is not one of these."""
    complete_marker: str | None = None
    """Name of the file without which no checkpoint is complete, such as `{name}.STABLE` or `_SUCCESS`. Default: the
    formats' own signs of completeness are enough; only the user knows of further ones."""
    file_events: Literal["auto", "on", "off"] = "auto"
    """Whether file events of the kernel announce new checkpoints. Default: the type of the filesystem decides, since
    events of other machines do not arrive; a scan every `sweep_seconds` finds all checkpoints anyway."""

    # Saves, retention and space
    save_weights: SaveWeights = "all"
    """Workers that save the restored weights: `all`, the `first` one only, or `none`. Default: the folder of each
    worker is complete by itself; all of them hold the same weights, so `first` saves space."""
    keep_saves: Count = 2
    """Number of newest evaluations whose saved weights and predictions are retained. Default: the newest one and the
    one before it can be compared; all of a run would fill the storage."""
    best_metric: str | None = None
    """Metric, as EVAL_SET/METRIC, by which the best evaluation is chosen, whose saves are retained, too. Default: the
    first metric of the task that has a direction, since a task lists its main metric first."""
    saves_max_bytes: Count | None = None
    """Most bytes of storage for saved weights and predictions; the newest ones are retained in any case. Default: no
    limit, since only the user can say how much is too much."""
    cache_bytes: Whole = 1024**3
    """Most bytes of prepared data that a worker process keeps in memory for the next evaluation; 0 prepares the data
    anew each time. Default: 1 GiB, into which common test sets fit."""
    pin_max_bytes: Count | None = None
    """Most bytes that pinned checkpoints may hold. Default: no limit, since every pinned checkpoint still has to be
    evaluated and only the user can say how much is too much."""
    keep_free_bytes: Whole = 1024**3
    """Free bytes of storage that pins must leave; a checkpoint smaller than a hundredth of the free space is pinned in
    any case. Default: 1 GiB, enough for training to save another checkpoint of 100 million weights with optimizer."""

    # Retries
    max_attempts: Count = 3
    """Failures of the checkpoint or the task after which a checkpoint is given up. Default: one accident is excused, a
    repeated failure is not."""
    max_losses: Count = 10
    """Failures of machines, such as a lost worker, after which a checkpoint is given up. Default: with the backoff
    below ten of them take eight minutes, which outlasts a reboot."""
    backoff_first_seconds: Seconds = 1.0
    """Pause after the first failure; each further failure doubles it. Default: most losses are over as soon as they are
    noticed."""
    backoff_last_seconds: Seconds = 300.0
    """Longest pause after a failure. Default: an evaluation begins at most five minutes after the trouble is over."""

    # Intervals and time limits. No wait is without a limit.
    beat_seconds: Seconds = 2.0
    """Interval between two heartbeats of a node. Default: one small file for each node is cheap at this rate."""
    lease_seconds: Seconds = 10.0
    """Time without a new heartbeat after which a node counts as gone. Default: five beats, so that one slow write does
    not count as a death."""
    visibility_seconds: Seconds = 60.0
    """Time after which a file that another node wrote must be visible on this one. Default: NFS caches a directory for
    up to 60 s (acdirmax)."""
    run_lost_seconds: Seconds = _DERIVED
    """Time for which the record of the run, `run.json`, must be missing before the daemons begin a new run. Default:
    `lease_seconds`, so that a deleted run ends as soon as a lost node."""
    group_settle_seconds: Seconds = _DERIVED
    """Time for which the ready workers must stay the same before they form a group. Default: a beat and a half, so that
    nodes that start together form one group."""
    proposal_turn_seconds: Seconds = _DERIVED
    """Time for which a node waits for each node before it in line to begin the next evaluation. Default:
    `lease_seconds`, after which the node before it has either begun or is gone."""
    copy_turn_seconds: Seconds = _DERIVED
    """Time for which a node waits for each node before it in line to copy a checkpoint, where pins cannot be links, and
    for a copy that does not grow. Default: `lease_seconds`, after which the node before it has either begun or is
    gone."""
    result_turn_seconds: Seconds = _DERIVED
    """Time for which a node waits for each node before it in line to write the result of an evaluation. Default:
    `lease_seconds`, after which the node before it has either written it or is gone."""
    quiet_seconds: Seconds = 3.0
    """Time for which the files of a checkpoint must stay unchanged if its format has no sign of completeness. Default:
    longer than a writer pauses between two writes, and short enough that nobody waits for a result."""
    corrupt_after_seconds: Seconds = _DERIVED
    """Time for which a broken checkpoint must stay unchanged before it is given up as corrupt. Default:
    `visibility_seconds`, after which the missing parts would be visible."""
    vanished_after_seconds: Seconds = _DERIVED
    """Time for which a checkpoint must be missing from all scans before it is given up as vanished. Default:
    `visibility_seconds`, after which a new file would be visible."""
    pin_wait_seconds: Seconds = _DERIVED
    """Time for which an evaluation waits for a pin: for its own checkpoint's pin to be visible on each node, and with
    `every_steps` for an earlier checkpoint to be pinned. Default: `visibility_seconds`, after which a pin is visible
    everywhere."""
    storage_timeout_seconds: Seconds = 10.0
    """Time that shared storage may take to answer before the node is not ready. Default: one lease, after which the
    other nodes count this node as gone anyway."""
    join_timeout_seconds: Seconds = 120.0
    """Time that the worker processes may take to import the framework and form a group. Default: they take seconds, but
    the first import may read gigabytes from a slow disk."""
    restore_timeout_seconds: Seconds = 1800.0
    """Time that a worker may take to restore a checkpoint or to save its results. Default: enough for 100 GB at 60
    MB/s."""
    first_batch_timeout_seconds: Seconds = 900.0
    """Time that a worker may take for its first batch. Default: that batch traces and compiles the model and fills the
    input pipeline."""
    stall_seconds: Seconds = 60.0
    """Shortest time without a finished batch after which a worker counts as stalled. Default: a minute is longer than
    usual pauses of storage, however fast the batches are."""
    stall_factor: Annotated[float, Field(ge=1, allow_inf_nan=False), BeforeValidator(_no_boolean)] = 5.0
    """Multiple of the slowest batch so far that a batch may take before its worker counts as stalled. Default: batches
    of one model differ by less than that."""
    suspended_timeout_seconds: Seconds = _DERIVED
    """Time for which a signal such as SIGSTOP may suspend a worker process before it counts as stalled. Default:
    `lease_seconds`, the time after which a suspended node counts as gone, too."""
    loop_timeout_seconds: Seconds = _DERIVED
    """Time without a turn of the daemon's loop after which it counts as stopped, and `/healthz` reports that. Default:
    `lease_seconds`, after which the other nodes count this node as gone, too."""
    collective_timeout_seconds: Seconds = 6.0
    """Time for which all workers may wait for one another in a sum before the evaluation fails, counted from the second
    beat after the last worker came. Default: the sums take milliseconds, or seconds over a link that loses packets, and
    a lost link is noticed within a lease."""
    plan_cap_seconds: Seconds = 86400.0
    """Longest time that one attempt at an evaluation may take. Default: an attempt that still runs after a day will not
    end by itself."""
    drain_seconds: Seconds = 25.0
    """Time that a running evaluation has to end after the daemon got a signal. Default: within the 30 s that Kubernetes
    grants."""
    sweep_seconds: Seconds = 2.0
    """Interval between two scans of the checkpoint directory. Default: on NFS a scan is the only way to find a new
    checkpoint, and it costs only as much as has changed."""
    full_sweep_seconds: Seconds = 300.0
    """Time within which every file of a large directory is compared again with its last state, in case it was rewritten
    under its name. Default: 100,000 files cost a thousandth of a core, and NFS 300 requests a second."""
    nothing_seen_seconds: Seconds = 300.0
    """Time without any checkpoint after which the log asks whether the path is right. Default: most runs have saved a
    checkpoint by then, and a user who mistyped the path still reads the log."""
    progress_seconds: Seconds = 1.0
    """Interval between two progress reports of a worker process. Default: often enough for a progress bar."""

    @classmethod
    def settings_customise_sources(cls, *_: Any, **sources: Any) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments only: `load` merges the sources itself, since it must say which of them a bad value came from."""
        return (sources["init_settings"],)

    @property
    def run_dir(self) -> Path:
        """What the daemons of this run share."""
        return self.state_dir / self.run

    @property
    def http_host(self) -> str:
        """Address to bind, without brackets."""
        return self.http.rpartition(":")[0].strip("[]")

    @property
    def http_port(self) -> int:
        """Port to bind; 0 lets the kernel choose."""
        return int(self.http.rpartition(":")[2])

    @property
    def ports(self) -> range:
        """Ports that workers of this node may serve on."""
        first, last = self.port_range.split("-")
        return range(int(first), int(last) + 1)

    def require_task(self) -> str:
        """The task, for a command or role that cannot do without one; raises `SettingsError`."""
        if self.task is None:
            raise SettingsError(f"task is not set: {ways('task')}, such as my_eval.py:task or package.module:task")
        return self.task

    @field_validator("checkpoint_dir", "state_dir", "worker_python", "worker_logs", mode="before")
    @classmethod
    def _absolute(cls, value: Any, info: ValidationInfo) -> Any:
        if value is None and info.field_name == "state_dir":
            return info.data.get("checkpoint_dir", Path()) / ".sidecar"
        if value is None and info.field_name == "worker_logs":
            # Many runs are named ckpts: what tells them apart is where their state is.
            state = hashlib.sha256(str(info.data.get("state_dir")).encode()).hexdigest()[:8]
            return Path(tempfile.gettempdir(), f"sidecar-{os.getuid()}", f"{info.data.get('run', 'run')}-{state}")
        if value == "":
            raise ValueError("write a path")
        try:
            return Path(value).expanduser().absolute() if isinstance(value, str | Path) else value
        except RuntimeError as error:  # `~` of a user that does not exist
            raise ValueError(f"{error}: write the path in full") from error

    @field_validator("checkpoint_dir")
    @classmethod
    def _directory(cls, value: Path) -> Path:
        if os.path.isfile(value):  # noqa: PTH113 - likewise
            raise ValueError("is a file: name the directory that training saves its checkpoints in")
        return value

    @field_validator("state_dir")
    @classmethod
    def _beside_checkpoints(cls, value: Path, info: ValidationInfo) -> Path:
        checkpoints = info.data.get("checkpoint_dir")
        if checkpoints and checkpoints.resolve().is_relative_to(value.resolve()):
            # Nothing under a state directory is ever a candidate.
            raise ValueError(f"must not be or contain checkpoint_dir ({checkpoints}): name a folder in or beside it")
        return value

    @field_validator("run", mode="before")
    @classmethod
    def _named_after_checkpoints(cls, value: Any, info: ValidationInfo) -> Any:
        return info.data.get("checkpoint_dir", Path("run")).resolve().name if value is None else value

    @field_validator("done_marker")
    @classmethod
    def _in_the_directory(cls, value: str | None) -> str | None:
        if value is not None and (not value or "/" in value or "\0" in value or value in (".", "..")):
            raise ValueError("write the name of a file in checkpoint_dir, such as DONE")
        return value

    @field_validator("run", "node")
    @classmethod
    def _file_name(cls, value: str | None) -> str | None:
        return value if value is None else check_name(value)

    @field_validator("task")
    @classmethod
    def _reference(cls, value: str | None) -> str | None:
        if value is not None and not all(value.rpartition(":")):
            raise ValueError("write module:attr or path/file.py:attr")
        return value

    @field_validator("chief_nodes", "http_hosts", "formats", "checkpoint_glob", mode="before")
    @classmethod
    def _comma_separated(cls, value: Any) -> Any:
        return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value

    @field_validator("chief_nodes")
    @classmethod
    def _no_empty_pattern(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not all(value):
            raise ValueError("an empty name matches no node: write names or globs such as 'node-0*'")
        return value

    @field_validator("http_hosts")
    @classmethod
    def _host_names(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if odd := [each for each in value if not re.fullmatch(r"[A-Za-z0-9._*?-]+", each, re.ASCII)]:
            raise ValueError(f"{odd[0]!r} is no host name: write names or globs without port, such as '*.example.com'")
        return value

    @field_validator("host")
    @classmethod
    def _dialable(cls, value: str | None) -> str | None:
        return value if value is None else check_host(value)

    @field_validator("port_range")
    @classmethod
    def _enough_ports(cls, value: str, info: ValidationInfo) -> str:
        found = re.fullmatch(r"(\d{1,5})-(\d{1,5})", value, re.ASCII)
        first, last = map(int, found.groups()) if found else (0, 0)
        if not 1024 <= first <= last <= _MAX_PORT:  # noqa: PLR2004 - the first unprivileged port
            raise ValueError("write FIRST-LAST with 1024 <= FIRST <= LAST <= 65535, such as 21000-21999")
        needed = 2 * info.data.get("replicas", 1)
        if last - first + 1 < needed:
            raise ValueError(
                f"has {last - first + 1} ports: a worker and its standby per replica need {needed}, widen it"
            )
        return value

    @field_validator("http")
    @classmethod
    def _bindable(cls, value: str) -> str:
        host, _, port = value.rpartition(":")
        bracketed = host.startswith("[") and host.endswith("]")
        known = _is_ip(host[1:-1], 6) if bracketed else bool(_HOST.fullmatch(host))
        if not known or not re.fullmatch(r"\d{1,5}", port, re.ASCII) or int(port) > _MAX_PORT:
            raise ValueError("write HOST:PORT, such as 127.0.0.1:19108, 0.0.0.0:19108 or [::1]:19108")
        return value

    @field_validator("worker_python")
    @classmethod
    def _executable(cls, value: Path) -> Path:
        if not (os.path.isfile(value) and os.access(value, os.X_OK)):  # noqa: PTH113 - false where it may not be looked at
            raise ValueError("no such program: write the path of a Python interpreter, such as /opt/venv/bin/python")
        return value

    @field_validator("worker_env", mode="before")
    @classmethod
    def _variables(cls, value: Any) -> Any:
        remedy = 'write names with a string, or null to remove, such as {"OMP_NUM_THREADS": "1", "HTTP_PROXY": null}'
        try:
            parsed = json.loads(value) if isinstance(value, str) else value
        except ValueError as error:
            raise ValueError(f"not JSON ({error}): {remedy}") from error
        if not isinstance(parsed, Mapping) or not all(_is_variable(name, item) for name, item in parsed.items()):
            raise ValueError(remedy)
        return {name: None if item is None or item is False else str(item) for name, item in parsed.items()}

    @field_validator("devices", mode="before")
    @classmethod
    def _gpus(cls, value: Any, info: ValidationInfo) -> Any:
        listed = [part.strip() for part in value.split(",")] if isinstance(value, str) else value
        if listed in (["cpu"], ["gpu"]):
            return listed[0]
        if not isinstance(listed, list | tuple) or not listed or not all(_is_device(item) for item in listed):
            raise ValueError("write cpu, gpu, or the GPUs to use, such as 0,1 or GPU-8a1c…")
        devices = tuple(int(item) if str(item).isdecimal() else item for item in listed)
        replicas = info.data.get("replicas", 1)
        if len(set(devices)) < max(len(devices), replicas):
            raise ValueError(f"a GPU takes one process: list at least as many different ones as replicas ({replicas})")
        return devices

    @field_validator("formats")
    @classmethod
    def _known_formats(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if unknown := [each for each in value if each not in FORMATS]:
            raise ValueError(f"{unknown[0]!r} is none: write some of {', '.join(FORMATS)}")
        return value

    @field_validator("checkpoint_glob")
    @classmethod
    def _paths_below(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        remedy = (
            f"write paths from checkpoint_dir, such as epoch_*/* or */ckpt-*, of at most {MOST_PARTS} names, none of "
            "which is '**' or begins with a dot"
        )
        for pattern in value:
            parts = pattern.split("/")
            if len(parts) > MOST_PARTS or any(part in ("", "**") or part.startswith(".") for part in parts):
                raise ValueError(f"{pattern!r} is not such a path: {remedy}")
        if not value:
            raise ValueError(f"names no path, so no checkpoint would be found: {remedy}")
        return value

    @field_validator("checkpoint_pattern")
    @classmethod
    def _of_names(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is None:
            return None
        if not value or "/" in value or value.startswith("."):
            raise ValueError(
                f"{value!r} matches no checkpoint: write a glob of names, such as model-*.joblib; checkpoint_glob says "
                f"in which sub-folders they are"
            )
        if info.data.get("formats"):
            raise ValueError("replaces formats: leave one of them out")
        return value

    @field_validator("complete_marker")
    @classmethod
    def _markers(cls, value: str | None) -> str | None:
        if value is None:
            return value
        path = PurePosixPath(value)
        beside = value == path.name or value.startswith("{name}/")
        if not value.replace("{name}", "").strip("/") or not beside or ".." in path.parts or value.count("{name}") > 1:
            raise ValueError(
                "write the name of a file beside the checkpoint, in which {name} may stand for the checkpoint's, "
                "such as {name}.STABLE; or in a checkpoint that is a folder, such as _SUCCESS"
            )
        return value

    @field_validator("step_pattern")
    @classmethod
    def _one_group(cls, value: str | None) -> str | None:
        if value is None:
            return None
        try:
            groups = re.compile(value).groups
        except re.error as error:
            raise ValueError(rf"no regular expression ({error}): write one such as -(\d+)$") from error
        if groups != 1:
            raise ValueError(rf"has {groups} groups: put exactly one around the step's digits, such as -(\d+)$")
        return value

    @field_validator("save_weights", mode="before")
    @classmethod
    def _no_longer_boolean(cls, value: Any) -> Any:
        text = str(value).lower()
        if text in _YES | _NO:
            raise ValueError(f"says whose weights are saved: write {'all, or first' if text in _YES else 'none'}")
        return value

    @field_validator("best_metric")
    @classmethod
    def _of_a_set(cls, value: str | None) -> str | None:
        if value is not None and not all(value.partition("/")):
            raise ValueError("write EVAL_SET/METRIC, such as test/accuracy")
        return value

    @field_validator("backoff_last_seconds")
    @classmethod
    def _backoff_grows(cls, value: float, info: ValidationInfo) -> float:
        if value < (first := info.data.get("backoff_first_seconds", value)):
            raise ValueError(f"must be at least backoff_first_seconds ({first:g}): raise it or lower that")
        return value

    @field_validator(*_FOLLOWS, mode="before")
    @classmethod
    def _multiple(cls, value: Any, info: ValidationInfo) -> Any:
        if value is not None or info.field_name is None:
            return value
        source, factor = _FOLLOWS[info.field_name]
        return factor * info.data.get(source, cls.model_fields[source].default)

    @field_validator("lease_seconds")
    @classmethod
    def _outlasts_beats(cls, value: float, info: ValidationInfo) -> float:
        if value < 3 * (beat := info.data.get("beat_seconds", value / 3)):
            raise ValueError(f"must be at least 3 x beat_seconds ({beat:g}): raise it to {3 * beat:g} or lower that")
        return value


def check_name(value: str) -> str:
    """A run's or node's name, which becomes a file name; raises `ValueError`."""
    if not _NAME.fullmatch(value):
        raise ValueError(
            f"{value!r} cannot be a file name everywhere: use letters, digits, '.', '_' and '-', at most 128, "
            "not starting with '.' or '-'"
        )
    return value


def check_host(value: str) -> str:
    """A host that other nodes can dial, an IPv6 address in brackets; raises `ValueError`."""
    bare = value.removeprefix("[").removesuffix("]")
    if _is_ip(bare, 6) and bare != "::":
        return f"[{bare}]"
    if not _HOST.fullmatch(value) or value == "0.0.0.0":  # noqa: S104 - refused, not bound
        raise ValueError(f"{value!r} cannot be dialled: write a host name or address without port, such as 10.0.0.7")
    return value


def ways(key: str) -> str:
    """The ways to give a setting, as an error tells them."""
    return f"give {option(key)}, {variable(key)} or {key} in sidecar.toml"


def option(key: str) -> str:
    """The option that gives a setting."""
    return next((flag for flag, field in FLAGS.items() if field == key), f"--{key.replace('_', '-')}")


def variable(key: str) -> str:
    """The environment variable that gives a setting."""
    return f"{PREFIX}{key.upper()}"


def _is_ip(text: str, version: int) -> bool:
    try:
        return ipaddress.ip_address(text).version == version
    except ValueError:
        return False


def _is_variable(name: Any, value: Any) -> bool:
    """Whether a process can be given this variable; false removes one, as TOML has no null."""
    return (
        isinstance(name, str)
        and bool(name)
        and not set(name) & {"=", "\0"}
        and (value is None or value is False or (isinstance(value, str | int) and value is not True))
    )


def _is_device(item: Any) -> bool:
    """A GPU's number, or its UUID as nvidia-smi -L prints it."""
    if isinstance(item, str):
        return bool(re.fullmatch(r"\d+|(GPU|MIG)-[0-9A-Za-z/-]+", item, re.ASCII))
    return isinstance(item, int) and not isinstance(item, bool) and item >= 0
