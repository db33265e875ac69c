"""Offer parts that run in a training job with Keras 3. Keras is imported when one of them is first used."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sidecar.keras.early_stop import EarlyStop

__all__ = ["EarlyStop"]

_MODULES = {"EarlyStop": "early_stop"}


def __getattr__(name: str) -> Any:
    """Import the module of a part when it is first used."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415 - as late as Keras

    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
