"""Compare the configuration that a file of Keras stores with the model of the task.

All variables may fit although an activation, an axis or the order of layers differs, and then the numbers are those of
another model. The configuration is read as data: no class is imported and no stored code is run. A difference that
surely changes numbers is refused; one that may is told in a note, also other types; names, initial values and what is
active in training alone are not compared.

`keras_file` calls `compare_configuration` after it has restored the variables. Both configurations are brought into one
form (`_plain`), and then compared from models (`_compare_models`) down to layers, settings and calls.
"""

import contextlib
import json
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import h5py

from sidecar.evaluation.backends.tensorflow.libraries import is_keras_2
from sidecar.evaluation.backends.tensorflow.saved_layers import (
    Source,
    Wiring,
    active,
    class_of,
    is_history,
    layers_of,
    name_of,
)
from sidecar.evaluation.backends.tensorflow.stored_code import Function, function_of, read_code
from sidecar.evaluation.failures import mismatch
from sidecar.evaluation.remedy import GIVE_SAVED_MODEL, Remedy
from sidecar.system.plain_text import listed

_MAX_BYTES: Final = 1 << 30
_CONFIG: Final = "config.json"

_NUMERIC: Final = frozenset(
    (
        *("activation", "recurrent_activation", "axis", "axes", "epsilon", "strides", "padding"),
        *("dilation_rate", "groups", "data_format", "pool_size", "size", "interpolation", "negative_slope"),
        *("alpha", "max_value", "threshold", "theta", "scale", "offset", "return_sequences", "go_backwards"),
        *("merge_mode", "mask_value", "mask_zero", "num_heads", "key_dim", "value_dim", "output_padding"),
        *("target_shape", "dims", "n", "normalize", "approximate", "reset_after", "keepdims", "cropping"),
        *("rms_scaling", "invert", "output_mode", "zero_output_for_mask", "depth_multiplier"),
        *("crop_to_aspect_ratio", "height", "width", "use_bias", "num_oov_indices", "mask_token", "mean", "variance"),
        *("salt", "vocabulary", "idf_weights", "bin_boundaries"),
    )
)
"""Settings of Keras' own layers that change the predictions."""

_HARMLESS: Final = frozenset(
    (
        *("name", "trainable", "dtype", "seed", "rate", "dropout", "recurrent_dropout", "noise_shape"),
        *("stddev", "momentum", "build_config", "batch_shape", "batch_input_shape", "sparse", "ragged"),
        "optional",
        *("quantization_config", "lora_rank", "lora_alpha", "autocast", "synchronized", "renorm"),
        *("renorm_clipping", "renorm_momentum", "virtual_batch_size", "fused", "implementation", "unroll"),
        *("stateful", "return_state", "time_major", "module", "registered_name", "shared_object_id"),
        *("inbound_nodes", "layers", "input_layers", "output_layers", "flash_attention", "num_bins", "salt"),
        "vocabulary_size",  # follows from the vocabulary, which is restored
        *("input_dim", "input_length", "units", "filters", "kernel_size", "input_axes", "value_range"),
    )
)
"""Settings that change no number of an evaluation, whose change another check finds, or that only repeat a shape."""

_TABLES: Final = ("vocabulary", "idf_weights", "bin_boundaries")
"""Settings that a `.keras` file also holds as assets, which are restored, while HDF5 has them here alone."""

_TENSOR: Final = "a tensor"
_CONSTANTS: Final = ("__numpy__", "__tensor__")
_NOT_COMPARED: Final = ("training", "mask", "name")  # an evaluation and Keras itself set the first two
_SHOWN: Final = 60  # characters of a value
_ENDINGS: Final = ("_initializer", "_constraint", "_dropout")  # of more harmless settings
_INNER: Final = ("layer", "forward_layer", "backward_layer", "cell")  # layers within the settings of a layer
_REMEDY: Final = GIVE_SAVED_MODEL.sentence() + Remedy(
    "; if it is right as it is, write Task(restore=lambda model, path: model.load_weights(path))", ""
)


def compare_configuration(model: Any, path: str) -> tuple[str, ...]:
    """Return notes on differences between the stored configuration and the model that may change numbers.

    Raises `EvaluationError` of kind `mismatch` if a difference surely changes them.
    """
    stored, own = _stored(path), _serialized(model)
    if stored is None or own is None:
        return ()
    refused: list[str] = []
    unsure: list[str] = []
    _compare_models(stored, own, refused, unsure)
    if refused:
        raise mismatch(f"{path} was saved by another model: {listed(refused)}. ", remedy=_REMEDY)
    if unsure:
        return (f"the saved model is described otherwise than that of build_model: {listed(unsure)}",)
    return ()


def _stored(path: str) -> Any:
    """Return the configuration in a file, as JSON; None if the file has none that can be read."""
    with contextlib.suppress(OSError, KeyError, ValueError, RecursionError, zipfile.BadZipFile):
        if path.endswith(".keras"):
            with zipfile.ZipFile(path) as archive:
                if archive.getinfo(_CONFIG).file_size <= _MAX_BYTES:
                    return json.loads(archive.read(_CONFIG), object_hook=_without_tables)
        elif not path.endswith((".weights.h5", ".weights.json")):
            with h5py.File(path, "r", locking=False) as file:
                return json.loads(file.attrs["model_config"])
    return None


def _without_tables(settings: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if key not in _TABLES}


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
    """Compare two models, or two nested models, if both describe their layers.

    `refused` gets the sentences about differences that surely change numbers, `unsure` those about others. All
    comparisons below take both lists.
    """
    saved_layers, own_layers = layers_of(stored), layers_of(own)
    if saved_layers is None or own_layers is None:
        return
    saved, mine = [active(layers) for layers in (saved_layers, own_layers)]
    has_same_names = {name_of(layer) for layer in saved} == {name_of(layer) for layer in mine} != set()
    if has_same_names:
        by_name = {name_of(layer): layer for layer in mine}
        pairs = [(layer, by_name[name_of(layer)]) for layer in saved]
    elif [class_of(layer) for layer in saved] == [class_of(layer) for layer in mine]:
        pairs = list(zip(saved, mine, strict=True))
    else:
        unsure.append(f"its layers are {_shown(saved)}, those of build_model are {_shown(mine)}")
        return
    for one, other in pairs:
        _compare_layers(name_of(other), one, other, refused, unsure)
    names = {name_of(one): name_of(other) for one, other in pairs}
    wiring, own_wiring = [Wiring(item, layers) for item, layers in ((stored, saved_layers), (own, own_layers))]
    translated = {name: name for name in names.values()}
    for one, other in pairs:
        before, after = wiring.sources(name_of(one), names), own_wiring.sources(name_of(other), translated)
        if before != after:
            text = f"layer {name_of(other)!r} follows {_listed(before)} in the file, {_listed(after)} in the model"
            is_certain = has_same_names and [each.certain for each in before] != [each.certain for each in after]
            (refused if is_certain else unsure).append(text)
    before, after = wiring.outputs(names), own_wiring.outputs(translated)
    if before != after:  # data or losses may be given by name, so their order may say nothing
        text = f"the outputs are those of {_listed(before)} in the file, of {_listed(after)} in the model"
        is_certain = has_same_names and {each.certain for each in before} != {each.certain for each in after}
        (refused if is_certain else unsure).append(text)


def _listed(sources: list["Source"]) -> str:
    return ", ".join(map(str, sources)) or "nothing"


def _compare_layers(name: str, saved: Any, built: Any, refused: list[str], unsure: list[str]) -> None:
    """Compare two layers of one name, and the layers in them: their classes, types, calls, functions and settings."""
    if class_of(saved) != class_of(built):
        unsure.append(f"layer {name!r} is {class_of(saved)} in the file, {class_of(built)} in the model")
        return
    if layers_of(saved) is not None:
        _compare_models(saved, built, refused, unsure)
        return
    settings, built_settings = saved.get("config"), built.get("config")
    if not isinstance(settings, Mapping) or not isinstance(built_settings, Mapping):
        return
    is_of_keras = str(built.get("module", "keras")).partition(".")[0] in ("keras", "tf_keras")
    _compare_calls(name, saved, built, refused if is_of_keras else unsure, unsure)
    policies = [_policy(each.get("dtype")) for each in (settings, built_settings)]
    if all(policies) and policies[0] != policies[1]:
        unsure.append(f"layer {name!r} computes in {policies[0]} in the file, in {policies[1]} in the model")
    for key in settings.keys() & built_settings.keys():
        if key in _INNER and isinstance(settings[key], Mapping) and isinstance(built_settings[key], Mapping):
            _compare_layers(f"{name}.{key}", settings[key], built_settings[key], refused, unsure)
            continue
        functions = function_of(settings[key]), function_of(built_settings[key])
        if (differences := _differences_of(name, *functions)) is not None:
            unsure += differences
            continue
        before, after = _plain(settings[key]), _plain(built_settings[key])
        if not _is_ignored(key, before, after, (saved, built)):
            is_numeric = key in _NUMERIC or _is_bins_of_hashing(key, saved)
            text = f"layer {name!r} has {key}={before!r} in the file, {after!r} in the model"
            (refused if is_of_keras and is_numeric else unsure).append(text)


def _is_ignored(key: str, before: Any, after: Any, both: tuple[Any, Any]) -> bool:
    """Return whether a setting of two layers is equal, changes no number, or cannot be compared."""
    if key in _TABLES and not (before and after and isinstance(before, list) and isinstance(after, list)):
        return True  # learned from data, or read from a file
    return (
        (key in _HARMLESS and not _is_bins_of_hashing(key, both[0]))
        or key.endswith(_ENDINGS)
        or before == after
        or _is_code(before)
        or _is_code(after)
        or (key == "axis" and _are_one_axis(before, after, both))
    )


def _is_bins_of_hashing(key: str, layer: Any) -> bool:
    """Return whether a setting is the number of bins of `Hashing`. A file restores the bins of other layers."""
    return (key, class_of(layer)) == ("num_bins", "Hashing")


def _differences_of(name: str, one: Function | None, other: Function | None) -> list[str] | None:
    """Return the difference between two functions in the settings of a layer; None for other settings."""
    if one is None or other is None:
        return None
    try:
        stored = read_code(one[0])
    except ValueError:
        return [f"layer {name!r} runs code that another version of Python saved, so it is not compared"]
    with contextlib.suppress(ValueError):
        if stored != read_code(other[0]):
            return [f"layer {name!r} runs other code in the file than in the model"]
    for part, before, after in zip(("defaults", "closure"), one[1:], other[1:], strict=True):
        if before != after and not (_is_code(str(before)) or _is_code(str(after))):
            return [f"the {part} of the function in layer {name!r} are {_short(before)} in the file, {_short(after)}"]
    return []


def _shown(layers: list[Any]) -> str:
    return listed([class_of(layer) for layer in layers]) or "none"


def _compare_calls(name: str, saved: Any, built: Any, refused: list[str], unsure: list[str]) -> None:
    """Compare the arguments of calls that are no tensors, such as `use_causal_mask`, and constants of operators."""
    before, after = [dict(_arguments(layer.get("inbound_nodes") or [], "")) for layer in (saved, built)]
    is_comparable = before.keys() <= after.keys() or after.keys() <= before.keys()
    for key in [*before, *(key for key in after if key not in before)]:
        first, second = before.get(key), after.get(key)
        if first == second or _is_code(first) or _is_code(second):
            continue
        argument = key.rpartition(".")[2]
        text = f"layer {name!r} is called with {argument}={_short(first)} in the file, {_short(second)} in the model"
        (refused if is_comparable else unsure).append(text)
        return


def _arguments(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield place and value of each argument that is set."""
    if isinstance(value, Mapping):
        if value.get("class_name") in _CONSTANTS:
            yield path, value["config"]["value"]
        elif value.get("class_name") == "__keras_tensor__":
            yield path, _TENSOR
        else:
            for key, item in value.items():
                if key not in _NOT_COMPARED:
                    yield from _arguments(item, f"{path}.{key}")
    elif isinstance(value, list):
        if is_history(value):
            yield path, _TENSOR if value[0] != "_CONSTANT_VALUE" else value[2]
            yield from _arguments(value[3:], path)
        else:
            for index, item in enumerate(value):
                yield from _arguments(item, f"{path}.argument {index}")
    elif value is not None and value is not False:
        yield path, value


def _short(value: Any) -> str:
    """Return the beginning of a value, which may be a large array."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _policy(setting: Any) -> str:
    """Return the name of a policy of types; empty if it has none."""
    if isinstance(setting, Mapping):
        config = setting.get("config")
        setting = config.get("name") if isinstance(config, Mapping) else None
    return setting if isinstance(setting, str) else ""


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


def _are_one_axis(before: Any, after: Any, both: Iterable[Any]) -> bool:
    """Return whether two axes are the same, counted from the front and from the back.

    A `.h5` file of Keras 2 counts from the front, and describes no shapes.
    """
    shapes = ((layer.get("build_config") or {}).get("input_shape") for layer in both)
    shape = next((shape for shape in shapes if shape), None)
    first, second = [value if isinstance(value, list) else [value] for value in (before, after)]
    if not isinstance(shape, list) or not all(isinstance(axis, int) for axis in (*first, *second)):
        return False
    return [axis % len(shape) for axis in first] == [axis % len(shape) for axis in second]
