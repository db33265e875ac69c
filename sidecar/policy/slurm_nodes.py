"""Read the lists of nodes that Slurm writes into variables, such as `gpu-a[01-12,20],login`. Pure.

The grammar is that of `scontrol show hostnames`: names with commas between them, and in a name any number of brackets
with numbers and ranges of numbers.
"""

import re
from typing import Final

_NAME: Final = r"(?:[^\[\],\s]|\[[0-9]+(?:-[0-9]+)?(?:,[0-9]+(?:-[0-9]+)?)*\])++"
_LIST: Final = re.compile(rf"({_NAME})(?:,{_NAME})*+")
_BRACKET: Final = re.compile(r"\[([0-9]+)[^\]]*\]")


def first_host(nodes: str) -> str | None:
    """Return the first name of a list, which is the list itself if it has one name; None if it is not a list."""
    found = _LIST.fullmatch(nodes)
    return None if found is None else _BRACKET.sub(r"\1", found[1])
