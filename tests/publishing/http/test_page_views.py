"""The addresses of the status page: what they answer, what they refuse, and what they cost."""

import json
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import pytest
from served_run import ServedRun, minutes_ago, value

from sidecar.protocol.records import Settlement, Slice
from sidecar.publishing import report
from sidecar.publishing.http.page_views import MOST_ROWS
from sidecar.publishing.page.static_files import UPLOT_SHA256, static_base

PATIENCE_SECONDS = 240.0
EVIL = 'a"&<b>\ud800\u202e\n/?#'
EVALUATIONS = 120
PROMISED = Path(__file__).parents[3] / "docs/reference/http-api-v1.json"
NAMES = {"test": "SET", "accuracy": "METRIC", EVIL: "METRIC"} | dict.fromkeys(
    ("test/accuracy", f"test/{EVIL}"), "SET/METRIC"
)
KINDS = {bool: "boolean", int: "number", float: "number", str: "string", list: "list", dict: "object"}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run with more evaluations than the daemon holds, and a metric with an odd name."""
    run = ServedRun(tmp_path_factory.mktemp("run"))
    for number in range(1, EVALUATIONS + 1):
        run.plan(f"ckpt-{number}", 10 * number, at=minutes_ago(200 - number))
        if number == 50:
            run.fail()
        else:
            odd = value(float("nan")) if number == 7 else value(1 / number, "min")
            metrics = {"accuracy": value(number / 200, lower=0.1, upper=0.9), EVIL: odd}
            run.succeed({"test": metrics}, at=minutes_ago(200 - number))
    return run


@pytest.fixture(scope="module")
def server(run):
    with run.served() as server:
        wait_for(server)
        yield server


def ask(server, path, **headers):
    """Status, headers and body of an answer."""
    request = urllib.request.Request(server.url + path, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=240) as response:
            return response.status, response.headers, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers, error.read().decode()


def ask_json(server, path):
    status, _, body = ask(server, path)
    assert status == 200, body
    return json.loads(body)


def wait_for(server):
    """Wait until the journal was read."""
    end = time.monotonic() + PATIENCE_SECONDS
    while ask_json(server, "/api/curves")["progress"]["state"] != "read":
        assert time.monotonic() < end
        time.sleep(0.01)


def details(server, plan, path="/api/evaluation"):
    """Ask until the records of an evaluation were read."""
    return answered(server, f"{path}?plan={plan}")


def answered(server, path):
    end = time.monotonic() + PATIENCE_SECONDS
    while (answer := ask(server, path))[0] == 202:
        assert time.monotonic() < end
        time.sleep(0.01)
    return answer


def test_curves_and_their_points(server):
    """Each curve has an address, whatever its name; its numbers are those of the journal, to the bit."""
    found = ask_json(server, "/api/curves")
    assert [(each["set"], each["metric"], each["goal"], each["evaluations"]) for each in found["series"]] == [
        ("test", "accuracy", "max", EVALUATIONS - 1),
        ("test", EVIL, "min", EVALUATIONS - 1),
    ]
    rows = ask_json(server, f"/api/evaluations?count={MOST_ROWS}")["rows"]
    rows += ask_json(server, f"/api/evaluations?count={MOST_ROWS}&before={rows[-1]['plan']}")["rows"]
    for series in found["series"]:
        curve = ask_json(server, series["url"] + "&points=2000")
        points = dict(zip(curve["plans"], curve["hex"], strict=True))
        by_metric = [(row["plan"], row["metrics"].get("test", {}).get(series["metric"])) for row in rows]
        assert points == {plan: number["hex"] for plan, number in by_metric if number}
        assert points[7] == ("nan" if series["metric"] == EVIL else (7 / 200).hex())


def test_a_curve_has_at_most_the_points_that_were_asked_for(server):
    """The server thins it out, and says so."""
    curve = ask_json(server, "/api/curve?set=test&metric=accuracy&points=20")
    assert curve["downsampled"]
    assert len(curve["plans"]) <= 20
    assert curve["smoothed"] is None
    assert len(ask_json(server, "/api/curve?set=test&metric=accuracy&points=20&smoothing=0.9")["smoothed"]) <= 20


def test_curves_of_classes_and_slices(tmp_path):
    """All evaluations of one class or slice, also new ones; names are exact, and what does not exist is told."""
    run = ServedRun(tmp_path)

    def evaluated(count):
        for _ in range(count):
            plan = run.history.through + 1
            run.plan(f"ckpt-{plan}", 10 * plan)
            classes = {"test": {"recall": {EVIL: value(plan / 8), "dog": value(0.5)}}} if plan > 1 else {}
            slices = {
                "test": {"night": Slice(examples=plan, metrics={"recall": value(plan / 16, lower=0.0, upper=1.0)})}
            }
            run.succeed({"test": {"recall": value(0.5)}}, classes=classes, slices=slices)

    evaluated(3)
    run.tell()
    with run.served() as server:
        wait_for(server)
        evil = urllib.parse.quote(EVIL, safe="", errors="surrogatepass")

        def curve(part):
            status, _, body = answered(server, f"/api/curve?set=test&metric=recall&{part}")
            return json.loads(body) if status == 200 else (status, body)

        assert (found := curve(f"class={evil}"))["values"] == [0.25, 0.375]
        assert (found["steps"], found["goal"]) == ([20, 30], "max")
        assert (found := curve("slice=night"))["values"] == [1 / 16, 1 / 8, 3 / 16]
        assert found["lower"] == [0.0] * 3
        evaluated(1)
        run.tell()
        end = time.monotonic() + PATIENCE_SECONDS
        while ask_json(server, "/api/curves")["series"][0]["evaluations"] < 4:  # a thread takes what the loop reports
            assert time.monotonic() < end
            time.sleep(0.01)
        assert (found := curve("slice=night"))["values"][-1] == 1 / 4
        assert curve("class=nobody") == (404, "no evaluation has a class with this name and metric on this eval set\n")
        assert curve("class=dog&slice=night")[0] == 400


def test_rows_are_those_of_the_history(run, server):
    """Newest first, page by page, none twice and none left out."""
    listed, before = [], 10**12
    while rows := ask_json(server, f"/api/evaluations?before={before}&count=7")["rows"]:
        listed += rows
        before = rows[-1]["plan"]
    keys = listed[0].keys()
    newest = [{key: row[key] for key in keys} for row in report.rows(run.history)][::-1]
    assert len(listed) == EVALUATIONS
    assert listed[: len(newest)] == newest


def test_details_of_any_evaluation(server):
    """Also of one that the daemon no longer holds in memory, and as a page."""
    status, _, body = details(server, 3)
    found = json.loads(body)
    assert (status, found["checkpoint"], len(found["members"])) == (200, "ckpt-3", 2)
    _, _, page = details(server, 3, "/evaluation")
    assert 'id="details"' in page
    assert (3 / 200).hex() in page
    assert found["against"]["test"]["accuracy"]["before"]["difference"]["rule"] == "intervals"
    assert "+0.005</data></a> <span" in page
    _, _, failed = details(server, 50, "/evaluation")
    assert "ValueError: no" in failed
    assert "/var/tmp/sidecar-logs/worker-1.7.log" in failed


def test_a_comparison_of_evaluations(server):
    """Numbers that were saved without predictions are compared by themselves; a failed evaluation cannot be."""
    status, _, page = answered(server, "/comparison?new=4&old=3")
    assert status == 200
    assert "noise unknown" in page
    assert "+0.005" in page
    assert "not known which examples changed" in page
    assert "plan 4 has no saved predictions" in page
    assert answered(server, "/api/comparison?new=50&old=3")[0] == 404
    assert answered(server, "/comparison?new=4&old=0")[0] == 400


def test_a_page_that_waits_loads_again(server):
    """Without scripts the browser asks again after a second."""
    status, headers, body = ask(server, "/evaluation?plan=41")
    assert (status, headers["Refresh"]) == (202, "1")
    assert "being read" in body


@pytest.mark.parametrize(
    ("path", "status", "told"),
    [
        ("/api/curve", 400, "set"),
        ("/api/curve?set=test", 400, "metric"),
        ("/api/curve?set=test&metric=no", 404, "/api/curves"),
        ("/api/curve?set=test&metric=accuracy&points=0", 400, "points"),
        ("/api/curve?set=test&metric=accuracy&points=2001", 400, "2000"),
        ("/api/curve?set=test&metric=accuracy&points=1e3", 400, "points"),
        ("/api/curve?set=test&metric=accuracy&smoothing=1", 400, "smoothing"),
        ("/api/curve?set=test&metric=accuracy&smoothing=nan", 400, "smoothing"),
        ("/api/curve?set=test&set=train&metric=accuracy", 400, "set"),
        ("/api/curve?set=%ff&metric=accuracy", 400, "cannot be read"),
        ("/api/curve?" + "&".join(f"a{number}=1" for number in range(50)), 400, "cannot be read"),
        ("/api/evaluations?count=101", 400, "count"),
        ("/api/evaluations?before=-1", 400, "before"),
        ("/api/evaluations?before=" + "9" * 5000, 400, "before"),
        ("/api/evaluation", 400, "plan"),
        ("/api/evaluation?plan=" + "%D9%A3", 400, "plan"),
        ("/api/evaluation?plan=999999", 404, "999999"),
        ("/evaluation?plan=<script>", 400, "plan"),
        ("/static/../views.py", 404, "/api/status"),
        ("/static/x/page.css", 404, "/api/status"),
    ],
)
def test_refusals(server, path, status, told):
    """A parameter that cannot be used is named; nothing of the request is repeated as markup."""
    found, headers, body = ask(server, path.replace("<", "%3C"))
    assert found == status
    assert told in body
    assert headers["Content-Type"].startswith("text/plain")


@pytest.mark.parametrize("path", ["/", "/api/status", "/api/curves", "/api/evaluations", "/evaluations"])
def test_every_answer_forbids_what_is_not_our_own(server, path):
    """The policy allows our own files, and neither inline scripts nor inline styles."""
    _, headers, _ = ask(server, path)
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "*" not in policy
    assert headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize("path", ["/", "/api/status", "/api/curves", "/api/curve?set=test&metric=accuracy"])
def test_an_unchanged_answer_is_empty(server, path):
    """A client that has it already gets 304, until something changes."""
    status, headers, body = ask(server, path)
    tag = headers["ETag"]
    for known in (tag, f'"other", W/{tag}'):
        again, same, nothing = ask(server, path, **{"If-None-Match": known})
        assert (again, nothing, same["ETag"], same["Content-Length"]) == (304, "", tag, None)
    assert ask(server, path, **{"If-None-Match": '"other"'})[2] == body
    assert status == 200


def test_the_page_is_made_once_for_all_clients(server, run, monkeypatch):
    """Until the status changes."""
    made = []
    monkeypatch.setattr("sidecar.publishing.http.page_views.page", lambda *_: made.append(1) or "page")
    run.tell(pending=5)
    for _ in range(5):
        ask(server, "/")
    assert len(made) == 1
    run.tell(pending=6)
    ask(server, "/")
    assert len(made) == 2
    monkeypatch.undo()
    run.tell(pending=0)


def test_files(server):
    """Every file that the page names is there, may be kept forever, and is the icon of all pages, too."""
    for name in (*UPLOT_SHA256, "main.js", "page.css", "icon.svg"):
        status, headers, body = ask(server, f"{static_base()}/{name}")
        assert (status, "immutable" in headers["Cache-Control"]) == (200, True)
        assert body
        assert ask(server, f"{static_base()}/{name}", **{"If-None-Match": headers["ETag"]})[0] == 304
    assert ask(server, "/favicon.ico")[1]["Content-Type"] == "image/svg+xml"


@pytest.mark.seconds
def test_sixty_pages_that_ask_every_two_seconds(server):
    """Each gets its answers, and a health check is answered at once meanwhile.

    All are one client, which has 32 places: if all ask in the same moment, one may be dropped, and asks again.
    """
    dropped, answered, stop = [], [], threading.Event()

    def poll(place):
        tag = None
        stop.wait(place / 30)
        while not stop.is_set():
            try:
                status, headers, _ = ask(server, "/", **({} if tag is None else {"If-None-Match": tag}))
                tag = headers["ETag"]
                answered.append((place, status))
            except OSError as error:
                dropped.append(error)
            stop.wait(2)

    pages = [threading.Thread(target=poll, args=(place,)) for place in range(60)]
    for page in pages:
        page.start()
    slowest, end = 0.0, time.monotonic() + 6
    while time.monotonic() < end:
        before = time.monotonic()
        assert ask(server, "/healthz")[0] == 200
        slowest = max(slowest, time.monotonic() - before)
        time.sleep(0.05)
    stop.set()
    for page in pages:
        page.join()
    assert len(dropped) < len(answered) / 10
    assert {place for place, _ in answered} == set(range(60))
    assert {status for _, status in answered} == {200, 304}
    assert slowest < 2  # seconds


def test_the_best_point_is_that_of_the_gauges(tmp_path):
    """A requeued evaluation is a point of the curve, and not its best one."""
    run = ServedRun(tmp_path)
    for step, number in ((1, 0.9), (2, 0.8)):
        run.plan(f"ckpt-{step}", step)
        run.succeed({"test": {"accuracy": value(number)}})
    again = Settlement(name="ckpt-1", digest=f"{1:064x}", step=1, verdict="requeued", reason="a person asked")
    run.plan("ckpt-3", 3, settles=[again])
    run.succeed({"test": {"accuracy": value(0.7)}})
    with run.served() as server:
        wait_for(server)
        curve = ask_json(server, "/api/curve?set=test&metric=accuracy")
        assert curve["plans"] == [1, 2, 3]
        assert curve["best"] == run.published.status["best"]["test/accuracy"]["plan"]
        assert curve["best"] != 1
        assert json.loads(details(server, 3)[2])["best_metric"] == "test/accuracy"
        run.publisher.facts = {"best_metric": "test/loss"}
        run.tell(pending=1)
        assert json.loads(details(server, 3)[2])["best_metric"] == "test/loss"


def fields(found, name=""):
    """Yield each field of an answer with its type, such as `rows[].plan`; names of sets and metrics are general."""
    yield name, KINDS.get(type(found), "null")
    if isinstance(found, dict):
        for key, content in found.items():
            yield from fields(content, f"{name}.{NAMES.get(key, key)}".lstrip("."))
    elif isinstance(found, list):
        for content in found:
            yield from fields(content, f"{name}[]")


@pytest.mark.parametrize("path", json.loads(PROMISED.read_text()))
def test_the_first_version_of_the_api_keeps_its_promise(server, path):
    """Each field of the list is there, with its type."""
    status, _, body = answered(server, path)
    assert status == 200, body
    kinds = {}
    for name, kind in fields(json.loads(body)):
        kinds.setdefault(name, set()).add(kind)
    promised = json.loads(PROMISED.read_text())[path]
    lost = {name: kind for name, kind in promised.items() if not {*kind.split(" or ")} & kinds.get(name, set())}
    assert lost == {}


def test_versions_of_the_api(server):
    """A path has one version at most, and other versions do not exist."""
    assert ask(server, "/api/v1/status")[2] == ask(server, "/api/status")[2]
    assert ask(server, "/api/v2/status")[0] == ask(server, "/api/v1/v1/status")[0] == 404
