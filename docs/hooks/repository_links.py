"""Show links to files of the repository that are not pages as plain paths, since the site has no copy of them.

MkDocs calls this hook for each page (https://www.mkdocs.org/user-guide/configuration/#hooks). The repository has no
address that the site could link to. `[the unit](../../systemd/sidecar@.service)` leads to the file where the page is
read in the repository; on the site it becomes "the unit (`systemd/sidecar@.service` in the repository)".
"""

import re
from pathlib import Path
from typing import Any

_CODE_OR_LINK = re.compile(
    r"(?P<code>^ *(?P<fence>```+|~~~+).*?^ *(?P=fence)|`[^`\n]+`(?!\]))"
    r"|\[(?P<text>[^\[\]]+)\]\((?P<path>\.\.?/[^)\s#]+)(?:#[^)\s]*)?\)",
    re.DOTALL | re.MULTILINE,
)


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Return the page with each link that leaves the documentation replaced by its text and its path."""
    docs, folder = Path(config.docs_dir), Path(page.file.abs_src_path).parent
    return _CODE_OR_LINK.sub(lambda match: shown(match, docs, folder), markdown)


def shown(match: re.Match[str], docs: Path, folder: Path) -> str:
    """Return a link as the site shows it; code, links to pages and broken links stay as they are."""
    if match["path"] is None:
        return match[0]
    target = (folder / match["path"]).resolve()
    if target.is_relative_to(docs) or not target.is_relative_to(docs.parent) or not target.exists():
        return match[0]
    path = f"`{target.relative_to(docs.parent)}`"
    return path if match["text"].strip("`") == path.strip("`") else f"{match['text']} ({path} in the repository)"
