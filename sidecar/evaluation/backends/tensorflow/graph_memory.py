"""Tell whether a traced step can keep anything from call to call, so that what it gives twice need not be tried.

`step` asks this of its trace, and `set_checks` leaves out repetitions that could show nothing.
"""

import os
from typing import Any, Final

import tensorflow as tf

_READS: Final = {"ReadVariableOp", "ResourceGather", "ResourceGatherNd", "Assert", "LookupTableFindV2"}
_ASSIGNMENTS: Final = {"AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp"}


def clusters_graphs() -> bool:
    """Return whether XLA compiles parts of traces by itself, which changes the last bits after the first calls."""
    return bool(os.environ.get("TF_XLA_FLAGS") or tf.config.optimizer.get_jit())


def keeps_nothing(graph: Any) -> bool:
    """Return whether the results of a graph depend on its inputs, and on variables that it does not change, alone.

    A variable that is assigned before any other use holds nothing of the call before. Operations that may keep
    something are taken to do so: functions of Python, random numbers, and control flow with operations of this kind.
    """
    first_uses: dict[str, str] = {}  # of each resource, by its name in the graph; operations are in their order
    changed: set[str] = set()
    for operation in graph.get_operations():
        resources = [tensor.name for tensor in operation.inputs if tensor.dtype == tf.resource]
        for name in resources:
            first_uses.setdefault(name, operation.type)
        if operation.type in _ASSIGNMENTS:
            changed.update(resources)
        elif (resources or operation.op_def.is_stateful) and operation.type not in _READS:
            return False
    if b"PyFunc" in graph.as_graph_def().SerializeToString():  # also in its functions
        return False
    return all(first_uses[name] == "AssignVariableOp" for name in changed)


def assigns_nothing(graph: Any) -> bool:
    """Return whether a graph that keeps nothing changes no variable either, so that its calls may run at once."""
    return not any(operation.type in _ASSIGNMENTS for operation in graph.get_operations())
