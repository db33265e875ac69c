"""Keep the libraries of Hugging Face from fetching anything, and from reporting what they do.

`harness` loads its data within `offline()`. A user who wants to fetch sets `HF_HUB_OFFLINE=0` in the environment.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_VARIABLES: Final = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "HF_EVALUATE_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_UPDATE_DOWNLOAD_COUNTS": "0",
}
_SWITCHES: Final = (
    ("huggingface_hub.constants", "HF_HUB_OFFLINE"),
    ("datasets.config", "HF_HUB_OFFLINE"),
    ("datasets.config", "HF_DATASETS_OFFLINE"),
    ("evaluate.config", "HF_EVALUATE_OFFLINE"),
)
"""Modules and their attributes that keep these variables as they were when the library was imported."""

_SIGNS: Final = ("OfflineModeIsEnabled", "offline mode", "outgoing traffic has been disabled", "Couldn't reach")


def fetches() -> bool:
    """Return whether the user allows to fetch data."""
    return os.environ.get("HF_HUB_OFFLINE", "").lower() in ("0", "false", "no", "off")


@contextmanager
def offline() -> Iterator[None]:
    """Let no library of Hugging Face fetch anything within the block, unless the user allows it."""
    if fetches():
        yield
        return
    before = {name: os.environ.get(name) for name in _VARIABLES}
    os.environ.update(_VARIABLES)
    switched = [(sys.modules[module], name) for module, name in _SWITCHES if module in sys.modules]
    switched = [(module, name) for module, name in switched if hasattr(module, name)]
    values = [getattr(module, name) for module, name in switched]
    try:
        for module, name in switched:
            setattr(module, name, True)
        yield
    finally:
        for (module, name), value in zip(switched, values, strict=True):
            setattr(module, name, value)
        for name, text in before.items():
            if text is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = text


def would_fetch(error: BaseException | None) -> bool:
    """Return whether an error, or what caused it, says that something had to be fetched."""
    while error is not None:
        if type(error).__name__ == "OfflineModeIsEnabled" or any(sign in str(error) for sign in _SIGNS):
            return True
        error = error.__cause__ or error.__context__
    return False
