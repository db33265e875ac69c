"""Check the values of settings: one function or type for each kind of value. Used by `model` alone.

A check returns the value to use, or raises `ValueError` with what to write instead. A check that takes `info` compares
the value with settings that are declared before it; those that were refused are absent from `info.data`.
"""

import hashlib
import ipaddress
import os
import re
import tempfile
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo

from sidecar.protocol.saved_weights import SaveWeights as _SaveWeights
from sidecar.settings.json_table import table_of
from sidecar.settings.language_model import check_table, task_of, variables_of
from sidecar.system.bucket_folder import BucketFolder, BucketState
from sidecar.system.bucket_url import is_url, split_url

FORMATS: Final = (
    *("tf_object", "keras", "hdf5", "keras_shards", "orbax", "saved_model"),
    *("torch_zip", "pretrained_folder", "safetensors", "dcp"),
)
"""Checkpoint formats, as `formats` names them."""

MOST_PARTS: Final = 4
"""Names in one path of `checkpoint_glob`: three folders and the checkpoint."""

MOST_EXPORTS: Final = 10
"""The most checkpoints that `export_best` can retain: `coordination.totals.RANKED`."""

MOST_STATES: Final = 1000
"""The most evaluations that `keep_states` can count: `coordination.journal_state.FOLDERS_KEPT`."""

_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")  # a file name on any storage, never hidden, never `..`
_HOST: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_YES: Final = frozenset({"true", "yes", "y", "on", "t", "1"})
_NO: Final = frozenset({"false", "no", "n", "off", "f", "0"})
_MAX_PORT: Final = 65535

# -- numbers -----------------------------------------------------------------------------------------------------------


def _no_boolean(value: Any) -> Any:
    """Refuse `replicas = true`, which would be read as 1."""
    if isinstance(value, bool):
        raise ValueError("write a number")  # noqa: TRY004 - pydantic collects ValueError only
    return value


Count = Annotated[int, Field(ge=1), BeforeValidator(_no_boolean)]
Whole = Annotated[int, Field(ge=0), BeforeValidator(_no_boolean)]
RetainedStates = Annotated[int, Field(ge=0, le=MOST_STATES), BeforeValidator(_no_boolean)]
Difference = Annotated[float, Field(ge=0, allow_inf_nan=False), BeforeValidator(_no_boolean)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False), BeforeValidator(_no_boolean)]
Priority = Annotated[float, Field(gt=0, allow_inf_nan=False), BeforeValidator(_no_boolean)]
Factor = Annotated[float, Field(ge=1, allow_inf_nan=False), BeforeValidator(_no_boolean)]


def _follows(source: str, factor: float = 1.0) -> BeforeValidator:
    """Return the check of a duration whose default is a multiple of `source`, a setting declared before it."""

    def derive(value: Any, info: ValidationInfo) -> Any:
        # Where the source was refused, that is the problem to report, and any valid value will do here.
        return factor * info.data.get(source, 1.0) if value is None else value

    return BeforeValidator(derive)


def _more_in_a_bucket(on_disk: float, in_bucket: float) -> BeforeValidator:
    """Return the check of an interval whose default is longer if each request for the state costs money."""

    def derive(value: Any, info: ValidationInfo) -> Any:
        default = in_bucket if isinstance(info.data.get("state_dir"), BucketState) else on_disk
        return default if value is None else value

    return BeforeValidator(derive)


def _outlasts_beats(value: float, info: ValidationInfo) -> float:
    if value < 3 * (beat := info.data.get("beat_seconds", value / 3)):
        raise ValueError(f"must be at least 3 x beat_seconds ({beat:g}): raise it to {3 * beat:g} or lower that")
    return value


def _backoff_grows(value: float, info: ValidationInfo) -> float:
    if value < (first := info.data.get("backoff_first_seconds", value)):
        raise ValueError(f"must be at least backoff_first_seconds ({first:g}): raise it or lower that")
    return value


SecondsFromZero = Annotated[float, Field(ge=0, allow_inf_nan=False), BeforeValidator(_no_boolean)]
OneLease = Annotated[Seconds, _follows("lease_seconds")]
OneVisibility = Annotated[Seconds, _follows("visibility_seconds")]
BeatAndAHalf = Annotated[Seconds, _follows("beat_seconds", 1.5)]
Beat = Annotated[Seconds, _more_in_a_bucket(2.0, 3.5)]
Lease = Annotated[Seconds, _more_in_a_bucket(10.0, 10.5), AfterValidator(_outlasts_beats)]
Sweep = Annotated[Seconds, _more_in_a_bucket(2.0, 10.0)]
LongestBackoff = Annotated[Seconds, AfterValidator(_backoff_grows)]

# -- paths -------------------------------------------------------------------------------------------------------------


def _absolute(value: Any) -> Any:
    if value == "":
        raise ValueError("write a path")
    if is_url(value):
        raise ValueError("is a URL: write the path of a local directory")
    try:
        return Path(value).expanduser().absolute() if isinstance(value, str | Path) else value
    except RuntimeError as error:  # `~` of a user that does not exist
        raise ValueError(f"{error}: write the path in full") from error


def _in_a_bucket(value: Any) -> Any:
    if not is_url(value):
        return _absolute(value)
    return value if isinstance(value, BucketFolder) else BucketFolder.of(str(value))


def _beside_checkpoints(value: Any, info: ValidationInfo) -> Any:
    checkpoints = info.data.get("checkpoint_dir", Path())
    if value is None:
        value = checkpoints.state_dir if isinstance(checkpoints, BucketFolder) else checkpoints / ".sidecar"
    if isinstance(value, BucketState):
        return BucketState.of(value.url)  # each run sets its own objects
    if is_url(value) and isinstance(checkpoints, BucketFolder):
        return BucketState.of(str(value))
    if is_url(value):
        raise ValueError("is a URL, and checkpoint_dir is a directory: write the path of a directory, or leave it out")
    return _absolute(value)


def _bounded_in_a_bucket(value: Any, info: ValidationInfo) -> Any:
    """Bound what was fetched from a bucket, unless the user did. Links to files of a directory need no bound."""
    is_bucket = isinstance(info.data.get("checkpoint_dir"), BucketFolder)
    return 50 * 10**9 if value is None and is_bucket else value


def _of_this_user(value: Any, info: ValidationInfo) -> Any:
    if value is not None:
        return value
    # Many runs are named ckpts: the place of their state tells them apart.
    state = hashlib.sha256(str(info.data.get("state_dir")).encode()).hexdigest()[:8]
    return Path(tempfile.gettempdir(), f"sidecar-{os.getuid()}", f"{info.data.get('run', 'run')}-{state}")


def _is_no_file(value: Path) -> Path:
    if os.path.isfile(value):  # noqa: PTH113 - false where it may not be looked at
        raise ValueError("is a file: name the directory that training saves its checkpoints in")
    return value


def _holds_no_checkpoints(value: Path, info: ValidationInfo) -> Path:
    checkpoints = info.data.get("checkpoint_dir")
    if isinstance(checkpoints, BucketFolder):
        return value
    if checkpoints and checkpoints.resolve().is_relative_to(value.resolve()):
        # Nothing under a state directory is ever a candidate.
        raise ValueError(f"must not be or contain checkpoint_dir ({checkpoints}): name a folder in or beside it")
    return value


def _is_executable(value: Path) -> Path:
    if not (os.path.isfile(value) and os.access(value, os.X_OK)):  # noqa: PTH113 - likewise
        raise ValueError("no such program: write the path of a Python interpreter, such as /opt/venv/bin/python")
    return value


def _are_places(value: tuple[str, ...]) -> tuple[str, ...]:
    for place in value:
        if "**" in place.split("/"):
            raise ValueError(f"{place!r}: write one * for each folder, such as /shared/*/ckpts")
    return tuple(str(_in_a_bucket(place).url if is_url(place) else _absolute(place)) for place in value)


_AbsolutePath = Annotated[Path, BeforeValidator(_absolute)]
CheckpointDirectory = Annotated[Path, BeforeValidator(_in_a_bucket), AfterValidator(_is_no_file)]
StateDirectory = Annotated[Path, BeforeValidator(_beside_checkpoints), AfterValidator(_holds_no_checkpoints)]
OptionalPath = Annotated[Path | None, BeforeValidator(_absolute)]
LogDirectory = Annotated[_AbsolutePath, BeforeValidator(_of_this_user)]
PinBytes = Annotated[Count | None, BeforeValidator(_bounded_in_a_bucket)]
Program = Annotated[_AbsolutePath, AfterValidator(_is_executable)]

# -- names and addresses -----------------------------------------------------------------------------------------------


def check_name(value: str) -> str:
    """Return the name of a run or node, which becomes a file name; raises `ValueError`."""
    if not _NAME.fullmatch(value):
        raise ValueError(
            f"{value!r} cannot be a file name everywhere: use letters, digits, '.', '_' and '-', at most 128, "
            "not starting with '.' or '-'"
        )
    return value


def check_host(value: str) -> str:
    """Return a host that other nodes can dial, an IPv6 address in brackets; raises `ValueError`."""
    bare = value.removeprefix("[").removesuffix("]")
    if _is_ip(bare, 6) and bare != "::":
        return f"[{bare}]"
    if not _HOST.fullmatch(value) or value == "0.0.0.0":  # noqa: S104 - refused, not bound
        raise ValueError(f"{value!r} cannot be dialled: write a host name or address without port, such as 10.0.0.7")
    return value


def _is_ip(text: str, version: int) -> bool:
    try:
        return ipaddress.ip_address(text).version == version
    except ValueError:
        return False


def _named_after_checkpoints(value: Any, info: ValidationInfo) -> Any:
    checkpoints = info.data.get("checkpoint_dir", Path("run"))
    if value is not None:
        return value
    return checkpoints.url.rpartition("/")[2] if isinstance(checkpoints, BucketFolder) else checkpoints.resolve().name


def _has_no_empty_pattern(value: tuple[str, ...]) -> tuple[str, ...]:
    if not all(value):
        raise ValueError("an empty name matches no node: write names or globs such as 'node-0*'")
    return value


def _are_host_names(value: tuple[str, ...]) -> tuple[str, ...]:
    if odd := [name for name in value if not re.fullmatch(r"[A-Za-z0-9._*?-]+", name, re.ASCII)]:
        raise ValueError(f"{odd[0]!r} is not a host name: write names or globs without port, such as '*.example.com'")
    return value


def _is_port_range(value: str, info: ValidationInfo) -> str:
    match = re.fullmatch(r"(\d{1,5})-(\d{1,5})", value, re.ASCII)
    first, last = map(int, match.groups()) if match else (0, 0)
    if not 1024 <= first <= last <= _MAX_PORT:  # noqa: PLR2004 - the first unprivileged port
        raise ValueError("write FIRST-LAST with 1024 <= FIRST <= LAST <= 65535, such as 21000-21999")
    needed = 2 * info.data.get("replicas", 1)
    if last - first + 1 < needed:
        raise ValueError(f"has {last - first + 1} ports: a worker and its standby per replica need {needed}, widen it")
    return value


def _is_bindable(value: str) -> str:
    host, _, port = value.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    is_host = _is_ip(host[1:-1], 6) if bracketed else bool(_HOST.fullmatch(host))
    if not is_host or not re.fullmatch(r"\d{1,5}", port, re.ASCII) or int(port) > _MAX_PORT:
        raise ValueError("write HOST:PORT, such as 127.0.0.1:19108, 0.0.0.0:19108 or [::1]:19108")
    return value


def _split_at_commas(value: Any) -> Any:
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


_Texts = Annotated[tuple[str, ...], BeforeValidator(_split_at_commas)]
FileName = Annotated[str, AfterValidator(check_name)]
RunName = Annotated[FileName, BeforeValidator(_named_after_checkpoints)]
Host = Annotated[str, AfterValidator(check_host)]
NodeGlobs = Annotated[_Texts, AfterValidator(_has_no_empty_pattern)]
HostGlobs = Annotated[_Texts, AfterValidator(_are_host_names)]
PortRange = Annotated[str, AfterValidator(_is_port_range)]
Address = Annotated[str, AfterValidator(_is_bindable)]

# -- the task and its checkpoints --------------------------------------------------------------------------------------


def _or_that_of_the_table(value: Any, info: ValidationInfo) -> Any:
    return task_of(info.data.get("lm", {}), value)


def _is_reference(value: str | None) -> str | None:
    if value is not None and not all(value.rpartition(":")):
        raise ValueError("write module:attr or path/file.py:attr")
    return value


def _is_framework(value: str) -> str:
    """A framework of ours, the name of an installed backend, or the package of a backend."""
    if not all(part.isidentifier() for part in value.split(".")):
        raise ValueError("write auto, tensorflow, torch or python, or the package of a backend, my_package.backend")
    return value


def _is_in_the_directory(value: str) -> str:
    if not value or "/" in value or "\0" in value or value in (".", ".."):
        raise ValueError("write the name of a file in checkpoint_dir, such as DONE")
    return value


def _are_formats(value: tuple[str, ...]) -> tuple[str, ...]:
    if unknown := [name for name in value if name not in FORMATS]:
        raise ValueError(f"{unknown[0]!r} is not a format: write some of {', '.join(FORMATS)}")
    return value


def _are_paths_below(value: tuple[str, ...]) -> tuple[str, ...]:
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


def _is_name_pattern(value: str, info: ValidationInfo) -> str:
    if not value or "/" in value or value.startswith("."):
        raise ValueError(
            f"{value!r} matches no checkpoint: write a glob of names, such as model-*.joblib; checkpoint_glob says in "
            "which sub-folders they are"
        )
    if "{" in value or value != value.strip():
        raise ValueError(
            f"{value!r}: a glob has *, ? and [...], such as model-*.joblib, but no braces, and no space around it"
        )
    if info.data.get("formats"):
        raise ValueError("replaces formats: leave one of them out")
    return value


def _is_marker(value: str) -> str:
    path = PurePosixPath(value)
    beside = value == path.name or value.startswith("{name}/")
    if not value.replace("{name}", "").strip("/") or not beside or ".." in path.parts or value.count("{name}") > 1:
        raise ValueError(
            "write the name of a file beside the checkpoint, in which {name} may stand for the checkpoint's, "
            "such as {name}.STABLE; or in a checkpoint that is a folder, such as _SUCCESS"
        )
    return value


def _has_one_group(value: str) -> str:
    try:
        groups = re.compile(value).groups
    except re.error as error:
        raise ValueError(rf"not a regular expression ({error}): write one such as -(\d+)$") from error
    if groups != 1:
        raise ValueError(rf"has {groups} groups: put exactly one around the step's digits, such as -(\d+)$")
    return value


def _is_no_boolean_any_more(value: Any) -> Any:
    text = str(value).lower()
    if text in _YES | _NO:
        raise ValueError(f"says whose weights are saved: write {'all, or first' if text in _YES else 'none'}")
    return value


def _names_a_set(value: str) -> str:
    if not all(value.partition("/")):
        raise ValueError("write EVAL_SET/METRIC, such as test/accuracy")
    return value


def _is_endpoint(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query or parts.fragment:
        raise ValueError("write the URL of an object store without a user, such as http://minio:9000")
    return value


def _is_receiver(value: str) -> str:
    parts = urlsplit(value)  # raises a ValueError for brackets that do not match
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ValueError("write the URL of a receiver, such as http://prometheus:9090/api/v1/write")
    return value


def _is_bucket_url(value: str) -> str:
    split_url(value)
    return value.rstrip("/")


BucketUrl = Annotated[str, AfterValidator(_is_bucket_url)]
Endpoint = Annotated[str, AfterValidator(_is_endpoint)]
ReceiverUrl = Annotated[str, AfterValidator(_is_receiver)]
TaskReference = Annotated[str | None, AfterValidator(_is_reference), BeforeValidator(_or_that_of_the_table)]
LanguageModel = Annotated[dict[str, Any], BeforeValidator(check_table)]
FrameworkName = Annotated[str, AfterValidator(_is_framework)]
MarkerName = Annotated[str, AfterValidator(_is_in_the_directory)]
Formats = Annotated[_Texts, AfterValidator(_are_formats)]
RunPlaces = Annotated[_Texts, AfterValidator(_are_places)]
PathGlobs = Annotated[_Texts, AfterValidator(_are_paths_below)]
NamePattern = Annotated[str, AfterValidator(_is_name_pattern)]
CompleteMarker = Annotated[str, AfterValidator(_is_marker)]
StepPattern = Annotated[str, AfterValidator(_has_one_group)]


def _can_be_saved(value: _SaveWeights, info: ValidationInfo) -> _SaveWeights:
    processes = info.data.get("processes_per_worker", 1)
    if processes > 1 and value in ("all", "first"):
        raise ValueError(
            f'no process has all weights with processes_per_worker = {processes}: write "none", as the checkpoint '
            f"has them"
        )
    return value


SaveWeights = Annotated[_SaveWeights, BeforeValidator(_is_no_boolean_any_more), AfterValidator(_can_be_saved)]
MetricName = Annotated[str, AfterValidator(_names_a_set)]


def _not_fewer(value: int, info: ValidationInfo) -> int:
    least = info.data.get("min_workers", 1)
    if value < least:
        raise ValueError(f"is less than min_workers = {least}, so no group could form: write {least} or more")
    return value


MostWorkers = Annotated[Count, AfterValidator(_not_fewer)]


def _needs_a_metric(value: int, info: ValidationInfo) -> int:
    if value > MOST_EXPORTS:
        raise ValueError(f"is more than {MOST_EXPORTS}: write a smaller number")
    if value and info.data.get("best_metric", "") is None:
        raise ValueError("needs best_metric, by which checkpoints are best: write it, such as test/accuracy")
    return value


ExportCount = Annotated[Whole, AfterValidator(_needs_a_metric)]


# -- the status page ---------------------------------------------------------------------------------------------------


def check_page_url(value: str) -> str:
    """Return a URL that a page can link to; raises `ValueError`."""
    parts = urlsplit(value)  # raises a ValueError for brackets that do not match
    if parts.scheme not in ("http", "https") or not parts.hostname or not value.isascii() or not value.isprintable():
        raise ValueError("write the URL of a page, such as https://grafana.example.com/d/sidecar-training-run")
    return value


def _are_links(value: Any) -> dict[str, str]:
    remedy = "write a table [page_links] with NAME = URL"
    links = table_of(value, remedy, 'write an object such as {"Grafana": "https://grafana.example.com/"}')
    for name, url in links.items():
        if not isinstance(name, str) or not name.strip() or not isinstance(url, str):
            raise ValueError(f"{name!r}: {remedy}")
        try:
            check_page_url(url)
        except ValueError as error:
            raise ValueError(f"{name!r}: {error}") from error
    return dict(links)


PageUrl = Annotated[str, AfterValidator(check_page_url)]
PageLinks = Annotated[dict[str, str], BeforeValidator(_are_links)]


# -- worker processes --------------------------------------------------------------------------------------------------


def _is_environment(value: Any) -> Any:
    remedy = 'write names with a string, or null to remove, such as {"OMP_NUM_THREADS": "1", "HTTP_PROXY": null}'
    parsed = table_of(value, remedy)
    if not all(_is_variable(name, item) for name, item in parsed.items()):
        raise ValueError(remedy)
    return {name: None if item is None or item is False else str(item) for name, item in parsed.items()}


def _is_variable(name: Any, value: Any) -> bool:
    """Return whether a process can be given this variable; false removes one, as TOML has no null."""
    return (
        isinstance(name, str)
        and bool(name)
        and not set(name) & {"=", "\0"}
        and (value is None or value is False or (isinstance(value, str | int) and value is not True))
    )


def _are_devices(value: Any, info: ValidationInfo) -> Any:
    listed = [part.strip() for part in value.split(",")] if isinstance(value, str) else value
    if listed in (["cpu"], ["gpu"]):
        return listed[0]
    if not isinstance(listed, list | tuple) or not listed or not all(_is_device(item) for item in listed):
        raise ValueError("write cpu, gpu, or the GPUs to use, such as 0,1 or GPU-8a1c…")
    devices = tuple(int(item) if str(item).isdecimal() else item for item in listed)
    replicas, processes = info.data.get("replicas", 1), info.data.get("processes_per_worker", 1)
    if len(set(devices)) < max(len(devices), replicas * processes):
        of_each = f" x processes_per_worker ({processes})" if processes > 1 else ""
        raise ValueError(
            f"a GPU takes one process: list at least as many different ones as replicas ({replicas}){of_each}"
        )
    return devices


def _is_device(item: Any) -> bool:
    """Return whether that is a GPU's number, or its UUID as nvidia-smi -L prints it."""
    if isinstance(item, str):
        return bool(re.fullmatch(r"\d+|(GPU|MIG)-[0-9A-Za-z/-]+", item, re.ASCII))
    return isinstance(item, int) and not isinstance(item, bool) and item >= 0


def _are_resources(value: Any) -> dict[str, float]:
    remedy = 'write names with amounts, such as {"CPU": 2, "memory": 4e9}'
    parsed = table_of(value, remedy)
    if any(
        not isinstance(amount, int | float) or isinstance(amount, bool) or amount <= 0 for amount in parsed.values()
    ):
        raise ValueError(remedy)
    if "GPU" in parsed:
        raise ValueError('has GPU: write devices = "gpu" instead, which adds one for each worker process')
    return {str(name): float(amount) for name, amount in parsed.items()}


def _are_labels(value: Any) -> dict[str, str]:
    remedy = 'write names with texts, such as {"role": "eval"}'
    parsed = table_of(value, remedy)
    if not all(isinstance(text, str) and text for text in parsed.values()):
        raise ValueError(remedy)
    return dict(parsed)


def _with_language_model(value: dict[str, str | None], info: ValidationInfo) -> dict[str, str | None]:
    """Add what workers must know of the table `[lm]`: the table, and where a model's configuration may be."""
    state, run = info.data.get("state_dir"), str(info.data.get("run"))
    pins = [str(state / run / "pins")] if isinstance(state, Path) else []
    return value | variables_of(info.data.get("lm", {}), [str(info.data.get("checkpoint_dir")), *pins])


Environment = Annotated[dict[str, str | None], BeforeValidator(_is_environment), AfterValidator(_with_language_model)]
Resources = Annotated[dict[str, float], BeforeValidator(_are_resources)]
Labels = Annotated[dict[str, str], BeforeValidator(_are_labels)]
Devices = Annotated[Literal["cpu", "gpu"] | tuple[int | str, ...], BeforeValidator(_are_devices)]
