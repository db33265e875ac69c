"""Read the inputs of examples that workers saved for people to see. The files are not trusted."""

from collections.abc import Collection
from pathlib import Path

from sidecar.coordination.journal_state import Closed
from sidecar.protocol.column_names import PREDICTIONS, file_name
from sidecar.protocol.example_inputs import INPUTS, MOST_BYTES, MOST_INPUTS, Input, read_line
from sidecar.retention.saves.comparison_store import opened_saves
from sidecar.retention.saves.example_values import UnusableError
from sidecar.system.confined import Folder, read_from


def inputs_of(root: Path, evaluations: Collection[Closed], eval_set: str, places: Collection[int]) -> dict[int, Input]:
    """Return the inputs of the examples with these numbers, as far as the workers of these evaluations saved them.

    `root`: the state directory of the run. Files that are missing, damaged or too large have none. Raises
    `StorageError` if the bucket that holds them does not answer.
    """
    found = dict[int, Input]()
    wanted = set(places)
    if not wanted:
        return found
    try:
        with opened_saves(root, tuple(evaluations), eval_set, INPUTS) as folder:
            for closed in evaluations:
                for saves in closed.result.saves:
                    found |= _saved(folder, f"{saves}/{PREDICTIONS}/{file_name(eval_set)}", wanted - found.keys())
    except (OSError, UnusableError):
        return found
    return found


def _saved(root: Folder, name: str, wanted: Collection[int]) -> dict[int, Input]:
    """Return the wanted inputs that one worker saved."""
    try:
        with root.folder(name) as folder, folder.open_file(INPUTS) as file:
            lines = read_from(file, MOST_BYTES).splitlines()
        return {place: shown for place, shown in map(read_line, lines[:MOST_INPUTS]) if place in wanted}
    except (OSError, ValueError, RecursionError):
        return {}
