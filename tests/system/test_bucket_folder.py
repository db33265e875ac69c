"""A local folder stands for the objects below a URL."""

from pathlib import Path

import pytest

from sidecar.system.bucket_folder import BucketFolder, place_of


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("s3://bucket/run/ckpts", ("s3", "bucket", "run/ckpts")),
        ("gs://bucket", ("gs", "bucket", "")),
        ("az://container/run/", ("az", "container", "run")),
        ("s3:/bucket/run", ("s3", "bucket", "run")),  # as `Path` writes it, which the command line gives
    ],
)
def test_a_url_has_bucket_and_prefix(url, parts):
    """A URL names a bucket and the prefix of all keys; its folder is a path that belongs to this process."""
    folder = BucketFolder.of(url)
    assert place_of(folder) == f"{parts[0]}://{'/'.join(filter(None, parts[1:]))}"
    assert isinstance(folder, Path)
    assert folder.is_absolute()
    assert BucketFolder.of(url) == folder
    assert BucketFolder.of("s3://another") != folder


@pytest.mark.parametrize(
    "url",
    ["s3://", "s3:///run", "s3://bucket/../x", "s3://bucket/./x", "s3://bucket/a\0b", "http://bucket/x", "s3://a b/c"],
)
def test_another_url_is_refused(url):
    """A URL of another kind, or with parts that no key of a checkpoint has, is refused with one to write."""
    with pytest.raises(ValueError, match="s3://bucket"):
        BucketFolder.of(url)


def test_paths_below_know_the_source():
    """A path from the folder, and the folder above it, are read through the same source."""
    folder = BucketFolder.of("s3://bucket/run")
    folder.source = source = object()
    below = folder / "a" / "b"
    assert below.source is below.parent.source is source
    assert below.relative_to(folder) == Path("a/b")
    assert (folder / "").absolute().source is source


def test_a_folder_without_source_is_not_read_as_empty_files():
    """A path that lost its source raises an error instead of showing the empty stub."""
    with pytest.raises(AttributeError):
        BucketFolder.of("s3://bucket/run").source  # noqa: B018 - the error is the point
