"""Show at the end of each page of the site which version it describes.

MkDocs calls this hook once (https://www.mkdocs.org/user-guide/configuration/#hooks).
"""

from typing import Any

from sidecar import __version__


def on_config(config: Any) -> Any:
    """Return the configuration with the version as the line at the end of pages."""
    config.copyright = f"sidecar-evaluator {__version__}"
    return config
