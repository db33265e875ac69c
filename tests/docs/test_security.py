"""SECURITY.md promises nothing without a test."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "SECURITY.md").read_text()
_, *_PARTS = re.split("## Trust|## Promises, and their tests", PAGE)
TRUST, HOLDS = (
    [[cell.strip() for cell in line.strip("|").split(" | ")] for line in part.splitlines() if line.startswith("| ")][1:]
    for part in _PARTS
)
LINK = re.compile(r"\[\d+\]\((tests/[\w/]+\.py)#(\w+)\)")


@pytest.mark.parametrize("row", HOLDS, ids=lambda row: row[1])
def test_every_sentence_has_tests_that_exist(row):
    """One sentence in each row, and a link to each of its tests by file and function."""
    party, sentence, tests = row
    assert party
    assert re.sub(r"\[(.*?)\]\(.*?\)", r"\1", sentence).count(". ") == 0
    found = LINK.findall(tests)
    assert found
    assert LINK.sub("", tests).strip(" |") == ""
    for path, name in found:
        functions = [
            each.name for each in ast.parse((ROOT / path).read_text()).body if isinstance(each, ast.FunctionDef)
        ]
        assert name in functions, path


def test_every_party_that_is_not_trusted_has_sentences():
    """The table of trust itself promises nothing that the other table does not say."""
    parties = {row[0] for row in HOLDS}
    for party, trusted, _ in TRUST:
        assert trusted in ("yes", "no")
        if trusted == "no":
            assert any(each in party for each in parties), party
    assert len(HOLDS) > len(parties) >= 5
