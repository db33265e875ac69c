"""Link names of settings and log events in the prose of the site to the place that explains each of them.

MkDocs calls this hook for each page (https://www.mkdocs.org/user-guide/configuration/#hooks). Only whole names with an
underscore are linked: `task` and `run` are also usual words. Code, headings and links stay as they are.
"""

import posixpath
import re
from functools import cache
from pathlib import Path
from typing import Any, Final

_REFERENCES: Final = (("reference/settings.md", "###"), ("reference/log-events.md", "##"))
_PARTS: Final = re.compile(
    r"^ *(?P<fence>```+|~~~+).*?^ *(?P=fence)|^#.*?$|\[[^\[\]]*\]\([^)]*\)|<!--.*?-->"
    r"|`(?P<name>[a-z]+(?:_[a-z]+)+)`",
    re.DOTALL | re.MULTILINE,
)


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Return the page with a link at each name that a page of the reference has a heading for."""
    source = page.file.src_uri
    if source.startswith(("reference/", "adr/")):
        return markdown
    places = _places(config.docs_dir)
    return _PARTS.sub(lambda match: _linked(match, posixpath.dirname(source), places), markdown)


@cache
def _places(docs: str) -> dict[str, str]:
    """Return the page that explains each name."""
    found: dict[str, str] = {}
    for page, level in _REFERENCES:
        text = (Path(docs) / page).read_text("utf-8")
        found |= dict.fromkeys(re.findall(rf"^{level} `(\w+)`$", text, re.MULTILINE), page)
    return found


def _linked(match: re.Match[str], folder: str, places: dict[str, str]) -> str:
    name = match["name"]
    if name not in places:
        return match[0]
    return f"[`{name}`]({posixpath.relpath(places[name], folder or '.')}#{name})"
