"""Answer each path with its view, whatever names and texts it shows."""

import json
from html.parser import HTMLParser

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from publishing.http.conftest import EVIL, asks, evil_status, started


class Page(HTMLParser):
    """Collects what a browser would see."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.loaded, self.attributes, self.seen = [], [], set(), ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        """Remember the tag, and what it loads."""
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag in ("script", "link"):
            self.loaded += [value for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data):
        """Remember the text between the tags."""
        self.seen += data


@pytest.mark.parametrize(
    "wanted",
    [
        ("text/plain", "text/plain", parse_text),
        ("application/openmetrics-text; version=1.0.0", "application/openmetrics-text", parse_openmetrics),
    ],
)
def test_metrics(ask, wanted):
    """A scrape gets the format that it asks for, and it parses."""
    accept, content_type, parse = wanted
    status, headers, body = ask("/metrics", Accept=accept)
    assert status == 200
    assert headers["Content-Type"].startswith(content_type)
    (family,) = parse(body)
    assert (family.samples[0].labels, family.samples[0].value) == ({"run": 'a "b"\n'}, 1.5)


@pytest.mark.parametrize("version", ["abc", "1.x", "", "1" * 5000, "1.0.0.0", "-1", "é"])
def test_odd_versions_in_accept(ask, version):
    """A version that is not a number gets one of the formats, not an error."""
    status, _, body = ask("/metrics", Accept=f"application/openmetrics-text;version={version}")
    assert (status, "sidecar_example" in body) == (200, True)


def test_one_metric(ask):
    """The query of the client library still works."""
    assert "sidecar_example" not in ask("/metrics?name[]=other")[2]


@pytest.mark.parametrize(("path", "what"), [("/healthz", "health"), ("/readyz", "ready")])
def test_probes(ask, daemon, path, what):
    """A probe says ok, or 503 with the reason."""
    assert ask(path)[::2] == (200, "ok\n")
    daemon.reasons[what] = "storage has not answered for 12 s"
    assert ask(path)[::2] == (503, "storage has not answered for 12 s\n")


def test_status(ask, daemon):
    """The status is the daemon's own dict, as JSON."""
    daemon.status = evil_status()
    status, headers, body = ask("/api/status")
    assert (status, headers["Content-Type"]) == (200, "application/json")
    assert json.loads(body) == daemon.status


def test_the_page_of_a_chief_says_why_it_evaluates_nothing(ask, daemon):
    """One sentence: the reason, who evaluates instead, and how to evaluate here."""
    daemon.status = {"run": "r", "role": "chief", "role_source": "role = chief"}
    _, _, body = ask("/")
    assert "evaluates nothing, because it is the training job's chief (role = chief)" in body
    assert "--role worker" in body
    daemon.status = {"run": "r", "role": "worker", "role_source": "TF_CONFIG"}
    assert "evaluates nothing" not in ask("/")[2]


def test_page(ask, daemon):
    """The page shows numbers, queue, nodes and workers, and loads our own files alone."""
    daemon.status = evil_status() | {"run": "mnist"}
    daemon.status["evaluation"]["steps"][EVIL] = 4321
    page = Page(ask("/")[2])
    for text in (
        "mnist",
        "0.97",
        "0.95 to 0.98",
        "nan",
        "1003",
        "4321",
        "3 of 8",
        "step 7",
        "not ready",
        "draining",
    ):
        assert text in page.seen
    assert not {"img", "iframe", "style", "object", "base"} & set(page.tags)
    assert page.loaded
    assert all(path.startswith("/static/") for path in page.loaded)
    assert not {"style", "onclick", "onload", "onerror"} & page.attributes


def test_page_escapes(ask, daemon):
    """No text from a run can become markup, and each is shown as it is."""
    daemon.status = evil_status()
    body = ask("/")[2]
    assert body.count("<script") == Page(body).tags.count("script") == 2
    assert Page(body).seen.count(EVIL) >= 10


def test_page_before_the_first_look(ask, daemon):
    """A daemon that knows nothing yet has a page too."""
    daemon.status = {}
    status, _, body = ask("/")
    assert status == 200
    assert "There is no result yet" in body


def test_unknown_path(ask):
    """Anything else is not found, whatever the method, and the answer says what there is."""
    for path in ("/etc/passwd", "/metrics/", "/api"):
        status, _, body = ask(path)
        assert status == 404
        assert "/api/status" in body
    assert ask("/other", method="DELETE")[0] == 404


@pytest.mark.parametrize("path", ["/", "/metrics", "/api/status", "/healthz"])
def test_read_only(ask, path):
    """Every method that could change something is refused, with or without a body."""
    for method, data in (("POST", b"x" * 1000), ("PUT", b"{}"), ("DELETE", None), ("OPTIONS", None)):
        status, headers, _ = ask(path, method=method, data=data)
        assert (status, headers["Allow"]) == (405, "GET, HEAD")


def test_notices_are_off_unless_the_settings_say_otherwise(ask):
    """The port is read only then."""
    assert ask("/notify", method="POST")[0] == 403
    status, headers, _ = ask("/notify")
    assert (status, headers["Allow"]) == (405, "POST")


def test_a_notice_is_a_wish_for_a_scan_and_never_one_of_a_page(daemon):
    """A browser sends `Origin` with a POST of any page; nothing but the path of the notice is read."""
    noticed = []

    def notice(path):
        noticed.append(path)
        return "no such run" if path == "/gone" else None

    with started(daemon.serve(notice=notice)) as server:
        ask = asks(server)
        assert ask("/notify?path=/ckpts/step-5%20%C3%A9", method="POST", data=b"x" * 1000)[0] == 202
        assert ask("/notify", method="POST")[0] == 202
        assert noticed == ["/ckpts/step-5 é", ""]
        for headers in ({"Origin": "https://attacker.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}):
            assert ask("/notify", method="POST", **headers)[0] == 403
        assert ask("/notify", method="POST", Host="attacker.example")[0] == 421
        assert ask(f"/notify?path={'x' * 5000}", method="POST")[0] == 400
        assert ask("/notify?run=x", method="POST")[0] == 400
        assert ask("/notify?path=/gone", method="POST")[0] == 409
        assert ask("/notify?path=/ckpts", method="PUT")[0] == 405
        assert noticed == ["/ckpts/step-5 é", "", "/gone"]


@pytest.mark.parametrize("path", ["/", "/metrics", "/api/status", "/healthz", "/nowhere"])
def test_head(ask, path):
    """HEAD has the length of GET and no body."""
    _, full, body = ask(path)
    _, head, nothing = ask(path, method="HEAD")
    assert nothing == ""
    assert head["Content-Length"] == full["Content-Length"] == str(len(body.encode()))


def test_broken_view(ask, daemon, capsys):
    """A status that cannot be shown is one failed answer; the others still work."""
    daemon.status = {"number": float("nan")}
    assert ask("/api/status")[0] == 500
    assert "http_request_failed" in capsys.readouterr().out
    assert ask("/api/status")[0] == 500
    assert "http_request_failed" not in capsys.readouterr().out, "a path is logged once a minute"
    assert ask("/healthz")[0] == 200
