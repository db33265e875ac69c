"""Settings: what can be said (`settings`), and where it is read from (`sources`). The first thing a command calls."""

from sidecar.settings.model import CONFIG, FLAGS, PREFIX, Settings, check_host, check_name
from sidecar.settings.sources import FileHere, file_here, load

__all__ = ["CONFIG", "FLAGS", "PREFIX", "FileHere", "Settings", "check_host", "check_name", "file_here", "load"]
