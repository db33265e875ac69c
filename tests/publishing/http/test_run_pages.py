"""Pages of a process that serves several runs."""

import json
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from publishing.http.conftest import EVIL, started

from sidecar.commands.port_owner import node_serving
from sidecar.coordination.storage import PosixStorage
from sidecar.publishing.evaluation_archive import ArchiveReader, DetailsReader
from sidecar.publishing.http import Server
from sidecar.publishing.run_list import RunState, RunSummary
from sidecar.settings import Settings


class Runs:
    """Hold what is known of the runs, to be changed by tests."""

    def __init__(self):
        archive = ArchiveReader(DetailsReader(PosixStorage(Path("/nonexistent")), Path("/nonexistent")))
        status = {"run": "a", "node": "worker-1", "pending": 2, "evaluated": 3, "all_runs": "/"}
        self.listed = [
            RunSummary(run="a", place="/a", state=RunState.SERVING, status=status, archive=archive, seconds=1.5),
            RunSummary(run="b", place=EVIL, state=RunState.FAILED, reason=EVIL),
        ]


@pytest.fixture
def runs():
    return Runs()


@pytest.fixture
def server(daemon, runs):
    made = Server(
        "127.0.0.1", 0, registry=daemon.registry, health=lambda: None, ready=lambda: None, runs=lambda: runs.listed
    )
    with started(made):
        yield made


def ask(server, path):
    """Status and body of an answer, also of an error."""
    try:
        with urllib.request.urlopen(server.url + path, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_the_list_names_every_run(server):
    """With a link to the page of each that is served; hostile texts do nothing."""
    status, body = ask(server, "/")
    assert status == 200
    assert '<a href="/runs/a/">a</a>' in body
    assert "<script>alert" not in body
    listed = json.loads(ask(server, "/api/status")[1])["runs"]
    assert [(run["run"], run["state"], run["pending"]) for run in listed] == [
        ("a", "serving", 2),
        ("b", "failed", None),
    ]


def test_the_port_is_known_to_be_that_of_the_runs_daemon(server):
    """So `sidecar check` says that the daemon runs, and not that another program has the port."""
    settings = {name: Settings(checkpoint_dir="/x", run=name, http=server.url.removeprefix("http://")) for name in "ac"}
    assert node_serving(settings["a"]) == "worker-1"
    assert node_serving(settings["c"]) is None


def test_each_run_has_its_own_page(server):
    """Under its name, with links that stay below it."""
    status, body = ask(server, "/runs/a/")
    assert status == 200
    assert '<a href="/">All runs' in body
    assert 'href="api/status"' in body
    assert json.loads(ask(server, "/runs/a/api/status")[1])["evaluated"] == 3
    assert ask(server, "/runs/a/api/curves")[0] == 200
    assert ask(server, "/runs/a") == (200, body)  # by a redirection


@pytest.mark.parametrize(
    ("path", "expected"),
    [("/runs/b/", 503), ("/runs/c/", 404), ("/runs/a/nothing", 404), ("/runs/", 404), ("/evaluations", 404)],
)
def test_pages_that_are_not_there(server, path, expected):
    """The status says whether that may change."""
    assert ask(server, path)[0] == expected


def test_a_run_that_begins_anew_has_a_new_page(server, runs):
    """Its archive reads another journal."""
    before = ask(server, "/runs/a/api/status")[1]
    archive = ArchiveReader(DetailsReader(PosixStorage(Path("/nonexistent/anew")), Path("/nonexistent/anew")))
    runs.listed[0] = RunSummary(run="a", place="/a", state=RunState.SERVING, status={"run": "a"}, archive=archive)
    assert ask(server, "/runs/a/api/status")[1] != before
    runs.listed.clear()
    assert ask(server, "/runs/a/")[0] == 404
    assert "No directory" in ask(server, "/")[1]
