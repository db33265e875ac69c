"""Build language models of transformers from a configuration, and find their tokenizers.

A model gets no values: each checkpoint brings its own.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sidecar.errors import TaskError
from sidecar.evaluation.failures import task_error
from sidecar.lm.offline import offline


def model(path: str | os.PathLike[str], **options: Any) -> Callable[[], Any]:
    """Return a function for `Task(build_model=…)`: the causal language model of a `config.json`.

    The tokenizer in the same folder is that of `harness` and `perplexity`, unless they are given another one.

    Args:
        path: A folder of Hugging Face with `config.json`, such as that of the base model or of any checkpoint.
        options: Further arguments of `AutoModelForCausalLM.from_config`, such as `dtype="bfloat16"`. Without it, the
            type in the configuration holds.

    Raises:
        TaskError: There is no such file.
    """
    folder = Path(path)
    if not (folder / "config.json").is_file():
        raise TaskError(f"model({os.fspath(path)!r}): there is no file {folder / 'config.json'}: name a model's folder")

    def build_model() -> Any:
        from transformers import AutoConfig, AutoModelForCausalLM

        with offline():
            config = AutoConfig.from_pretrained(folder, trust_remote_code=False)  # code in a checkpoint's folder
            return AutoModelForCausalLM.from_config(config, **{"trust_remote_code": False} | options)

    return build_model


def tokenizer_for(given: Any, model: Any, argument: str) -> Any:
    """Return the tokenizer that the user gave, as an object or as a path, or the one in the folder of the model.

    `argument` is named in an error. Raises `EvaluationError` if there is none.
    """
    if given is not None and not isinstance(given, str | os.PathLike):
        return given
    path = os.fspath(given) if given is not None else str(getattr(model, "name_or_path", "") or "")
    if not path:
        raise task_error(
            f"the model has no folder with a tokenizer: write {argument.replace('…', repr('path/to/folder'))}"
        )
    from transformers import AutoTokenizer

    try:
        with offline():
            return AutoTokenizer.from_pretrained(path, trust_remote_code=False)
    except Exception as error:
        raise task_error(
            f"there is no tokenizer in {path}: write {argument} with the folder of one ({error!s:.200})"
        ) from error
