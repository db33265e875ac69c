"""Define what a checkpoint format must be able to say about files, without its framework."""

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from sidecar.checkpoints.files import File, Listing
from sidecar.errors import CheckpointError
from sidecar.records import StepSource

_LONGEST_NAME: Final = 300


@dataclass(frozen=True, slots=True)
class Candidate:
    """Files that may be one checkpoint, judged by their names only.

    `named`: the writer's own state file says that it exists. `committed`: it is named and nothing suggests that it is
    being written again, so it may be used without waiting for its files to stay as they are. `leaving`: a file of it
    that is a link out of the folder, for which it is not used.
    """

    name: str
    files: tuple[File, ...]
    named: bool = False
    committed: bool = False
    leaving: str | None = None


@dataclass(frozen=True, slots=True)
class Inspection:
    """A checkpoint whose structure is whole: its identity, its training step if it holds one, the files it needs.

    `step_source` says which of its variables holds the step.
    """

    digest: str
    step: int | None
    files: tuple[str, ...]
    step_source: StepSource | None = None


def shown(name: str | bytes) -> str:
    """A name from inside a file, for a message: files may hold any, also long ones and such that steer terminals."""
    text = name.decode("utf-8", "backslashreplace") if isinstance(name, bytes) else name
    text = text if len(text) <= _LONGEST_NAME else f"{text[:_LONGEST_NAME]}…"
    return text if text.isprintable() else repr(text)


@contextlib.contextmanager
def about(place: str) -> Iterator[None]:
    """Say where it is that something is wrong."""
    try:
        yield
    except CheckpointError as error:
        raise type(error)(f"{place}: {error}") from error


class Format(Protocol):
    """One on-disk format. Its methods keep no state, read files as untrusted bytes and never import a framework."""

    @property
    def name(self) -> str:
        """Return the name of the format, as it stands in records."""
        ...

    @property
    def suffixes(self) -> tuple[str, ...]:
        """Return how names of such checkpoints end, beside what says which one it is; empty if they are bare."""
        ...

    @property
    def endings(self) -> str:
        """Return how names of its files in the folder itself end, as a regular expression; empty: there are none."""
        ...

    def file_group(self, name: str) -> str | None:
        """Return the name of the group of files that a file belongs to: the name of the group's main file.

        None: it belongs to no checkpoint of this format. Each sub-folder is a group of its own.
        """
        ...

    def candidates(self, folder: Path, listing: Listing) -> Iterable[Candidate]:
        """Return what may be a checkpoint of this format, by a listing of a folder or of whole groups of files."""
        ...

    def inspect(self, folder: Path, name: str, *, step_key: str | None = None) -> Inspection:
        """Check the structure of `folder/name` and read its step, from `step_key` if the user named one.

        `files` of the answer are paths from `folder`.

        Raises:
            VanishedError: it is not there.
            IncompleteError: something it needs is not there, or not all of it.
            CorruptError: what is there contradicts itself.
        """
        ...

    def check(self, folder: Path, name: str) -> None:
        """Compare everything that the format keeps a checksum of with it; all of the content is read.

        Raises:
            ChecksumError: the message says which file, which part of it, what was expected and what was found.
            VanishedError, IncompleteError, CorruptError: as `inspect`.
        """
        ...

    def written_in_place(self, file: str) -> bool:
        """Return whether writers rewrite this file under its final name, so that a hard link would change with it."""
        ...
