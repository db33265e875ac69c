"""The digest of the code that makes numbers: what it covers, and what changes it."""

import shutil

import grimp
import pytest

import sidecar
from sidecar.evaluation.source_digest import COVERED, digest_of, source_digest

PACKAGE = sidecar.__path__[0]


@pytest.fixture
def package(tmp_path):
    """A copy of the package as a build makes it: without bytecode, and with other times."""
    return shutil.copytree(
        PACKAGE, tmp_path / "sidecar", ignore=shutil.ignore_patterns("__pycache__"), copy_function=shutil.copyfile
    )


def test_everything_that_a_worker_imports_is_covered():
    """Two nodes with equal digests run the same code in their workers."""
    graph = grimp.build_graph("sidecar")
    worker = {name for name in graph.modules if name.startswith("sidecar.evaluation.")}
    imported = worker.union(*(graph.find_upstream_modules(name) for name in worker))
    covered = tuple(name.removesuffix(".py") for name in COVERED)
    assert "sidecar.protocol.messages" in imported
    assert {name for name in imported if name.split(".")[1] not in covered} == set()


def test_a_copy_has_the_same_digest(package):
    """Times, permissions and bytecode do not count."""
    assert digest_of(package) == source_digest()


@pytest.mark.parametrize(
    "name", ["errors.py", "evaluation/states/exact_sum.py", "protocol/records.py", "system/durable.py"]
)
def test_a_changed_byte_changes_it(package, name):
    """Even in a comment: nobody can tell which changes leave all numbers as they were."""
    path = package / name
    path.write_bytes(path.read_bytes() + b"#")
    assert digest_of(package) != source_digest()


def test_a_renamed_or_added_module_changes_it(package):
    """The same bytes under another name are another program."""
    (package / "evaluation/outputs.py").rename(package / "evaluation/output.py")
    renamed = digest_of(package)
    (package / "evaluation/outputs.py").touch()
    assert len({source_digest(), renamed, digest_of(package)}) == 3


@pytest.mark.parametrize("name", ["version.py", "daemon/loop.py", "publishing/log.py", "__init__.py"])
def test_what_makes_no_numbers_does_not_count(package, name):
    """Nodes of two commits evaluate together if these differ in what a daemon shows or decides."""
    (package / name).write_text("changed = True\n")
    assert digest_of(package) == source_digest()
