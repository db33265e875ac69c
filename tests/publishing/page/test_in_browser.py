"""The status page in a real browser: Debian's Chromium, without a display, on a real server with a journal on disk."""

import csv
import io
import json
import math
import re
import time
from contextlib import ExitStack
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from served_run import ServedRun, get, minutes_ago, served_together, value

from sidecar.evaluation.backend import Rows
from sidecar.evaluation.data.example_inputs import thumbnail
from sidecar.evaluation.npy_table import NpyTable
from sidecar.evaluation.states import ExactSum
from sidecar.publishing import report
from sidecar.publishing.status import MemberProgress, Newest, WorkerStatus
from sidecar.system.plain_text import number

pytestmark = pytest.mark.seconds

PATIENCE = 240_000  # milliseconds
EVIL = (
    """<script>window.evil=1</script>"'&><img src=x onerror=window.evil=1>""",
    "two\nlines\u2028and more",
    "\u202egnp.exe",
    "x" * 300,
    "lone \ud800 surrogate",
    "{{7*7}}${7*7}",
)
AXE_RULES = {"runOnly": {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]}}
SCREENS = {
    "light": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 320, "height": 640}, "is_mobile": True, "has_touch": True, "color_scheme": "dark"},
}


@pytest.fixture(scope="module")
def chromium(needs):
    """One browser for all tests."""
    path = needs("chromium")
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])  # root has no sandbox
        yield browser
        browser.close()


@pytest.fixture
def serve():
    """Serve runs until the end of the test."""
    with ExitStack() as servers:
        yield lambda *runs: servers.enter_context(served_together(*runs) if runs[1:] else runs[0].served())


@pytest.fixture
def visit(chromium, serve):  # noqa: ARG001 - pages are closed before their servers, which they go on asking
    """Open pages; at the end none of them had an error, a violation of the policy, or a request to elsewhere."""
    contexts, complaints = [], []

    def visit(url, **options):
        context = chromium.new_context(**({"viewport": {"width": 1280, "height": 900}} | options))
        contexts.append(context)
        context.set_default_timeout(PATIENCE)
        page = context.new_page()
        page.on("console", lambda message: note(message.text) if message.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: note(str(error)))
        origin = re.match(r"http://[^/]+", url)[0]
        page.on("request", lambda request: request.url.startswith(origin) or note(f"request to {request.url}"))
        page.goto(url)
        return page

    def note(text):
        complaints.append(text)

    visit.complaints = complaints
    yield visit
    for context in contexts:
        context.close()
    assert complaints == []


@pytest.fixture
def run(tmp_path):
    return ServedRun(tmp_path)


def accuracy(place):
    return 1 - 0.5 * math.exp(-place / 6)


def evaluate(run, count, metrics=("accuracy", "loss")):
    """Add so many evaluations."""
    first = run.history.through + 1
    for plan in range(first, first + count):
        numbers = {
            "accuracy": value(accuracy(plan), lower=accuracy(plan) - 0.02, upper=accuracy(plan) + 0.01),
            "loss": value(2 / plan, "min"),
        }
        run.plan(f"epoch-{plan:02}.keras", 100 * plan, at=minutes_ago(300 - plan))
        run.succeed({"test": {name: numbers[name] for name in metrics}}, at=minutes_ago(299 - plan))


def drawn(page, count):
    """Wait until the first card shows so many evaluations."""
    page.locator(".card").first.scroll_into_view_if_needed()  # a card is drawn when it becomes visible
    page.wait_for_selector(f".card[data-drawn='{count}']")


def everything(run):
    """A run in which everything that the page can show happens."""
    evaluate(run, 8)
    run.plan("epoch-09.keras", 900)
    run.fail("worker_died", "the worker process was killed by SIGKILL; its log ends: loading\nKilled")
    plan = run.plan("epoch-10.keras", 1000)
    for rank in range(2):
        folder = run.folder / plan.folder / f"worker-{rank}-of-2"
        folder.mkdir(parents=True)
        counts, weights = ExactSum((3, 3), "int64"), ExactSum((3, 3), "float32")
        counts.add([[5 + rank, 1, 0], [2, 7, 0], [0, 0, 9]])
        states = {"confusion_matrix/counts": counts.to_json(), "confusion_matrix/weights": weights.to_json()}
        content = {"schema": 1, "variables": "v", "predictions": {}, "states": {"test": states}}
        (folder / "states.json").write_text(json.dumps(content))
    classes = {"test": {"recall": {name: value(0.1 * place) for place, name in enumerate(("cat", "dog", "owl"), 1)}}}
    metrics = {"accuracy": value(0.97, lower=0.95, upper=0.98), "loss": value(0.25, "min"), "odd": value(math.nan)}
    run.succeed({"test": metrics}, classes=classes, notes=("a note about the numbers",))
    run.plan("epoch-11.keras", 1100)
    run.tell(
        plan=12,
        pending=2,
        newest=Newest(
            step=1200, written_at=time.time() - 30, checkpoint="epoch-12.keras", digest="d", step_source="name"
        ),
        progress=(
            MemberProgress(rank=0, node="worker-0", worker="worker-0.3f2a.1", phase="evaluate", batches=61, total=79),
            MemberProgress(rank=1, node="worker-1", worker="worker-1.3f2a.2"),
        ),
        workers=(
            WorkerStatus(worker="worker-0.3f2a.1", pid=4711, state="evaluate", batches=61, total_batches=79),
            WorkerStatus(worker="w2", pid=4712, state="standby"),
        ),
        left_out={"worker-9": "it runs another task"},
        sentences=("ckpt-77: Input/output error",),
        count=3,
    )


def test_every_number_is_that_of_the_journal(run, serve, visit):
    """On the page, in the charts, and in the details: to the bit in `value`, to five digits for people."""
    everything(run)
    server = serve(run)
    page = visit(server.url)
    drawn(page, 9)
    rows = {row["plan"]: row for row in report.rows(run.history)}
    shown = page.eval_on_selector_all(
        "#evaluations-rows tr",
        "rows => rows.map(row => [row.dataset.plan, "
        "[...row.querySelectorAll('data')].map(each => [each.value, each.textContent])])",
    )
    assert [int(plan) for plan, _ in shown] == sorted(rows, reverse=True)
    for plan, cells in shown:
        expected = [each for by in rows[int(plan)]["metrics"].values() for each in by.values()]
        assert cells == [
            [each["hex"], number(each["hex"] if each["value"] is None else each["value"])] for each in expected
        ]
    newest = page.eval_on_selector_all(
        "#numbers-rows tr", "rows => rows.map(row => [...row.querySelectorAll('data')].map(d => d.value))"
    )
    assert newest[0][:3] == [(0.97).hex(), (0.95).hex(), (0.98).hex()]
    assert newest[2][0] == "nan"
    for name, expected in (("accuracy", 0.97), ("loss", 0.25)):
        card = page.locator(".card", has=page.get_by_role("heading", name=re.compile(f"^{name}")))
        assert card.locator(".readout data").get_attribute("value") == expected.hex()
        assert card.locator(".readout data").inner_text() == number(expected)
    page.goto(f"{server.url}/#evaluation-10")
    page.wait_for_selector("#details-title")
    details = page.eval_on_selector_all("dialog data", "all => all.map(d => d.value)")
    assert details[:3] == [(0.97).hex(), (0.95).hex(), (0.98).hex()]
    assert [(0.1 * place).hex() for place in (1, 2, 3)] == details[-3:]
    told = page.eval_on_selector_all("dialog svg.matrix title", "all => all.map(t => t.textContent)")
    assert "actual cat, predicted cat: 11 (84.6% of actual cat)" in told


def test_scripts_write_numbers_as_python_does(run, serve, visit):
    """Five significant digits, whatever the size."""
    given = [0.0, 1.0, 0.1, 1 / 3, 99999.5, 99999.4, 123456.789, 1e-4, 9.99996e-5, -2.5e-300, 1e22, 100.0, 5e-324]
    server = serve(run)
    page = visit(server.url)
    base = page.eval_on_selector("script[type=module]", "script => script.src").rpartition("/")[0]
    call = "([base, all]) => import(`${base}/chart.js`).then(module => all.map((each) => module.shortened(each)))"
    assert page.evaluate(call, [base, given]) == [number(each) for each in given]


def test_labels_of_an_axis_differ(run, serve, visit):
    """Values that differ in the seventh digit only do not have the same label at each line."""
    server = serve(run)
    page = visit(server.url)
    base = page.eval_on_selector("script[type=module]", "script => script.src").rpartition("/")[0]
    call = "([base, all]) => import(`${base}/chart.js`).then(module => module.axisLabels(all))"
    assert page.evaluate(call, [base, [0, 0.25, 0.5]]) == ["0", "0.25", "0.5"]
    assert page.evaluate(call, [base, [123456.1, 123456.2]]) == ["123456.1", "123456.2"]
    assert page.evaluate(call, [base, [1e-300, None, None, 1]]) == ["1e-300", None, None, "1"]


def test_no_label_of_an_axis_is_cut(run, serve, visit):
    """The axis is as wide as its labels."""
    for step in (1, 2):
        run.plan(f"epoch-{step}.keras", step)
        run.succeed({"test": {"loss": value(-0.00012345 * step, "min")}})
    server = serve(run)
    page = visit(server.url)
    drawn(page, 2)
    page.evaluate("""() => {
        const prototype = CanvasRenderingContext2D.prototype, fill = prototype.fillText;
        window.lefts = [];
        prototype.fillText = function (text, x, y, ...more) {
            const at = this.getTransform().transformPoint({ x, y });
            if (this.textAlign === "right") lefts.push(at.x - this.measureText(text).width);
            fill.call(this, text, x, y, ...more);
        };
    }""")
    page.get_by_label("Smoothing").fill("0.5")  # draws the chart anew
    least = """() => new Promise(found => {
        const look = () => { lefts.length > 2 ? found(Math.min(...lefts)) : requestAnimationFrame(look); };
        look();
    })"""
    assert page.evaluate(least) >= 0


def test_names_that_look_alike_when_joined(run, serve, visit):
    """`a-b` of `c` and `a` of `b-c` keep a row each when a new result appears."""
    for each in (0.25, 0.5):
        run.plan("c", int(100 * each))
        run.succeed({"a-b": {"c": value(each)}, "a": {"b-c": value(each + 1)}})
        if each == 0.25:
            server = serve(run)
            page = visit(server.url)
            drawn(page, 1)
    run.tell()
    drawn(page, 2)
    page.wait_for_selector("#row-2")
    read = "rows => rows.map(row => [0, 2].map(place => row.cells[place].textContent))"
    assert page.eval_on_selector_all("#numbers-rows tr", read) == [["a-b", "0.5"], ["a", "1.5"]]


def test_a_curve_without_a_point_says_why(run, serve, visit):
    """NaN has no place on a chart."""
    run.plan("epoch-01.keras", 100)
    run.succeed({"test": {"loss": value(float("nan"), "min")}})
    server = serve(run)
    page = visit(server.url)
    drawn(page, 1)
    page.get_by_text("1 value is NaN or infinite").wait_for()


@pytest.mark.parametrize("screen", ["light", pytest.param("dark", marks=pytest.mark.nightly), "phone"])
@pytest.mark.parametrize(
    "kind",
    ["everything", *(pytest.param(kind, marks=pytest.mark.nightly) for kind in ("nothing", "failing", "chief"))],
)
def test_accessible(run, serve, visit, screen, kind):
    """axe-core finds nothing, the page is not wider than the screen, and a phone's is not either."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    if kind == "everything":
        everything(run)
    if kind == "failing":
        for attempt in range(3):
            run.plan("epoch-01.keras", 100, attempt=attempt + 1)
            run.fail("mismatch", "a layer\nhas another shape")
    if kind == "chief":
        evaluate(run, 1)
        run.node = "chief-0"
        run.tell(role="chief", role_source="TF_CONFIG", unready="the checkpoint directory does not exist yet", hint="?")
    server = serve(run)
    page = visit(server.url, **SCREENS[screen])
    if kind in ("everything", "chief"):
        drawn(page, 9 if kind == "everything" else 1)
    else:
        page.get_by_text("There is no result yet: curves").wait_for()
    problems(axe.Axe(), page)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    if kind in ("everything", "failing"):
        page.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
        problems(axe.Axe(), page)
        page.goto(f"{server.url}/#evaluation-{10 if kind == 'everything' else 3}")
        page.wait_for_selector("#details-title")
        page.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
        problems(axe.Axe(), page)
        assert page.evaluate("document.querySelector('dialog').scrollWidth <= innerWidth")


def problems(axe, page):
    """Fail with the violations that axe-core found."""
    found = axe.run(page, options=AXE_RULES).response["violations"]
    assert [(each["id"], [node["html"] for node in each["nodes"][:3]]) for each in found] == []


def test_without_scripts(run, serve, visit):
    """The tables have the newest and the best numbers, the evaluations, the reasons of failures, and links to more."""
    everything(run)
    server = serve(run)
    page = visit(server.url, java_script_enabled=False)
    text = page.locator("body").inner_text()
    assert "0.95 to 0.98" in text
    assert "failed: worker_died" in text
    assert "61 of 79" in text
    assert "UTC" in text
    page.get_by_role("link", name="1000", exact=True).click()
    page.wait_for_selector("#details-title")
    assert "Confusion matrix" in page.locator("main").inner_text()


def test_a_new_result_appears(run, serve, visit):
    """In table and charts, without a reload: what is selected, opened and scrolled to stays as it is."""
    evaluate(run, 28)
    run.plan("epoch-29.keras", 2900)
    run.fail(message="Traceback\nValueError: no")
    evaluate(run, 2)
    server = serve(run)
    page = visit(server.url)
    drawn(page, 30)
    page.evaluate("window.same = true")
    page.locator("#why-row-29 summary").click()
    page.evaluate(
        "() => { const cell = document.querySelector('#row-31 .name');"
        "getSelection().selectAllChildren(cell); scrollTo(0, 150); }"
    )
    evaluate(run, 1)
    run.tell(pending=3)
    drawn(page, 31)
    page.wait_for_selector("#row-32")
    assert page.evaluate("window.same")
    assert page.locator("#why-row-29").get_attribute("open") is not None
    assert page.evaluate("getSelection().toString()") == "epoch-31.keras"
    assert page.evaluate("scrollY") == 150
    assert "3 checkpoints" in page.locator("#summary").inner_text()


def test_progress_is_live(run, serve, visit):
    """The batches of each worker of the open evaluation, while they are done."""
    run.plan("epoch-01.keras", 100)
    run.tell(
        plan=1,
        progress=(
            MemberProgress(rank=0, node="worker-0", worker="worker-0.3f2a.1", phase="evaluate", batches=3, total=79),
        ),
    )
    server = serve(run)
    page = visit(server.url)
    assert "3 of 79" in page.locator("#now").inner_text()
    run.tell(
        progress=(
            MemberProgress(rank=0, node="worker-0", worker="worker-0.3f2a.1", phase="evaluate", batches=44, total=79),
        )
    )
    page.get_by_text("44 of 79").wait_for()
    run.succeed({"test": {"accuracy": value(0.5)}})
    run.tell(plan=None, progress=())
    page.wait_for_selector("#now", state="hidden")
    drawn(page, 1)


@pytest.mark.nightly
def test_a_daemon_that_is_away(run, serve, visit):
    """The page says so, and goes on when the daemon is back."""
    evaluate(run, 2)
    server = serve(run)
    page = visit(server.url)
    drawn(page, 2)
    page.route("**/*", lambda route: route.abort())
    page.get_by_text("The daemon has not answered for").wait_for()
    page.unroute("**/*")
    evaluate(run, 1)
    run.tell()
    page.wait_for_selector("#away", state="hidden")
    drawn(page, 3)
    assert all("ERR_FAILED" in each for each in visit.complaints)
    visit.complaints.clear()


def test_a_point_leads_to_its_evaluation(run, serve, visit):
    """By mouse and by keyboard; the address names it, and the back button closes it."""
    evaluate(run, 5, metrics=("accuracy",))
    server = serve(run)
    page = visit(server.url)
    drawn(page, 5)
    plot = page.get_by_role("slider", name=re.compile("^accuracy by step"))
    plot.focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    assert "step 200" in plot.get_attribute("aria-valuetext")
    assert page.locator(".readout data").get_attribute("value") == accuracy(2).hex()
    page.keyboard.press("Enter")
    page.wait_for_selector("dialog[open] #details-title")
    assert page.url.endswith("#evaluation-2")
    page.go_back()
    page.wait_for_selector("dialog", state="hidden")
    box = page.locator(".u-over").bounding_box()
    page.mouse.move(box["x"] + box["width"] - 1, box["y"] + 20)
    assert "step 500" in page.locator(".readout").inner_text()
    page.mouse.click(box["x"] + box["width"] - 1, box["y"] + 20)
    page.wait_for_selector("dialog[open] #details-title")
    assert page.url.endswith("#evaluation-5")
    assert "epoch-05.keras" in page.locator("dialog").inner_text()
    page.keyboard.press("Escape")
    page.wait_for_url(lambda url: "#" not in url)  # it changes after the dialog has gone


def test_arrow_keys_lead_to_the_next_evaluation(run, serve, visit):
    """In the dialog; a head of the table of classes sorts it."""
    for plan in (1, 2, 3):
        run.plan(f"epoch-{plan}.keras", plan)
        classes = {"test": {"recall": {"cat": value(0.5), "dog": value(0.75), "ant": value(0.25 * plan)}}}
        run.succeed({"test": {"recall": value(0.5)}}, classes=classes)
    server = serve(run)
    page = visit(f"{server.url}/#evaluation-2")
    page.wait_for_selector("#details-title")
    page.keyboard.press("ArrowRight")
    page.get_by_role("heading", name="epoch-3.keras").wait_for()
    page.keyboard.press("ArrowLeft")
    page.get_by_role("heading", name="epoch-2.keras").wait_for()
    page.keyboard.press("ArrowLeft")
    page.get_by_role("heading", name="epoch-1.keras").wait_for()
    names = page.locator("table.sortable tbody th")
    assert names.all_inner_texts() == ["ant", "cat", "dog"]
    head = page.get_by_role("button", name="recall")
    head.click()
    head.click()
    assert names.all_inner_texts() == ["dog", "cat", "ant"]
    page.get_by_role("button", name="class", exact=True).click()
    assert names.all_inner_texts() == ["ant", "cat", "dog"]
    page.get_by_role("link", name="ant").click()
    page.wait_for_selector(".part-curve[data-drawn='ant'] canvas")
    assert "0.75 · 10000 examples" in page.locator(".part-curve .readout").inner_text().replace("\n", " ")
    page.locator(".part-curve .plot").focus()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="epoch-2.keras").wait_for()


def test_inputs_of_changed_examples(run, serve, visit):
    """The evaluation shows the images and texts of the examples that it broke and fixed; hostile ones do nothing."""
    labels = np.zeros(100, np.int64)
    for wrong in (range(20, 30), range(15, 25)):
        plan = run.plan(f"epoch-{wrong[0]}.keras", 100 - wrong[0], members=1)
        predictions = np.eye(2, dtype=np.float32)[[int(place in wrong) for place in range(100)]]
        inputs = {place: thumbnail(np.eye(8)) if place % 2 else EVIL[0] for place in wrong}
        table = NpyTable(run.folder / plan.folder / "worker-0-of-1" / "predictions" / "test")
        table.add(Rows(0, 100, {"y": labels, "predictions": predictions}, inputs=inputs))
        table.finish()
        table.close()
        run.succeed({"test": {"accuracy": value(0.9)}}, examples={"test": 100})
    run.plan("=without", 90)
    run.succeed({"test": {"accuracy": value(0.5)}}, examples={"test": 100})
    page = visit(f"{serve(run).url}/#evaluation-2")
    page.get_by_text("Examples that changed against the step before").click()
    images = page.locator(".changed img")
    images.nth(5).wait_for()
    assert images.evaluate_all("all => all.map(each => each.alt)") == [
        *(f"input of example {place}" for place in (25, 27, 29, 15, 17, 19))
    ]
    assert images.evaluate_all("all => all.map(each => each.naturalWidth)") == [8] * 6
    assert page.locator(".changed q").all_inner_texts() == [EVIL[0]] * 4
    with page.expect_download() as download:
        page.get_by_role("button", name="CSV: Numbers of this evaluation").click()
    assert download.value.suggested_filename == "epoch-15.keras-Numbers-of-this-evaluation.csv"
    (line,) = csv.DictReader(Path(download.value.path()).read_text().splitlines())
    assert (line["eval set"], line["value"], line["Δ to step before"], line["Δ to best"]) == (
        "test",
        "0.9",
        "0.0",
        "best",
    )
    assert -0.1 < float(line["Δ to step before lower"]) < 0 < float(line["Δ to step before upper"]) < 0.1
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    problems(axe, page)
    page.goto(f"{page.url.partition('#')[0]}comparison?new=2&old=1")
    page.get_by_role("heading", name="Examples that changed").wait_for()
    assert page.locator(".examples img").count() == 6
    problems(axe, page)
    page.goto(f"{page.url.partition('comparison')[0]}evaluation?plan=3")
    page.get_by_text("Examples that changed against the step before").click()
    page.get_by_text("test/accuracy: plan 3 has no saved predictions").wait_for()


def test_smoothing_and_log_scale(run, serve, visit):
    """The slider asks for smoothed values; on a log scale only positive numbers are drawn, and the card says so."""
    evaluate(run, 4, metrics=("loss",))
    run.plan("epoch-05.keras", 500)
    run.succeed({"test": {"loss": value(-1.0, "min")}})
    server = serve(run)
    page = visit(server.url)
    drawn(page, 5)
    with page.expect_response(re.compile(r"smoothing=0\.5")) as answered:
        page.get_by_label("Smoothing").fill("0.5")
    smoothed = answered.value.json()["smoothed"]
    assert smoothed[0] == 2.0
    assert page.get_by_text("smoothed", exact=True).is_visible()
    page.get_by_label("Log scale").check()
    page.get_by_text("no place on a log scale").wait_for()


def test_eval_sets_of_a_metric_share_a_chart(run, serve, visit):
    """Each has a colour, a line in the reading and a switch, which the address keeps."""
    for plan in range(1, 4):
        run.plan(f"epoch-{plan}.keras", plan)
        run.succeed({name: {"accuracy": value(shift + plan / 10)} for name, shift in (("test", 0.1), ("train", 0.2))})
    server = serve(run)
    page = visit(server.url)
    drawn(page, 3)
    assert page.locator(".card").count() == 1
    assert page.locator(".readout span").all_inner_texts()[:2] == [
        "test 0.4 · 10000 examples",
        "train 0.5 · 10000 examples",
    ]
    page.get_by_label("train").uncheck()
    page.locator(".readout data").nth(1).wait_for(state="detached")
    assert page.url.endswith("?without=train")
    page.reload()
    drawn(page, 3)
    assert page.locator(".readout data").all_inner_texts() == ["0.4"]
    page.get_by_label("train").check()
    page.locator(".readout data").nth(1).wait_for()


def test_a_range_is_shown_by_dragging(run, serve, visit):
    """In all charts, in the address, and after a reload; a double click, a key or the button show all points again."""
    evaluate(run, 20)
    server = serve(run)
    page = visit(server.url)
    drawn(page, 20)
    box = page.locator(".u-over").first.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 30)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.75, box["y"] + 30, steps=4)
    page.mouse.up()
    page.wait_for_url(lambda url: "from=" in url)
    low, high = (float(each) for each in re.findall(r"(?:from|to)=([\d.]+)", page.url))
    assert low == pytest.approx(100 + 0.5 * 1900, abs=20)
    assert high == pytest.approx(100 + 0.75 * 1900, abs=20)
    assert page.locator("dialog[open]").count() == 0
    page.reload()
    drawn(page, 20)
    whole = page.get_by_role("button", name="Show all steps")
    for card in page.locator(".card[data-drawn]").all():
        left = card.locator(".u-over").bounding_box()
        page.mouse.move(left["x"] + 2, left["y"] + 20)
        told = card.locator(".readout").inner_text()
        assert low - 60 <= int(re.search(r"step (\d+)", told)[1]) <= low + 60
    page.mouse.dblclick(box["x"] + 30, box["y"] + 30)
    page.wait_for_url(lambda url: "from=" not in url)
    plot = page.get_by_role("slider", name=re.compile("^accuracy by step"))
    plot.focus()
    page.keyboard.press("End")
    page.keyboard.press("+")
    page.wait_for_url(lambda url: "from=1050&to=2000" in url)
    page.keyboard.press("Home")  # the range moves with the point
    page.wait_for_url(lambda url: "from=100&to=1050" in url)
    whole.click()
    page.wait_for_url(lambda url: "from=" not in url)
    assert whole.is_hidden()


def test_a_click_that_resets_is_no_choice_of_a_point(run, serve, visit):
    """A double click shows all points, and opens no evaluation."""
    evaluate(run, 5, metrics=("accuracy",))
    server = serve(run)
    page = visit(f"{server.url}/?from=200&to=300")
    drawn(page, 5)
    box = page.locator(".u-over").bounding_box()
    page.mouse.dblclick(box["x"] + 30, box["y"] + 30)
    page.wait_for_url(lambda url: "from=" not in url)
    assert page.locator("dialog[open]").count() == 0


def test_the_cursor_is_in_all_charts(run, serve, visit):
    """Every chart tells its value at the step under the mouse, and its newest one when the mouse is gone."""
    evaluate(run, 5)
    server = serve(run)
    page = visit(server.url)
    drawn(page, 5)
    readings = page.locator(".readout")
    page.locator(".card[data-drawn]").nth(1).wait_for()
    box = page.locator(".u-over").first.bounding_box()
    page.mouse.move(box["x"] + 1, box["y"] + 20)
    assert ["step 100" in each for each in readings.all_inner_texts()] == [True, True]
    page.mouse.move(box["x"] + 1, box["y"] - 100)
    page.get_by_text("newest: step 500").nth(1).wait_for()


def test_a_first_bad_value_does_not_flatten_the_others(run, serve, visit):
    """The axis shows most values well, the card says how many are out of sight, and a switch shows them."""
    for plan in range(1, 41):
        run.plan(f"epoch-{plan:02}.keras", plan)
        run.succeed({"test": {"accuracy": value(0.1 if plan == 1 else 0.9 + 0.001 * plan)}})
    server = serve(run)
    page = visit(server.url)
    drawn(page, 40)
    page.get_by_text("1 value is out of sight").wait_for()
    page.get_by_label("All values").check()
    page.get_by_text("1 value is out of sight").wait_for(state="hidden")
    assert page.url.endswith("?all")


def test_a_metric_that_has_settled_is_drawn(run, serve, visit):
    """Values that differ by rounding, and tiny ones, have an axis."""
    for plan in range(1, 21):
        number = 1 - 5e-10 * 0.8**plan
        run.plan(f"epoch-{plan:02}.keras", plan)
        settled = {"a": value(number), "b": value(3 * number, lower=0.0, upper=4.0), "c": value(-1e-12)}
        run.succeed({"test": settled | {"d": value(1e-10 * number), "e": value(1e-9 / plan)}})
    page = visit(serve(run).url)
    for card in page.locator(".card").all():
        card.scroll_into_view_if_needed()
        card.locator("canvas").wait_for()
    drawn(page, 20)


def steps_under_the_mouse(page):
    """The steps that the read-out names at the left, in the middle and at the right of the only chart."""
    told = []
    for share in (0, 0.5, 1):
        if (box := page.locator(".u-over").bounding_box()) is not None:
            page.mouse.move(box["x"] + 1 + share * (box["width"] - 2), box["y"] + 20)
            told += map(int, re.findall(r"step (\d+)", page.locator(".readout").inner_text()))
    page.mouse.move(1, 1)
    return told


def test_the_axis_shows_times_or_the_order(run, serve, visit):
    """The newest point of time is at the right, even if its step is lower."""
    for plan, step in enumerate((100, 300, 200), 1):
        run.plan(f"epoch-{plan}.keras", step, at=minutes_ago(60 - plan))
        run.succeed({"test": {"loss": value(1 / plan, "min")}}, at=minutes_ago(59 - plan))
    server = serve(run)
    page = visit(server.url)
    drawn(page, 3)
    for axis, steps in (("step", [100, 200, 300]), ("time", [100, 300, 200]), ("evaluation", [100, 300, 200])):
        page.get_by_label("Axis").select_option(axis)
        deadline = time.monotonic() + PATIENCE / 1000
        while (told := steps_under_the_mouse(page)) != steps:  # the chart is made anew
            assert time.monotonic() < deadline, f"by {axis}: {told}"
    page.get_by_label("Axis").select_option("epoch")
    page.get_by_label("Steps of an epoch").fill("200")
    page.get_by_label("Steps of an epoch").press("Enter")
    page.wait_for_url("**/?x=epoch&epoch=200")
    page.reload()
    drawn(page, 3)
    assert page.get_by_label("Steps of an epoch").input_value() == "200"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_lines_have_contrast(run, serve, visit, scheme):
    """At least 3:1 to the card, smoothed or not, as WCAG 2.2 asks of graphics (success criterion 1.4.11)."""
    server = serve(run)
    page = visit(server.url, **SCREENS[scheme])
    base = page.eval_on_selector("script[type=module]", "script => script.src").rpartition("/")[0]
    found = page.evaluate(
        """async (base) => {
            const { COLOURS, mixed, FAINT } = await import(`${base}/chart.js`);
            const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
            const card = colour("--card"), sets = [...Array(COLOURS).keys()].map((each) => colour(`--set-${each}`));
            const faint = sets.map((each) => mixed(each, card, FAINT));
            return [card, [...sets, ...faint, colour("--best"), colour("--faint")]];
        }""",
        base,
    )
    card, lines = found
    assert len(lines) == 14
    assert {line: round(contrast(line, card), 2) for line in lines if contrast(line, card) < 3} == {}


def contrast(one, other):
    """The contrast of two colours by WCAG 2.2, from 1 to 21."""

    def luminance(colour):
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize(("step", "title"), [(100, "step"), (0, "order")])
def test_the_axis_says_what_it_counts(run, serve, visit, step, title):
    """Training steps, or the order of writing where no step is known."""
    run.plan("epoch-01.keras", step)
    run.succeed({"test": {"loss": value(0.5, "min")}})
    server = serve(run)
    page = visit(server.url)
    drawn(page, 1)
    page.evaluate("""() => {
        const prototype = CanvasRenderingContext2D.prototype, fill = prototype.fillText;
        window.written = new Promise(found => {
            prototype.fillText = function (text, ...place) {
                if (text === "step" || text === "order") found(text);
                fill.call(this, text, ...place);
            };
        });
    }""")
    page.get_by_label("Log scale").check()  # draws the chart anew
    assert page.evaluate("window.written") == title


def test_no_number_is_cut_on_a_phone(run, serve, visit):
    """Value, interval and examples above a curve take a second line where one is too short."""
    run.plan("epoch-01.keras", 100)
    run.succeed({"test": {"loss": value(0.088642123, "min", lower=0.051374123, upper=0.125911)}})
    server = serve(run)
    page = visit(server.url, **SCREENS["phone"])
    drawn(page, 1)
    cut = "(line) => line.scrollWidth > line.clientWidth || line.scrollHeight > line.clientHeight"
    assert page.evaluate(f"[...document.querySelectorAll('.readout span')].filter({cut}).length") == 0


def test_runs_are_beside_each_other(tmp_path, serve, visit):
    """In one chart for each metric, the newest five at first; other data are told, and a point leads to its run."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    runs = [ServedRun(tmp_path / name, run=name) for name in ("wide", "deep", "old")]
    for place, run in enumerate(runs):
        for plan in (1, 2):
            run.plan(f"ckpt-{plan}", 100 * plan, at=minutes_ago(90 * place + 9))
            numbers = {"test": {"accuracy": value(0.5 + 0.1 * plan + place / 100)}}
            numbers |= {"train": {"accuracy": value(0.75)}} if run.run == "deep" else {}
            run.succeed(numbers, at=minutes_ago(90 * place + 8), data="8" if run.run == "old" else "9")
    server = serve(*runs)
    page = visit(server.url)
    drawn(page, 2)
    names = page.locator(".readout span:has(data)")
    names.nth(3).wait_for()
    assert [told.split(" 0.")[0] for told in names.all_inner_texts()] == [
        "wide · test",
        "deep · test",
        "deep · train",
        "old · test",
    ]
    page.get_by_text("The runs evaluated different data").wait_for()
    problems(axe.Axe(), page)
    page.get_by_label("old").uncheck()
    names.nth(3).wait_for(state="detached")
    assert page.url.endswith("?run=wide&run=deep")
    assert page.get_by_text("The runs evaluated different data").count() == 0
    runs[1].plan("ckpt-3", 300)
    runs[1].succeed({"test": {"accuracy": value(0.25)}})
    runs[1].tell()
    drawn(page, 3)
    plot = page.locator(".plot")
    plot.focus()
    page.keyboard.press("End")
    page.keyboard.press("Enter")
    page.wait_for_selector("dialog[open] #details-title")
    assert page.url == f"{server.url}/runs/deep/#evaluation-3"


def test_a_card_is_saved_as_a_file(run, serve, visit):
    """With all digits and the exact bits; pictures have every curve, its interval and its best point."""
    evaluate(run, 5)
    run.plan("=1+1.keras", 600)
    run.succeed({"test": {"accuracy": value(0.5, lower=0.25, upper=0.75)}}, data="8")
    page = visit(serve(run).url + "/?smoothing=0.5")
    drawn(page, 6)
    card = page.locator(".card").first
    card.hover()
    saved = {}
    for kind in ("CSV", "JSON", "SVG", "PNG"):
        with page.expect_download() as download:
            card.get_by_role("button", name=kind).click()
        saved[kind] = Path(download.value.path()).read_bytes()
        assert download.value.suggested_filename == f"accuracy.{kind.lower()}"
    *_, last = csv.DictReader(io.StringIO(saved["CSV"].decode()))
    expected = {"step": "600", "checkpoint": "'=1+1.keras", "value": "0.5", "hex": (0.5).hex(), "lower": "0.25"}
    assert {name: last[name] for name in expected} == expected
    (curve,) = json.loads(saved["JSON"])
    assert (curve["set"], curve["metric"], curve["values"][-1], len(curve["plans"])) == ("test", "accuracy", 0.5, 6)
    picture = ET.fromstring(saved["SVG"])
    texts = ["".join(each.itertext()) for each in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert texts[0] == "accuracy"
    assert "test 0.5" in texts
    assert {"step", "200", "0.6"} <= set(texts)
    paths = [each.get("d") for each in picture.iter("{http://www.w3.org/2000/svg}path")]
    assert [path.count("L") for path in paths] == [9, 1, 4, 0, 4, 0]  # band, values, smoothed values; 600 is apart
    assert saved["PNG"].startswith(b"\x89PNG")


def test_older_evaluations(run, serve, visit):
    """The link adds them to the table, page by page, and they stay when a new result appears."""
    evaluate(run, 60)
    server = serve(run)
    page = visit(server.url)
    drawn(page, 60)
    assert page.locator("#evaluations-rows tr").count() == 10
    page.get_by_role("link", name="Older evaluations").click()
    page.wait_for_selector("#row-11")
    page.get_by_role("link", name="Older evaluations").click()
    page.wait_for_selector("#row-1")
    evaluate(run, 1)
    run.tell()
    page.wait_for_selector("#row-61")
    plans = page.eval_on_selector_all("#evaluations-rows tr", "rows => rows.map(row => Number(row.dataset.plan))")
    assert plans == list(range(61, 0, -1))


def test_hostile_names(tmp_path, serve, visit):
    """A name of anything that others choose is shown, and never executed."""
    first = EVIL[0]
    run = ServedRun(tmp_path, run=first, node=first, nodes=EVIL)
    for step, evil in enumerate(EVIL, 1):
        run.plan(evil, step)
        by_class = {evil: {evil: {evil: value(0.1), "b": value(0.2)}}}
        run.succeed({evil: {evil: value(0.5)}}, classes=by_class, notes=(evil,))
        run.plan(evil, 100 + step)
        run.fail(evil, evil)
    run.tell(hint=first, left_out=dict(zip(EVIL, EVIL, strict=True)), sentences=EVIL, count=9, state=first)
    server = serve(run)
    page = visit(server.url, viewport={"width": 400, "height": 800})
    drawn(page, 1)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.locator(".card").count() == len(EVIL)
    for card in page.locator(".card").all():
        card.scroll_into_view_if_needed()
        card.locator(".plot:has(canvas)").wait_for()
    text = page.locator("body").inner_text()
    assert first in text
    assert "\u202e" not in text
    for plan in range(1, 2 * len(EVIL) + 1):
        page.goto(f"{server.url}/#evaluation-{plan}")
        page.get_by_text(f"evaluation {plan} ", exact=False).first.wait_for()
        assert page.evaluate("document.querySelector('dialog').scrollWidth <= innerWidth")
    page.goto(f"{server.url}/evaluations?before=99")
    assert page.evaluate("window.evil") is None
    assert page.locator("img, main script, iframe").count() == 0


@pytest.mark.nightly
def test_two_thousand_evaluations_of_twenty_metrics(run, serve, visit):
    """The first chart is there soon, and a new result and a frame of a drag cost little. Bounds are seconds of CPU."""
    for plan in range(1, 2001):
        numbers = {f"metric-{place:02}": value(accuracy(plan) * place, lower=0.0, upper=1.0) for place in range(20)}
        run.plan(f"ckpt-{plan}", plan)
        run.succeed({"test": numbers})
    server = serve(run)
    page = visit(server.url)
    drawn(page, 2000)
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")
    page.reload()
    drawn(page, 2000)
    before = cpu(session)
    assert before["ScriptDuration"] < 10
    run.plan("ckpt-2001", 2001)
    run.succeed({"test": {f"metric-{place:02}": value(0.5, lower=0.0, upper=1.0) for place in range(20)}})
    run.tell()
    drawn(page, 2001)
    after = cpu(session)
    spent = {name: after[name] - before[name] for name in before}
    print(f"start {before}, update {spent}")  # noqa: T201 - a measurement
    assert spent["ScriptDuration"] < 2
    session.send("Performance.disable")
    session.send("Performance.enable", {"timeDomain": "threadTicks"})  # on a busy machine, too
    page.evaluate("window.frames60 = 0; const count = () => { frames60++; requestAnimationFrame(count); }; count()")
    box = page.locator(".card .u-over").first.bounding_box()
    page.mouse.move(box["x"] + 10, box["y"] + 40)
    page.mouse.down()
    began, frames = cpu(session), page.evaluate("frames60")
    page.mouse.move(box["x"] + box["width"] - 10, box["y"] + 60, steps=200)
    frames = page.evaluate("frames60") - frames
    dragged = cpu(session)["TaskDuration"] - began["TaskDuration"]
    page.mouse.up()
    drawn_charts = page.locator(".card canvas").count()
    print(f"drag: {1000 * dragged / frames:.2f} ms a frame, {frames} frames, {drawn_charts} charts")  # noqa: T201
    assert frames > 20
    assert dragged / frames < 1 / 60
    size = len(get(server, "/api/curve?set=test&metric=metric-03&points=700"))
    assert size < 400_000


def cpu(session):
    """Seconds that the page's thread spent, by kind of work."""
    metrics = {each["name"]: each["value"] for each in session.send("Performance.getMetrics")["metrics"]}
    return {name: metrics[name] for name in ("ScriptDuration", "LayoutDuration", "TaskDuration")}
