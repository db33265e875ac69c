"""Declare settings (`model`), check them (`values`), spell them (`spelling`) and read them (`sources`)."""

from sidecar.settings.model import Settings
from sidecar.settings.runs import SharedSettings, load, load_shared
from sidecar.settings.sources import FileHere, file_here
from sidecar.settings.spelling import CONFIG, PREFIX, option, variable
from sidecar.settings.values import check_host, check_name

__all__ = [
    "CONFIG",
    "PREFIX",
    "FileHere",
    "Settings",
    "SharedSettings",
    "check_host",
    "check_name",
    "file_here",
    "load",
    "load_shared",
    "option",
    "variable",
]
