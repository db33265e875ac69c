"""Every text, list and mapping of every kind of record has a limit, which its reader enforces."""

import ast
import dataclasses
import importlib
import json
import types
import typing
from enum import StrEnum
from pathlib import Path

import pytest

import sidecar
from sidecar.coordination.snapshot import Snapshot
from sidecar.errors import VoidRecordError
from sidecar.protocol.codec import limits_of, loads
from sidecar.protocol.record_limits import SNAPSHOT, AtMost
from sidecar.protocol.records import INLINED, UNSAVED

PACKAGE = Path(sidecar.__file__).parent
READERS = {"loads": 0, "parse": 0}  # functions that read a record of a kind, which is their first argument
MOST_ITEMS, MOST_CHARACTERS = 20_000, 65_536
GROWING = {
    *("settled", "failed_tasks", "tasks", "failures", "outcomes", "requeued", "before_start", "reopened", "ordinals"),
    *("checkpoints", "best", "outdated", "changes", "nonfinite", "eval_sets", "goals", "latest"),
}
"""The fields of a snapshot that grow with the run. `excess` counts all of its values before it is parsed."""


def record_kinds():
    """Return every kind of record that some module of the package reads, by its name."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        source = path.read_text()
        if not any(f"{reader}(" in source for reader in READERS):
            continue
        nodes = list(ast.walk(ast.parse(source)))
        for call in nodes:
            if (
                isinstance(call, ast.Call)
                and isinstance(call.func, ast.Name)
                and call.func.id in READERS
                and len(call.args) > 1
                and isinstance(call.args[0], ast.Name)
                and call.args[0].id not in ("cls", "data")
            ):
                name = call.args[0].id
                kind = getattr(importlib.import_module(_module_of(name, path, nodes)), name)
                found[kind.__qualname__] = kind
    return found


def _module_of(name, path, nodes):
    """Return the module that a file takes a class from, also inside a function; the file's own if it imports none."""
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and name in {alias.name for alias in node.names}:
            return node.module
    return ".".join(("sidecar", *path.relative_to(PACKAGE).with_suffix("").parts))


KINDS = record_kinds()


def fields_in_file(cls):
    """Yield the name and the type of each field of a record in its file."""
    hints = typing.get_type_hints(cls, include_extras=True)
    for field in dataclasses.fields(cls):
        kind, *marks = typing.get_args(hints[field.name]) or (hints[field.name],)
        if INLINED in marks:
            yield from fields_in_file(kind)
        elif UNSAVED not in marks:
            yield field.name, hints[field.name]


def sample(kind):
    """Return the smallest JSON value of a type, with one item in each list."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Annotated, typing.Union, types.UnionType):
        found = sample(next(each for each in arguments if each is not type(None)))
    elif origin is typing.Literal:
        found = arguments[0]
    elif origin is tuple:
        found = [sample(arguments[0])]
    elif origin is dict:
        found = {"k": sample(arguments[1])}
    elif dataclasses.is_dataclass(kind):
        found = {name: sample(each) for name, each in fields_in_file(kind)}
    elif issubclass(kind, StrEnum):
        found = next(iter(kind)).value
    else:
        found = {str: "x", int: 1, float: 1.0, bool: False}[kind]
    return found


def too_large(kind, limits, most=None):
    """Yield each limit in a value of a type, and a value that breaks it alone; None instead of one that is too long."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        own = next((mark for mark in arguments[1:] if isinstance(mark, AtMost)), most)
        yield from too_large(arguments[0], limits, own)
    elif origin in (typing.Union, types.UnionType):
        yield from too_large(next(each for each in arguments if each is not type(None)), limits, most)
    elif origin in (tuple, dict):
        item = arguments[-1] if origin is dict else arguments[0]
        count = limits.items if most is None else most.count
        small = sample(item)
        if origin is dict:
            many = {str(number): small for number in range(count + 1)} if count <= MOST_ITEMS else None
            yield "items", count, many
            yield "name", limits.name, {"x" * (limits.name + 1): small}
        else:
            yield "items", count, [small] * (count + 1) if count <= MOST_ITEMS else None
        for what, limit, value in too_large(item, limits):
            yield what, limit, None if value is None else {"k": value} if origin is dict else [value]
    elif dataclasses.is_dataclass(kind):
        for name, each in fields_in_file(kind):
            for what, limit, value in too_large(each, limits):
                yield f"{name}: {what}", limit, None if value is None else sample(kind) | {name: value}
    elif kind is str:
        count = limits.text if most is None else most.count
        yield "text", count, "x" * (count + 1)


def test_all_kinds_are_known():
    """The records of the journal, those of nodes and runs, and the small ones of sinks, pins and exports."""
    assert {"Plan", "Outcome", "Heartbeat", "Snapshot", "Run", "Manifest", "Header", "Checkpoint"} < KINDS.keys()
    assert len(KINDS) >= 16


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.seconds] * (name == "Snapshot")) for name in sorted(KINDS)]
)
def test_every_field_has_a_limit(name):
    """Nothing may be larger than what was thought of, and a reader names what is."""
    cls = KINDS[name]
    limits = limits_of(cls)
    loads(cls, json.dumps(sample(cls)).encode())
    tried, growing = 0, set()
    for what, limit, value in too_large(cls, limits):
        field, broken = what.rsplit(": ", 1)
        field = field.rsplit(": ", 1)[-1]
        if broken != "items":
            assert limit <= MOST_CHARACTERS, what
        elif limit > MOST_ITEMS:
            assert (limits, limit) == (SNAPSHOT, SNAPSHOT.values), what
            growing.add(field)
        if value is None:
            continue
        with pytest.raises(VoidRecordError):
            loads(cls, json.dumps(value).encode())
        tried += 1
    assert tried
    assert growing == (GROWING if cls is Snapshot else set())
