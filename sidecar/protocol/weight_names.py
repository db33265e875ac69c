"""Name the files of weights that Hugging Face's libraries and `torch.distributed.checkpoint` write."""

import re
from collections.abc import Collection
from typing import Final

SAFETENSORS: Final = ".safetensors"
INDEX: Final = ".index.json"
DCP_METADATA: Final = ".metadata"

_USUAL: Final = (
    *("model.safetensors", f"model.safetensors{INDEX}", "adapter_model.safetensors"),
    *("pytorch_model.bin", f"pytorch_model.bin{INDEX}"),
)
_SHARD: Final = re.compile(r"(.+)-[0-9]{5,6}-of-[0-9]{5,6}(\.(?:safetensors|bin))", re.DOTALL)


def index_of(name: str) -> str | None:
    """Return the name of the index that lists a shard; None if the name is not that of a shard.

    >>> index_of("model-00002-of-00003.safetensors")
    'model.safetensors.index.json'
    """
    match = _SHARD.fullmatch(name)
    return None if match is None else f"{match[1]}{match[2]}{INDEX}"


def main_weights(names: Collection[str]) -> str | None:
    """Return the file with a model's weights, or the index of its shards, among the names in a folder.

    The usual names count first, in the order in which the libraries look for them. Without one of these it is the only
    file of safetensors; None if there are several.

    >>> main_weights(["config.json", "model.safetensors", "optimizer.pt"])
    'model.safetensors'
    """
    usual = next((weights for weights in _USUAL if weights in names), None)
    others = [
        name for name in names if name.endswith((SAFETENSORS, f"{SAFETENSORS}{INDEX}")) and index_of(name) is None
    ]
    return usual or (others[0] if len(others) == 1 else None)
