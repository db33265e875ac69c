"""From a TensorFlow object checkpoint into a built model: every variable bound, or an error that names what is missing.

Variables are matched by the object graph that the checkpoint holds (`tf.train.CheckpointView`), since keys alone do not
tell: an optimizer saved beside a model may own the names. Only the model's own tensors are read.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import tensorflow as tf
from tensorflow.core.protobuf import trackable_object_graph_pb2

from sidecar.worker.failures import EvaluationError

_GRAPH_KEY: Final = "_CHECKPOINTABLE_OBJECT_GRAPH"
_VALUE: Final = "VARIABLE_VALUE"
_KERAS_2_SIGNS: Final = ("layer_with_weights-0", "keras_api")  # children that only Keras 2 (tf_keras) models save
_NAMED: Final = 5  # missing variables that an error lists by name


@dataclass(frozen=True, slots=True)
class _Candidate:
    """One reading of the checkpoint: the model is its root, or a child of its root."""

    name: str  # of the child, empty for the root itself
    trackable: Any


@dataclass(frozen=True, slots=True)
class _Binding:
    """Which checkpoint key holds each of the model's variables."""

    candidate: _Candidate
    keys: dict[int, str]  # by position in model.weights
    has_tables: bool  # lookup tables or other state that is no variable

    def missing(self, weights: list[Any]) -> list[str]:
        return [_name(variable) for index, variable in enumerate(weights) if index not in self.keys]


def restore(model: Any, path: str, make_root: Callable[[Any], Any] | None) -> None:
    """Assign the checkpoint's values to `model.weights`.

    Args:
        model: Built: an unbuilt one has no variables to bind, and would keep its random initial values.
        path: The checkpoint's prefix.
        make_root: Maps the model to the root object that was saved; None: found.

    Raises:
        EvaluationError: `mismatch` if not every variable is bound or a shape differs, `corrupt` if the bytes contradict
            their checksums, `vanished` if files are gone.
    """
    try:
        reader = tf.train.load_checkpoint(path)
        if not reader.has_tensor(_GRAPH_KEY):
            raise EvaluationError("mismatch", f"{path} has no object graph: it was saved by TensorFlow 1 or by name")
        graph = trackable_object_graph_pb2.TrackableObjectGraph.FromString(reader.get_tensor(_GRAPH_KEY))
        binding = _find(model, path, graph, make_root)
        _check_shapes(model.weights, binding, reader.get_variable_to_shape_map())
        _assign(model.weights, binding, path)
        if binding.has_tables:
            _checkpoint(binding.candidate).restore(path).expect_partial()
    except (tf.errors.DataLossError, tf.errors.OutOfRangeError) as error:
        raise EvaluationError("corrupt", f"{path}: {error.message}") from error
    except tf.errors.NotFoundError as error:
        raise EvaluationError("vanished", f"{path}: {error.message}") from error


def _find(model: Any, path: str, graph: Any, make_root: Callable[[Any], Any] | None) -> _Binding:
    """The one reading under which every variable of the model is in the checkpoint."""
    if not model.weights:
        raise EvaluationError("mismatch", "the model has no variables after it was called on the first batch")
    view = tf.train.CheckpointView(path)
    children = [child.local_name for child in graph.nodes[0].children]
    if make_root is not None:
        groups = [[_Candidate("Task(checkpoint=…)", make_root(model))]]
    else:
        named = [_Candidate(name, model) for name in children if name not in ("model", "save_counter")]
        groups = [[_Candidate("model", model)] if "model" in children else [], named, [_Candidate("", model)]]
    tried: list[_Binding] = []
    for group in groups:
        bindings = [_bind(candidate, model.weights, view, graph) for candidate in group]
        complete = [binding for binding in bindings if not binding.missing(model.weights)]
        if len(complete) > 1:
            names = ", ".join(repr(binding.candidate.name) for binding in complete)
            raise EvaluationError(
                "mismatch",
                f"{path}: {names} all fit the model; say which one: "
                f"Task(checkpoint=lambda model: tf.train.Checkpoint({complete[0].candidate.name}=model))",
            )
        if complete:
            return complete[0]
        tried += bindings
    raise EvaluationError("mismatch", _explain(model, path, graph, children, tried))


def _bind(candidate: _Candidate, weights: list[Any], view: Any, graph: Any) -> _Binding:
    matched = view.match(_checkpoint(candidate) if candidate.name else candidate.trackable)
    keys_by_object: dict[int, str] = {}
    has_tables = False
    for node, trackable in matched.items():
        for attribute in graph.nodes[node].attributes:
            if attribute.name == _VALUE:
                keys_by_object[id(trackable)] = attribute.checkpoint_key
            elif attribute.checkpoint_key:
                has_tables = True
    found = {
        index: key
        for index, variable in enumerate(weights)
        if (key := keys_by_object.get(id(variable)) or keys_by_object.get(id(getattr(variable, "_value", None))))
    }
    return _Binding(candidate, found, has_tables)


def _checkpoint(candidate: _Candidate) -> Any:
    if isinstance(candidate.trackable, tf.train.Checkpoint):
        return candidate.trackable
    if not candidate.name:
        return tf.train.Checkpoint(candidate.trackable)
    return tf.train.Checkpoint(**{candidate.name: candidate.trackable})


def _check_shapes(weights: list[Any], binding: _Binding, shapes: dict[str, list[int]]) -> None:
    wrong = [
        f"{_name(weights[index])} is {tuple(weights[index].shape)} in the model, {tuple(shapes[key])} in the checkpoint"
        for index, key in binding.keys.items()
        if tuple(weights[index].shape) != tuple(shapes[key])
    ]
    if wrong:
        raise EvaluationError("mismatch", f"the model is not the one that was saved: {_some(wrong)}")


def _assign(weights: list[Any], binding: _Binding, path: str) -> None:
    """Read the bound tensors in one operation, which reads them in parallel, and assign them."""
    variables = [weights[index] for index in binding.keys]
    names = list(binding.keys.values())
    dtypes = [tf.as_dtype(variable.dtype) for variable in variables]
    values = tf.raw_ops.RestoreV2(prefix=path, tensor_names=names, shape_and_slices=[""] * len(names), dtypes=dtypes)
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def _explain(model: Any, path: str, graph: Any, children: list[str], tried: list[_Binding]) -> str:
    best = max(tried, key=lambda binding: len(binding.keys))
    missing = best.missing(model.weights)
    saved_by_keras_2 = any(child.local_name in _KERAS_2_SIGNS for node in graph.nodes for child in node.children)
    is_keras_2 = any(cls.__module__.startswith("tf_keras") for cls in type(model).__mro__)
    if saved_by_keras_2 and not is_keras_2:
        hint = "It was saved by Keras 2 (tf_keras), the model is of Keras 3: let build_model return the tf_keras model"
    elif is_keras_2 and not saved_by_keras_2:
        hint = "It was saved by Keras 3, the model is of Keras 2 (tf_keras): let build_model return the Keras 3 model"
    else:
        hint = "Let build_model return the model that was saved, or name its place with Task(checkpoint=…)"
    where = f"its {best.candidate.name!r}" if best.candidate.name else "its root"
    return (
        f"{path} does not hold the model: {len(missing)} of {len(model.weights)} variables are not in {where}: "
        f"{_some(missing)}. It was saved with {', '.join(children) or 'no children'}. {hint}."
    )


def _some(names: list[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def _name(variable: Any) -> str:
    return str(getattr(variable, "path", None) or variable.name)
