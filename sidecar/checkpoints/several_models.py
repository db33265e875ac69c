"""Recognise by their names files of several models in one folder, and recommend the setting that chooses one of them.

Training of two models, such as `netG_epoch_3.pth` and `netD_epoch_3.pth`, saves both at each step. Only one of them is
that of the task. No I/O.
"""

import re
from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import Final

from sidecar.checkpoints.subfolder_hint import pattern_of

_NUMBER: Final = re.compile("[0-9]+")
_MOST_SHOWN: Final = 3


def remedy_for_several_models(name: str, others: Iterable[str]) -> str:
    """Return a sentence for a checkpoint that the model does not match, or an empty text.

    It names the checkpoints of the same folder, with the same numbers and the same ending, that have other words.
    """
    own, path = _NUMBER.sub("*", name), PurePosixPath(name)
    numbers = _NUMBER.findall(name)
    alike = {
        other
        for other in others
        if _NUMBER.findall(other) == numbers
        and _NUMBER.sub("*", other) != own
        and PurePosixPath(other).parent == path.parent
        and PurePosixPath(other).suffix == path.suffix
    }
    if not alike:
        return ""
    shown = sorted(alike)[:_MOST_SHOWN]
    patterns = ", or ".join(f'checkpoint_glob = "{pattern_of(one).removesuffix("/*")}"' for one in shown)
    return f"The folder also holds {', '.join(shown)}. If this task is for another one of them, set {patterns}"
