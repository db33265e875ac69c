"""Make the sinks that the settings ask for, and start and end the deliveries to them.

`serve` calls `start_deliveries` and `start_uploads` before the loop begins, and asks `all_delivered` at the end of a
run. A `Delivery` is the thread of one sink. `cli` runs all of that within `leave`. `sidecar check` calls `make_sinks`
alone.
"""

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, NoReturn, Protocol

import typer

from sidecar.commands.load import warn
from sidecar.commands.state_storage import state_storage
from sidecar.errors import SettingsError, SidecarError
from sidecar.publishing.sinks.delivery import Delivery
from sidecar.publishing.sinks.sink import EventSink, Sink
from sidecar.publishing.status import SinkStatus
from sidecar.settings import Settings
from sidecar.settings.sink_values import check_tracking_uri
from sidecar.system.event_log import EventLog
from sidecar.system.plain_text import shortened_without_password

if TYPE_CHECKING:
    from sidecar.publishing.sinks.mlflow import MLflow
    from sidecar.publishing.state_backup.sender import StateBackup


class Closing(Protocol):
    """Work in a thread that ends."""

    def close(self, seconds: float) -> None:
        """Finish, for at most `seconds`."""


def make_sinks(
    settings: Settings,
    environ: Mapping[str, str] = os.environ,
    *,
    read: Callable[[str], bytes | None] = lambda _: None,
) -> list[Sink]:
    """Return the sinks of the settings. The module of a sink is imported only if the settings name the sink.

    `read` returns a file of the state directory, for a sink that shows what workers saved.

    Raises `SettingsError` if one cannot be made, because a daemon without it would lose results silently.
    """
    sinks: list[Sink] = []
    if settings.remote_write is not None:
        from sidecar.publishing.sinks.remote_write import RemoteWrite  # noqa: PLC0415 - urllib and TLS take 3 MB

        credentials = settings.remote_write_authorization_file
        sinks.append(RemoteWrite(settings.remote_write, settings.sink_timeout_seconds, credentials))
    if settings.tensorboard_dir is not None:
        from sidecar.publishing.sinks.tensorboard import TensorBoard  # noqa: PLC0415 - likewise

        parameters = settings.tensorboard_parameters
        tags, directory = settings.tensorboard_tags, settings.tensorboard_dir
        sinks.append(TensorBoard(directory, settings.run, tags, parameters=parameters, read=read))
    if _logs_to_mlflow(settings):
        sinks.append(_mlflow(settings, environ))
    if settings.wandb_project is not None:
        sinks.append(_wandb(settings, settings.wandb_project, environ))
    if settings.sinks:
        from sidecar.publishing.sinks.installed import load  # noqa: PLC0415 - likewise

        for name, options in settings.sinks.items():
            sinks.append(load(name, options, settings.run, settings.sink_timeout_seconds))
    return sinks


def start_deliveries(settings: Settings, log: EventLog, node: str) -> "list[Delivery | StateBackup]":
    """Return a delivery to each sink of the settings, and to the backup. Raises `SettingsError` if one cannot be made.

    Raises `StateUnavailableError` if there is a backup, and no state.
    """
    storage = state_storage(settings)
    sinks: list[Sink | EventSink] = [*make_sinks(settings, read=storage.read), *_acting_sinks(settings, log)]
    deliveries: list[Delivery | StateBackup] = [
        Delivery(sink, storage, settings.run, log, run_dir=settings.run_dir) for sink in sinks
    ]
    if settings.state_backup is not None:
        from sidecar.commands.restore_state import backup_of, require_state  # noqa: PLC0415 - likewise
        from sidecar.publishing.state_backup import sender  # noqa: PLC0415 - likewise

        store = backup_of(settings)
        require_state(settings, store)
        deliveries.append(sender.StateBackup(store, settings.run_dir, settings.state_backup, node, log))
    for delivery in deliveries:
        delivery.start()
    return deliveries


def start_uploads(settings: Settings, deliveries: "Sequence[Delivery | StateBackup]", log: EventLog) -> list[Closing]:
    """Start the upload of the best checkpoints, if the settings ask for it, and return it."""
    if not settings.mlflow_log_best or not _logs_to_mlflow(settings):
        return []
    from sidecar.publishing.sinks.mlflow_best import BestUpload  # noqa: PLC0415 - likewise

    def delivers() -> bool:
        return any(delivery.status is not None for delivery in deliveries)

    upload = BestUpload(_mlflow(settings, os.environ), settings.run_dir, delivers, log)
    upload.start()
    return [upload]


def _acting_sinks(settings: Settings, log: EventLog) -> Iterator[EventSink]:
    """Yield the sinks that act on results instead of showing them: hooks and the early stop."""
    if settings.hooks:
        from sidecar.commands.hooks import make_hooks  # noqa: PLC0415 - likewise

        yield from make_hooks(settings)
    if settings.early_stop_patience is not None:
        from sidecar.publishing.sinks.early_stop import EarlyStop  # noqa: PLC0415 - only if it is asked for

        yield EarlyStop(
            storage=state_storage(settings),
            log=log,
            patience=settings.early_stop_patience,
            metric=settings.early_stop_metric or settings.best_metric,
            min_delta=settings.early_stop_min_delta,
        )


def statuses(deliveries: "Iterable[Delivery | StateBackup]") -> list[SinkStatus]:
    """Return the status of each delivery, if this node delivers."""
    return [
        replace(status, stop_signalled=getattr(delivery.sink, "signalled", None))
        for delivery in deliveries
        if (status := delivery.status) is not None
    ]


def all_delivered(deliveries: "Iterable[Delivery | StateBackup]") -> bool:
    """Return whether nothing is left to deliver on this node. Never waits."""
    return all(delivery.has_delivered for delivery in deliveries)


def leave(settings: Settings, serve: Callable[[], int]) -> NoReturn:
    """Run a daemon, and end this process with its exit code.

    Python waits at its end for all threads, and those of a sink of another author may never end. So with such a sink
    the process ends without that wait.
    """
    if not settings.sinks:
        raise typer.Exit(serve())
    try:
        code = serve()
    except SidecarError as error:
        warn(str(error))
        code = error.exit_code
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _logs_to_mlflow(settings: Settings) -> bool:
    return settings.mlflow or settings.mlflow_tracking_uri is not None


def _mlflow(settings: Settings, environ: Mapping[str, str]) -> "MLflow":
    uri = settings.mlflow_tracking_uri or environ.get("MLFLOW_TRACKING_URI")
    if not uri:
        raise SettingsError(
            "mlflow is true, but no server is named: set mlflow_tracking_uri, or the variable MLFLOW_TRACKING_URI"
        )
    try:
        check_tracking_uri(uri)
    except ValueError as error:
        shown = shortened_without_password(uri)
        raise SettingsError(f"environment MLFLOW_TRACKING_URI: {shown}: {error}") from error
    if find_spec("mlflow") is None:
        raise SettingsError(
            "MLflow is asked for, but its library is not installed in the daemon's environment: "
            "pip install '.[mlflow]' in the clone, or pip install mlflow-skinny"
        )
    from sidecar.publishing.sinks.mlflow import MLflow  # noqa: PLC0415 - likewise

    return MLflow(
        uri,
        state_storage(settings),
        settings.run_dir,
        settings.sink_timeout_seconds,
        environ=environ,
        token_file=settings.mlflow_token_file,
    )


def _wandb(settings: Settings, project: str, environ: Mapping[str, str]) -> Sink:
    if find_spec("wandb") is None:
        raise SettingsError(
            "wandb_project is set, but W&B's library is not installed in the daemon's environment: "
            "pip install '.[wandb]' in the clone, or pip install wandb"
        )
    from sidecar.publishing.sinks.wandb import Wandb  # noqa: PLC0415 - likewise

    return Wandb(
        project,
        state_storage(settings),
        settings.sink_timeout_seconds,
        environ=environ,
        key_file=settings.wandb_key_file,
    )
