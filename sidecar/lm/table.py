"""Make the task that the table `[lm]` of the settings describes. Worker processes import it by the task's name.

The table comes in an environment variable; the name of the task has its digest, which all ranks compare.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sidecar.evaluation.failures import task_error
from sidecar.evaluation.task import Task
from sidecar.lm.harness import harness
from sidecar.lm.models import ADAPTER_CONFIG, CONFIG, base_of, model
from sidecar.lm.perplexity import perplexity
from sidecar.protocol.language_model import VARIABLE, attribute_of

_OF_TABLE = ("model", "tokenizer", "tasks", "perplexity")
_TOKENIZER = "tokenizer_config.json"


def __getattr__(name: str) -> Task:
    """Return the task of this name."""
    given = json.loads(os.environ.get(VARIABLE, "{}"))
    if not given or name != attribute_of(given["table"]):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return task_of(given["table"], given["folders"])


def task_of(table: dict[str, Any], folders: Sequence[str]) -> Task:
    """Return the task of a table.

    `folders`: the directory of checkpoints and that of their pins, for `model = "auto"`.
    """
    newest = NewestFolder(folders)
    is_auto = table["model"] == "auto"
    tokenizer = table.get("tokenizer", newest if is_auto else table["model"])
    options = {key: value for key, value in table.items() if key not in _OF_TABLE}
    sets = harness(*table["tasks"], tokenizer=tokenizer, **options) if table["tasks"] else {}
    for each in table["perplexity"]:
        sets |= perplexity(tokenizer=tokenizer, **each)

    def build_model() -> Any:
        found = newest.find()  # it is looked for when a checkpoint is to be evaluated
        adapter = found if found is not None and not Path(found, CONFIG).is_file() else None
        if not is_auto:
            return model(table["model"], adapter=adapter)()
        return model(os.fspath(newest) if adapter is None else base_of(adapter), adapter=adapter)()

    return Task(build_model=build_model, eval_sets=sets)


class NewestFolder(os.PathLike[str]):
    """Stand for the folder of the newest checkpoint that has a configuration, when its path is asked for.

    That of an adapter without a tokenizer stands for the folder of its base model.
    """

    def __init__(self, folders: Sequence[str]) -> None:
        self._folders = folders

    def __fspath__(self) -> str:
        found = self.find()
        if found is None:
            raise task_error(
                f'[lm] model = "auto": there is no {CONFIG} in {" or ".join(self._folders)}: write model = "FOLDER", a '
                f"folder with {CONFIG} and the tokenizer"
            )
        has_own = Path(found, CONFIG).is_file() or Path(found, _TOKENIZER).is_file()
        return found if has_own else base_of(found)

    def find(self) -> str | None:
        """Return the folder of the newest checkpoint with a configuration of a model or of an adapter."""
        found = sorted(
            (status.st_mtime_ns, str(path))
            for folder in self._folders
            for name in (CONFIG, ADAPTER_CONFIG)
            for path in Path(folder).glob(f"**/{name}")
            if (status := _status(path)) is not None
        )
        return next((str(Path(path).parent) for _, path in reversed(found) if _is_whole(Path(path))), None)


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:  # training deletes a checkpoint
        return None


def _is_whole(path: Path) -> bool:
    try:
        return isinstance(json.loads(path.read_text()), dict)
    except (OSError, ValueError):  # it is being written, or deleted
        return False
