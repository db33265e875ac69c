"""The table of checkpoint formats. A new one is a file beside this with one class, and one line below."""

import re
from collections.abc import Collection, Sequence
from typing import Final

from sidecar.checkpoints.files import is_temporary
from sidecar.checkpoints.formats.format import Candidate, Format, Inspection
from sidecar.checkpoints.formats.hdf5 import Hdf5
from sidecar.checkpoints.formats.keras_archive import KerasArchive
from sidecar.checkpoints.formats.keras_shards import KerasShards
from sidecar.checkpoints.formats.matching import MatchingFiles, MatchingFolders
from sidecar.checkpoints.formats.orbax import Orbax
from sidecar.checkpoints.formats.saved_model import SavedModel
from sidecar.checkpoints.formats.tf_object import TfObject

__all__ = ["FORMATS", "Candidate", "Format", "Inspection", "file_group", "looked_for"]

FORMATS: Final[dict[str, Format]] = {
    format_.name: format_
    for format_ in (
        TfObject(),  # tf.train.Checkpoint, CheckpointManager, Checkpoint.write, Keras 2 save_weights(save_format="tf")
        KerasArchive(),  # Keras 3 model.save("m.keras"), tf_keras too
        Hdf5(),  # save_weights("m.weights.h5"), model.save("m.h5") of any Keras
        KerasShards(),  # Keras 3 save_weights("m.weights.json", max_shard_size=…)
        Orbax(),  # keras.callbacks.OrbaxCheckpoint
        SavedModel(),  # tf.saved_model.save, model.export, tf_keras model.save("m")
        MatchingFiles(),  # the user's own, by the setting checkpoint_pattern
        MatchingFolders(),  # likewise
    )
}
"""Every format by its name, which also stands in the record of each checkpoint."""


_BY_PATTERN: Final = (MatchingFiles.name, MatchingFolders.name)
_ENDINGS: Final = re.compile(f"(?:{'|'.join(format_.endings for format_ in FORMATS.values() if format_.endings)})\\Z")


def looked_for(names: Collection[str] = (), pattern: str | None = None) -> list[Format]:
    """Return the formats to look for: what matches the user's pattern, else those of these names, else all known."""
    if pattern is not None:
        return [MatchingFiles(pattern), MatchingFolders(pattern)]
    return [format_ for name, format_ in FORMATS.items() if name not in _BY_PATTERN and (not names or name in names)]


def file_group(name: str, formats: Sequence[Format] = ()) -> str | None:
    """Return the name of the group of files that a file belongs to, or None if no format knows such files.

    Formats that share files agree about their groups. `formats`: those that are looked for; with the user's own among
    them no other counts.
    """
    by_pattern = [format_ for format_ in formats if format_.name in _BY_PATTERN]
    if is_temporary(name) or (
        not by_pattern and _ENDINGS.search(name) is None
    ):  # most names in a large folder are nobody's
        return None
    for format_ in by_pattern or FORMATS.values():
        if (group := format_.file_group(name)) is not None:
            return group
    return None
