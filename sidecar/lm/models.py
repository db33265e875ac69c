"""Build language models of transformers from a configuration, and find their tokenizers.

A model gets no values: each checkpoint brings its own. Only the base of an adapter has those in its folder.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from sidecar.errors import TaskError
from sidecar.evaluation.failures import task_error
from sidecar.lm.offline import offline

CONFIG: Final = "config.json"
ADAPTER_CONFIG: Final = "adapter_config.json"


def model(
    path: str | os.PathLike[str], *, adapter: str | os.PathLike[str] | None = None, **options: Any
) -> Callable[[], Any]:
    """Return a function for `Task(build_model=…)`: the causal language model of a `config.json`.

    The tokenizer in the same folder is that of `harness` and `perplexity`, unless they are given another one.

    Args:
        path: A folder of Hugging Face with `config.json`, such as that of the base model or of any checkpoint.
        adapter: A folder with an `adapter_config.json` of peft, such as any checkpoint, if checkpoints are adapters of
            this model. The model gets the values in its own folder then.
        options: Further arguments of `AutoModelForCausalLM.from_config`, such as `dtype="bfloat16"`. Without it, the
            type in the configuration holds.

    Raises:
        TaskError: There is no such file.
    """
    folder = Path(path)
    for where, name in ((folder, CONFIG), *([] if adapter is None else [(Path(adapter), ADAPTER_CONFIG)])):
        if not (where / name).is_file():
            raise TaskError(f"model({os.fspath(path)!r}): there is no file {where / name}: name a model's folder")

    def build_model() -> Any:
        from transformers import AutoConfig, AutoModelForCausalLM

        given = {"trust_remote_code": False} | options  # code in a checkpoint's folder
        with offline():
            config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
            # A configuration may name code on the Hub, which transformers would load with the package `kernels`.
            config._attn_implementation = config._experts_implementation = None  # noqa: SLF001
            if adapter is not None:
                from peft import PeftConfig, get_peft_model

                base = AutoModelForCausalLM.from_pretrained(folder, config=config, **given)
                of_adapter = PeftConfig.from_pretrained(os.fspath(adapter))
                of_adapter.megatron_config = None  # with it, releases of peft import the module that the file names
                return get_peft_model(base, of_adapter)
            return AutoModelForCausalLM.from_config(config, **given)

    return build_model


def base_of(adapter: str) -> str:
    """Return the folder of the base model that an adapter's configuration names.

    Raises `EvaluationError` if it is not on this machine.
    """
    base = json.loads(Path(adapter, ADAPTER_CONFIG).read_text()).get("base_model_name_or_path")
    if isinstance(base, str) and Path(base, CONFIG).is_file():
        return base
    raise task_error(
        f'{adapter} is an adapter of {base!r}, which is not a folder with {CONFIG} here: write model = "FOLDER" with '
        f"that of the base model"
    )


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
