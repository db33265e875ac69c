"""Make file names of the names that a task chose."""

import pytest

from sidecar.protocol.column_names import file_name


@pytest.mark.parametrize("name", ["..", ".", "../../etc/passwd", "a/b", ".hidden", "ä\udc80\n", "test"])
def test_names_stay_in_their_folder(tmp_path, name):
    """Any different names of columns and eval sets are different files."""
    found = file_name(name)
    (tmp_path / found).touch()
    assert [path.name for path in tmp_path.iterdir()] == [found]
    assert not found.startswith(".")
    assert found != file_name(f"{name}.")
