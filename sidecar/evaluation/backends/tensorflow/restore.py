"""Restore a checkpoint into a built model: every variable is bound, or an error names the variables that are missing.

`keras_file` restores files of Keras, and `orbax` restores Orbax checkpoints. This module restores only the variables of
a SavedModel, which are an object checkpoint whose root is the saved model. `saved_graph` runs the stored graph, if the
user trusts it.

Variables are matched by the object graph in the checkpoint (`tf.train.CheckpointView`). The keys alone are ambiguous,
because a key may begin with the name of an optimizer that was saved with the model. Only tensors of the model are read.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import tensorflow as tf
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from tensorflow.core.protobuf import trackable_object_graph_pb2

from sidecar.evaluation.backends.tensorflow import orbax
from sidecar.evaluation.backends.tensorflow.differences import name_of, some
from sidecar.evaluation.backends.tensorflow.graph_constants import load_constants
from sidecar.evaluation.backends.tensorflow.keras_file import has_index, is_keras_file, load
from sidecar.evaluation.backends.tensorflow.layer_tables import finalize, has_tables_in_checkpoints
from sidecar.evaluation.backends.tensorflow.libraries import is_keras_2, layers_of
from sidecar.evaluation.backends.tensorflow.orbax import is_orbax
from sidecar.evaluation.backends.tensorflow.recurrent import RecurrentStates
from sidecar.evaluation.backends.tensorflow.saved_by import advice, by_graph, holds_no_model
from sidecar.evaluation.failures import EvaluationError
from sidecar.evaluation.path_alias import readable

GRAPH_KEY: Final = "_CHECKPOINTABLE_OBJECT_GRAPH"
_VALUE: Final = "VARIABLE_VALUE"
_CONFIG: Final = "OBJECT_CONFIG_JSON"  # where Keras 2 saves the configuration of a layer
_VARIABLES: Final = ("variables", "variables")  # in a SavedModel's folder
_EXPORTED: Final = ("trainable_variables", "non_trainable_variables")  # lists in a model that Keras exported

STORAGE_ERRORS: Final = (
    *(tf.errors.PermissionDeniedError, tf.errors.UnavailableError, tf.errors.DeadlineExceededError),
    *(tf.errors.AbortedError, tf.errors.CancelledError, tf.errors.FailedPreconditionError),
)


@dataclass(frozen=True, slots=True)
class _Candidate:
    """Describe where the model may be in the checkpoint: at the root, or as a child of the root."""

    name: str  # of the child, empty for the root itself
    root: Any


@dataclass(frozen=True, slots=True)
class _Binding:
    """Map the model's variables to keys of the checkpoint."""

    candidate: _Candidate
    keys: dict[int, str]  # by position in `variables_of(model)`
    has_more: bool  # whether there are lookup tables or other state in addition to variables

    def missing(self, variables: list[Any]) -> list[str]:
        return [name_of(variable) for index, variable in enumerate(variables) if index not in self.keys]


def restore(model: Any, path: str, make_root: Callable[[Any], Any] | None) -> list[Any]:
    """Assign the checkpoint's values to the model's variables.

    Returns:
        The layers that also got state which is not in variables, such as a vocabulary.

    Args:
        model: A built model. Without its variables, it would keep random initial values.
        path: A file that Keras wrote, a SavedModel's folder, or an object checkpoint's prefix.
        make_root: Maps the model to the root object that was saved; None: possible roots are tried.

    Raises:
        EvaluationError: `mismatch` if not every variable is bound or a shape differs, `corrupt` if the bytes contradict
            their checksums, `vanished` if files are gone, `storage` if they cannot be read. Exceptions of `make_root`
            are not caught.
    """
    variables = _required(model)
    if not variables:
        raise EvaluationError("mismatch", "the model has no variables after it was called on the first batch")
    if is_keras_file(path):
        if make_root is not None:
            raise EvaluationError(
                "mismatch", f"{path} is a file, in which Task(checkpoint=…) cannot name a place: remove it"
            )
        return load(model, variables, path, model_of=2 if is_keras_2(model) else 3) + finalize(model)
    if is_orbax(path):
        if make_root is not None:
            raise EvaluationError(
                "mismatch", f"{path} is an Orbax checkpoint, in which Task(checkpoint=…) cannot name a place: remove it"
            )
        if is_keras_2(model):
            raise EvaluationError("mismatch", f"{path} was saved by Keras 3, the model is of Keras 2 (tf_keras)")
        with readable(path) as plain:
            orbax.load(variables, plain)
        return finalize(model)
    root, folder = make_root(model) if make_root is not None else None, None
    if Path(path).is_dir():
        if has_index(path):  # TensorFlow's readers would always take the folder
            raise EvaluationError("mismatch", f"{path} is a folder, and {path}.index lies next to it: move one of them")
        folder, path = Path(path), str(Path(path, *_VARIABLES))
    with readable(path) as plain:
        try:
            layers = _restore(model, variables, plain, root) + finalize(model)
            return layers if folder is None else layers + load_constants(model, folder)
        except (tf.errors.OpError, DecodeError, IndexError) as error:
            raise _failure(error, plain) from error


def _restore(model: Any, variables: list[Any], path: str, root: Any) -> list[Any]:
    try:
        reader = tf.train.load_checkpoint(path)
    except ValueError as error:  # a later version of TensorFlow wrote it, and this version cannot read it
        raise EvaluationError("mismatch", f"{path}: {error}") from error
    if not reader.has_tensor(GRAPH_KEY):
        raise EvaluationError("mismatch", f"{path} has no object graph: it was saved by TensorFlow 1 or by name")
    graph = _object_graph(reader)
    binding = _exported(model, variables, graph) or _find(model, variables, path, graph, root)
    _check_types(variables_of(model), binding, reader)
    _assign(variables_of(model), binding, path)
    if not binding.has_more:
        return []
    _checkpoint(binding.candidate).restore(path).expect_partial()
    return list(filter(has_tables_in_checkpoints, layers_of(model)))


def keys_of(model: Any, path: str) -> list[str] | None:
    """Return the key of each of `variables_of(model)` in a `tf.train.Checkpoint(model=model)`; None if one has none."""
    variables = variables_of(model)
    graph = _object_graph(tf.train.load_checkpoint(path))
    candidate = _Candidate("model", tf.train.Checkpoint(model=model))
    binding = _bind(candidate, variables, tf.train.CheckpointView(path), graph)
    return None if binding.missing(variables) else [binding.keys[index] for index in range(len(variables))]


def variables_of(model: Any) -> list[Any]:
    """Return all state that a checkpoint may hold: the required state, then that of Keras 3's recurrent layers."""
    return _required(model) + ([] if is_keras_2(model) else RecurrentStates(model).variables)


def _required(model: Any) -> list[Any]:
    """Return all state that a checkpoint must hold: weights, and plain `tf.Variable`s, which Keras 3 does not list."""
    variables = [weight for weight in model.weights if hasattr(weight, "assign")]  # in tf_keras, tables are among them
    if is_keras_2(model):
        return variables  # in tf_keras, plain variables are among the weights
    optimizer = getattr(model, "optimizer", None)
    in_optimizer = set() if optimizer is None else set(map(id, tf.train.TrackableView(optimizer).descendants()))
    descendants = tf.train.TrackableView(model).descendants()
    plain = [descendant for descendant in descendants if isinstance(descendant, tf.Variable)]
    return variables + [variable for variable in plain if id(variable) not in in_optimizer]


def _object_graph(reader: Any) -> Any:
    return trackable_object_graph_pb2.TrackableObjectGraph.FromString(reader.get_tensor(GRAPH_KEY))


def _failure(error: Exception, path: str) -> EvaluationError:
    """Return the failure behind an error of TensorFlow's readers. Often only the message shows which one it is."""
    text = getattr(error, "message", "") or str(error)
    if isinstance(error, tf.errors.NotFoundError) or "No such file" in text:
        return EvaluationError("vanished", f"{path} is gone, or a file of it: {text}")
    if isinstance(error, tf.errors.InvalidArgumentError | tf.errors.UnimplementedError):
        return EvaluationError("mismatch", f"{path}: {text}")
    if isinstance(error, STORAGE_ERRORS):
        return EvaluationError("storage", f"{path} cannot be read: {text}")
    return EvaluationError("corrupt", f"{path} is damaged: {text}")


def _find(model: Any, variables: list[Any], path: str, graph: Any, root: Any) -> _Binding:
    """Return the binding for the place in the checkpoint that holds every variable of the model."""
    view = tf.train.CheckpointView(path)
    # If a name occurs twice, TensorFlow takes the last child.
    children = dict.fromkeys(child.local_name for child in graph.nodes[0].children)
    if root is not None:
        groups = [[_Candidate("", root)]]
    else:
        named = [
            _Candidate(name, tf.train.Checkpoint(**{name: model}))
            for name in children
            if name not in ("model", "save_counter") and name.isidentifier()
        ]
        model_first = [_Candidate("model", tf.train.Checkpoint(model=model))] if "model" in children else []
        groups = [model_first, named, [_Candidate("", model)]]
    tried: list[_Binding] = []
    for group in groups:
        bindings = [_bind(candidate, variables_of(model), view, graph) for candidate in group]
        complete = [binding for binding in bindings if not binding.missing(variables)]
        if len({tuple(binding.keys.values()) for binding in complete}) > 1:  # equal keys: the same object
            names = ", ".join(repr(binding.candidate.name) for binding in complete)
            raise EvaluationError(
                "mismatch",
                f"{path}: {names} all match the model; choose one: "
                f"Task(checkpoint=lambda model: tf.train.Checkpoint({complete[0].candidate.name}=model))",
            )
        if complete:
            return complete[0]
        tried += bindings
    raise EvaluationError("mismatch", _explain(model, variables, path, graph, tried))


def _exported(model: Any, variables: list[Any], graph: Any) -> _Binding | None:
    """Return the binding, by position, of variables that Keras' `model.export` saved; None for any other graph."""
    children = {child.local_name: child.node_id for child in graph.nodes[0].children}
    if not {*_EXPORTED, "_all_variables", "_misc_assets"} <= children.keys():
        return None
    places = {id(variable): index for index, variable in enumerate(variables)}
    keys: dict[int, str] = {}
    for name in _EXPORTED:
        model_list, saved = getattr(model, name), list(graph.nodes[children[name]].children)
        if len(model_list) != len(saved):
            raise EvaluationError(
                "mismatch",
                f"the model has {len(model_list)} {name}, {len(saved)} were exported: it is another model",
            )
        for child in saved:
            variable = model_list[int(child.local_name)]
            for attribute in graph.nodes[child.node_id].attributes:
                _require_same_name(variable, attribute.full_name)
                if id(variable) in places:  # states of random generators are not restored
                    keys[places[id(variable)]] = attribute.checkpoint_key
    return _Binding(_Candidate("", model), dict(sorted(keys.items())), has_more=False)


def _require_same_name(variable: Any, saved: str) -> None:
    """Raise unless the last parts of two names are equal: a kernel and a bias may have the same shape."""
    if variable.name.removesuffix(":0").rpartition("/")[2] != saved.rpartition("/")[2]:
        raise EvaluationError(
            "mismatch", f"{name_of(variable)} of the model is in the place of {saved}: it is another model"
        )


def _bind(candidate: _Candidate, variables: list[Any], view: Any, graph: Any) -> _Binding:
    keys_by_object: dict[int, str] = {}
    has_more = False
    for node, trackable in view.match(candidate.root).items():
        for attribute in graph.nodes[node].attributes:
            if attribute.name == _VALUE:
                keys_by_object[id(trackable)] = attribute.checkpoint_key
            elif attribute.checkpoint_key and attribute.name != _CONFIG:
                has_more = True
    keys = {
        index: key
        for index, variable in enumerate(variables)
        if (key := keys_by_object.get(id(variable)) or keys_by_object.get(id(getattr(variable, "_value", None))))
    }
    return _Binding(candidate, keys, has_more)


def _checkpoint(candidate: _Candidate) -> Any:
    is_checkpoint = isinstance(candidate.root, tf.train.Checkpoint)
    return candidate.root if is_checkpoint else tf.train.Checkpoint(candidate.root)


def _check_types(variables: list[Any], binding: _Binding, reader: Any) -> None:
    shapes, dtypes = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
    wrong = []
    for index, key in binding.keys.items():
        dtype, shape = tf.as_dtype(variables[index].dtype), tf.TensorShape(variables[index].shape)
        if dtype != dtypes[key] or not shape.is_compatible_with(shapes[key]):  # a dimension may be free
            in_model = f"{dtype.name} {tuple(shape)}"
            in_checkpoint = f"{dtypes[key].name} {tuple(shapes[key])}"
            wrong.append(f"{name_of(variables[index])} is {in_model} in the model, {in_checkpoint} in the checkpoint")
    if wrong:
        raise EvaluationError("mismatch", f"the model is not the one that was saved: {some(wrong)}")


def _assign(variables: list[Any], binding: _Binding, path: str) -> None:
    """Read the bound tensors in one operation, which works in parallel, and assign them."""
    bound = [variables[index] for index in binding.keys]
    names = list(binding.keys.values())
    dtypes = [tf.as_dtype(variable.dtype) for variable in bound]
    values = tf.raw_ops.RestoreV2(prefix=path, tensor_names=names, shape_and_slices=[""] * len(names), dtypes=dtypes)
    for variable, value in zip(bound, values, strict=True):
        variable.assign(value)


def _explain(model: Any, variables: list[Any], path: str, graph: Any, tried: list[_Binding]) -> str:
    best = max(tried, key=lambda binding: len(binding.keys))
    missing = best.missing(variables)
    children = [child.local_name for child in graph.nodes[0].children]
    hint = advice(by_graph(graph), model_of=2 if is_keras_2(model) else 3)
    if holds_no_model(graph):
        hint = "It has no variables of a model: call the model once, or fit it, before it is saved"
    elif hint is None:
        hint = "Let build_model return the model that was saved, or name its place with Task(checkpoint=…)"
    where = f"its {best.candidate.name!r}" if best.candidate.name else "its root"
    return (
        f"{path} does not hold the model: {len(missing)} of {len(variables)} variables are not in {where}: "
        f"{some(missing)}. It was saved with {', '.join(children) or 'no children'}. {hint}."
    )
