"""Put the parts of a page together."""

from publishing.page.conftest import Seen, seen
from served_run import value

from sidecar.publishing.failures import failing
from sidecar.publishing.page.document import page
from sidecar.publishing.status import Newest, NodeSummary, WorkerStatus


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


def test_a_node_that_waits(run):
    """An idle worker process has no progress; the queue says how far evaluation is behind."""
    run.plan("ckpt-1", 100)
    run.succeed({"test": {"accuracy": value(0.5)}})
    worker = WorkerStatus(worker="worker-0.3f2a.1", pid=4711, state="idle", batches=0, total_batches=16)
    text = seen(
        run,
        workers=(worker,),
        newest=Newest(step=400, written_at=1769860800.0, checkpoint="ckpt-4", digest="d", step_source="name"),
    )
    assert "0 of 16" not in text
    assert "waiting" in text
    assert "300 steps behind" in text


def test_links_to_the_pages_of_other_nodes(run):
    """A node says where people reach its page; what leads to no page is no link, and this node needs none."""
    urls = {
        "worker-0": "http://10.0.0.2:19108/",
        "worker-1": 'https://e.example/?a="><script>&b',
        "worker-2": None,
        "worker-3": "javascript:alert(1)",
        "worker-4": "data:text/html,<b>",
        "worker-5": "http://[::1/",
    }
    nodes = [
        NodeSummary(node=node, role="worker", role_source="", state="ready", version="1", page_url=url)
        for node, url in urls.items()
    ]
    run.tell(alive=tuple(nodes))
    found = Seen(page(run.published.status))
    assert found.links.keys() & urls.keys() == {"worker-1"}
    assert found.links["worker-1"] == urls["worker-1"]
