"""Summarise how the steps of checkpoints were found, in one sentence for the log and for `sidecar check`. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, get_args

from sidecar.protocol.records import Checkpoint, StepSource

REMEDY: Final = (
    r"set step_pattern to a regular expression whose one group is the step in a name, such as epoch_(\d+), "
    "or save the step: with torch.save under 'step' before the weights, else with the optimizer"
)

_SHOWN: Final[dict[StepSource, str]] = {
    "step_key": "the variable named by step_key",
    "step_pattern": "the name, by step_pattern",
    "optimizer": "the optimizer's iterations",
    "variable": "a variable of the checkpoint",
    "name": "the name",
    "order": "unknown, so a number in order of writing",
}
_OF_NAMES: Final = ("step_pattern", "name", "order")


@dataclass(slots=True)
class StepSources:
    """Count checkpoints by how their steps were found, with an example for each source."""

    _count: dict[str, int] = field(default_factory=dict)
    _example: dict[str, Checkpoint] = field(default_factory=dict)

    def add(self, checkpoints: Iterable[Checkpoint]) -> bool:
        """Count checkpoints, and return whether a source occurred for the first time."""
        before = len(self._count)
        for checkpoint in checkpoints:
            source = checkpoint.step_source or "order"
            self._count[source] = self._count.get(source, 0) + 1
            self._example.setdefault(source, checkpoint)
        return len(self._count) > before

    @property
    def are_doubtful(self) -> bool:
        """Return whether a step is unknown, or steps come from sources that cannot be compared."""
        return len(self._count) > 1 or "order" in self._count

    def summary(self) -> str:
        """Return a sentence such as `step = the optimizer's iterations for 4; the name for 1 (e-3 is step 3), of 5`."""
        sources, count = [source for source in get_args(StepSource) if source in self._count], sum(self._count.values())
        if len(sources) == 1:
            return f"step = {_SHOWN[sources[0]]}{self._for_example(sources[0])}" + f", for all {count}" * (count > 1)
        parts = [f"{_SHOWN[source]} for {self._count[source]}{self._for_example(source)}" for source in sources]
        return f"step = {'; '.join(parts)}, of {count}"

    def _for_example(self, source: str) -> str:
        checkpoint = self._example[source]
        if source not in _OF_NAMES:
            return ""
        return f" ({checkpoint.name})" if checkpoint.step is None else f" ({checkpoint.name} is step {checkpoint.step})"
