"""Select the settings that only the backend of one framework reads. All other parts pass them on unread."""

from typing import Final

from sidecar.protocol.messages import BackendOptions
from sidecar.settings import Settings

_NAMES: Final[dict[str, tuple[str, ...]]] = {
    "tensorflow": ("collectives", "always_cluster", "trust_saved_graph", "gpu_memory_mb"),
    "torch": ("gpu_memory_mb",),
    "python": (),
}


def workers_listen(settings: Settings) -> bool:
    """Return whether worker processes listen on ports, or may do so. With plain Python they meet in shared storage."""
    return settings.framework != "python"


def backend_options(settings: Settings) -> BackendOptions:
    """Return the settings of the framework's backend for messages to workers."""
    return {name: getattr(settings, name) for name in _NAMES.get(settings.framework, ())}
