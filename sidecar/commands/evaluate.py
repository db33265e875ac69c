"""Evaluate one checkpoint with the worker processes of this node, for `sidecar eval` and `sidecar.evaluate`."""

import os
import queue
import secrets
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

from sidecar.checkpoints.discovery_order import numbered
from sidecar.checkpoints.discovery_rules import DiscoveryRules
from sidecar.checkpoints.formats import pretrained_folder
from sidecar.checkpoints.inspect import check, inspect_one
from sidecar.checkpoints.several_models import remedy_for_several_models
from sidecar.checkpoints.subfolder_hint import names_in
from sidecar.commands.eval_progress import shown_progress
from sidecar.commands.framework import with_framework
from sidecar.commands.from_settings import make_catalog, record_of
from sidecar.commands.load import warn as print_warning
from sidecar.commands.named_checkpoint import find_checkpoint
from sidecar.commands.one_shot import Inbox, OneShot, evaluate_once, result_of
from sidecar.commands.own_folder import in_own_folder
from sidecar.commands.task_file import check_before_import
from sidecar.commands.worker_pool import make_task_spec, make_workers
from sidecar.errors import CheckpointError, EvaluationFailedError, SettingsError, StorageError, TaskError, VanishedError
from sidecar.policy.node_identity import node_name
from sidecar.policy.roles import decide_role
from sidecar.protocol.records import Checkpoint, Result
from sidecar.protocol.states import FailureKind
from sidecar.settings import Settings
from sidecar.settings.language_model import variables_of

_HIDES_HINTS: Final = ("NOTIFY_SOCKET", "KUBERNETES_SERVICE_HOST")  # why a daemon without a hint refuses to start


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


def evaluate_record(flags: Mapping[str, Any], checkpoint: Path, save_dir: Path | None) -> dict[str, Any]:
    """Evaluate one checkpoint for `sidecar.evaluate`. `flags`: settings by name."""
    given = {"config": None, "checkpoint_dir": None, **flags}
    settings, path = find_checkpoint(given, [checkpoint], print_warning)
    return evaluate(settings, os.environ, path, save_dir=save_dir, warn=print_warning).record()


def _with_model_of(path: Path, settings: Settings) -> Settings:
    """Return settings whose table `[lm]` takes the model of this checkpoint, and not of a newer one next to it."""
    if not any((path / name).is_file() for name in pretrained_folder.DESCRIPTIONS):
        return settings
    return settings.model_copy(update={"worker_env": settings.worker_env | variables_of(settings.lm, [str(path)])})


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
