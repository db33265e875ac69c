"""A file becomes a module under the given name, and one that raises leaves nothing behind."""

import pickle
import sys

import pytest

from sidecar.system.file_import import import_file


@pytest.fixture
def name():
    """Return a name for a module, which is forgotten afterwards."""
    name = "file_import_of_a_test"
    yield name
    sys.modules.pop(name, None)


def test_classes_of_the_file_can_be_pickled(tmp_path, name):
    """Their module is found by its name, which is not that of the file."""
    (tmp_path / "own.py").write_text("class Own:\n    x = 1\n")
    module = import_file(tmp_path / "own.py", name)
    assert pickle.loads(pickle.dumps(module.Own())).x == 1


def test_a_failed_import_is_not_found_again(tmp_path, name):
    """The error of the file is the caller's to report; the next attempt runs the file anew."""
    (tmp_path / "own.py").write_text("1 / 0")
    with pytest.raises(ZeroDivisionError):
        import_file(tmp_path / "own.py", name)
    assert name not in sys.modules
