"""What the daemon can be told: one frozen `Settings`, whose every default a comment justifies.

Checked values only; where they come from is `sources`' matter. It imports neither a framework nor the command line:
every command pays for it at start-up.
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


def _no_boolean(value: Any) -> Any:
    """Without this `replicas = true` would be read as 1."""
    if isinstance(value, bool):
        raise ValueError("write a number")  # noqa: TRY004 - pydantic collects ValueError only
    return value


Count = Annotated[int, Field(ge=1), BeforeValidator(_no_boolean)]
Whole = Annotated[int, Field(ge=0), BeforeValidator(_no_boolean)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False), BeforeValidator(_no_boolean)]


class Settings(BaseSettings):
    """Every setting of a daemon, checked. `load` reads them; constructing one looks at its arguments only."""

    model_config = SettingsConfigDict(
        frozen=True, extra="forbid", validate_default=True, env_prefix=PREFIX, enable_decoding=False
    )

    # Where. Relative paths start at the current directory, wherever they are written; all are absolute afterwards.
    checkpoint_dir: Path  # no default: guessing what to watch helps nobody
    state_dir: Path = _DERIVED  # <checkpoint_dir>/.sidecar: all nodes share that storage already
    run: str = _DERIVED  # the checkpoint directory's own name: what people call the training run

    # What. Not needed on a chief, so `require_task` asks for it.
    task: str | None = None
    framework: Literal["tensorflow"] = "tensorflow"  # the only backend so far

    # Who. Null: found out from the training job's environment (roles.py).
    node: str | None = None
    role: Role | None = None
    chief_nodes: tuple[str, ...] = ()  # nobody can guess host names
    host: str | None = None  # IPv6 addresses stand in brackets, ready for a port

    # How many, and where they meet.
    replicas: Count = 1  # right for a CPU node; a GPU node takes one per GPU
    min_workers: Count = 1  # a result now, from one node, beats waiting for all
    port_range: str = "21000-21999"  # below 32768, where Linux' ephemeral ports start: no outgoing connection takes one
    http: str = "127.0.0.1:19108"  # the numbers say how good a model is: reachable from outside only on request
    # Names or globs under which it is asked for. Addresses, names without a dot, this machine's own names and those of
    # private networks need no mention. A page in a browser can let any other name lead here (DNS rebinding).
    http_hosts: tuple[str, ...] = ()

    # Which checkpoints, and when to end.
    queue: Literal["every", "latest"] = "every"  # nothing is lost unless asked for
    # Of the complete checkpoints each first one that reaches a new multiple; the last of a run that ends counts, too.
    every_steps: Count | None = None  # all of them, likewise
    start: Literal["all", "new"] = "all"  # a daemon started late evaluates what it missed
    stop_after_step: Whole | None = None  # a daemon serves until it is stopped
    stop_idle_seconds: Seconds | None = None
    # A file in checkpoint_dir by which training says that it saved its last one. Off: a daemon that serves must not
    # end, again at each restart, because a former run left a file there.
    done_marker: str | None = None
    wait: bool = True  # `run` stays; --once evaluates what is there and ends

    log_format: Literal["console", "json"] | None = None  # null: console on a terminal, JSON lines elsewhere

    # The worker processes.
    worker_python: Path = Path(sys.executable)  # the daemon's own; the trainer's venv when they differ
    worker_logs: Path = _DERIVED  # a folder of this user's below the system's temporary one: never on shared storage
    worker_env: dict[str, str | None] = {}  # null (false in TOML, which has no null) removes a variable
    devices: Literal["cpu", "gpu"] | tuple[int | str, ...] = "cpu"  # training owns the GPUs until told otherwise
    share_gpu: bool = False  # memory taken beside a training process is what kills it
    gpu_memory_mb: Count | None = None  # grows as needed
    release_idle_seconds: Seconds = 600.0  # outlasts most save intervals: a busy run stays warm, a paused one lets go
    standby: bool = True  # 540 MB for a group that re-forms in 0.4 s instead of 5 s
    # Never from the core count: threads split sums, so nodes of different sizes would get different bits and refuse to
    # form a group. 2 gave the same bits as 1 where 3 and 8 did not, and leaves the cores to the trainer.
    threads: Count = 2
    collectives: Literal["auto", "ring", "nccl"] = "ring"  # a few KB per evaluation need no NCCL
    always_cluster: bool = False  # a group of one needs no cluster; tests force it
    # A graph runs whatever its author stored, such as writing to files, as this daemon's user: weights only, therefore,
    # into the task's model. True: a SavedModel's own signature is evaluated; all nodes of a group must say the same.
    trust_saved_graph: bool = False
    step_key: str | None = None  # the optimizer's count of its steps, or a usual name, is what nearly everybody has
    # None: what the files hold, then rules for the names that people write. One that is set comes before both.
    step_pattern: str | None = None
    # TensorFlow compares the checksums of what it restores anyway, and full reads every file once more on some node.
    verify: Literal["structure", "full"] = "structure"
    # What lies in the directory itself: sub-folders hold backups and exports as well, so only a user knows which count.
    checkpoint_glob: tuple[str, ...] = ("*",)
    formats: tuple[str, ...] = ()  # all: a directory of checkpoints holds little else
    complete_marker: str | None = None  # the frameworks' own ways to say "finished" are known; only a user knows more
    # Decided by the filesystem's type: events of what other machines write arrive nowhere, and a sweep sees all anyway.
    file_events: Literal["auto", "on", "off"] = "auto"
    # What workers save, each to a path of its own: weights, and predictions if the task wants them.
    save_weights: SaveWeights = "all"  # every worker's own path is complete; first: rank 0's, since all hold the same
    keep_saves: Count = 2  # the newest and the one before it, to compare; a whole run would fill the storage
    # EVAL_SET/METRIC whose best evaluation is kept, too. Null: the first with a direction, as the task lists them.
    best_metric: str | None = None
    saves_max_bytes: Count | None = None  # newest and best stay even so; only the user can say what is too much
    cache_bytes: Whole = 1024**3  # common test sets fit; 0 prepares the data for every checkpoint again
    pin_max_bytes: Count | None = None  # every pinned checkpoint is wanted, so only the user can say what is too much
    # Pins never take the last of what training writes to: some logs, and the next checkpoint of a model of 100 million
    # weights with its optimizer. What is under a hundredth of what is free does not count: see checkpoints/room.py.
    keep_free_bytes: Whole = 1024**3

    # Trying again: how often, how soon.
    max_attempts: Count = 3  # the checkpoint's or task's fault: one accident is excused, a habit is not
    max_losses: Count = 10  # the machines' fault: with the backoff below that is eight minutes: a reboot
    backoff_first_seconds: Seconds = 1.0  # most losses are over when they are noticed
    backoff_last_seconds: Seconds = 300.0  # five minutes late at worst once the trouble is over

    # Bounds: no wait without one.
    beat_seconds: Seconds = 2.0  # small files on shared storage, one per node: cheap at this pace
    lease_seconds: Seconds = 10.0  # five beats: a slow write is no death
    settle_seconds: Seconds = 3.0  # a beat and a half: nodes that start together land in one group
    visibility_seconds: Seconds = 60.0  # NFS caches a directory for up to 60 s (acdirmax)
    storage_timeout_seconds: Seconds = 10.0  # one lease: longer, and the others count this node out anyway
    join_timeout_seconds: Seconds = 120.0  # seconds when warm; a cold import reads gigabytes from a slow disk
    restore_timeout_seconds: Seconds = 1800.0  # 100 GB at 60 MB/s
    first_batch_timeout_seconds: Seconds = 900.0  # tracing, compiling and filling an input pipeline
    stall_seconds: Seconds = 60.0  # never called stalled sooner, however fast the batches are
    stall_factor: Annotated[float, Field(ge=1, allow_inf_nan=False), BeforeValidator(_no_boolean)] = 5.0
    # All ranks have their few KB ready: milliseconds, or seconds over a link that loses packets. It is counted from the
    # second beat after the last one came, so a lost link is noticed within a lease.
    collective_timeout_seconds: Seconds = 6.0
    plan_cap_seconds: Seconds = 86400.0  # a day: whatever still runs then is not coming back
    drain_seconds: Seconds = 25.0  # inside the 30 s that Kubernetes grants
    proposal_patience_seconds: Seconds = 10.0  # one lease: the node before had its chance
    # On NFS no file event crosses machines, so there the sweep is the detection; a look costs what changed.
    sweep_seconds: Seconds = 2.0
    # Of many thousand files some in each sweep, all of them within this: for those that are rewritten under their names
    # where no file event tells. 100,000 in five minutes cost a thousandth of a core, and NFS 300 requests a second.
    full_sweep_seconds: Seconds = 300.0
    nothing_seen_seconds: Seconds = 300.0  # most runs have saved by then; who mistyped a path still looks at the log
    progress_seconds: Seconds = 1.0  # what an eye on the progress bar needs

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
