"""Recognise what training switched on in the layers of a saved model: adapters of LoRA, and quantization.

Both add variables to layers, so a model that was built without them does not fit. Names tell them apart where a format
has names, types and shapes where it has not. The findings are advice in messages, so an odd file gives no advice.
"""

import contextlib
import json
import re
import zipfile
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import h5py

from sidecar.evaluation.remedy import ON_THE_MODEL, Remedy
from sidecar.system.plain_text import listed

_LORA: Final = re.compile(r"(?:^|/)lora_(kernel|embeddings)_a$")
_SCALE: Final = re.compile(r"(?:^|/)(kernel|embeddings|inputs|outputs_grad)_scale$")
_ZERO: Final = re.compile(r"(?:^|/)(kernel|embeddings)_zero$")
_HISTORY: Final = re.compile(r"_amax_history$")
_HISTORY_SHAPE: Final = (1024,)
_HISTORIES: Final = 3  # of inputs, kernel and gradients
_GROUP: Final = "vars"  # of the values of one object
_MAX_BYTES: Final = 1 << 30
_ADAPTERS: Final = "lora/"  # the group of the only values that KerasHub's `save_lora_weights` saves
_ADAPTERS_ALONE: Final = (
    "It holds adapters of LoRA alone: save all weights with model.save_weights, which merges the adapters"
    + Remedy(
        ", or write Task(restore=lambda model, path: model.backbone.load_lora_weights(path)), with the weights of "
        "training's backbone in build_model",
        "",
    )
)
_MODES: Final = ("int8", "int4", "float8")
_BY_DATA: Final = "It was quantised with data (GPTQ, AWQ): " + Remedy(
    "let build_model make its layers with the same types", "make its layers with the same types"
)

Values = Iterable[tuple[str, tuple[int, ...]]]
"""Names and shapes of values."""


def advice_for(values: Values) -> Remedy | None:
    """Return the call that makes a model with these values, which a plain model lacks; None if none is known."""
    values = list(values)
    adapters = [(name, shape) for name, shape in values if _LORA.search(name) and shape]
    mode = _mode_of(name for name, _ in values)
    if not adapters:
        return None if mode is None else _quantised(mode)
    rank = adapters[0][1][-1]
    layers = list(dict.fromkeys(name.split("/")[-2] for name, _ in adapters if "/" in name))
    call = f"enable_lora({rank})"
    target = f"model.get_layer({layers[0]!r}).{call}" if len(layers) == 1 else f"layer.{call}"
    more = f" for the layers {listed(list(map(repr, layers)))}" if len(layers) > 1 else ""
    then = "" if mode is None else f", and then model.quantize({mode!r})".replace("'", '"')
    told = "They are adapters of LoRA" if mode is None else "They are adapters of LoRA, and scales of quantised weights"
    return f"{told}: call {target}" + ON_THE_MODEL + f"{more}{then}, as training did"


def advice_against(missing: Iterable[str]) -> Remedy | None:
    """Return what the model must be built without, if a checkpoint lacks these variables of its model; else None."""
    missing = list(missing)
    if missing and all("lora_" in name for name in missing):
        return "They are adapters of LoRA, and the saved model has none: leave out enable_lora" + ON_THE_MODEL
    if missing and _mode_of(missing) is not None:
        return "The saved model is not quantised: leave out model.quantize" + ON_THE_MODEL
    return None


def advice_for_file(path: str) -> Remedy | None:
    """Return the same for a file of Keras that does not fit a model."""
    with contextlib.suppress(OSError, KeyError, ValueError, RecursionError, zipfile.BadZipFile):
        if path.endswith(".keras"):
            with zipfile.ZipFile(path) as archive:
                if archive.getinfo("config.json").file_size > _MAX_BYTES:
                    return None
                policies = list(_policies(json.loads(archive.read("config.json"))))
            return _quantised(policies[0]) if policies else None
        if path.endswith(".weights.json"):
            shards = json.loads(Path(path).read_bytes())["weight_map"].values()
            names = {name for each in shards for name in (each if isinstance(each, list) else [each])}
            mode = _mode_in(*(str(Path(path).with_name(name)) for name in sorted(names)))
            return None if mode is None else _quantised(mode)
        if (advice := _advice_for_values(list(_named_values(path)))) is not None:
            return advice
        mode = _mode_in(path)
        return None if mode is None else _quantised(mode)
    return None


def _advice_for_values(values: list[tuple[str, tuple[int, ...]]]) -> Remedy | None:
    if values and all(name.startswith(_ADAPTERS) for name, _ in values):
        return _ADAPTERS_ALONE
    return advice_for(values)


def _quantised(mode: str) -> Remedy:
    """Return the sentence about a model that was quantised in this mode."""
    if mode not in _MODES:
        return _BY_DATA
    return f'The saved model is quantised: call model.quantize("{mode}")' + ON_THE_MODEL


def _mode_of(names: Iterable[str]) -> str | None:
    """Return the mode of quantization in which a model has variables of these names."""
    names = list(names)
    if any(_HISTORY.search(name) for name in names):
        return "float8"
    if any("quantized_" in name.rpartition("/")[2] for name in names):
        return "gptq"
    if any(_ZERO.search(name) for name in names):
        return "int4"
    return "int8" if any(_SCALE.search(name) for name in names) else None


def _policies(tree: Any) -> Iterator[str]:
    """Yield the modes of the layers' types in a configuration, without recursion, as a file may be nested deeply."""
    remaining = [tree]
    while remaining:
        node = remaining.pop()
        if isinstance(node, dict):
            if str(node.get("class_name")).endswith("DTypePolicy") and isinstance(node.get("config"), dict):
                mode = node["config"].get("mode")
                if isinstance(mode, str):
                    yield mode.partition("/")[0]
            remaining += node.values()
        elif isinstance(node, list):
            remaining += node


def _named_values(path: str) -> Values:
    """Return the values of an older `.h5` file, which have names."""
    found: dict[str, tuple[int, ...]] = {}
    with h5py.File(path, "r", locking=False) as file:
        file.visititems(partial(_collect_named, found))
    return found.items()


def _collect_named(found: dict[str, tuple[int, ...]], name: str, item: Any) -> None:
    if isinstance(item, h5py.Dataset) and not name.startswith("optimizer_weights"):
        found[name.removesuffix(":0")] = tuple(item.shape)


def _mode_in(*paths: str) -> str | None:
    """Return the mode of quantization of files that number the values of each layer: one file, or its shards."""
    values: dict[str, list[tuple[str, tuple[int, ...]]]] = {}
    for path in paths:
        with h5py.File(path, "r", locking=False) as file:
            file.visititems(partial(_collect, values))
    modes = {_mode_of_layer(each) for each in values.values()}
    return next((mode for mode in ("gptq", "int4", "float8", "int8") if mode in modes), None)


def _collect(values: dict[str, list[tuple[str, tuple[int, ...]]]], name: str, item: Any) -> None:
    layer = name.rpartition("/")[0]
    if isinstance(item, h5py.Dataset) and layer.rpartition("/")[2] == _GROUP:
        values.setdefault(layer, []).append((str(item.dtype), tuple(item.shape)))


def _mode_of_layer(values: list[tuple[str, tuple[int, ...]]]) -> str | None:
    types = [dtype for dtype, _ in values]
    if "uint8" in types:
        return "gptq"
    if "int8" in types:
        return "int8" if types.count("int8") == 1 else "int4"  # the weights, and with 4 bits their zeros
    histories = sum(shape == _HISTORY_SHAPE for _, shape in values)
    return "float8" if histories >= _HISTORIES else None
