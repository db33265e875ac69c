"""Which files are not those that were read, also where storage does not answer for some of them."""

import contextlib
import os
from types import SimpleNamespace

import pytest

from sidecar.checkpoints.file_comparison import FileComparison
from sidecar.checkpoints.files import list_files
from sidecar.system.bounded_calls import HangingError


class HangingCalls:
    """Calls that hang if they concern a file of `hanging`."""

    def __init__(self):
        self.hanging, self.waiting = False, set()

    def __call__(self, key, function):
        """Make the call. One that hangs has got as far as its first group."""
        if self.hanging and (key in self.waiting or not self.waiting):
            self.waiting.add(key)
            with contextlib.suppress(StopIteration):
                function()
            raise HangingError(key, "has not answered")
        self.waiting.discard(key)
        return function()


@pytest.fixture
def calls():
    return HangingCalls()


@pytest.fixture
def comparison(root, calls):
    """The comparison of the files in `root`."""

    @contextlib.contextmanager
    def opened():
        descriptor = os.open(root, os.O_RDONLY)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    return FileComparison(opened, "", calls)


@pytest.fixture
def read(root):
    """Two groups of one file each, as they were read."""
    for name in ("a", "b"):
        (root / name).write_text(name)
    files = list_files(root).files
    return {
        name: [SimpleNamespace(is_over=True, given_up=False, format=SimpleNamespace(endings=()), files=(files[name],))]
        for name in ("a", "b")
    }


def test_files_that_stay_are_not_read_again(comparison, read):
    """A file is the same as long as its size, its times and its inode are."""
    assert comparison.changed(read) == set()


@pytest.mark.parametrize("change", [lambda path: path.write_text("longer"), lambda path: path.unlink()])
def test_a_file_that_changed_or_went_is_read_again(root, comparison, read, change):
    """No file event is needed to notice that."""
    change(root / "a")
    assert comparison.changed(read) == {"a"}


def test_what_is_not_finished_is_read_in_any_case(comparison, read):
    """Nothing was read of a group, or one of its candidates still waits."""
    read["a"][0].is_over = False
    assert comparison.changed({**read, "c": None}) == {"a", "c"}


def test_a_group_whose_comparison_hangs_is_left_out_until_it_ends(root, comparison, calls, read):
    """The other groups are compared meanwhile."""
    calls.hanging = True
    comparison.changed(read)  # the last group that it came to is taken for the one that hangs
    for name in ("a", "b"):
        (root / name).write_text("longer")
    assert comparison.changed(read) == {"a"}
    calls.hanging = False
    assert comparison.changed(read) == {"a", "b"}
