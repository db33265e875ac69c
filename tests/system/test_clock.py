"""Write times of records, whatever time a file has."""

import pytest

from sidecar.system.clock import timestamp


@pytest.mark.parametrize(("seconds", "text"), [(1e18, "9999-12-31T"), (-1e18, "0001-01-02T"), (0.5, "1970-01-01T00:")])
def test_any_time_that_a_file_can_have_is_written(seconds, text):
    """Some filesystems keep 64 bits of seconds; the year 10,000 would end the daemon that shows it."""
    assert timestamp(seconds).startswith(text)
