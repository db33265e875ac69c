"""Write the version into what is built: hatchling loads this file by its name, for wheels and sdists alike."""

import os
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_SOURCE: Final = "sidecar/version.py"
_PLACE: Final = '_BUILT: Final[str] = ""'


def version() -> str:
    """Return the version of a build: the variable BUILD_VERSION, else what `sidecar/version.py` tells."""
    if given := os.environ.get("BUILD_VERSION"):
        return given
    sys.path.insert(0, str(Path(__file__).parent))
    try:
        from sidecar.version import version as told  # noqa: PLC0415 - of this folder
    finally:
        del sys.path[0]
    return told()


class VersionHook(BuildHookInterface):  # type: ignore[type-arg]
    """Replace `sidecar/version.py` in a wheel or sdist by a copy that holds the version. Editable installs keep it."""

    PLUGIN_NAME = "version"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the copy to what is built; `version` is the kind of build."""
        if version == "editable":
            return
        text = Path(self.root, _SOURCE).read_text(encoding="utf-8")  # that of an sdist holds the version already
        self._folder = tempfile.TemporaryDirectory(prefix="sidecar-build-")
        copy = Path(self._folder.name, "version.py")
        copy.write_text(text.replace(_PLACE, f'{_PLACE[:-2]}"{self.metadata.version}"'), encoding="utf-8")
        copy.chmod(0o644)
        build_data["force_include"][str(copy)] = _SOURCE

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002 - hatchling's
        """Remove the copy."""
        if hasattr(self, "_folder"):
            self._folder.cleanup()
