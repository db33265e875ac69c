"""The URL of a bucket's folder has a scheme, a bucket and a path that does not leave it."""

from pathlib import Path

import pytest

from sidecar.system.bucket_url import is_url, split_url


def test_a_url_has_three_parts():
    """The folder may be the whole bucket."""
    assert split_url("gs://my.bucket/a b/c//") == ("gs", "my.bucket", "a b/c")
    assert split_url("az://container") == ("az", "container", "")


@pytest.mark.parametrize(
    "url", ["", "s3://", "s3:/bucket", "http://bucket/a", "s3://u:p@bucket", "s3://b/../c", "s3://b/."]
)
def test_other_urls_are_refused(url):
    """The error says what to write."""
    with pytest.raises(ValueError, match="s3://"):
        split_url(url)


def test_a_path_is_no_url():
    """A URL that was made a path still is one."""
    assert [is_url(each) for each in ("s3://b/c", Path("s3://b/c"), "HTTP://x", "ckpts", "/s3:/x", 3)] == [
        *(True, True, True),
        *(False, False, False),
    ]
