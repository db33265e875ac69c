"""Restore a checkpoint into a built model: every variable is bound, or an error names the variables that are missing.

`keras_file` restores files of Keras, `orbax` restores Orbax checkpoints, and `saved_by_name` binds variables by names,
as TensorFlow 1 saved them. This module restores only the variables of a SavedModel, which are an object checkpoint
whose root is the saved model. `saved_graph` runs the stored graph, if the user trusts it.

Variables are matched by the object graph in the checkpoint (`tf.train.CheckpointView`). The keys alone are ambiguous,
because a key may begin with the name of an optimizer that was saved with the model. Only tensors of the model are read.
In the other direction, `unbound` finds the values in the model's place of the graph that the model has no variable for.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import tensorflow as tf
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from tensorflow.core.protobuf import trackable_object_graph_pb2

from sidecar.evaluation.backends.tensorflow import orbax, saved_by_name, saved_tables
from sidecar.evaluation.backends.tensorflow.completeness import (
    NONE,
    Exceptions,
    Restored,
    Unused,
    layer_of,
    networks_in_metrics,
    plain_name,
    takes_no_part,
)
from sidecar.evaluation.backends.tensorflow.differences import name_of
from sidecar.evaluation.backends.tensorflow.keras_file import has_index, is_keras_file, load
from sidecar.evaluation.backends.tensorflow.layer_tables import finalize, has_tables_in_checkpoints
from sidecar.evaluation.backends.tensorflow.libraries import is_keras_2, layers_of
from sidecar.evaluation.backends.tensorflow.orbax import is_orbax
from sidecar.evaluation.backends.tensorflow.recurrent import RecurrentStates
from sidecar.evaluation.backends.tensorflow.saved_by import advice, by_graph, holds_no_model
from sidecar.evaluation.backends.tensorflow.saved_order import require_same_layers
from sidecar.evaluation.backends.tensorflow.saved_switches import advice_against, advice_for
from sidecar.evaluation.failures import EvaluationError, mismatch
from sidecar.evaluation.path_alias import readable
from sidecar.evaluation.remedy import GIVE_SAVED_MODEL, Remedy
from sidecar.system.plain_text import listed

GRAPH_KEY: Final = "_CHECKPOINTABLE_OBJECT_GRAPH"
_NO_MODEL: Final = "It has no variables of a model: call the model once, or fit it, before it is saved"
_SAVE_ONE: Final = "save it as tf.train.Checkpoint(model=…)"
_VALUE: Final = "VARIABLE_VALUE"
_CONFIG: Final = "OBJECT_CONFIG_JSON"  # where Keras 2 saves the configuration of a layer
_VARIABLES: Final = ("variables", "variables")  # in a SavedModel's folder

_ATTRIBUTES: Final = "/.ATTRIBUTES"
_SEED: Final = "seed_generator_state"
_OPTIMIZER: Final = "optimizer"
_TRAINED: Final = "_trainable_variables"
_STATES: Final = "states"  # of a recurrent layer
_OF_OPTIMIZERS: Final = {"_iterations", "iter"}
_OF_METRICS: Final = {
    *("total", "count", "variables", "keras_api", "_fn_kwargs", "total_cm", "accumulator", "intermediate_weights"),
    *("true_positives", "true_negatives", "false_positives", "false_negatives", "weights_intermediate"),
    *("squared_sum", "sum", "residual", "num_samples", "_target_class_ids", "target_class_ids", "_total", "_count"),
    *("total_confusion_matrix", "thresholds", "init_thresholds", "total_mse"),
}
"""Names of the children of optimizers and metrics in an object graph."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Binding:
    """Map the model's variables to keys of the checkpoint."""

    candidate: _Candidate
    keys: dict[int, str]  # by position in `variables_of(model)`
    has_more: bool  # whether there are lookup tables or other state in addition to variables
    names: dict[int, str] = field(default_factory=dict)  # of the saved variables, by the same positions
    unbound: tuple[Unused, ...] = ()  # values in the model's place that no variable is bound to

    def missing(self, variables: list[Any]) -> list[Any]:
        return [variable for index, variable in enumerate(variables) if index not in self.keys]


def restore(model: Any, path: str, make_root: Callable[[Any], Any] | None, exceptions: Exceptions = NONE) -> Restored:
    """Assign the values of the checkpoint at a path to the variables of a built model. It must have its variables.

    `path`: a file that Keras wrote, a SavedModel's folder, or an object checkpoint's prefix. `make_root` maps the model
    to the root object that was saved, and its exceptions are not caught; None: possible roots are tried. `exceptions`:
    values that only the checkpoint may have, or only the model.

    Raises `EvaluationError`: `mismatch` if not every variable is bound, a shape differs, or the model's place in the
    checkpoint holds more values, `corrupt` if the bytes contradict their checksums, `vanished` if files are gone,
    `storage` if they cannot be read.
    """
    variables = _required(model)
    if not variables:
        raise mismatch("the model has no variables after it was called on the first batch")
    if is_keras_file(path):
        if make_root is not None:
            raise mismatch(f"{path} is a file, in which Task(checkpoint=…) cannot name a place: remove it")
        loaded = load(model, variables, path, model_of=2 if is_keras_2(model) else 3, exceptions=exceptions)
        return replace(loaded, layers=loaded.layers + finalize(model))
    if is_orbax(path):
        if make_root is not None:
            raise mismatch(f"{path} is an Orbax checkpoint, in which Task(checkpoint=…) cannot name a place: remove it")
        if is_keras_2(model):
            raise mismatch(f"{path} was saved by Keras 3, the model is of Keras 2 (tf_keras)")
        with readable(path) as plain:
            notes = orbax.load(variables, plain, exceptions)
        return Restored(finalize(model), notes)
    root = make_root(model) if make_root is not None else None
    folder = Path(path) if Path(path).is_dir() else None
    if folder is not None:
        if has_index(path):  # TensorFlow's readers would always take the folder
            raise mismatch(f"{path} is a folder, and {path}.index lies next to it: move one of them")
        path = str(Path(path, *_VARIABLES))
    with readable(path) as plain:
        try:
            restored = _restore(model, variables, plain, root, exceptions, folder)
            return replace(restored, layers=restored.layers + finalize(model))
        except (tf.errors.OpError, DecodeError, IndexError) as error:
            raise _failure(error, plain) from error


def _restore(
    model: Any, variables: list[Any], path: str, root: Any, exceptions: Exceptions, folder: Path | None
) -> Restored:
    """Restore an object checkpoint; `folder`: that of the SavedModel which it is part of."""
    try:
        reader = tf.train.load_checkpoint(path)
    except ValueError as error:  # a later version of TensorFlow wrote it, and this version cannot read it
        raise mismatch(f"{path}: {error}") from error
    if not reader.has_tensor(GRAPH_KEY):
        if root is not None:
            raise mismatch(f"{path} was saved by names, so Task(checkpoint=…) cannot name a place in it: remove it")
        keys, notes = saved_by_name.bind(model, variables, path, reader.get_variable_to_shape_map(), exceptions)
        _check_types(variables, keys, reader)
        _assign(variables, keys, path)
        return Restored([], notes)
    graph = _object_graph(reader)
    exceptions = replace(exceptions, is_placed=root is not None)
    binding = _exported(model, variables, graph, reader, path, exceptions)
    chosen: tuple[str, ...] = ()
    if binding is None:
        binding, chosen = _find(model, variables, path, graph, reader, root, exceptions)
    _check_types(variables_of(model), binding.keys, reader)
    all_variables = variables_of(model)
    pairs = [(layer_of(plain_name(all_variables[index])), layer_of(name)) for index, name in binding.names.items()]
    require_same_layers(model, pairs, path)
    layers, differing = ([], []) if folder is None else saved_tables.compare(model, folder)
    tables = [each.value for each in differing]
    if exceptions.refused(tables):
        raise mismatch(
            f"{folder} was saved with other vocabularies than the model has: {saved_tables.described(differing)}. ",
            remedy=saved_tables.remedy(differing),
        )
    _assign(variables_of(model), binding.keys, path)
    notes = chosen + exceptions.notes([*binding.unbound, *tables], binding.missing(variables))
    if not binding.has_more:
        return Restored(layers, notes)
    _checkpoint(binding.candidate).restore(path).expect_partial()
    return Restored(layers + list(filter(has_tables_in_checkpoints, layers_of(model))), notes)


def keys_of(model: Any, path: str) -> list[str] | None:
    """Return the key of each of `variables_of(model)` in a `tf.train.Checkpoint(model=model)`; None if one has none."""
    variables = variables_of(model)
    graph = _object_graph(tf.train.load_checkpoint(path))
    candidate = _Candidate("model", tf.train.Checkpoint(model=model))
    binding = _bind(candidate, variables, tf.train.CheckpointView(path), graph, model, {})
    return None if binding.missing(variables) else [binding.keys[index] for index in range(len(variables))]


def variables_of(model: Any) -> list[Any]:
    """Return all state that a checkpoint may hold: the required state, then what is optional.

    That are states of Keras 3's recurrent layers, and in tf_keras networks within metrics, as FID and KID have them.
    """
    required = _required(model)
    if not is_keras_2(model):
        return required + RecurrentStates(model).variables
    known = set(map(id, required))
    return required + [each for each in networks_in_metrics(model) if id(each) not in known]


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
        return mismatch(f"{path}: {text}")
    if isinstance(error, STORAGE_ERRORS):
        return EvaluationError("storage", f"{path} cannot be read: {text}")
    return EvaluationError("corrupt", f"{path} is damaged: {text}")


def _find(
    model: Any, variables: list[Any], path: str, graph: Any, reader: Any, root: Any, exceptions: Exceptions
) -> tuple[_Binding, tuple[str, ...]]:
    """Return the binding for the place in the checkpoint that holds the model, and notes on the choice."""
    view, shapes = tf.train.CheckpointView(path), reader.get_variable_to_shape_map()
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
    for number, group in enumerate(groups):
        bindings = [_bind(each, variables_of(model), view, graph, model, shapes) for each in group]
        complete = [each for each in bindings if each.keys and all(map(exceptions.keeps, each.missing(variables)))]
        most = max((len(each.keys) for each in complete), default=0)
        complete = [each for each in complete if len(each.keys) == most]
        exact = [each for each in complete if not exceptions.refused(each.unbound)]
        for fitting in filter(None, (exact, complete)):
            if len({tuple(each.keys.values()) for each in fitting}) > 1:  # equal keys: the same object
                names = ", ".join(repr(each.candidate.name) for each in fitting)
                raise mismatch(
                    f"{path}: {names} all match the model; ",
                    remedy=Remedy(f"choose one: {_line(fitting[0].candidate)}", _SAVE_ONE),
                )
            if fitting is complete:
                others = groups[number + 1] if number + 1 < len(groups) else []
                exceptions.require(path, fitting[0].unbound, _elsewhere(others, model, variables, view, graph))
            return fitting[0], _choice(fitting[0], complete)
        tried += bindings
    raise _does_not_hold(model, variables, path, graph, tried)


def _choice(chosen: _Binding, complete: list[_Binding]) -> tuple[str, ...]:
    """Return a note if several places hold all variables of the model, and only one holds nothing else."""
    others = [
        repr(each.candidate.name) for each in complete if tuple(each.keys.values()) != tuple(chosen.keys.values())
    ]
    if not others:
        return ()
    return (f"the model is {chosen.candidate.name!r} of the checkpoint; {', '.join(others)} would hold more values",)


def _elsewhere(candidates: list[_Candidate], model: Any, variables: list[Any], view: Any, graph: Any) -> Remedy | str:
    """Return the line that chooses another place, which holds exactly the variables of the model; else nothing."""
    for candidate in candidates:
        binding = _bind(candidate, variables_of(model), view, graph, model, {})
        if not binding.missing(variables) and not binding.unbound:
            found = f"{candidate.name!r} of the checkpoint has no others: to evaluate it, "
            return Remedy(f". {found}write {_line(candidate)}", f" {found}{_SAVE_ONE}")
    return ""


def _line(candidate: _Candidate) -> str:
    return f"Task(checkpoint=lambda model: tf.train.Checkpoint({candidate.name}=model))"


def _exported(
    model: Any, variables: list[Any], graph: Any, reader: Any, path: str, exceptions: Exceptions
) -> _Binding | None:
    """Return the binding, by position, of variables that Keras' `model.export` saved; None for any other graph."""
    children = {child.local_name: child.node_id for child in graph.nodes[0].children}
    if not {*_EXPORTED, "_all_variables", "_misc_assets"} <= children.keys():
        return None
    places = {id(variable): index for index, variable in enumerate(variables)}
    pairs: list[tuple[Any, Any]] = []
    unbound: tuple[Unused, ...] = ()
    groups = [
        (
            [variable for variable in getattr(model, name) if id(variable) in places],
            [
                attribute
                for child in sorted(graph.nodes[children[name]].children, key=lambda child: int(child.local_name))
                for attribute in graph.nodes[child.node_id].attributes
                if not _is_of_generator(attribute)  # an evaluation sets its own seeds
            ],
        )
        for name in _EXPORTED
    ]
    if all(len(own) == len(saved) for own, saved in groups):
        for own, saved in groups:
            pairs += zip(own, saved, strict=True)
    else:
        pairs, unbound = _by_name(groups, path, reader.get_variable_to_shape_map(), exceptions)
    for variable, attribute in pairs:
        _require_same_name(variable, attribute.full_name)
    bound = {places[id(variable)]: attribute for variable, attribute in pairs}
    return _Binding(
        candidate=_Candidate("", model),
        keys={index: attribute.checkpoint_key for index, attribute in sorted(bound.items())},
        has_more=False,
        names={index: attribute.full_name for index, attribute in bound.items()},
        unbound=unbound,
    )


def _by_name(
    groups: list[tuple[list[Any], list[Any]]], path: str, shapes: dict[str, Any], exceptions: Exceptions
) -> tuple[list[tuple[Any, Any]], tuple[Unused, ...]]:
    """Bind exported variables by their names: of another number of variables, positions say nothing."""
    own = {plain_name(variable): variable for variables, _ in groups for variable in variables}
    saved = {attribute.full_name: attribute for _, attributes in groups for attribute in attributes}
    counts = [(sum(len(group[side]) for group in groups)) for side in (0, 1)]
    missing = [name for name, variable in own.items() if name not in saved and not exceptions.keeps(variable)]
    if missing or [len(own), len(saved)] != counts:
        # Without the names of models, which Keras numbers.
        lacking = [name for name in missing if _end(name) not in set(map(_end, saved))]
        further = [_unused(saved[name], shapes) for name in saved if _end(name) not in set(map(_end, own))]
        hint = advice_for((each.name, each.shape) for each in further) or advice_against(lacking)
        raise mismatch(
            f"the model has {counts[0]} variables, {counts[1]} were exported to {path}: it is another model. ",
            remedy=hint or GIVE_SAVED_MODEL.sentence(),
        )
    unbound = tuple(_unused(attribute, shapes) for name, attribute in saved.items() if name not in own)
    exceptions.require(path, unbound)
    return [(variable, saved[name]) for name, variable in own.items() if name in saved], unbound


def _end(name: str) -> tuple[str, ...]:
    return tuple(name.split("/")[-2:])


def _unused(attribute: Any, shapes: dict[str, Any], name: str = "") -> Unused:
    key = attribute.checkpoint_key
    path = key.partition(_ATTRIBUTES)[0]
    return Unused(name or attribute.full_name, tuple(shapes.get(key, ())), "", alias=path)


def _is_of_generator(attribute: Any) -> bool:
    return str(attribute.full_name).rpartition("/")[2] == _SEED


def _require_same_name(variable: Any, saved: str) -> None:
    """Raise unless the last parts of two names are equal: a kernel and a bias may have the same shape."""
    if variable.name.removesuffix(":0").rpartition("/")[2] != saved.rpartition("/")[2]:
        raise mismatch(f"{name_of(variable)} of the model is in the place of {saved}: it is another model")


def _bind(
    candidate: _Candidate, variables: list[Any], view: Any, graph: Any, model: Any, shapes: dict[str, Any]
) -> _Binding:
    found: dict[int, Any] = {}  # attributes in the graph, by the identity of the object
    has_more = False
    matched = view.match(candidate.root)
    for node, trackable in matched.items():
        for attribute in graph.nodes[node].attributes:
            if attribute.name == _VALUE:
                found[id(trackable)] = attribute
            elif attribute.checkpoint_key and attribute.name != _CONFIG:
                has_more = True
    bound = {
        index: attribute
        for index, variable in enumerate(variables)
        if (attribute := found.get(id(variable)) or found.get(id(getattr(variable, "_value", None))))
    }
    place = next((node for node, trackable in matched.items() if trackable is model), None)
    return _Binding(
        candidate=candidate,
        keys={index: attribute.checkpoint_key for index, attribute in bound.items()},
        has_more=has_more,
        names={index: attribute.full_name for index, attribute in bound.items()},
        unbound=() if place is None else tuple(_unbound(graph, place, matched, shapes)),
    )


def _unbound(graph: Any, place: int, matched: Any, shapes: dict[str, Any]) -> Iterator[Unused]:
    """Yield the values below a node that no object of the model is bound to, by the shortest way to each.

    Optimizers, metrics, seed generators and the states of recurrent layers are not entered: an evaluation begins with
    its own. An optimizer lists the variables that it trains, though, and Keras 3 does not track a layer in nested lists
    in any other way.
    """
    is_root = place == 0
    names = Counter(attribute.full_name for node in graph.nodes for attribute in node.attributes)
    queue, seen = deque([(place, "")]), {place}
    while queue:
        node, path = queue.popleft()
        for attribute in graph.nodes[node].attributes if node not in matched else ():
            if attribute.checkpoint_key and attribute.name != _CONFIG and not _is_of_generator(attribute):
                is_told_apart = "/" in attribute.full_name and names[attribute.full_name] == 1
                yield _unused(attribute, shapes, attribute.full_name if is_told_apart else path)
        for child in graph.nodes[node].children:
            name, target = child.local_name, child.node_id
            if node == place and name == _OPTIMIZER:
                lists = [each.node_id for each in graph.nodes[target].children if each.local_name == _TRAINED]
                queue.extend((each, f"{name}/{_TRAINED}") for each in lists if each not in seen)
                seen.update(lists)
            if target in seen or _takes_no_part(name, graph.nodes[target]):
                continue
            if is_root and node == place and _is_counter(graph.nodes[target], shapes):
                continue
            seen.add(target)
            queue.append((target, f"{path}/{name}" if path else name))


def _takes_no_part(name: str, node: Any) -> bool:
    """Return whether a node holds no values of a model, by the name that leads to it or by its own children."""
    children = {child.local_name for child in node.children}
    return (
        takes_no_part(name)
        or name == _STATES
        or len(node.slot_variables) > 0
        or bool(children & _OF_OPTIMIZERS)
        or (bool(children) and children <= _OF_METRICS)
    )


def _is_counter(node: Any, shapes: dict[str, Any]) -> bool:
    """Return whether a node is one number: `tf.train.Checkpoint(model, step=…)` saves it like a part of the model."""
    keys = [attribute.checkpoint_key for attribute in node.attributes]
    return bool(keys) and not node.children and all(tuple(shapes.get(key, (1,))) == () for key in keys)


def _checkpoint(candidate: _Candidate) -> Any:
    is_checkpoint = isinstance(candidate.root, tf.train.Checkpoint)
    return candidate.root if is_checkpoint else tf.train.Checkpoint(candidate.root)


def _check_types(variables: list[Any], keys: Mapping[int, str], reader: Any) -> None:
    shapes, dtypes = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
    wrong = []
    for index, key in keys.items():
        dtype, shape = tf.as_dtype(variables[index].dtype), tf.TensorShape(variables[index].shape)
        if dtype != dtypes[key] or not shape.is_compatible_with(shapes[key]):  # a dimension may be free
            in_model = f"{dtype.name} {tuple(shape)}"
            in_checkpoint = f"{dtypes[key].name} {tuple(shapes[key])}"
            wrong.append(f"{name_of(variables[index])} is {in_model} in the model, {in_checkpoint} in the checkpoint")
    if wrong:
        raise mismatch(f"the model is not the one that was saved: {listed(wrong)}")


def _assign(variables: list[Any], keys: Mapping[int, str], path: str) -> None:
    """Read the bound tensors in one operation, which works in parallel, and assign them."""
    bound = [variables[index] for index in keys]
    names = list(keys.values())
    dtypes = [tf.as_dtype(variable.dtype) for variable in bound]
    values = tf.raw_ops.RestoreV2(prefix=path, tensor_names=names, shape_and_slices=[""] * len(names), dtypes=dtypes)
    for variable, value in zip(bound, values, strict=True):
        variable.assign(value)


def _does_not_hold(model: Any, variables: list[Any], path: str, graph: Any, tried: list[_Binding]) -> EvaluationError:
    best = max(tried, key=lambda binding: len(binding.keys))
    missing = [name_of(variable) for variable in best.missing(variables)]
    children = [child.local_name for child in graph.nodes[0].children]
    hint = advice(by_graph(graph), model_of=2 if is_keras_2(model) else 3)
    if holds_no_model(graph):
        hint = Remedy(_NO_MODEL, _NO_MODEL)
    elif hint is None:
        hint = advice_against(missing)
    if hint is None:
        hint = GIVE_SAVED_MODEL.sentence() + Remedy(", or name its place with Task(checkpoint=…)", "")
    where = f"its {best.candidate.name!r}" if best.candidate.name else "its root"
    return mismatch(
        f"{path} does not hold the model: {len(missing)} of {len(variables)} variables are not in {where}: "
        f"{listed(missing)}. It was saved with {', '.join(children) or 'no children'}. ",
        remedy=hint + ".",
    )
