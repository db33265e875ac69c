"""The rules for the English of the pages that a program can check."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GENERATED = {"settings.md", "cli.md", "metrics.md", "exit-codes.md", "log-events.md"}
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *(
        path
        for path in sorted((ROOT / "docs").rglob("*.md"))
        if path.parent.name != "reference" or path.name not in GENERATED
    ),
]
FENCE = re.compile(r"^( *)(```+|~~~+)([^\n]*)\n(.*?)^\1\2`*~*[ ]*$", re.DOTALL | re.MULTILINE)
BEGINNING = re.compile(r"(?:^|(?<=[.!?] )|(?<=\| )|(?<=- ))(?:What|Who|Whoever|Of) [^.?!|\n]*[.!|\n]", re.MULTILINE)
WORDS = re.compile(
    r"(?<!there )\b(?:is|are|was) no (?!longer\b|more\b|one\b)\w+|\bbeside\b|\bmend(?:s|ed)?\b|\bthe own\b|\bwhoever\b",
    re.IGNORECASE,
)


def unusual(text):
    """Return what breaks the rules in a text: pronouns that begin a sentence, and words that are not usual English."""
    prose = re.sub(r"`[^`\n]*`", "code", FENCE.sub("", text))
    sentences = re.sub(r"\n(?![\n|#-])", " ", prose)
    return [*(found[0] for found in BEGINNING.finditer(sentences)), *WORDS.findall(" ".join(prose.split()))]


def test_what_is_unusual_is_found():
    """Each rule can fail; questions, and sentences with a noun, may have these words."""
    assert unusual("What waits is shown. Then it goes.\n") == ["What waits is shown."]
    assert unusual("It is no path. A hook beside it.\nThe own workers.") == ["is no path", "beside", "The own"]
    assert unusual("What is a pin? There is no limit. It is no longer there.\n") == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_page_keeps_the_rules(path):
    """A sentence begins with a noun or an imperative, and "is not a path" is said instead of "is no path"."""
    assert unusual(path.read_text()) == []
