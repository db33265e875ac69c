"""Open the storage of a run's state by its settings. Every command and the daemon get it from here."""

from collections.abc import Callable

from sidecar.coordination.storage import PosixStorage, Storage
from sidecar.settings import Settings


def state_storage(settings: Settings, on_answer: Callable[[], None] = lambda: None) -> Storage:
    """Return the storage of the run's state. Nothing is asked yet. `on_answer`: called after each answer."""
    return PosixStorage(settings.run_dir, on_answer)
