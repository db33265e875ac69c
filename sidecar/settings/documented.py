"""Read what each setting means, its type, its default and the reason from the text of the classes that define it.

`sidecar settings` prints it, and docs/reference/settings.md is made of it. Standard library only.
"""

import ast
import inspect
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sidecar.settings.model import Settings
from sidecar.settings.outputs import OutputSettings

_TYPES: Final = {
    **dict.fromkeys(("CheckpointDirectory", "StateDirectory"), "path, or URL"),
    **dict.fromkeys(("LogDirectory", "OptionalPath", "Program"), "path"),
    **dict.fromkeys(
        ("str", "RunName", "TaskReference", "FileName", "Host", "PortRange", "Address", "MarkerName", "StepPattern"),
        "text",
    ),
    **dict.fromkeys(("CompleteMarker", "FrameworkName", "MetricName", "NamePattern"), "text"),
    **dict.fromkeys(("BucketUrl", "Endpoint", "PageUrl", "ReceiverUrl", "TrackingUri", "WandbProject"), "text"),
    "bool": "`true` or `false`",
    **dict.fromkeys(("Count", "MostWorkers", "PinBytes"), "whole number, 1 or more"),
    "Whole": "whole number, 0 or more",
    "ExportCount": "whole number, 0 to 10",
    "RetainedStates": "whole number, 0 to 1000",
    **dict.fromkeys(
        ("Seconds", "Beat", "Lease", "Sweep", "LongestBackoff", "OneLease", "OneVisibility", "BeatAndAHalf"),
        "seconds, more than 0",
    ),
    "SecondsFromZero": "seconds, 0 or more",
    "Factor": "number, 1 or more",
    "Priority": "number, more than 0",
    **dict.fromkeys(
        ("NodeGlobs", "HostGlobs", "PathGlobs", "Formats", "RunPlaces"), "list of texts, or one text with commas"
    ),
    "Devices": "`cpu` or `gpu`, or list of numbers and texts, or one text with commas",
    **dict.fromkeys(("Environment", "Labels"), "table of texts, or a JSON object"),
    "Resources": "table of numbers, or a JSON object",
    "LanguageModel": "table, or a JSON object",
    "Parameters": "table of numbers and texts, or a JSON object",
    "PageLinks": "table of URLs, or a JSON object",
    "InstalledSinks": "table of tables, or a JSON object",
    "Hooks": "table of commands, URLs and tables, or a JSON object",
    "Difference": "number, 0 or more",
    "Role": "`worker` or `chief`",
    "SaveWeights": "`auto`, `all`, `first` or `none`",
}
"""Types of settings, by their annotation in the code, as people read them."""


@dataclass(frozen=True, slots=True)
class Documented:
    """Hold one setting, as described in its source. `default` is empty for a derived value, which `reason` explains."""

    name: str
    type: str
    default: str
    meaning: str
    reason: str


class MissingSentenceError(Exception):
    """The code has something for users, such as a setting, that no sentence explains."""


def documented() -> list[tuple[str, str, list[Documented]]]:
    """Return the groups of settings: title, remark and members. Raises `MissingSentenceError`."""
    groups = [*_groups(Settings), *_groups(OutputSettings)]
    if {each.name for _, _, group in groups for each in group} != set(Settings.model_fields):
        raise MissingSentenceError("not every setting is a field with an annotation")
    return groups


def _groups(defined: type) -> list[tuple[str, str, list[Documented]]]:
    """Return the groups that one class defines."""
    path = Path(inspect.getfile(defined))
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source)
    (body,) = (node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == defined.__name__)
    fields = [node.lineno for node in body if isinstance(node, ast.AnnAssign)]
    first, last = fields[0], fields[-1]
    strings = {line for node in body if isinstance(node, ast.Expr) for line in range(node.lineno, node.end_lineno or 0)}
    comments = {
        number: line.strip().removeprefix("# ")
        for number, line in enumerate(source.splitlines(), start=1)
        if line.strip().startswith("#") and number not in strings and first - 2 < number < last
    }
    groups: list[tuple[str, str, list[Documented]]] = []
    for node, after in zip(body, [*body[1:], None], strict=True):
        if not (isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)):
            continue
        if (heading := comments.pop(node.lineno - 1, None)) is not None:
            title, _, about = heading.partition(". ")
            groups.append((title, about, []))
        groups[-1][2].append(_setting(node.target.id, node, after))
    if comments:
        raise MissingSentenceError(f"{path}: comments that do not begin a group: {comments}")
    return groups


def _setting(name: str, node: ast.AnnAssign, after: ast.stmt | None) -> Documented:
    match after:
        case ast.Expr(value=ast.Constant(value=str(text))):
            meaning, _, reason = " ".join(text.split()).partition(" Default: ")
        case _:
            meaning, reason = "", ""
    if not meaning.endswith(".") or not reason.endswith("."):
        raise MissingSentenceError(f"setting {name}: write its meaning and, after 'Default:', the reason, as sentences")
    parts = re.split(r" \| (?![^\[]*\])", ast.unparse(node.annotation))
    types = [_type(part.removeprefix("values.")) for part in parts if part != "None"]
    return Documented(name, ", or ".join(types), _default(name, node), meaning, reason)


def _type(annotation: str) -> str:
    if found := re.fullmatch(r"Literal\[(.*)\]", annotation):
        *values, last = (f"`{value.strip(chr(39))}`" for value in found[1].split(", "))
        return f"{', '.join(values)} or {last}" if values else last
    return _TYPES[annotation]


def _default(name: str, node: ast.AnnAssign) -> str:
    """Return the default as it is written in TOML; empty if there is none, or if it is derived."""
    value = Settings.model_fields[name].default
    if node.value is None or isinstance(value, Path) or ast.unparse(node.value) == "_DERIVED":
        return ""
    return "not set" if value is None else f"`{_toml(value)}`"


def _toml(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case tuple():
            return str(list(value)).replace("'", '"')
        case str():
            return f'"{value}"'
        case float():
            return f"{value:g}"
    return str(value)
