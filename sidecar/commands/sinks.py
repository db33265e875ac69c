"""Start and end the deliveries to the sinks that the settings ask for."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from sidecar.coordination.storage import PosixStorage
from sidecar.observability.status import SinkStatus
from sidecar.settings import Settings
from sidecar.sinks.delivery import Delivery
from sidecar.sinks.sink import EventSink, Sink


def start_deliveries(settings: Settings, log: Any) -> list[Delivery]:
    """Return a delivery to each sink of the settings. What a sink needs is imported only if there is one.

    Raises:
        SettingsError: A hook cannot be called as the settings say.
    """
    storage = PosixStorage(settings.run_dir)
    sinks: list[Sink | EventSink] = [*_sinks(settings), *_acts(settings, log)]
    deliveries = [Delivery(sink, storage, settings.run, log) for sink in sinks]
    for delivery in deliveries:
        delivery.start()
    return deliveries


def _sinks(settings: Settings) -> Iterator[Sink]:
    """Yield the sinks that only take results."""
    if settings.remote_write is not None:
        from sidecar.sinks.remote_write import RemoteWrite  # noqa: PLC0415 - urllib and TLS take 3 MB

        yield RemoteWrite(settings.remote_write, settings.sink_timeout_seconds)
    if settings.tensorboard_dir is not None:
        from sidecar.sinks.tensorboard import TensorBoard  # noqa: PLC0415 - likewise

        yield TensorBoard(settings.tensorboard_dir, settings.run, settings.tensorboard_tags)


def _acts(settings: Settings, log: Any) -> Iterator[EventSink]:
    """Yield the sinks that act on what happened."""
    if settings.hooks:
        from sidecar.commands.hooks import make_hooks  # noqa: PLC0415 - likewise

        yield from make_hooks(settings)
    if settings.early_stop_patience is not None:
        from sidecar.sinks.early_stop import EarlyStop  # noqa: PLC0415 - only if it is asked for

        yield EarlyStop(
            storage=PosixStorage(settings.run_dir),
            log=log,
            patience=settings.early_stop_patience,
            metric=settings.early_stop_metric or settings.best_metric,
            min_delta=settings.early_stop_min_delta,
        )


def statuses(deliveries: Iterable[Delivery]) -> list[SinkStatus]:
    """Return the status of each delivery, if this node delivers."""
    return [
        replace(status, stop_signalled=getattr(delivery.sink, "signalled", None))
        for delivery in deliveries
        if (status := delivery.status) is not None
    ]


def all_delivered(deliveries: Iterable[Delivery]) -> bool:
    """Return whether nothing is left to deliver on this node. Never waits."""
    return all(delivery.has_delivered for delivery in deliveries)
