"""Put the parts of a page together."""

from publishing.page.conftest import Seen, seen

from sidecar.publishing.failures import failing
from sidecar.publishing.page.document import page


def test_a_kind_of_a_newer_release(run):
    """It is shown as it is."""
    run.plan("ckpt-1", 100)
    run.fail("gremlins", "no idea")
    assert "failed: gremlins" in seen(run)
    assert failing(run.history)["kind"] == "gremlins"


def test_links_of_the_settings(run):
    """They are at the end of the page, in their order."""
    run.tell()
    assert "Elsewhere" not in Seen(page(run.published.status)).text
    links = {"Grafana": "https://g.example/d/x", "<b>": "http://docs:8000/?a&b"}
    found = Seen(page(run.published.status | {"page_links": links}))
    assert found.open == []
    assert "Elsewhere: Grafana · <b>" in found.text
    assert links.items() <= found.links.items()
