"""Define the settings of a daemon: one frozen `Settings`, whose every field is followed by its documentation.

That documentation is the source of docs/reference/settings.md: the meaning, and after "Default:" the reason for the
default. A comment on lines of its own begins a group of fields. `outputs` has the settings of the
use of results. `values` checks values, and `sources` reads them. It imports neither a framework nor the command line:
every command pays for it at start-up.
"""

import sys
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import ConfigDict

from sidecar.errors import SettingsError
from sidecar.protocol.records import Role
from sidecar.settings import values
from sidecar.settings.outputs import OutputSettings
from sidecar.settings.spelling import ways

_DERIVED: Final[Any] = None  # a default that `values` derives from other settings


class Settings(OutputSettings):
    """Hold every setting of a daemon, checked. `load` reads them; the constructor looks at its arguments only."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    # Directories. A relative path starts at the current directory, wherever it is written; it is made absolute.
    checkpoint_dir: values.CheckpointDirectory
    """Directory in which training saves its checkpoints, or the URL of a bucket's folder: `s3://…`, `gs://…` or
    `az://…`. Default: none, since a guess helps nobody."""
    state_dir: values.StateDirectory = _DERIVED
    """Directory that the daemons of all nodes share, with one folder for each run; or, if `checkpoint_dir` is a URL and
    the nodes share no filesystem, the URL of a bucket's folder. Default: `.sidecar` in `checkpoint_dir`, since all
    nodes share that storage already; for a URL, a folder below `~/.local/state/sidecar` that is named after a hash of
    the URL, since a local disk costs no requests."""
    run: values.RunName = _DERIVED
    """Name of the training run, in file names and in the metrics' labels. Default: the name of `checkpoint_dir`, which
    is how people call the run."""

    # The task
    lm: values.LanguageModel = {}  # noqa: RUF012 - pydantic copies defaults
    """Task for language models without a line of Python: a table `[lm]`, or a JSON object. `model` is a folder with
    `config.json` and the tokenizer, or `auto`, the newest checkpoint; `tasks` are names of lm-evaluation-harness, and
    `perplexity` has `files`; further keys are arguments of `sidecar.lm`. Default: none, since the task's file says what
    is evaluated."""
    task: values.TaskReference = _DERIVED
    """Task to evaluate with, as `path/file.py:attr` or `package.module:attr`. Default: that of `lm`, if it is set, else
    only the user knows it; every command that evaluates asks for it, and a daemon on the chief does without."""
    framework: values.FrameworkName = "auto"
    """Framework that the worker processes import: `tensorflow`, `torch`, `python` for a task that loads its models
    itself with any library, or a backend of your own, by its package or the name that its distribution gives it.
    Default: `auto`, since the imports in the task's file tell which one it needs."""

    # Several runs in one daemon. A `sidecar.toml` in the directory of a run replaces the settings that all runs share.
    runs: values.RunPlaces = ()
    """Directories of checkpoints, each of which is a run that this daemon evaluates: paths, globs such as
    `/shared/*/ckpts`, or URLs. Directories that a glob finds later begin without a restart. Default: one run, that of
    `checkpoint_dir`."""
    runs_at_once: values.Count = 1
    """Runs that have worker processes on this node at the same time; the others wait for their turns. Default: one,
    since each has as many worker processes as `replicas`, and takes as much memory as if it was alone."""
    run_turn_seconds: values.Seconds = 30.0
    """Time for which a run that has checkpoints to evaluate keeps its worker processes although other runs wait; no
    evaluation is broken off. Default: several times longer than new worker processes need to start."""
    runs_scan_seconds: values.Seconds = 10.0
    """Interval between two looks for new directories, and for those that are gone. Default: a new run begins before it
    has saved much, and a listing is cheap at this rate."""
    priority: values.Priority = 1.0
    """Share of a run among those that wait for their turns: with 2 it gets twice the time of one with 1. Default: all
    runs are equal."""

    # The node. Settings that are not set are found out from the environment of the training job.
    node: values.FileName | None = None
    """Name of this node among the daemons of the run. Default: its task in TF_CONFIG, such as `worker-1`, else the name
    that Slurm gives to it, else the host name: each of them is unique within a job."""
    role: Role | None = None
    """Whether this node may evaluate (`worker`) or not (`chief`). Default: the role that the training job's environment
    gives to this node, so that the chief is never slowed down."""
    chief_nodes: values.NodeGlobs = ()
    """Names or globs of the nodes that must not evaluate, so that one file serves all nodes. Default: nobody
    can guess the names of nodes."""
    host: values.Host | None = None
    """Address or name at which the other nodes reach this one, without a port. Default: the address from TF_CONFIG,
    else the one that this machine sends from, since these are reachable in nearly every network."""

    # Group and ports
    replicas: values.Count = 1
    """Worker processes on this node. Default: one suits a node without GPUs; a node with GPUs takes one for each."""
    processes_per_worker: values.Count = 1
    """Processes of each worker, which divide its model among them, so that none holds all of it. With PyTorch only; on
    GPUs each process has its own. Default: a model that fits into one process is evaluated faster there, as divided
    weights are sent between the processes for each batch."""
    model_parallel: Literal["auto", "tensor", "fully_shard"] = "auto"
    """How the processes of a worker divide the model: "tensor" by the model's tensor parallel plan (`tp_plan`), so that
    activations pass between them, "fully_shard" by rows, so that weights do. Default: "auto" takes the plan if the
    model has one that can be used, as activations are smaller than weights, else `fully_shard`."""
    min_workers: values.Count = 1
    """Smallest number of worker processes that forms a group and evaluates. Default: a result now, from one worker, is
    better than a wait for all of them."""
    max_workers: values.MostWorkers = 64
    """Largest number of worker processes that a group may have: of the nodes whose processors have the least to do, and
    of equal ones the first in the order of names. All numbers give the same results. Default: more of them wait longer
    for each other than they save, and the journal names each of them in every evaluation."""
    port_range: values.PortRange = "21000-21999"
    """Ports that the worker processes of this node may serve on, as FIRST-LAST. Default: below 32768, where Linux
    begins to take ports for outgoing connections."""
    http: values.Address = "127.0.0.1:19108"
    """Address of the HTTP server, as HOST:PORT; port 0 takes a free port. Default: reachable from this machine only,
    since the metrics say how good a model is."""
    http_hosts: values.HostGlobs = ()
    """Further names or globs that the HTTP server accepts in the `Host` header. Default: none are needed for addresses,
    names without a dot, this machine's own names and names of private networks. Any other name could belong to a page
    in a browser that attacks this daemon (DNS rebinding)."""
    http_access: values.OptionalPath = None
    """File with TLS, client certificates and passwords for the HTTP server, in the format of Prometheus'
    `web.config.yml`; it is read again when it changes. Default: plain HTTP, since `http` lets nobody else in."""
    http_notices: bool = False
    """Whether a notice that a checkpoint was saved (`sidecar.notify`, or `POST /notify`) has this node scan at once;
    `http` and `http_access` say who may send one. Default: the port only answers questions, and a scan every
    `sweep_seconds` finds all checkpoints anyway."""
    page_url: values.PageUrl | None = None
    """URL of this node's status page for people elsewhere; the pages of the other nodes link to it. Default: made of
    `http`, with the address of `host` in the place of 0.0.0.0; no link if only this machine reaches that."""
    page_links: values.PageLinks = {}  # noqa: RUF012 - pydantic copies defaults
    """Links at the end of the status page, to your Grafana or documentation, say: a table `[page_links]` with
    NAME = URL, or a JSON object. Default: only the user knows where they are."""

    # Choice of checkpoints, and the end of the run
    queue: Literal["every", "latest"] = "every"
    """Waiting checkpoints that are evaluated: `every` one, or only the `latest` one. Default: no checkpoint is skipped
    unless the user asks for it."""
    every_steps: values.Count | None = None
    """Interval of training steps: of the checkpoints between two multiples of it, the first one is evaluated, and so is
    the last one of a run that ends. Default: all checkpoints are evaluated, since none is skipped unless the user asks
    for it."""
    start: Literal["all", "new"] = "all"
    """Whether checkpoints that exist before the first start of the run are evaluated (`all`) or skipped (`new`).
    Default: a daemon that starts late evaluates the checkpoints that it missed."""
    stop_after_step: values.Whole | None = None
    """Training step after whose evaluation the daemon ends. Default: a daemon serves until it is stopped."""
    stop_idle_seconds: values.Seconds | None = None
    """Time without any work after which the daemon ends. Default: a daemon serves until it is stopped."""
    done_marker: values.MarkerName | None = None
    """Name of the file in `checkpoint_dir` by which training reports that its last checkpoint is saved; the daemon then
    evaluates the rest and ends. Default: a file that an earlier run left must not end the daemon at each start."""
    wait: bool = True
    """Whether `sidecar run` waits for more checkpoints; not with `--once`. Default: a daemon serves until stopped."""

    # Log
    log_format: Literal["console", "json"] | None = None
    """Format of the log: sentences for people (`console`), or one JSON object a line (`json`). Default: `console` on a
    terminal, which a person reads, and `json` elsewhere, where a program does."""

    # Worker processes
    worker_python: values.Program = Path(sys.executable)
    """Python interpreter of the worker processes. Default: the daemon's own interpreter; give the one of the training
    environment if the framework is installed only there."""
    worker_logs: values.LogDirectory = _DERIVED
    """Directory for the logs of the worker processes. Default: a folder of this user in the system's temporary
    directory, since logs do not belong on shared storage."""
    worker_env: values.Environment = {}  # noqa: RUF012 - pydantic copies defaults
    """Environment variables that worker processes get in addition to the daemon's; `false` in TOML, or `null` in JSON,
    removes a variable. Default: workers run in the daemon's environment unless the user changes it."""
    devices: values.Devices = "cpu"
    """Devices of the worker processes: `cpu`, `gpu` for all GPUs that the daemon sees, or a list of GPUs by number or
    UUID. Default: the GPUs belong to training until the user says otherwise."""
    share_gpu: bool = False
    """Whether workers may use a GPU on which another process runs. Default: that process could run out of memory."""
    gpu_memory_mb: values.Count | None = None
    """Most memory in MB that a worker process takes of its GPU. Default: no limit; memory is taken as it is needed."""
    release_idle_seconds: values.Seconds = 600.0
    """Time without work after which worker processes end and free their GPUs; workers on the CPU stay. Default: longer
    than most intervals between checkpoints, so that a busy run stays warm and a paused one frees its GPUs."""
    standby: bool = True
    """Whether each worker process has a second one that has already imported the framework and can replace it. Default:
    540 MB of memory for a group that forms again in 0.4 s instead of 5 s."""
    threads: values.Count = 2
    """Threads that a worker process computes with. Default: a fixed number, since sums over other numbers of threads
    are rounded differently and nodes with other bits form no group; 2 gave the same bits as 1, where 3 and 8 did not,
    and leaves the other cores to training. With TensorFlow each of two short batches at a time has so many."""
    yield_seconds: values.SecondsFromZero = 120.0
    """Time for which a worker process may wait for processors, in its start and in each evaluation, because it computes
    only with what other programs leave (`SCHED_IDLE`). After it, its priority is that of nice 10, which gives it about
    a tenth of a processor that training uses; with 0 it has this priority from the start. Default: training pays little
    for short evaluations, and a node without a free processor has results within minutes."""
    collectives: Literal["auto", "ring", "nccl"] = "ring"
    """Implementation of TensorFlow's collective operations. Default: a few KB for each evaluation do not need NCCL."""
    always_cluster: bool = False
    """Whether a group of one worker forms a TensorFlow cluster, too. Default: one worker has nobody to sum with."""

    # A cluster that runs the worker processes. All its machines have `worker_python`, which is the cluster's Python.
    engine: Literal["local", "ray"] = "local"
    """Where the worker processes run: `local` on this node, `ray` on machines of a Ray cluster, one on each. Default:
    a node that trains has processors and memory to spare, and needs no cluster."""
    ray_address: values.Address | None = None
    """Address of the head of the Ray cluster, as HOST:PORT. This machine must be a node of the cluster, for which
    `ray start --num-cpus=0` suffices. Default: only the user knows it, and `engine = "ray"` asks for it."""
    ray_workers: values.Count = 1
    """Machines of the cluster that evaluate together, each with one worker process and its standby. Default: one, as
    without a cluster."""
    ray_resources: values.Resources = {}  # noqa: RUF012 - pydantic copies defaults
    """What Ray reserves on each of these machines, by name, such as CPU and memory; `devices = "gpu"` adds a GPU.
    Default: as many CPUs as `threads`, which a worker process computes with."""
    ray_labels: values.Labels = {}  # noqa: RUF012 - pydantic copies defaults
    """Labels that a machine must have to be used, as given to `ray start --labels=role=eval`. Default: none, and
    `engine = "ray"` asks for some: they keep the machines out that train."""
    ray_any_node: bool = False
    """Whether any machine of the cluster may evaluate, without `ray_labels`. Default: the chief and trainers may be
    among them, and would be slowed down."""
    ray_idle_seconds: values.Seconds = 300.0
    """Time without a checkpoint to evaluate after which the cluster gets its machines back. Default: longer than the
    start of new machines takes, and short enough to pay for few that idle."""
    ray_token_file: values.OptionalPath = None
    """File with the token of the cluster's login (`RAY_AUTH_MODE=token`). Default: no login, and everybody who reaches
    the cluster can run code in it; `sidecar check` warns of that."""

    # Reading of checkpoints
    trust_saved_graph: bool = False
    """Whether the graph that a SavedModel holds may be run, by its own signature; all nodes of a group must agree.
    Default: a graph can do all that the daemon's user can, such as writing files, so only weights are read."""
    step_key: str | None = None
    """Name of the value that holds the training step: a variable of a TensorFlow checkpoint, or a key of what
    `torch.save` wrote or of the metadata of safetensors. Default: the optimizer's iterations, or a value with a usual
    name, hold it in nearly every checkpoint."""
    step_pattern: values.StepPattern | None = None
    r"""Regular expression for a checkpoint's name, whose one group is the training step, such as `epoch_(\d+)`.
    Default: the step comes from the files, then from the usual ways to write a step in a name; `step_key` and
    `step_pattern` come before both."""
    verify: Literal["structure", "full"] = "structure"
    """Check of a checkpoint before it is pinned: its `structure`, or the checksums of its `full` content. Default:
    `full` reads every file one more time; TensorFlow compares checksums when it restores anyway, and archives up to
    128 MB, as `torch.save` writes them, are compared as soon as they were written."""
    checkpoint_glob: values.PathGlobs = ("*",)
    """Globs of the paths below `checkpoint_dir` that may be checkpoints, such as `epoch_*/*`. Default: the directory
    itself; sub-folders hold backups and exports as well, so only the user knows which of them count."""
    formats: values.Formats = ()
    """Checkpoint formats to look for: some of `tf_object`, `keras`, `hdf5`, `keras_shards`, `orbax`, `saved_model`,
    `torch_zip`, `pretrained_folder`, `safetensors` and `dcp`. Default: all that the framework restores, so that a stray
    file of another one disturbs nothing."""
    checkpoint_pattern: values.NamePattern | None = None
    """Glob of the names of files and folders that are checkpoints, whatever their format, such as `model-*.joblib`; it
    replaces `formats`. Default: only the user knows names whose format is not one of these."""
    complete_marker: values.CompleteMarker | None = None
    """Name of the file without which no checkpoint is complete, such as `{name}.STABLE` or `_SUCCESS`. Default: the
    formats' own signs of completeness are enough; only the user knows of further ones."""
    file_events: Literal["auto", "on", "off"] = "auto"
    """Whether file events of the kernel announce new checkpoints. Default: the type of the filesystem decides, since
    events of other machines do not arrive; a scan every `sweep_seconds` finds all checkpoints anyway."""

    # Buckets: checkpoints, the state or a backup of it
    state_backup: values.BucketUrl | None = None
    """URL of a bucket's folder in which a copy of the state directory is kept, such as `s3://bucket/backups`; each run
    has a folder of its own there, and `sidecar restore-state` continues the run on another machine. Default: only the
    user knows a bucket, and a state directory on shared storage survives the machine anyway."""
    bucket_endpoint: values.Endpoint | None = None
    """URL of an object store that is compatible with that of the URLs in other settings. Default: the one of the cloud,
    or `AWS_ENDPOINT_URL` for `s3://`, `AZURE_STORAGE_ENDPOINT` for `az://`."""
    bucket_credentials: Literal["environment", "machine", "none"] = "environment"
    """Where credentials come from: variables of the `environment` and the files that they name, the metadata address of
    the `machine` as well, or `none` for a public bucket. Default: no request goes to an address that nobody named."""
    bucket_timeout_seconds: values.Seconds = 30.0
    """Time that one request to a bucket may take. Default: a part of 16 MiB arrives in it at 5 Mbit/s."""
    bucket_scan_seconds: values.Seconds = 10.0
    """Interval between two listings of checkpoints in a bucket. Default: each costs money, 360 an hour for 1,000
    objects."""

    # Saves, retention and space
    save_weights: values.SaveWeights = "auto"
    """Workers that save the restored weights: `all`, the `first` one only, `none`, or `auto`: all if the weights take 1
    GB at most, else none. Default: the folder of each worker is complete by itself, and copies of a larger model would
    fill the storage; a digest of the weights is saved in any case."""
    keep_saves: values.Count = 2
    """Number of newest evaluations whose saved weights and predictions are retained. Default: the newest one and the
    one before it can be compared; all of a run would fill the storage."""
    keep_states: values.RetainedStates = 1000
    """Number of newest evaluations, at most 1000, whose metric states are retained; 0 retains all. The ten best ones
    are retained, too, and the journal keeps all numbers. Default: three days at one evaluation every 5 minutes, and
    some 6,000 files; metric states are read again only for details such as a confusion matrix."""
    keep_states_every: values.Count | None = None
    """Every how many plans an older evaluation retains its metric states as well. Default: none of them, since the
    numbers and intervals of all evaluations are in the journal."""
    saves_max_bytes: values.Count = 50 * 10**9
    """Most bytes of storage for saved weights and predictions; the newest ones are retained in any case. Default: 50
    GB, twice what 8 workers save of a model of 1 GB in the newest two evaluations and the best one."""
    cache_bytes: values.Whole = 1024**3
    """Most bytes of prepared data that a worker process keeps in memory for the next evaluation; 0 prepares the data
    anew each time. Default: 1 GiB, into which common test sets fit."""
    pin_max_bytes: values.PinBytes = None
    """Most bytes that pinned checkpoints may hold; one is pinned in any case. Default: no limit, since every pinned
    checkpoint still has to be evaluated and only the user can say how much is too much; 50 GB for those fetched from a
    bucket, which take space on a local disk."""
    keep_free_bytes: values.Whole = 1024**3
    """Free bytes of storage that pins must leave; a checkpoint smaller than a hundredth of the free space is pinned in
    any case. Default: 1 GiB, enough for training to save another checkpoint of 100 million weights with optimizer."""

    # Retries
    max_attempts: values.Count = 3
    """Failures of the checkpoint or the task after which a checkpoint is given up. Default: one accident is excused, a
    repeated failure is not."""
    max_losses: values.Count = 10
    """Failures of machines, such as a lost worker, after which a checkpoint is given up. Default: with the backoff
    below ten of them take eight minutes, which outlasts a reboot."""
    backoff_first_seconds: values.Seconds = 1.0
    """Pause after the first failure; each further one doubles it. Default: most losses are over when noticed."""
    backoff_last_seconds: values.LongestBackoff = 300.0
    """Longest pause after a failure. Default: an evaluation begins at most five minutes after the trouble is over."""

    # Intervals and time limits. No wait is without a limit.
    beat_seconds: values.Beat = _DERIVED
    """Interval between two heartbeats of a node. Default: 2, since one small file for each node is cheap at this rate;
    3.5 if the state is in a bucket, where each request costs money, and 10 there while no other node is alive."""
    lease_seconds: values.Lease = _DERIVED
    """Time without a heartbeat after which a node is gone. Default: 10, which is five beats, so that a slow write is no
    death; 10.5 if the state is in a bucket."""
    visibility_seconds: values.Seconds = 60.0
    """Time after which a file of another node must be visible. Default: NFS caches a directory for 60 s (acdirmax)."""
    run_lost_seconds: values.OneLease = _DERIVED
    """Time for which the record of the run, `run.json`, must be missing before the daemons begin a new run. Default:
    `lease_seconds`, so that a deleted run ends as soon as a lost node."""
    group_settle_seconds: values.BeatAndAHalf = _DERIVED
    """Time for which the ready workers must stay the same before they form a group. Default: a beat and a half, so that
    nodes that start together form one group."""
    proposal_turn_seconds: values.OneLease = _DERIVED
    """Time for which a node waits for each node before it in line to begin the next evaluation. Default:
    `lease_seconds`, after which the node before it has either begun or is gone."""
    copy_turn_seconds: values.OneLease = _DERIVED
    """Time for which a node waits for each node before it in line to copy a checkpoint, where pins cannot be links, and
    for a copy that does not grow. Default: `lease_seconds`, after which the node before it has either begun or is
    gone."""
    result_turn_seconds: values.OneLease = _DERIVED
    """Time for which a node waits for each node before it in line to write the result of an evaluation. Default:
    `lease_seconds`, after which the node before it has either written it or is gone."""
    quiet_seconds: values.Seconds = 3.0
    """Time for which the files of a checkpoint must stay unchanged if its format has no sign of completeness. Default:
    longer than a writer pauses between two writes, and short enough that nobody waits for a result."""
    corrupt_after_seconds: values.OneVisibility = _DERIVED
    """Time for which a broken checkpoint must stay unchanged before it is given up as corrupt. Default:
    `visibility_seconds`, after which the missing parts would be visible."""
    vanished_after_seconds: values.OneVisibility = _DERIVED
    """Time for which a checkpoint must be missing from all scans before it is given up as vanished. Default:
    `visibility_seconds`, after which a new file would be visible."""
    pin_wait_seconds: values.OneVisibility = _DERIVED
    """Time for which an evaluation waits for a pin: for its own checkpoint's pin to be visible on each node, and with
    `every_steps` for an earlier checkpoint to be pinned. Default: `visibility_seconds`, after which a pin is visible
    everywhere."""
    storage_timeout_seconds: values.Seconds = 10.0
    """Time that shared storage may take to answer before the node is not ready. Default: one lease, after which the
    other nodes count this node as gone anyway."""
    join_timeout_seconds: values.Seconds = 120.0
    """Time that the worker processes may take to import the framework and form a group. The time for which a busy node
    keeps them waiting for a processor is not counted, here and in the next four settings, up to ten times the setting.
    Default: they take seconds, but the first import may read gigabytes from a slow disk."""
    restore_timeout_seconds: values.Seconds = 1800.0
    """Time that a worker may take to restore a checkpoint or save results. Default: enough for 100 GB at 60 MB/s."""
    first_batch_timeout_seconds: values.Seconds = 900.0
    """Time for a worker's first batch. Default: it traces and compiles the model, and fills the input pipeline."""
    stall_seconds: values.Seconds = 60.0
    """Shortest time without a finished batch after which a worker counts as stalled. Default: a minute is longer than
    usual pauses of storage, however fast the batches are."""
    stall_factor: values.Factor = 5.0
    """Multiple of the slowest batch so far that a batch may take before its worker counts as stalled. Default: batches
    of one model differ by less than that."""
    suspended_timeout_seconds: values.OneLease = _DERIVED
    """Time for which a signal such as SIGSTOP may suspend a worker process before it counts as stalled. Default:
    `lease_seconds`, the time after which a suspended node counts as gone, too."""
    loop_timeout_seconds: values.OneLease = _DERIVED
    """Time without a turn of the daemon's loop after which it counts as stopped, and `/healthz` reports that. Default:
    `lease_seconds`, after which the other nodes count this node as gone, too."""
    collective_timeout_seconds: values.Seconds = 6.0
    """Time for which all workers may wait for one another in a sum before the evaluation fails, counted from the second
    beat after the last worker came. Default: the sums take milliseconds, or seconds over a link that loses packets, and
    a lost link is noticed within a lease."""
    plan_cap_seconds: values.Seconds = 86400.0
    """Longest time that an attempt may take. Default: an attempt that still runs after a day will not end by itself."""
    drain_seconds: values.Seconds = 25.0
    """Time that a running evaluation has to end after a signal. Default: within the 30 s that Kubernetes grants."""
    sweep_seconds: values.Sweep = _DERIVED
    """Interval between two scans of the checkpoint directory. Default: 2, since on NFS a scan is the only way to find a
    new checkpoint, and it costs only as much as has changed; 10 if the state is in a bucket, as `bucket_scan_seconds`,
    since each scan writes a heartbeat, too."""
    full_sweep_seconds: values.Seconds = 300.0
    """Time within which every file of a large directory is compared again with its last state, in case it was rewritten
    under its name. Default: 100,000 files cost a thousandth of a core, and NFS 300 requests a second."""
    nothing_seen_seconds: values.Seconds = 300.0
    """Time without any checkpoint after which the log asks whether the path is right. Default: most runs have saved a
    checkpoint by then, and a user who mistyped the path still reads the log."""
    progress_seconds: values.Seconds = 1.0
    """Interval between two progress reports of a worker process. Default: often enough for a progress bar."""
    keep_batches_seconds: values.Seconds = 30.0
    """Interval at which a worker process writes what the finished batches of an eval set of PyTorch gave, for the next
    attempt if this one is interrupted. Default: no more than half a minute is lost, and short sets write nothing."""

    @property
    def run_dir(self) -> Path:
        """Return the directory that the daemons of this run share."""
        return self.state_dir / self.run

    @property
    def http_host(self) -> str:
        """Return the address to bind, without brackets."""
        return self.http.rpartition(":")[0].strip("[]")

    @property
    def http_port(self) -> int:
        """Return the port to bind; 0 lets the kernel choose."""
        return int(self.http.rpartition(":")[2])

    @property
    def ports(self) -> range:
        """Return the ports that workers of this node may serve on."""
        first, last = self.port_range.split("-")
        return range(int(first), int(last) + 1)

    def require_task(self) -> str:
        """Return the task, for a command or role that cannot do without one; raises `SettingsError`."""
        if self.task is None:
            raise SettingsError(f"task is not set: {ways('task')}, such as my_eval.py:task or package.module:task")
        return self.task
