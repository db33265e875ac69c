"""Select the settings that only the backend of one framework reads. All other parts pass them on unread."""

from typing import Final

from sidecar.settings import Settings
from sidecar.workers.messages import BackendOptions

_NAMES: Final[dict[str, tuple[str, ...]]] = {
    "tensorflow": ("collectives", "always_cluster", "trust_saved_graph", "gpu_memory_mb"),
    "torch": ("gpu_memory_mb",),
    "python": (),
}

_LISTENING: Final = frozenset({"tensorflow", "torch"})


def workers_listen(settings: Settings) -> bool:
    """Return whether worker processes of the framework listen on ports. Those of others meet in the state directory."""
    return settings.framework in _LISTENING


def backend_options(settings: Settings) -> BackendOptions:
    """Return the settings of the framework's backend for messages to workers."""
    return {name: getattr(settings, name) for name in _NAMES.get(settings.framework, ())}
