"""Find the checkpoint that `sidecar eval` or `sidecar.evaluate` must evaluate, and evaluate it."""

import glob
import os
import queue
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any, Final

from sidecar.checkpoints.discovery_order import numbered
from sidecar.checkpoints.discovery_rules import DiscoveryRules
from sidecar.checkpoints.formats import dcp, orbax, pretrained_folder, saved_model
from sidecar.checkpoints.inspect import check, inspect_one
from sidecar.checkpoints.several_models import remedy_for_several_models
from sidecar.checkpoints.subfolder_hint import names_in, similar_folder
from sidecar.commands.eval_progress import shown_progress
from sidecar.commands.framework import with_framework
from sidecar.commands.from_settings import make_catalog, record_of
from sidecar.commands.load import load_settings
from sidecar.commands.load import warn as print_warning
from sidecar.commands.one_shot import Inbox, OneShot, evaluate_once, result_of
from sidecar.commands.own_folder import in_own_folder
from sidecar.commands.task_file import check_before_import
from sidecar.commands.worker_pool import make_task_spec, make_workers
from sidecar.errors import CheckpointError, EvaluationFailedError, SettingsError, StorageError, TaskError, VanishedError
from sidecar.policy.node_identity import node_name
from sidecar.policy.roles import decide_role
from sidecar.protocol.records import Checkpoint, Result
from sidecar.protocol.states import FailureKind
from sidecar.protocol.weight_names import DCP_METADATA, main_weights
from sidecar.settings import Settings, load
from sidecar.settings.language_model import variables_of
from sidecar.system.bucket_folder import BucketFolder, place_of
from sidecar.system.bucket_url import is_url

_HIDES_HINTS: Final = ("NOTIFY_SOCKET", "KUBERNETES_SERVICE_HOST")  # why a daemon without a hint refuses to start
_MARKERS: Final = (saved_model.MARKER, orbax.MARKER, DCP_METADATA, dcp.UNCOORDINATED)


def find_checkpoint(
    flags: dict[str, Any], words: Sequence[Path], report: Callable[[str], None]
) -> tuple[Settings, Path]:
    """Return the settings, and the path of the checkpoint: the one that is named, or the newest one of a directory.

    `flags`: the options that name settings. `words`: a directory or its URL, and the name of a checkpoint in it, or the
    path of a checkpoint; `checkpoint_dir` is taken from them if there is no option. Raises `SettingsError` if settings
    are wrong, or a directory has no such checkpoint that is complete.
    """
    if words and is_url(words[0]):
        settings = load_settings(flags | {"checkpoint_dir": flags["checkpoint_dir"] or words[0]})
        settings.require_task()
        return settings, newest_in(settings, report, *map(str, words[1:]))
    path = Path(*words).absolute() if words else None
    folder = None if path is None else path if _is_directory_of_checkpoints(path, None) else path.parent
    settings = load_settings(flags | {"checkpoint_dir": flags["checkpoint_dir"] or folder})
    pattern = settings.checkpoint_pattern
    if path is not None and folder == path and not _is_directory_of_checkpoints(path, pattern):
        folder = path.parent
        settings = load(flags | {"checkpoint_dir": flags["checkpoint_dir"] or folder})
    settings.require_task()
    if path is None or folder == path:
        path = newest_in(settings if folder is None else settings.model_copy(update={"checkpoint_dir": folder}), report)
    is_index = path.suffix == ".index" and not (pattern is not None and fnmatchcase(path.name, pattern))
    return settings, path.with_suffix("") if is_index else path


def _is_directory_of_checkpoints(path: Path, pattern: str | None) -> bool:
    """Return whether a path is a directory of checkpoints, and not a checkpoint that is itself a directory.

    A folder of Hugging Face's libraries is a checkpoint, unless it has a state directory: then a daemon watches it.
    With `checkpoint_pattern` a folder whose own name matches is a checkpoint, unless it holds entries that match, too.
    """
    if not path.is_dir() or any((path / marker).exists() for marker in _MARKERS) or _is_pretrained(path):
        return False
    if pattern is None or not fnmatchcase(path.name, pattern):
        return True
    return any(fnmatchcase(entry.name, pattern) for entry in path.iterdir())


def _is_pretrained(path: Path) -> bool:
    """Return whether a directory holds the weights of one model with their description, as `save_pretrained` writes."""
    names = {entry.name for entry in path.iterdir()}
    is_described = not names.isdisjoint(pretrained_folder.DESCRIPTIONS)
    return is_described and main_weights(names) is not None and ".sidecar" not in names


def newest_in(settings: Settings, report: Callable[[str], None], name: str | None = None) -> Path:
    """Return the newest complete checkpoint of the checkpoint directory, or that of a name.

    It is the last one in the order in which a daemon would evaluate them: see `checkpoints.discovery_order`. Raises
    `SettingsError` if there is none.
    """
    place = settings.checkpoint_dir
    if not isinstance(place, BucketFolder) and not place.is_dir():
        remedy = similar_folder(place) or "name the one that training saves its checkpoints in"
        raise SettingsError(f"there is no directory {place}: {remedy}")
    scan = make_catalog(settings, once=True).scan()
    present = [found for found in scan.found if any(place.glob(glob.escape(found.checkpoint.name) + "*"))]
    if not present:
        waiting = "".join(f"; {name} is not complete: {reason}" for name, reason in scan.waiting[:3])
        below = "" if scan.below is None else f"; {scan.below}"
        raise SettingsError(f"there is no complete checkpoint in {place_of(place)}{waiting}{below}")
    if name is not None:
        names = [found.checkpoint.name for found in present]
        if name not in names:
            raise SettingsError(
                f"there is no complete checkpoint {name} in {place_of(place)}; the newest are {', '.join(names[-3:])}"
            )
        return place / name
    newest = present[-1].checkpoint.name
    report(f"{newest} is evaluated, the newest of {len(present)} in {place_of(place)}")
    return place / newest


def _with_step_of_run(settings: Settings, checkpoint: Checkpoint) -> Checkpoint:
    """Return a checkpoint with the step that a daemon finds for it: by a comparison of all names, or in their order.

    A step in its files is the step, whatever other checkpoints there are.
    """
    if checkpoint.step_source not in ("name", "order"):
        return checkpoint
    try:
        scan = make_catalog(settings, once=True).scan()
    except StorageError:
        return checkpoint
    if (known := scan.by_key.get(checkpoint.key)) is None:  # it lies elsewhere
        return checkpoint
    if known.checkpoint.step is not None:
        return replace(checkpoint, step=known.checkpoint.step, step_source=known.checkpoint.step_source)
    number = numbered(each.checkpoint for each in scan.found)[checkpoint.key]
    return replace(checkpoint, step=number, step_source="order")


@dataclass(frozen=True, slots=True)
class Evaluated:
    """Hold the result of one evaluation without a journal, and the directory in which each worker has a folder."""

    checkpoint: Checkpoint
    result: Result
    saves: Path

    def record(self) -> dict[str, Any]:
        """Return everything as plain values: what `sidecar eval --json` prints."""
        return {
            "checkpoint": self.checkpoint.name,
            "digest": self.checkpoint.digest,
            "step": self.checkpoint.step,
            "step_source": self.checkpoint.step_source,
            **asdict(self.result),
            "saves": [str(path) for path in sorted(self.saves.glob("worker-*"))],
        }


def evaluate(
    settings: Settings,
    environ: Mapping[str, str],
    path: Path,
    *,
    save_dir: Path | None,
    warn: Callable[[str], None],
) -> Evaluated:
    """Evaluate the checkpoint at a path with this node's workers, and return the result.

    Raises `SettingsError` if there is no such checkpoint or this node must not evaluate, and `EvaluationFailedError` or
    `TaskError` with the logs of the worker processes.
    """
    node = node_name(settings, environ)
    # `sidecar eval` runs in the user's shell, which shows the job's environment: no hint of a role is fine here.
    hints = {name: value for name, value in environ.items() if name not in _HIDES_HINTS}
    decision = decide_role(settings, node, hints)
    if decision.role == "chief":
        raise SettingsError(f"node {node!r} is the chief ({decision.source}), which never evaluates: {decision.remedy}")
    check_before_import(settings)
    settings = _with_model_of(path, with_framework(settings, Path.cwd()))
    rules = record_of(DiscoveryRules, settings)
    inspect = partial(inspect_one, path, root=settings.checkpoint_dir, rules=rules)
    try:
        found = inspect()
    except VanishedError as error:
        raise SettingsError(str(error)) from error
    if settings.verify == "full":
        check(path, found.format)
    inbox: Inbox = queue.SimpleQueue()
    incarnation = secrets.token_hex(4)
    moment = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
    save_to = save_dir or settings.run_dir / "evaluations" / found.folder / f"eval-{moment}-{incarnation}"
    shown = _with_step_of_run(settings, found)
    save_root = (save_dir or settings.run_dir).absolute()
    workers = make_workers(settings, environ, f"{node}.{incarnation}", lambda *report: inbox.put(report), warn=warn)
    try:
        with shown_progress(settings.framework) as show, in_own_folder(path, found, save_root) as folder_of_its_own:
            once = OneShot(
                task=make_task_spec(settings),
                checkpoint=shown,
                path=str(folder_of_its_own),
                save_to=save_to.absolute(),
                plan_cap_seconds=settings.plan_cap_seconds,
                save_weights=settings.save_weights,
                save_root=save_root,
            )
            done = evaluate_once(once, workers, inbox, show=show)
    except (EvaluationFailedError, TaskError) as error:
        separator = "\n" if "\n" in str(error) else "; "
        logs = workers.engine.log_of(f"{workers.name}.*")
        remedy = _remedy_for_folder(path) if _is_of_restore(error) else ""
        raise type(error)(f"{error}{remedy}{separator}logs of the worker processes: {logs}") from error
    _require_unchanged(path, found, inspect)
    return Evaluated(shown, result_of(done), save_to.absolute())


def _with_model_of(path: Path, settings: Settings) -> Settings:
    """Return settings whose table `[lm]` takes the model of this checkpoint, and not of a newer one next to it."""
    if not any((path / name).is_file() for name in pretrained_folder.DESCRIPTIONS):
        return settings
    return settings.model_copy(update={"worker_env": settings.worker_env | variables_of(settings.lm, [str(path)])})


def evaluate_record(flags: Mapping[str, Any], checkpoint: Path, save_dir: Path | None) -> dict[str, Any]:
    """Evaluate one checkpoint for `sidecar.evaluate`. `flags`: settings by name."""
    given = {"config": None, "checkpoint_dir": None, **flags}
    settings, path = find_checkpoint(given, [checkpoint], print_warning)
    return evaluate(settings, os.environ, path, save_dir=save_dir, warn=print_warning).record()


def _is_of_restore(error: Exception) -> bool:
    """Return whether the checkpoint did not match the model, and not one worker another one."""
    return str(error).startswith(f"{FailureKind.MISMATCH}") and ": ranks " not in str(error)


def _remedy_for_folder(path: Path) -> str:
    """Return what to set if the folder of a checkpoint holds those of several models, after a full stop."""
    try:
        remedy = remedy_for_several_models(path.name, names_in(path.parent))
    except OSError:
        return ""
    return f". {remedy}" if remedy else ""


def _require_unchanged(path: Path, found: Checkpoint, inspect: Callable[[], Checkpoint]) -> None:
    """Raise `EvaluationFailedError` if the checkpoint was replaced meanwhile: it is not pinned, as a daemon's is."""
    try:
        digest = inspect().digest
    except VanishedError:
        return  # the workers had read it by then
    except CheckpointError:
        digest = ""  # it is being written again
    if digest != found.digest:
        raise EvaluationFailedError(
            f"mismatch: {path} was replaced while it was evaluated, so it is not known which of the two was measured: "
            f"evaluate it again, or a copy of it"
        )
