"""The documentation: links lead somewhere, paths exist, code compiles, and the site is built without a warning."""

import ast
import importlib
import importlib.util
import os
import re
import subprocess
import sys
import textwrap
import unicodedata
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
ARCHITECTURE = DOCS / "explanation/architecture.md"
ADR_LINES = 40

FENCE = re.compile(r"^( *)(```+|~~~+)([^\n]*)\n(.*?)^\1\2`*~*[ ]*$", re.DOTALL | re.MULTILINE)
HEADING = re.compile(r"^#+ +(.*?) *#*$", re.MULTILINE)
LINK = re.compile(r"\]\(<?([^)\s>]+)>?(?: +\"[^\"]*\")?\)")
REFERENCE = re.compile(r"^ *\[[^\]]+\]: +(\S+)", re.MULTILINE)


def named(path):
    return str(path.relative_to(ROOT))


def prose(path):
    """Return a page without its code."""
    return re.sub(r"`[^`\n]*`", "`code`", FENCE.sub("", path.read_text()))


def anchors(path):
    """Return the anchors of a page: those that MkDocs and GitHub make of headings, and those that are written out."""
    text = FENCE.sub("", path.read_text())
    found = set(re.findall(r"<a (?:id|name)=\"([^\"]+)\"", text))
    for heading in HEADING.findall(text):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        ascii_only = unicodedata.normalize("NFKD", plain).encode("ascii", "ignore").decode()
        words = re.sub(r"[^\w\s-]", "", ascii_only).strip().lower()
        found |= {re.sub(r"[-\s]+", "-", words), re.sub(r"[^\w\- ]", "", plain.lower()).strip().replace(" ", "-")}
    return found


def broken(path, root=ROOT):
    """Return the relative links of a page that lead nowhere."""
    text, found = prose(path), []
    for link in [*LINK.findall(text), *REFERENCE.findall(text)]:
        if re.match(r"[a-z][a-z0-9+.-]*:", link):
            continue
        place, _, anchor = link.partition("#")
        target = (path.parent / place).resolve() if place else path
        is_known = target.exists() and target.is_relative_to(root)
        if not is_known or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            found.append(link)
    return found


def loaded(hook):
    """Return a hook of MkDocs, which loads it by its path."""
    spec = importlib.util.spec_from_file_location(hook, DOCS / f"hooks/{hook}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def paths_of(nav):
    """Return the pages of a navigation, whatever its depth."""
    for entry in nav:
        for target in entry.values() if isinstance(entry, dict) else [entry]:
            if isinstance(target, list):
                yield from paths_of(target)
            else:
                yield target


@pytest.mark.parametrize("path", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=named)
def test_every_relative_link_leads_somewhere(path):
    """Files exist, and so do the headings that anchors name."""
    assert broken(path) == []


def test_a_broken_link_is_noticed(tmp_path):
    """The test above can fail: for a file, for an anchor, and for a link definition."""
    page = tmp_path / "page.md"
    page.write_text("# One `two`\n[a](#one-two) [b](#three) [c](gone.md)\n```\n[d](code.md)\n```\n[e]: away.md\n")
    assert broken(page, tmp_path) == ["#three", "gone.md", "away.md"]


def test_every_decision_has_a_file_that_exists():
    """The table "Where is ... decided?" names real places, and answers what newcomers ask first."""
    section = ARCHITECTURE.read_text().partition("\n## Where is ... decided?")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (.+?) \| (.+?) \|$", section, re.MULTILINE)[2:]
    paths = [path for _, files in rows for path in re.findall(r"`([\w./-]+/[\w./-]*)`", files)]
    assert len(paths) > len(rows) > 20
    assert [path for path in paths if not (ROOT / path).exists()] == []
    assert [question for question, files in rows if "`sidecar/" not in files] == []


def test_every_rule_of_the_protocol_has_a_reason_and_a_file():
    """Rules are numbered from 1 on; each says why it exists, and names files that exist."""
    rules = re.split(r"^(\d+)\. \*\*", (DOCS / "explanation/protocol.md").read_text(), flags=re.MULTILINE)[1:]
    numbers, texts = [int(number) for number in rules[::2]], rules[1::2]
    assert numbers == [*range(1, len(texts) + 1)]
    assert len(texts) > 40
    assert [text for text in texts if text.count("*Why:*") != 1 or text.count("*Decided in:*") != 1] == []
    files = [re.findall(r"`([\w./-]+/[\w./-]*)`", text.partition("*Decided in:*")[2]) for text in texts]
    assert all(files)
    assert [path for paths in files for path in paths if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("path", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=named)
def test_every_python_block_compiles(path):
    """Code that readers copy has no syntax error."""
    for _, _, language, code in FENCE.findall(path.read_text()):
        if language.split()[:1] in (["python"], ["py"]):
            ast.parse(textwrap.dedent(code), filename=named(path))


def test_the_navigation_lists_every_page_once():
    """A page that it does not list is not found by readers; one that is not there fails the build."""
    listed = list(paths_of(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))
    there = [page.relative_to(DOCS).as_posix() for page in PAGES]
    assert sorted(set(there) - set(listed)) == [], "add these pages to the navigation in mkdocs.yml"
    assert sorted(set(listed) - set(there)) == [], "mkdocs.yml lists pages that do not exist"
    assert len(set(listed)) == len(listed)


@pytest.mark.parametrize("path", sorted((DOCS / "adr").glob("[0-9]*.md")), ids=named)
def test_a_decision_record_is_short_and_complete(path):
    """Each has its number, the three sections in their order, and fits on a screen."""
    text = path.read_text()
    assert text.startswith(f"# {int(path.name[:4])}. ")
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == ["Context", "Decision", "Consequences"]
    assert len(text.splitlines()) <= ADR_LINES


def test_links_to_files_that_are_no_pages_are_shown_as_paths(tmp_path):
    """The site has no copy of them; links to pages, broken links and code stay as they are."""
    hook = loaded("repository_links")
    (tmp_path / "docs").mkdir()
    for name in ("README.md", "docs/page.md", "docs/other.md"):
        (tmp_path / name).touch()
    page = SimpleNamespace(file=SimpleNamespace(abs_src_path=str(tmp_path / "docs/page.md")))
    config = SimpleNamespace(docs_dir=str(tmp_path / "docs"))

    def shown(markdown):
        return hook.on_page_markdown(markdown, page=page, config=config)

    assert shown("[a\nb](../README.md#c).") == "a\nb (`README.md` in the repository)."
    assert shown("[`README.md`](../README.md)") == "`README.md`"
    for kept in ("[a](./other.md)", "[a](../gone.md)", "`[a](../README.md)`", "```\n[a](../README.md)\n```"):
        assert shown(kept) == kept


def test_names_of_settings_and_events_lead_to_their_places():
    """Wherever the page is; code, headings, links, usual words and the reference itself stay as they are."""
    hook = loaded("linked_names")
    config = SimpleNamespace(docs_dir=str(DOCS))

    def shown(markdown, source="how-to/page.md"):
        return hook.on_page_markdown(
            markdown, page=SimpleNamespace(file=SimpleNamespace(src_uri=source)), config=config
        )

    assert shown("Set `stall_seconds`.") == "Set [`stall_seconds`](../reference/settings.md#stall_seconds)."
    assert shown("`sink_failed`", "page.md") == "[`sink_failed`](reference/log-events.md#sink_failed)"
    for kept in (
        "`task`",
        "`no_such_name`",
        "# `stall_seconds`",
        "[`stall_seconds`](x.md)",
        "```\n`stall_seconds`\n```",
    ):
        assert shown(kept) == kept
    assert shown("`stall_seconds`", "reference/http.md") == "`stall_seconds`"


@pytest.mark.parametrize(
    "name",
    ["sidecar", "sidecar.metrics", "sidecar.data", "sidecar.results", "sidecar.keras", "sidecar.lm", "sidecar.sinks"],
)
def test_the_page_of_the_public_api_lists_all_of_it(name):
    """Each name that a public module exports, and no other."""
    page = (DOCS / "reference/python.md").read_text()
    (members,) = re.findall(rf"^::: {re.escape(name)}\n    options:\n      members: \[(.*)\]$", page, re.MULTILINE)
    assert sorted(members.split(", ")) == sorted(set(importlib.import_module(name).__all__) - {"__version__"})


@pytest.mark.seconds
def test_the_site_is_built_without_a_warning(tmp_path):
    """As `make docs` builds it."""
    missing = [module for module in ("mkdocs", "material", "mkdocstrings") if importlib.util.find_spec(module) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} is not installed: pip install '.[docs]'")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}  # as `make docs` does
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert built.returncode == 0, built.stdout + built.stderr
    assert (tmp_path / "site/explanation/architecture.html").exists()
    assert 'id="sidecar.Task"' in (tmp_path / "site/reference/python.html").read_text()
    assert "WARNING" not in built.stdout + built.stderr
