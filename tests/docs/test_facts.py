"""The statements of the documentation about the code are true, and each check of them can fail."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module", autouse=True)
def _docs_on_path():
    """The programs of docs/ import each other by their names."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(DOCS)
        yield


@pytest.fixture(scope="module")
def facts():
    """The program that looks for what is not true."""
    import facts

    return facts


@pytest.fixture(scope="module")
def blocks():
    """The program that fills the generated blocks."""
    import blocks

    return blocks


def test_no_page_says_what_the_code_contradicts(facts):
    """`make docs` fails on each of these sentences; `make reference` renews generated blocks."""
    assert facts.complaints() == []


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("See `sidecar/gone/away.py`.", "sidecar/gone/away.py"),
        ("See `tests/daemon/` and `tests/nothing/*.py`.", "tests/nothing"),
        ("Tested by `faults/test_nothing_at_all.py`.", "test_nothing_at_all"),
        ("Set `stall_sekonds`.", "stall_sekonds"),
        ("`sidecar_evals_metric` is a gauge.", "sidecar_evals_metric"),
        ("All of `sidecar_nothing_*`.", "sidecar_nothing_"),
        ("Run `sidecar frobnicate`.", "frobnicate"),
        ("Run `sidecar history --everything`.", "--everything"),
        ("```sh\nsidecar hooks test --nothing\n```", "--nothing"),
        ("Give `--no-such-option`.", "--no-such-option"),
        ("Run `make nothing`.", "make nothing"),
        ("At most `stall_seconds` (61).", "stall_seconds"),
        ("The timer (`sweep_seconds`, 3).", "sweep_seconds"),
        ("`quiet_seconds` is 4 s by default.", "quiet_seconds"),
        ("`plan_cap_seconds` (23 h)", "plan_cap_seconds"),
        ("| a | setting | default |\n|---|---|---|\n| b | `drain_seconds` | 26 s |\n", "drain_seconds"),
        ("`port_range` (21000-21998)", "port_range"),
        ("| metric | labels | meaning |\n|---|---|---|\n| `sidecar_ready` | run | x |\n", "sidecar_ready"),
        ('| the message says | do |\n|---|---|\n| "said by nobody" | x |\n', "said by nobody"),
        ("There are seven dashboards.", "dashboards"),
        ("There are 7 alerts.", "alerts"),
        ("| `make bench` | 36 minutes, root | x |", "make bench"),
        ("<!-- generated: formats -->`x`<!-- end of formats -->", "make reference"),
    ],
)
def test_what_is_not_true_is_found(facts, text, wrong):
    """A path, a test, a name, a metric, a command, an option, a default, a number and a block."""
    (found,) = facts.stale("docs/new.md", text)
    assert wrong in found


@pytest.mark.parametrize(
    "text",
    [
        "`sidecar/daemon/loop.py`, `docs/adr/`, `tests/daemon/*.py`, `stall_seconds` (60), `plan_cap_seconds` (24 h)",
        "`keep_free_bytes` (1 GiB), `keep_states` (1,000), `sidecar_eval_*`, `make test-fast`",
        "`sidecar history --last 3`, `sidecar hooks test best --checkpoint-dir ckpts`, four dashboards",
        "```sh\nsidecar run ckpts --task a.py  # --not-an-option\n```",
    ],
)
def test_what_is_true_passes(facts, text):
    """The checks above complain of nothing else."""
    assert [*facts.stale("docs/new.md", text)] == []


def test_no_foreign_word_is_left_over(facts):
    """Refuse an excuse that the page or the code no longer needs."""
    said = {word for page in facts.pages() for word in re.findall(r"\w+", page.read_text())}
    assert facts.foreign() - said == set()
    assert facts.foreign() & facts.words() == set()


def test_quoted_numbers_are_of_pages_that_exist(facts):
    """A page that was renamed would be compared no more."""
    assert {*facts.QUOTED, *facts.LISTED} <= {facts.named(page) for page in facts.pages()}


def test_quoted_numbers_and_lists_are_compared(facts):
    """A number that changes in the code, and a name that a table lacks or has in vain, are found."""
    quoted = {"a.md": {"at most {} words": lambda: "8"}}
    assert [*facts.stale("a.md", "at most 8\nwords", quoted)] == []
    assert len([*facts.stale("a.md", "at most 9 words", quoted)]) == 1
    listed = {"a.md": {("| name | means |", 0): lambda: {"one", "two"}}}
    table = "| name | means |\n|---|---|\n| `one` | 1 |\n| `three` | `4` |\n\n| `five` | 5 |\n"
    first, second = facts.stale("a.md", table, listed=listed)
    assert "`three`" in first
    assert "`two`" in second


def test_each_feature_of_the_comparison_has_a_test():
    """The last column of the table leads to it; `make docs` fails if it is gone."""
    page = (DOCS / "explanation/comparison.md").read_text()
    table = page.partition("\n## Feature by feature\n")[2].partition("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 15
    assert [row for row in rows if not re.search(r"\| \[test\]\(\.\./\.\./tests/[\w/]+/test_\w+\.py\) \|$", row)] == []


def test_a_block_is_filled_and_a_broken_one_is_refused(blocks):
    """Also within a sentence; a name that nobody knows, and a block without an end, are mistakes."""
    full = blocks.filled("Formats: <!-- generated: formats --><!-- end of formats -->.")
    assert re.fullmatch(r"Formats: <!-- .* -->`tf_object`, .*<!-- .* -->\.", full)
    assert blocks.filled(full) == full
    for broken in (
        "<!-- generated: formats -->",
        "<!-- generated: no --><!-- end of no -->",
        "<!-- end of formats -->",
    ):
        with pytest.raises(blocks.UnknownBlockError):
            blocks.filled(broken)


def test_the_build_of_the_site_fails_on_them(facts, monkeypatch, caplog):
    """The hook of MkDocs warns of each finding, and `make docs` is strict."""
    import importlib.util
    from types import SimpleNamespace

    import generate

    spec = importlib.util.spec_from_file_location("facts_of_code", DOCS / "hooks/facts_of_code.py")
    hook = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hook)
    page = (DOCS / "reference/exit-codes.md").read_text()
    pages, complaints = {"exit-codes.md": page}, []
    monkeypatch.setattr(generate, "pages", lambda: pages)
    monkeypatch.setattr(facts, "complaints", lambda: complaints)
    hook.on_pre_build(config=SimpleNamespace(docs_dir=str(DOCS)))
    assert caplog.messages == []
    pages["exit-codes.md"] += "more"
    complaints.append("a.md: there is no `make nothing`")
    hook.on_pre_build(config=SimpleNamespace(docs_dir=str(DOCS)))
    assert ["exit-codes.md" in caplog.messages[0], "make nothing" in caplog.messages[1]] == [True, True]
