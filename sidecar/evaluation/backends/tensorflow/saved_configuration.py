"""Compare the configuration that a file of Keras stores with the model of the task.

All variables may fit although an activation, an axis or the order of layers differs, and then the numbers are those of
another model. The configuration is read as data: no class is imported and no stored code is run. A difference that
surely changes numbers is refused; one that may is told in a note; names, types, initial values and what is active in
training alone are not compared.
"""

import contextlib
import json
import zipfile
from collections.abc import Iterator, Mapping
from typing import Any, Final

import h5py

from sidecar.evaluation.backends.tensorflow.differences import some
from sidecar.evaluation.backends.tensorflow.libraries import is_keras_2
from sidecar.evaluation.failures import EvaluationError

_MAX_BYTES: Final = 1 << 30
_CONFIG: Final = "config.json"
_NEUTRAL: Final = frozenset(
    (
        *("InputLayer", "Dropout", "GaussianNoise", "GaussianDropout", "AlphaDropout", "SpatialDropout1D"),
        *("SpatialDropout2D", "SpatialDropout3D", "ActivityRegularization", "Identity"),
    )
)
"""Layers that pass their inputs on unchanged in an evaluation; so do those whose names begin with `Random`."""

_NUMERIC: Final = frozenset(
    (
        *("activation", "recurrent_activation", "axis", "axes", "epsilon", "strides", "padding"),
        *("dilation_rate", "groups", "data_format", "pool_size", "size", "interpolation", "negative_slope"),
        *("alpha", "max_value", "threshold", "theta", "scale", "offset", "return_sequences", "go_backwards"),
        *("merge_mode", "mask_value", "mask_zero", "num_heads", "key_dim", "value_dim", "output_padding"),
        *("target_shape", "dims", "n", "normalize", "approximate", "reset_after", "keepdims", "cropping"),
        *("rms_scaling", "invert", "output_mode", "zero_output_for_mask", "depth_multiplier"),
        *("crop_to_aspect_ratio", "height", "width", "use_bias"),
    )
)
"""Settings of Keras' own layers that change the predictions."""

_HARMLESS: Final = frozenset(
    (
        *("name", "trainable", "dtype", "seed", "rate", "dropout", "recurrent_dropout", "noise_shape"),
        *("stddev", "momentum", "build_config", "batch_shape", "batch_input_shape", "sparse", "ragged"),
        *("optional", "vocabulary", "idf_weights", "bin_boundaries", "mean", "variance"),
        *("quantization_config", "lora_rank", "lora_alpha", "autocast", "synchronized", "renorm"),
        *("renorm_clipping", "renorm_momentum", "virtual_batch_size", "fused", "implementation", "unroll"),
        *("stateful", "return_state", "time_major", "module", "registered_name", "shared_object_id"),
        *("inbound_nodes", "layers", "input_layers", "output_layers", "flash_attention", "num_bins", "salt"),
        *("input_dim", "input_length", "units", "filters", "kernel_size", "input_axes", "value_range"),
    )
)
"""Settings that change no number of an evaluation, whose change another check finds, or that only repeat a shape."""

_ENDINGS: Final = ("_initializer", "_constraint", "_dropout")  # of more harmless settings
_INNER: Final = ("layer", "forward_layer", "backward_layer", "cell")  # layers within the settings of a layer
_REMEDY: Final = (
    "Let build_model return the model that was saved; if it is right as it is, write "
    "Task(restore=lambda model, path: model.load_weights(path))"
)


def compare_configuration(model: Any, path: str) -> tuple[str, ...]:
    """Return notes on differences between the stored configuration and the model that may change numbers.

    Raises:
        EvaluationError: `mismatch` if a difference surely changes them.
    """
    stored, own = _stored(path), _serialized(model)
    if stored is None or own is None:
        return ()
    refused: list[str] = []
    unsure: list[str] = []
    _compare_models(stored, own, refused, unsure)
    if refused:
        raise EvaluationError("mismatch", f"{path} was saved by another model: {some(refused)}. {_REMEDY}")
    if unsure:
        return (f"the saved model is described otherwise than that of build_model: {some(unsure)}",)
    return ()


def _stored(path: str) -> Any:
    with contextlib.suppress(OSError, KeyError, ValueError, RecursionError, zipfile.BadZipFile):
        if path.endswith(".keras"):
            with zipfile.ZipFile(path) as archive:
                if archive.getinfo(_CONFIG).file_size <= _MAX_BYTES:
                    return json.loads(archive.read(_CONFIG))
        elif not path.endswith((".weights.h5", ".weights.json")):
            with h5py.File(path, "r", locking=False) as file:
                return json.loads(file.attrs["model_config"])
    return None


def _serialized(model: Any) -> Any:
    """Return the configuration of the model as JSON has it; None if a class of the user has none."""
    try:
        if is_keras_2(model):
            from tf_keras.saving import serialize_keras_object
        else:
            from keras.saving import serialize_keras_object
        return json.loads(json.dumps(serialize_keras_object(model), default=str))
    except Exception:  # noqa: BLE001 - a `get_config` of the user may raise anything
        return None


def _compare_models(stored: Any, own: Any, refused: list[str], unsure: list[str]) -> None:
    """Compare two models, or two nested models, if both describe their layers."""
    saved_layers, own_layers = _layers_of(stored), _layers_of(own)
    if saved_layers is None or own_layers is None:
        return
    saved, mine = [_active(layers) for layers in (saved_layers, own_layers)]
    has_same_names = {_name(layer) for layer in saved} == {_name(layer) for layer in mine} != set()
    if has_same_names:
        by_name = {_name(layer): layer for layer in mine}
        pairs = [(layer, by_name[_name(layer)]) for layer in saved]
    elif [_class(layer) for layer in saved] == [_class(layer) for layer in mine]:
        pairs = list(zip(saved, mine, strict=True))
    else:
        unsure.append(f"its layers are {_shown(saved)}, those of build_model are {_shown(mine)}")
        return
    for one, other in pairs:
        _compare_layers(_name(other), one, other, refused, unsure)
    names = {_name(one): _name(other) for one, other in pairs}
    sources, own_sources = _sources(saved_layers), _sources(own_layers)
    for one, other in pairs:
        before = [names.get(name, "an input") for name in sources.get(_name(one), [])]
        after = [name if name in names.values() else "an input" for name in own_sources.get(_name(other), [])]
        if before != after:
            text = f"layer {_name(other)!r} follows {', '.join(before)} in the file, {', '.join(after)} in the model"
            (refused if has_same_names else unsure).append(text)


def _compare_layers(name: str, one: Any, other: Any, refused: list[str], unsure: list[str]) -> None:
    if _class(one) != _class(other):
        unsure.append(f"layer {name!r} is {_class(one)} in the file, {_class(other)} in the model")
        return
    if _layers_of(one) is not None:
        _compare_models(one, other, refused, unsure)
        return
    config, own = one.get("config"), other.get("config")
    if not isinstance(config, Mapping) or not isinstance(own, Mapping):
        return
    is_of_keras = str(other.get("module", "keras")).partition(".")[0] in ("keras", "tf_keras")
    for key in config.keys() & own.keys():
        if key in _INNER and isinstance(config[key], Mapping) and isinstance(own[key], Mapping):
            _compare_layers(f"{name}.{key}", config[key], own[key], refused, unsure)
            continue
        before, after = _plain(config[key]), _plain(own[key])
        if key in _HARMLESS or key.endswith(_ENDINGS) or before == after or _is_code(before) or _is_code(after):
            continue
        if key == "axis" and _are_one_axis(before, after, one):
            continue
        text = f"layer {name!r} has {key}={before!r} in the file, {after!r} in the model"
        (refused if is_of_keras and key in _NUMERIC else unsure).append(text)


def _layers_of(item: Any) -> list[Any] | None:
    config = item.get("config") if isinstance(item, Mapping) else None
    layers = config.get("layers") if isinstance(config, Mapping) else None
    if not isinstance(layers, list) or not all(isinstance(layer, Mapping) for layer in layers):
        return None
    return layers


def _active(layers: list[Any]) -> list[Any]:
    """Return the layers that change their inputs in an evaluation."""
    return [layer for layer in layers if not _is_neutral(layer)]


def _is_neutral(layer: Any) -> bool:
    return _class(layer) in _NEUTRAL or _class(layer).startswith("Random")


def _class(layer: Any) -> str:
    return str(layer.get("class_name"))


def _name(layer: Any) -> str:
    config = layer.get("config")
    return str(layer.get("name") or (config.get("name") if isinstance(config, Mapping) else ""))


def _shown(layers: list[Any]) -> str:
    return some([_class(layer) for layer in layers]) or "none"


def _sources(layers: list[Any]) -> dict[str, list[str]]:
    """Return, for each layer, the layers whose outputs it takes, without those that pass their inputs on."""
    direct: dict[str, list[str]] = {}
    previous: list[str] = []
    for layer in layers:
        nodes = layer.get("inbound_nodes")
        direct[_name(layer)] = previous if nodes is None else list(_histories(nodes))  # None: in a Sequential
        previous = [_name(layer)]
    neutral = {_name(layer) for layer in layers if _is_neutral(layer)}

    def active(name: str) -> str:
        seen: set[str] = set()
        while name in neutral and direct.get(name) and name not in seen:
            seen.add(name)
            name = direct[name][0]
        return name

    return {name: [active(source) for source in names] for name, names in direct.items()}


def _histories(node: Any) -> Iterator[str]:
    """Yield the names of the layers in a serialized call, in their order, in the forms of Keras 3 and tf_keras."""
    if isinstance(node, Mapping):
        if node.get("class_name") == "__keras_tensor__":
            yield str(node["config"]["keras_history"][0])
        else:
            for value in node.values():
                yield from _histories(value)
    elif isinstance(node, list):
        is_history = len(node) >= 3 and isinstance(node[0], str) and all(isinstance(part, int) for part in node[1:3])  # noqa: PLR2004 - layer, node, tensor
        if is_history:
            yield node[0]
        else:
            for value in node:
                yield from _histories(value)


def _plain(value: Any) -> Any:
    """Return a setting in one form: an object by its class and settings, a function by its name."""
    if isinstance(value, Mapping):
        if "class_name" in value and "config" in value:
            config = _plain(value["config"])
            if isinstance(config, str):  # a function
                return config
            return {"class_name": value["class_name"], "config": config}
        return {key: _plain(item) for key, item in value.items() if key not in ("name", "dtype", "seed", "trainable")}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _is_code(value: Any) -> bool:
    """Return whether a setting is code, whose bytes differ by the version of Python, or an object of this process."""
    is_lambda = isinstance(value, Mapping) and value.get("class_name") == "__lambda__"
    return is_lambda or (isinstance(value, str) and " at 0x" in value)


def _are_one_axis(before: Any, after: Any, layer: Any) -> bool:
    """Return whether two axes are the same, counted from the front and from the back."""
    shape = (layer.get("build_config") or {}).get("input_shape")
    first, second = [value if isinstance(value, list) else [value] for value in (before, after)]
    if not isinstance(shape, list) or not all(isinstance(axis, int) for axis in (*first, *second)):
        return False
    return [axis % len(shape) for axis in first] == [axis % len(shape) for axis in second]
