"""Decide about values that only the checkpoint has, or only the model: refuse them, or name them in a note.

`restore` and the modules of the formats find these values. A task allows some of them by `ignore` and
`from_build_model`, whose patterns are compared with the names that messages show.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sidecar.evaluation.backends.tensorflow.differences import name_of
from sidecar.evaluation.backends.tensorflow.libraries import class_named, is_keras_2
from sidecar.evaluation.backends.tensorflow.saved_switches import advice_for
from sidecar.evaluation.failures import mismatch
from sidecar.evaluation.name_patterns import matches, unused
from sidecar.evaluation.remedy import GIVE_SAVED_MODEL, Remedy
from sidecar.system.plain_text import counted, listed

_MOST_PATTERNS: Final = 5  # in the line that a message proposes
_NOT_RESTORED: Final = re.compile(
    r"(^|_)(optimizer|metrics?|tracker|seed_generators?|random_generator|save_counter|keras_api)$"
)
"""Names of attributes whose values take no part in a prediction: an evaluation begins with its own."""


@dataclass(frozen=True, slots=True)
class Unused:
    """Describe a value in the model's place of a checkpoint that no variable of the model is bound to."""

    name: str  # as messages show it
    shape: tuple[int, ...]
    dtype: str
    alias: str = ""  # another name, which patterns may use, too

    def __str__(self) -> str:
        return f"{self.name} {self.shape}"

    def is_named_by(self, patterns: Iterable[str]) -> bool:
        """Return whether one of the patterns describes the value."""
        patterns = list(patterns)
        return matches(self.name, patterns) or bool(self.alias and matches(self.alias, patterns))


@dataclass(frozen=True, slots=True)
class Restored:
    """Describe what a restore did in addition to the variables."""

    layers: list[Any]  # which also got state outside of variables, such as a vocabulary
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Exceptions:
    """Hold what a task allows checkpoint and model to differ in."""

    ignore: Sequence[str] = ()  # patterns of values that the model lacks
    from_build_model: Sequence[str] = ()  # patterns of variables that the checkpoint lacks
    # Whether `Task(checkpoint=…)` names the place of the model: then it is known that more lies there
    is_placed: bool = False
    # The `id` of each variable that is the state of a metric: each evaluation begins with its own
    of_metrics: frozenset[int] = frozenset()

    def keeps(self, variable: Any) -> bool:
        """Return whether a variable that the checkpoint lacks may keep the value that `build_model` gave it."""
        if id(variable) in self.of_metrics:
            return True
        return bool(self.from_build_model) and matches(plain_name(variable), self.from_build_model)

    def refused(self, values: Iterable[Unused]) -> list[Unused]:
        """Return the values that the task does not allow to be left out."""
        return [] if self.is_placed else [value for value in values if not value.is_named_by(self.ignore)]

    def require(self, path: str, values: Sequence[Unused], advice: Remedy | str = "") -> None:
        """Raise `EvaluationError` if a value is left out that the task does not name."""
        if refused := self.refused(values):
            raise mismatch(
                f"{path} holds {counted(len(refused), 'value')} of the saved model that this model has no variable "
                f"for: {listed([str(value) for value in refused])}. ",
                remedy=_remedy(refused) + advice,
            )

    def notes(self, values: Sequence[Unused], kept: Sequence[Any]) -> tuple[str, ...]:
        """Return notes on the values that were left out, on variables that were kept, and on unused patterns."""
        notes = []
        # Others are restored in another way, such as the tables of an exported graph.
        kept = [variable for variable in kept if self.keeps(variable) and id(variable) not in self.of_metrics]
        ignored = [value for value in values if value.is_named_by(self.ignore)]
        others = [value.name for value in values if value not in ignored]
        if ignored:
            names = listed([value.name for value in ignored])
            notes.append(
                f"{counted(len(ignored), 'value')} of the checkpoint left out, as Task(ignore=…) says: {names}"
            )
        if others:
            notes.append(
                f"{counted(len(others), 'value')} of the checkpoint left out, as Task(checkpoint=…) names the place: "
                f"{listed(others)}"
            )
        if kept:
            names = listed([plain_name(variable) for variable in kept])
            notes.append(
                f"{counted(len(kept), 'variable')} not in the checkpoint with the value of build_model, as "
                f"Task(from_build_model=…) says: {names}"
            )
        known = [name for value in values for name in (value.name, value.alias)]
        for argument, patterns, names_of_it in (
            ("ignore", self.ignore, known),
            ("from_build_model", self.from_build_model, [plain_name(variable) for variable in kept]),
        ):
            if without := unused(patterns, names_of_it):
                notes.append(f"Task({argument}=…): nothing in this checkpoint needs {listed(list(map(repr, without)))}")
        return tuple(notes)


def states_of_metrics(model: Any) -> frozenset[int]:
    """Return the `id` of each variable that is the state of a metric of tf_keras, which counts it as a weight.

    A checkpoint of a model that was not measured so lacks it. Layers within a metric, such as a network that describes
    images, are no states.
    """
    states = frozenset(id(variable) for metric in metrics_of(model) for variable in metric.weights)
    return states - set(map(id, networks_in_metrics(model)))


def metrics_of(model: Any) -> list[Any]:
    """Return the metrics that are attributes of a model of tf_keras or of its layers, where they are layers, too."""
    return [module for module in model.submodules if class_named(module, "Metric")] if is_keras_2(model) else []


def networks_in_metrics(model: Any) -> list[Any]:
    """Return the variables of layers within metrics of tf_keras, which it does not count as weights of the model."""
    modules = [module for metric in metrics_of(model) for module in metric.submodules]
    layers = [module for module in modules if not class_named(module, "Metric")]
    variables = [variable for layer in layers for variable in getattr(layer, "weights", ())]
    return list({id(each): each for each in variables if hasattr(each, "assign")}.values())


NONE: Final = Exceptions()
"""Allow no difference."""


def plain_name(variable: Any) -> str:
    """Return the name of a variable as patterns describe it: in tf_keras, names end with `:0`."""
    return name_of(variable).removesuffix(":0")


def layer_of(name: str) -> str:
    """Return the name of the layer that is part of the name of a variable; empty if there is none."""
    return name.rpartition("/")[0]


def takes_no_part(attribute: str) -> bool:
    """Return whether an attribute of this name holds no value of a model, but of its training or of its metrics."""
    return _NOT_RESTORED.search(attribute) is not None


def _remedy(values: Sequence[Unused]) -> Remedy:
    """Return the likely reason for these values, as the line that the model lacks, and how to leave them out."""
    advice = advice_for((value.name, value.shape) for value in values)
    patterns = ", ".join(f'"{pattern}"' for pattern in _patterns([value.name for value in values]))
    known = advice or GIVE_SAVED_MODEL.sentence() + ", with the switches that training set"
    return known + "." + Remedy(f" If they do not matter, write Task(ignore=[{patterns}])", "")


def _patterns(names: Sequence[str]) -> list[str]:
    """Return few patterns that describe all names: the names themselves, or what they begin with."""
    if len(names) > 1 and all("lora_" in name for name in names):
        return ["*lora_*"]
    patterns = list(names)
    while len(patterns) > _MOST_PATTERNS:
        shorter = list(dict.fromkeys(f"{head}/" if (head := _head(pattern)) else pattern for pattern in patterns))
        if shorter == patterns:
            break
        patterns = shorter
    return patterns


def _head(pattern: str) -> str:
    return pattern.rstrip("/").rpartition("/")[0]
