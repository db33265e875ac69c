"""Start and end the deliveries to the sinks that the settings ask for."""

import time
from collections.abc import Iterable
from typing import Any

from sidecar.coordination.storage import PosixStorage
from sidecar.observability.status import SinkStatus
from sidecar.settings import Settings
from sidecar.sinks.delivery import Delivery
from sidecar.sinks.sink import Sink


def start_deliveries(settings: Settings, log: Any) -> list[Delivery]:
    """Return a delivery to each sink of the settings. What a sink needs is imported only if there is one."""
    sinks: list[Sink] = []
    if settings.remote_write is not None:
        from sidecar.sinks.remote_write import RemoteWrite  # noqa: PLC0415 - urllib and TLS take 3 MB

        sinks.append(RemoteWrite(settings.remote_write, settings.sink_timeout_seconds))
    if settings.tensorboard_dir is not None:
        from sidecar.sinks.tensorboard import TensorBoard  # noqa: PLC0415 - likewise

        sinks.append(TensorBoard(settings.tensorboard_dir, settings.run, settings.tensorboard_tags))
    deliveries = [Delivery(sink, PosixStorage(settings.run_dir), settings.run, log) for sink in sinks]
    for delivery in deliveries:
        delivery.start()
    return deliveries


def statuses(deliveries: Iterable[Delivery]) -> list[SinkStatus]:
    """Return the status of each delivery, if this node delivers."""
    return [status for delivery in deliveries if (status := delivery.status) is not None]


def close(deliveries: Iterable[Delivery], seconds: float) -> None:
    """Deliver what is known, for at most `seconds` in all, and end the deliveries."""
    end = time.monotonic() + seconds
    for delivery in deliveries:
        delivery.close(max(0.0, end - time.monotonic()))
