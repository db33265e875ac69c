"""Evaluate in one process as `tf.keras.utils.SidecarEvaluator` did before Keras 3, and stop training early. Public API.

Importing this module imports no framework; its names do, when they are first used. They run in the user's process. The
daemon and the commands must not import this package.
"""

import importlib
from typing import TYPE_CHECKING, Any, Final

from sidecar.system.name_clash import require_own_package
from sidecar.system.required_packages import requiring

if TYPE_CHECKING:
    from sidecar.keras.early_stop import EarlyStop
    from sidecar.keras.model_export import SidecarEvaluatorModelExport
    from sidecar.keras.sidecar_evaluator import SidecarEvaluator

require_own_package()

__all__ = ["EarlyStop", "SidecarEvaluator", "SidecarEvaluatorModelExport"]

_MODULES: Final = {
    "EarlyStop": "sidecar.keras.early_stop",
    "SidecarEvaluator": "sidecar.keras.sidecar_evaluator",
    "SidecarEvaluatorModelExport": "sidecar.keras.model_export",
}


def __getattr__(name: str) -> Any:
    """Import the module of a name when it is first used."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with requiring("keras", "numpy", "tensorflow", by="sidecar.keras"):
        return getattr(importlib.import_module(_MODULES[name]), name)
