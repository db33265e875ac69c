"""Say what helps against an error of an evaluation, once for each front end. Imports nothing of ours.

A backend cannot know who reads the error: the author of a task, or a program that evaluates the model which it has
already. So it gives both texts, and each front end shows its own.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Remedy:
    """Hold the end of a message: `for_task` for the author of a task, `for_model` for a program with its own model."""

    for_task: str
    for_model: str

    def __add__(self, after: "str | Remedy") -> "Remedy":
        """Return this remedy, followed by a text for both or by another remedy."""
        after = Remedy(after, after) if isinstance(after, str) else after
        return Remedy(self.for_task + after.for_task, self.for_model + after.for_model)

    def __radd__(self, before: str) -> "Remedy":
        """Return this remedy after a text for both."""
        return Remedy(before + self.for_task, before + self.for_model)

    def replace(self, old: str, new: str) -> "Remedy":
        """Return this remedy with another text in the place of each `old`."""
        return Remedy(self.for_task.replace(old, new), self.for_model.replace(old, new))

    def sentence(self) -> "Remedy":
        """Return this remedy with a capital at its beginning."""
        return Remedy(self.for_task[:1].upper() + self.for_task[1:], self.for_model[:1].upper() + self.for_model[1:])


GIVE_SAVED_MODEL: Final = Remedy(
    "let build_model return the model that was saved", "give SidecarEvaluator the model that was saved"
)

ON_THE_MODEL: Final = Remedy(" in build_model", " before the model is given to SidecarEvaluator")
"""Where a call on the model has its place."""

UNLESS_BATCHED: Final = Remedy(
    "; Task(batch_size=None) means that the data is already batched: if it is not, give a batch_size",
    "; the data must be batched: if it is not, batch it",
)
"""For a batch that is not a batch, if the task gives no batch size."""
