"""List the checkpoint formats. A new format is a module in this package with one class, and one line in `FORMATS`."""

import re
from collections.abc import Collection, Sequence
from typing import Final

from sidecar.checkpoints.files import is_temporary
from sidecar.checkpoints.formats.dcp import Dcp
from sidecar.checkpoints.formats.format import Candidate, Format, Inspection
from sidecar.checkpoints.formats.hdf5 import Hdf5
from sidecar.checkpoints.formats.keras_archive import KerasArchive
from sidecar.checkpoints.formats.keras_shards import KerasShards
from sidecar.checkpoints.formats.matching import MatchingFiles, MatchingFolders
from sidecar.checkpoints.formats.orbax import Orbax
from sidecar.checkpoints.formats.pretrained_folder import PretrainedFolder
from sidecar.checkpoints.formats.safetensors import Safetensors
from sidecar.checkpoints.formats.saved_model import SavedModel
from sidecar.checkpoints.formats.tf_object import TfObject
from sidecar.checkpoints.formats.torch_zip import TorchZip

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
        TorchZip(),  # torch.save, Lightning's ModelCheckpoint
        PretrainedFolder(),  # Hugging Face's Trainer, save_pretrained, accelerate's save_state
        Safetensors(),  # safetensors.torch.save_file, save_model
        Dcp(),  # torch.distributed.checkpoint.save, torchtitan
        MatchingFiles(),  # files that the user names by the setting checkpoint_pattern
        MatchingFolders(),  # folders that the user names by the same setting
    )
}
"""Every format by its name. The record of each checkpoint has the same name."""

_BY_PATTERN: Final = (MatchingFiles.name, MatchingFolders.name)
_ENDINGS: Final = re.compile(f"(?:{'|'.join(format_.endings for format_ in FORMATS.values() if format_.endings)})\\Z")


def looked_for(names: Collection[str] = (), pattern: str | None = None) -> list[Format]:
    """Return the formats to scan for.

    These are those of the user's pattern if there is one, else those of `names`, else all.
    """
    if pattern is not None:
        return [MatchingFiles(pattern), MatchingFolders(pattern)]
    return [format_ for name, format_ in FORMATS.items() if name not in _BY_PATTERN and (not names or name in names)]


def file_group(name: str, formats: Sequence[Format] = ()) -> str | None:
    """Return the name of the group of files that a file belongs to, or None if no format has files of this name.

    Formats that share files agree about their groups. `formats`: the formats that the scan is for. If the formats of
    the user's pattern are among them, only these decide.
    """
    by_pattern = [format_ for format_ in formats if format_.name in _BY_PATTERN]
    # One search for all endings: most files in a large folder belong to no checkpoint.
    if is_temporary(name) or (not by_pattern and _ENDINGS.search(name) is None):
        return None
    for format_ in by_pattern or FORMATS.values():
        if (group := format_.file_group(name)) is not None:
            return group
    return None
