"""Show what forges, editors and other programs read: it exists, can be read, and leads to the same commands."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
CONSTRAINTS = (ROOT / "tests/constraints.txt").read_text()


def read(path: Path) -> dict:
    return yaml.safe_load(path.read_text())


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_runs_what_a_person_can_run(path: Path) -> None:
    """Each calls `.ci/run` with the whole history, pins its actions, writes only what it must, and uses no secret."""
    text, workflow = path.read_text(), read(path)
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        steps = job["steps"]
        assert any(".ci/run" in step.get("run", "") for step in steps)
        used = [step["uses"] for step in steps if "uses" in step]
        assert [each for each in used if not re.fullmatch(r"actions/[\w-]+@v\d+\.\d+\.\d+", each)] == []
        (checkout,) = (step for step in steps if step.get("uses", "").startswith("actions/checkout@"))
        assert checkout["with"]["fetch-depth"] == 0
    assert "secrets." not in text


@pytest.mark.parametrize(
    ("fails", "tests", "named", "more"),
    [([0], 2, 1, ()), ([0], 1, 1, ("VENV=other",)), ([0, 2], 1, 0, ()), ([0], 4, 0, ())],
    ids=["once", "in another environment", "again", "too many"],
)
def test_what_failed_beside_others_must_pass_three_times_alone(tmp_path: Path, fails, tests, named, more) -> None:
    """At most three tests are tried again, in the environment of the first time, and they are named."""
    (tmp_path / ".ci").mkdir()
    (tmp_path / ".venv").symlink_to(Path(sys.executable).parents[1])
    (tmp_path / "other/bin").mkdir(parents=True)
    (tmp_path / "other/bin/pytest").write_text('#!/bin/sh\necho other ran\nexec .venv/bin/pytest "$@"\n')
    (tmp_path / "other/bin/pytest").chmod(0o755)
    script = shutil.copy(ROOT / ".ci/tested", tmp_path / ".ci/tested")
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -p no:xdist -p no:cov\n")
    (tmp_path / "Makefile").write_text("VENV = .venv\ntest:\n\t$(VENV)/bin/pytest\n")
    (tmp_path / "test_it.py").write_text(
        "import pathlib, pytest\n"
        "runs = len(list(pathlib.Path().glob('run-*')))\npathlib.Path(f'run-{runs}').touch()\n"
        f"def test_a():\n    assert runs not in {fails}\n"
        + "".join(f"def test_b{number}():\n    assert runs\n" for number in range(tests - 1))
    )
    ended = subprocess.run([script, "test", *more], capture_output=True, text=True, timeout=600, check=False)
    assert (ended.returncode == 0, ended.stderr.count("FAILED ONCE")) == (named > 0, named), ended.stdout + ended.stderr
    assert len(list(tmp_path.glob("run-*"))) == (4 if named else 1 if tests == 4 else 3)
    assert ended.stdout.count("other ran") == (4 if more else 0)
    assert not named or "!!!     test_it.py::test_a\n" in ended.stderr


def test_a_run_with_a_bound_tries_other_files_with_another_text(tmp_path: Path) -> None:
    """The order of files follows from TEST_ORDER; after TEST_SECONDS no test begins, and those are counted."""
    (tests := tmp_path / "tests").mkdir()
    shutil.copy(ROOT / "tests/conftest.py", tests)
    for name in "abcdefgh":
        (tests / f"test_{name}.py").write_text("def test_it():\n    pass\n\n\ndef test_that():\n    pass\n")

    def run(**variables: str) -> str:
        return subprocess.run(
            [
                sys.executable,
                "-m",
                "pytest",
                "-v",
                "-rs",
                "-c",
                "/dev/null",
                "--rootdir",
                tests,
                "-p",
                "no:xdist",
                tests,
            ],
            env=os.environ | {"PYTHONPATH": str(ROOT / "tests/support"), "TMPDIR": str(tmp_path)} | variables,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        ).stdout

    orders = [re.findall(r"test_(\w)\.py::test_it PASSED", run(TEST_ORDER=each)) for each in ("one", "another")]
    assert orders[0] != orders[1]
    assert [sorted(each) for each in orders] == [[*"abcdefgh"]] * 2
    assert re.search(r"SKIPPED \[16\] .*the seconds of TEST_SECONDS have passed", run(TEST_SECONDS="-1"))


def test_ci_has_each_python_that_the_package_names() -> None:
    """The last one is the one that `make` finds."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [found[1] for each in project["classifiers"] if (found := re.search(r"Python :: (3\.\d+)$", each))]
    for path in WORKFLOWS:
        (python,) = re.findall(r"python-version: \|\n((?:\s+3\.\d+\n)+)", path.read_text())
        assert sorted(python.split()) == named
        assert f">={python.split()[-1]}" == project["requires-python"]


def test_the_form_for_bugs_asks_for_the_output_of_check() -> None:
    """It says more about a node than most people think of."""
    fields = {each["id"]: each for each in read(ROOT / ".github/ISSUE_TEMPLATE/bug.yml")["body"] if "id" in each}
    assert "sidecar check" in fields["check"]["attributes"]["label"]
    assert fields["check"]["validations"]["required"]


def test_hooks_before_a_commit_fetch_nothing() -> None:
    """All of them are local, and find their programs in `.venv`."""
    repos = read(ROOT / ".pre-commit-config.yaml")["repos"]
    assert {repo["repo"] for repo in repos} == {"local"}
    hooks = {hook["id"]: hook for repo in repos for hook in repo["hooks"]}
    assert set(hooks) == {"ruff", "ruff-format", "codespell", "merge-residue"}
    assert all(hook["language"] == "pygrep" or hook["entry"].startswith(".venv/bin/") for hook in hooks.values())
    residue = re.compile(hooks["merge-residue"]["entry"])
    assert all(residue.search(sign * 7 + end) for sign, end in [("<", " HEAD"), ("=", ""), (">", " 1f2e")])
    assert not residue.search("=" * 20)


def test_the_citation_and_the_container_can_be_read() -> None:
    """A citation needs these fields (Citation File Format 1.2.0)."""
    citation = read(ROOT / "CITATION.cff")
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert citation["license"] == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["license"]
    container = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text())
    assert container["postCreateCommand"] == "make lint"


def test_hashes_are_those_of_the_versions_that_the_suite_passed_with() -> None:
    """`make hashes` writes them; PyTorch alone has none."""
    locked = re.findall(
        r"^([\w.-]+==\S+) \\\n(?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+",
        (ROOT / "tests/hashes.txt").read_text(),
        re.MULTILINE,
    )
    pinned = re.findall(r"^[\w.-]+==\S+", CONSTRAINTS, re.MULTILINE)

    def normal(lines: list[str]) -> set[str]:
        return {
            re.sub(r"[-_.]+", "-", name).lower() + "==" + version
            for name, _, version in (each.partition("==") for each in lines)
        }

    assert {each.partition("==")[0] for each in normal(pinned) - normal(locked)} == {"torch"}
    assert normal(locked) < normal(pinned)


def test_release_notes_are_a_part_of_the_changelog() -> None:
    """Take the lines between the heading of the release and the next one."""
    command = ["make", "--silent", "release-notes", "TAG=v0.1.0"]
    notes = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert "### Added" in notes
    assert notes.strip() in (ROOT / "CHANGELOG.md").read_text()
    assert "## [" not in notes
