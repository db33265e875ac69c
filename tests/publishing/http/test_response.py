"""Compress an answer for clients that accept that, and for no others."""

import gzip
import urllib.error
import urllib.request

import pytest


@pytest.mark.parametrize(
    ("encoding", "zipped"),
    [
        ("gzip", True),
        ("br, GZIP;q=0.5", True),
        ("gzip;q=1.0", True),
        ("gzip;q=0", False),
        ("gzip; q=0.000, deflate", False),
        ("gzip ; q = 0.", False),
        ("identity", False),
    ],
)
def test_compression(running, encoding, zipped):
    """Metrics are compressed for clients that want it; a quality of 0 is a refusal."""
    _, server = running
    request = urllib.request.Request(server.url + "/metrics", headers={"Accept-Encoding": encoding})
    with urllib.request.urlopen(request, timeout=60) as response:
        assert (response.headers["Content-Encoding"] == "gzip") is zipped
        assert response.headers["Vary"] == "Accept, Accept-Encoding"
        body = response.read()
    assert b"sidecar_example" in (gzip.decompress(body) if zipped else body)
