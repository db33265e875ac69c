"""Check the table `[lm]`, and derive from it the task and what workers must know. Used by `values` alone."""

import json
import os
from collections.abc import Mapping
from typing import Any, Final

from sidecar.protocol.language_model import MODULE, VARIABLE, attribute_of
from sidecar.settings.json_table import table_of

HARNESS: Final = (
    *("include_path", "num_fewshot", "limit", "batch_size", "max_length", "bootstrap_iters", "apply_chat_template"),
    *("fewshot_as_multiturn", "system_instruction", "gen_kwargs", "fewshot_random_seed", "confirm_run_unsafe_code"),
    *("max_tokens", "max_seconds"),
)
"""Keys that are arguments of `sidecar.lm.harness`."""

PERPLEXITY: Final = ("files", "field", "by", "window", "stride", "dtype", "batch_size", "name", "every_nth")
"""Keys of `perplexity`, which are arguments of `sidecar.lm.perplexity`."""

AUTO: Final = "auto"
_KEYS: Final = ("model", "tokenizer", "tasks", "perplexity", *HARNESS)
_REMEDY: Final = (
    'write a table [lm] with model = "auto" and tasks = ["arc_easy"] or perplexity = {files = "val/*.jsonl"}'
)


def check_table(value: Any) -> dict[str, Any]:
    """Return the table with absolute paths. Raises `ValueError`."""
    table = dict(table_of(value, _REMEDY))
    if not table:
        return table
    _refuse_unknown(table, _KEYS)
    for key in ("model", "tokenizer", "include_path"):
        if key in table and not (isinstance(table[key], str) and table[key]):
            raise ValueError(f"{key}: write the path of a folder")
    table = {"model": AUTO} | table
    tasks: Any = table.get("tasks", [])
    tasks = [tasks] if isinstance(tasks, str) else tasks
    if not isinstance(tasks, list | tuple) or not all(isinstance(task, str) and task for task in tasks):
        raise ValueError('tasks: write a list of names, such as ["arc_easy"]')
    perplexity: Any = table.get("perplexity", [])
    perplexity = [perplexity] if isinstance(perplexity, Mapping) else perplexity
    if not isinstance(perplexity, list | tuple) or not all(isinstance(each, Mapping) for each in perplexity):
        raise ValueError('perplexity: write a table, such as {files = "val/*.jsonl"}')
    if not tasks and not perplexity:
        raise ValueError(_REMEDY)
    return (
        table
        | {key: _absolute(table[key]) for key in ("tokenizer", "include_path") if key in table}
        | {"model": table["model"] if table["model"] == AUTO else _absolute(table["model"])}
        | {"tasks": list(tasks), "perplexity": [_checked(dict(each)) for each in perplexity]}
    )


def task_of(table: Mapping[str, Any], given: Any) -> Any:
    """Return the task to evaluate with: the given one, or that of the table. Raises `ValueError` for both."""
    if not table:
        return given
    own = f"{MODULE}:{attribute_of(table)}"
    if given not in (None, own):
        raise ValueError("there is a table [lm], too: write either task or [lm]")
    return own


def variables_of(table: Mapping[str, Any], folders: list[str]) -> dict[str, str]:
    """Return the environment variables from which a worker makes the task."""
    return {VARIABLE: json.dumps({"table": table, "folders": folders})} if table else {}


def _checked(perplexity: dict[str, Any]) -> dict[str, Any]:
    _refuse_unknown(perplexity, PERPLEXITY, "perplexity.")
    files = perplexity.get("files")
    files = [files] if isinstance(files, str) else files
    if not isinstance(files, list | tuple) or not files or not all(isinstance(each, str) and each for each in files):
        raise ValueError('perplexity.files: write a pattern, such as "val/*.jsonl"')
    return perplexity | {"files": [_absolute(each) for each in files]}


def _refuse_unknown(table: Mapping[Any, Any], keys: tuple[str, ...], place: str = "") -> None:
    if unknown := [key for key in table if key not in keys]:
        raise ValueError(f"{place}{unknown[0]}: there is no such key, but {', '.join(keys)}")


def _absolute(path: str) -> str:
    return os.path.abspath(os.path.expanduser(path))  # noqa: PTH100, PTH111 - a pattern is no path
