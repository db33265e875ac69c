"""Fail `make docs` if a page says what the code contradicts: each finding is a warning, and the build is strict.

MkDocs calls this hook once, before it builds the pages (https://www.mkdocs.org/user-guide/configuration/#hooks).
"""

import logging
import sys
from pathlib import Path
from typing import Any

_log = logging.getLogger("mkdocs.hooks.facts_of_code")


def on_pre_build(*, config: Any) -> None:
    """Warn of each statement that is not true, and of each generated page that is older than the code."""
    docs = Path(config.docs_dir)
    sys.path.insert(0, str(docs))
    import facts  # noqa: PLC0415 - MkDocs does not know the folder before
    import generate  # noqa: PLC0415

    for name, text in generate.pages().items():
        if (docs / "reference" / name).read_text("utf-8") != text:
            _log.warning("reference/%s is older than the code: run `make reference`", name)
    for complaint in facts.complaints():
        _log.warning("%s", complaint)
