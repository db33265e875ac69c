"""Define the questions about files that every checkpoint format answers without its framework."""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sidecar.checkpoints.files import File, Listing
from sidecar.checkpoints.work_budget import WorkBudget
from sidecar.errors import CheckpointError
from sidecar.protocol.records import StepSource

_LONGEST_NAME: Final = 300

STEP_KEYS: Final = ("global_step", "step", "iteration", "iterations", "iter", "num_updates", "n_iter", "iter_num")
"""The most certain first. Lightning and Hugging Face's Trainer write `global_step`, nanoGPT `iter_num`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Hold the files that may be one checkpoint, judged by their names only.

    `named`: the writer's own state file lists the checkpoint. `committed`: the checkpoint is named and nothing suggests
    that it is being written again, so it may be used before its quiet time is over. `leaving`: one of its files that is
    a link out of the folder. A checkpoint with such a link is not used.
    """

    name: str
    files: tuple[File, ...]
    named: bool = False
    committed: bool = False
    leaving: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """Describe a checkpoint whose structure is whole: its identity, its training step if any, and its needed files.

    `step_source` says which of its variables holds the step. `proof_bytes`: how much `check` reads to prove that the
    checkpoint is whole, as checksums cover all content and are written last; None: it cannot prove that. `same_as`:
    other checkpoints in the folder with the same training state, if this name is an additional one: `last.ckpt`.
    `doubt`: why the files may belong to two saves, although each is whole. `aside`: what the files are for if they lie
    beside the checkpoints of a training, such as the copy from which a callback continues it.
    """

    digest: str
    step: int | None
    files: tuple[str, ...]
    step_source: StepSource | None = None
    proof_bytes: int | None = None
    same_as: tuple[str, ...] = ()
    doubt: str | None = None
    aside: str | None = None


EMBEDDINGS: Final = "what TensorBoard shows as embeddings"
EMBEDDINGS_BEGINNING: Final = "keras_embedding.ckpt-"
"""Names that the callback TensorBoard gives: keras and tf_keras `callbacks/tensorboard.py`."""

BACKUP: Final = "the copy from which BackupAndRestore of Keras continues an interrupted training"
"""The text of `Inspection.aside` for files of this callback."""


def shown(name: str | bytes) -> str:
    """Return a name that was read from a file, safe for a message: long names are cut, control characters escaped."""
    text = name.decode("utf-8", "backslashreplace") if isinstance(name, bytes) else name
    text = text if len(text) <= _LONGEST_NAME else f"{text[:_LONGEST_NAME]}…"
    return text if text.isprintable() else repr(text)


@contextlib.contextmanager
def about(place: str) -> Iterator[None]:
    """Prefix the message of a `CheckpointError` that is raised inside the `with` block by `place`."""
    try:
        yield
    except CheckpointError as error:
        raise type(error)(f"{place}: {error}") from error


class Format(ABC):
    """Define one on-disk format. Its methods hold no state, read files as untrusted bytes and import no framework.

    Formats whose checkpoints are folders have neither suffixes nor endings. What most formats answer alike is here.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """Return the name of the format, as it stands in records."""

    @property
    def suffixes(self) -> tuple[str, ...]:
        """Return the suffixes that names of such checkpoints may have; empty if the names have none."""
        return ()

    @property
    def endings(self) -> str:
        """Return a regular expression for the ends of its file names; empty if its checkpoints are folders."""
        return ""

    def file_group(self, name: str) -> str | None:
        """Return the name of the group of files that a file belongs to: the name of the group's main file.

        Return None if the file belongs to no checkpoint of this format. Each sub-folder is a group of its own.
        """
        del name
        return None

    def candidates(self, folder: Path, listing: Listing) -> Iterable[Candidate]:
        """Yield the possible checkpoints of this format in a listing of a folder or of whole groups of files.

        Without a definition of its own, a format has each file that is a group by itself. A link that leads out of the
        folder cannot be used.
        """
        del folder
        for name, file in listing.files.items():
            if self.file_group(name) is not None:
                yield Candidate(name=name, files=(file,))
        for name in sorted(listing.escaping):
            if self.file_group(name) is not None:
                yield Candidate(name=name, files=(), leaving=name)

    def inspect(
        self, folder: Path, name: str, *, step_key: str | None = None, work: WorkBudget | None = None
    ) -> Inspection:
        """Check the structure of `folder/name` and read its step, from `step_key` if the user named one.

        `files` of the returned inspection are paths relative to `folder`. `work` counts the steps of each loop whose
        length the files decide; None: a budget of its own.

        Raises `VanishedError` for a checkpoint that does not exist, `IncompleteError` for a part that is missing or cut
        off, `CorruptError` for files that contradict themselves or each other or need more than the budget, and
        `TakesLongerError` if a brief budget is too small.
        """
        return self._inspect(folder, name, step_key, WorkBudget() if work is None else work)

    @abstractmethod
    def _inspect(self, folder: Path, name: str, step_key: str | None, work: WorkBudget) -> Inspection:
        """Do what `inspect` says."""

    def check(self, folder: Path, name: str) -> None:
        """Read all content, and compare every part that has a checksum in the format with it. Raises as `inspect`.

        `ChecksumError` names the file, the part of it, the expected and the computed checksum. Without a definition of
        its own, a format has no checksums, or none that this program can compute.
        """
        self.inspect(folder, name)

    def written_in_place(self, file: str) -> bool:
        """Return whether writers rewrite this file under its final name, which would change a hard link to it, too.

        Most do, and it is unknown how a program of the user writes.
        """
        del file
        return True
