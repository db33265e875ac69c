"""What each worker saves, in a folder of its own: the restored weights, and its own states before the all-reduce.

Framework-free. When `save` returns, everything is on disk: files and folders are synced, `states.json` last, so that
its presence says that the rest is complete.
"""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

from sidecar.worker.backend import States

STATES: Final = "states.json"


def save(folder: Path, states: States, variables: str, save_weights: Callable[[Path], None] | None) -> None:
    """Write a worker's folder durably. A folder left by an interrupted attempt under the same name is replaced."""
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    if save_weights is not None:
        save_weights(folder)
    content = {
        "schema": 1,
        "variables": variables,
        "states": {
            eval_set: {name: state.to_json() for name, state in by_name.items()} for eval_set, by_name in states.items()
        },
    }
    for path in folder.iterdir():
        _sync(path)
    with (folder / STATES).open("x") as file:
        json.dump(content, file, allow_nan=False)
        file.flush()
        os.fsync(file.fileno())
    for path in (folder, *list(folder.parents)[:3]):  # worker, plan, checkpoint, evaluations: all may be new
        _sync(path)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
