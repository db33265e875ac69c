"""Check the values of the settings about sinks, as `values` checks the others. Used by `outputs` alone."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator

from sidecar.settings.hook_values import HOOK_NAMES
from sidecar.settings.json_table import table_of

OWN_SINKS: Final = (
    "remote_write",
    "tensorboard",
    "mlflow",
    "wandb",
    "early_stop",
    *(f"hook_{event}" for event in HOOK_NAMES),
)
"""Sinks of this program, each with settings of its own."""

_SINK_NAME: Final = re.compile(r"[A-Za-z0-9_]{1,64}", re.ASCII)  # a label, and the name of a file

_PROJECT_CHARACTERS: Final = 128  # W&B's own rules for the name of a project
_NOT_IN_PROJECT: Final = "/\\#?%:"


def check_tracking_uri(value: str) -> str:
    """Return the address of a tracking server; raises `ValueError`."""
    parts = urlsplit(value)  # raises a ValueError for brackets that do not match
    server = parts.scheme in ("http", "https") and parts.hostname and not parts.query and not parts.fragment
    if not server and value != "databricks" and parts.scheme != "databricks":
        raise ValueError("write the URL of a tracking server, such as http://mlflow:5000, or databricks")
    return value


def _are_sinks(value: Any) -> Any:
    remedy = "write a table [sinks.NAME] with the options of each sink"
    parsed = table_of(value, remedy, 'write an object such as {"NAME": {"path": "/x"}}')
    for name, options in parsed.items():
        if not _SINK_NAME.fullmatch(str(name)):
            raise ValueError(f"{name!r} cannot be the name of a sink: use letters, digits and '_', at most 64")
        if name in OWN_SINKS:
            raise ValueError(f"{name!r} is a sink of this program, which has settings of its own")
        if not isinstance(options, Mapping):
            raise ValueError(f"{name!r}: {remedy}")  # noqa: TRY004 - pydantic collects ValueError only
    return {name: dict(options) for name, options in parsed.items()}


def _is_project(value: str) -> str:
    if not value or len(value) > _PROJECT_CHARACTERS or not value.isprintable() or set(value) & set(_NOT_IN_PROJECT):
        raise ValueError(
            f"write the name of a project, at most {_PROJECT_CHARACTERS} characters without {_NOT_IN_PROJECT}; "
            "the variable WANDB_ENTITY names the team"
        )
    return value


def _are_parameters(value: Any) -> Any:
    remedy = "write a table [tensorboard_parameters] with NAME = a number, a text, true or false"
    parsed = table_of(value, remedy, 'write an object such as {"learning_rate": 0.001}')
    for name, one in parsed.items():
        if not isinstance(name, str) or not name.strip() or not isinstance(one, str | bool | int | float):
            raise ValueError(f"{name!r}: {remedy}")
    return dict(parsed)


TrackingUri = Annotated[str, AfterValidator(check_tracking_uri)]
WandbProject = Annotated[str, AfterValidator(_is_project)]
Parameters = Annotated[dict[str, str | bool | int | float], BeforeValidator(_are_parameters)]
InstalledSinks = Annotated[dict[str, dict[str, Any]], BeforeValidator(_are_sinks)]
