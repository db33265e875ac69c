"""Name the task that the table `[lm]` of the settings describes, for settings and for the worker that makes it."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

MODULE: Final = "sidecar.lm.table"
"""The module of the task, which only workers import."""

VARIABLE: Final = "_SIDECAR_LM"
"""Environment variable of workers: JSON with the table and the folders that have checkpoints. It is not a setting."""

_DIGITS: Final = 12


def attribute_of(table: Mapping[str, Any]) -> str:
    """Return the name of the task in its module. Another table has another one, so that ranks compare it."""
    return f"task_{hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()[:_DIGITS]}"
