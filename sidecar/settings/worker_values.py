"""Check the values of the settings about worker processes, as `values` checks the others. Used by `model` alone."""

import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ValidationInfo

from sidecar.settings.json_table import table_of


def _is_environment(value: Any) -> Any:
    remedy = 'write names with a string, or null to remove, such as {"OMP_NUM_THREADS": "1", "HTTP_PROXY": null}'
    parsed = table_of(value, remedy)
    if not all(_is_variable(name, item) for name, item in parsed.items()):
        raise ValueError(remedy)
    return {name: None if item is None or item is False else str(item) for name, item in parsed.items()}


def _is_variable(name: Any, value: Any) -> bool:
    """Return whether a process can be given this variable; false removes one, as TOML has no null."""
    return (
        isinstance(name, str)
        and bool(name)
        and not set(name) & {"=", "\0"}
        and (value is None or value is False or (isinstance(value, str | int) and value is not True))
    )


def _are_devices(value: Any, info: ValidationInfo) -> Any:
    listed = [part.strip() for part in value.split(",")] if isinstance(value, str) else value
    if listed in (["cpu"], ["gpu"]):
        return listed[0]
    if not isinstance(listed, list | tuple) or not listed or not all(_is_device(item) for item in listed):
        raise ValueError("write cpu, gpu, or the GPUs to use, such as 0,1 or GPU-8a1c…")
    devices = tuple(int(item) if str(item).isdecimal() else item for item in listed)
    replicas = info.data.get("replicas", 1)
    if len(set(devices)) < max(len(devices), replicas):
        raise ValueError(f"a GPU takes one process: list at least as many different ones as replicas ({replicas})")
    return devices


def _is_device(item: Any) -> bool:
    """Return whether that is a GPU's number, or its UUID as nvidia-smi -L prints it."""
    if isinstance(item, str):
        return bool(re.fullmatch(r"\d+|(GPU|MIG)-[0-9A-Za-z/-]+", item, re.ASCII))
    return isinstance(item, int) and not isinstance(item, bool) and item >= 0


Environment = Annotated[dict[str, str | None], BeforeValidator(_is_environment)]
Devices = Annotated[Literal["cpu", "gpu"] | tuple[int | str, ...], BeforeValidator(_are_devices)]
