"""The words of the page: what a reader is told, and that nothing is markup but what is meant to be."""

from html.parser import HTMLParser

import pytest
from served_run import ServedRun, value

from sidecar.protocol.states import FailureKind, WorkerPhase
from sidecar.publishing.failures import ADVICE, failing
from sidecar.publishing.page.document import Files, page
from sidecar.publishing.page.evaluation import evaluation_page, evaluations_page
from sidecar.publishing.page.markup import lines, step, text
from sidecar.publishing.page.overview import phase_words, progress
from sidecar.publishing.page.pictures import matrix_picture, phases_picture
from sidecar.publishing.past.details import details_json
from sidecar.publishing.status import MemberProgress, Newest, NodeSummary, WorkerStatus


class Seen(HTMLParser):
    """What a reader sees, and which elements there are."""

    def __init__(self, markup):
        super().__init__()
        self.text, self.open, self.ids, self.links = "", [], [], {}
        self.feed(markup)

    def handle_starttag(self, tag, attrs):
        """Note an element and its id."""
        self.ids += [given for name, given in attrs if name == "id"]
        if tag not in ("meta", "link", "input"):
            self.open.append(tag)
        self.leads = dict(attrs).get("href") if tag == "a" else None

    def handle_startendtag(self, tag, attrs):
        """Such an element has no end."""

    def handle_endtag(self, tag):
        """Elements end in their order."""
        assert self.open.pop() == tag

    def handle_data(self, data):
        """Note the text."""
        self.text += data
        if self.open and self.open[-1] == "a":
            self.links[data] = self.leads


@pytest.fixture
def run(tmp_path):
    return ServedRun(tmp_path)


def seen(run, **status):
    """The page of a run, whose elements all end and whose ids are unique."""
    run.tell(**status)
    found = Seen(page(run.published.status))
    assert found.open == []
    assert len(set(found.ids)) == len(found.ids)
    return found.text


def test_no_result_yet(run):
    """Each part says what is missing, and what will come."""
    text = seen(run)
    assert "none found yet" in text
    assert "There is no result yet" in text
    assert "0 checkpoints" in text


def test_numbers_newest_and_best(run):
    """With direction, interval, and how far the newest is from the best."""
    for number in (0.9, 0.8):
        run.plan(f"ckpt-{number}", round(1000 * number))
        run.succeed({"test": {"accuracy": value(number, lower=number - 0.1, upper=1.0), "loss": value(0.5, "min")}})
    text = seen(run)
    for words in ("more is better", "less is better", "0.7 to 1", "-0.1", "step 900", "ckpt-0.9", "10000"):
        assert words in text


@pytest.mark.parametrize(
    ("count", "words"), [(1, "The newest attempt failed: mismatch"), (3, "The last 3 attempts failed: mismatch")]
)
def test_failures_are_at_the_top(run, count, words):
    """With kind, node, cause, remedy, command, log, and the line that names the error."""
    for attempt in range(count):
        run.plan("epoch 1.keras", 100, attempt=attempt + 1)
        run.fail("mismatch", "Traceback\nlayer dense has another shape")
    text = seen(run)
    for each in (
        words,
        "on node worker-1",
        "does not match the model",
        "sidecar requeue /data/ckpts 'epoch 1.keras'",
        "/var/tmp/sidecar-logs/worker-1.7.log",
        "layer dense has another shape",
        "evaluations fail",
    ):
        assert each in text
    run.plan("ckpt-2", 200)
    run.succeed({"test": {"accuracy": value(0.5)}})
    assert "failed: mismatch" not in seen(run).partition("Evaluations")[0]


def test_every_kind_of_failure_has_advice():
    """A cause and a remedy; a kind of a newer release has none, and is shown all the same."""
    assert set(ADVICE) == set(FailureKind)
    assert all(advice.cause.endswith(".") and advice.remedy.endswith(".") for advice in ADVICE.values())


def test_a_kind_of_a_newer_release(run):
    """It is shown as it is."""
    run.plan("ckpt-1", 100)
    run.fail("gremlins", "no idea")
    assert "failed: gremlins" in seen(run)
    assert failing(run.history)["kind"] == "gremlins"


def test_the_open_evaluation(run):
    """Each worker of each node, in words, also of nodes that have not reported."""
    run.plan("ckpt-1", 100, attempt=2, members=3)
    known = MemberProgress(rank=0, node="worker-0", worker="worker-0.3f2a.1", phase="evaluate", batches=5, total=9)
    silent = MemberProgress(rank=1, node="worker-1", worker="worker-1.3f2a.2")
    other = MemberProgress(
        rank=2, node="worker-2", worker="worker-2.3f2a.3", phase="a newer phase", batches=7, total=None
    )
    text = seen(run, plan=1, progress=(known, silent, other))
    for words in (
        "Evaluating ckpt-1, step 100, attempt 2 with 3 workers",
        "5 of 9",
        "not reported yet",
        "a newer phase",
    ):
        assert words in text


def test_one_is_not_several(run):
    """`1 worker`, `1 checkpoint`."""
    run.plan("ckpt-1", None, members=1)
    text = seen(run, pending=1)
    assert "with 1 worker on worker-0" in text
    assert "1 checkpoint" in text
    assert "1 checkpoints" not in text
    assert "step #1" in text


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


def test_links_of_the_settings(run):
    """They are at the end of the page, in their order."""
    run.tell()
    assert "Elsewhere" not in Seen(page(run.published.status)).text
    links = {"Grafana": "https://g.example/d/x", "<b>": "http://docs:8000/?a&b"}
    found = Seen(page(run.published.status | {"page_links": links}))
    assert found.open == []
    assert "Elsewhere: Grafana · <b>" in found.text
    assert links.items() <= found.links.items()


def test_every_phase_has_words():
    """Those of a newer release are shown as they are."""
    assert {phase for phase in WorkerPhase if phase_words(phase) == phase} == {"failed"}
    assert phase_words(None) == "not reported yet"


@pytest.mark.parametrize(
    ("batches", "total", "phase", "shown"),
    [
        (3, 8, "evaluate", "3 of 8"),
        (3, None, "evaluate", "3"),
        (0, 8, "idle", ""),
        (None, None, None, ""),
        (9, 8, "save", "9 of 8"),
    ],
)
def test_progress(batches, total, phase, shown):
    """A bar if the number of batches is known; never more than full."""
    found = progress(batches, total, phase)
    assert found.endswith(shown)
    assert ("<progress" in found) is (total is not None and shown != "")


def test_texts_from_outside():
    """Markup, line ends, changes of direction and halves of characters are shown and have no effect."""
    assert text("<b>\n\u202e\ud800&\"'") == "&lt;b&gt;\\n\\u202e\\ud800&amp;&quot;&#x27;"
    assert lines("a\r\nb\x1b[31m") == "a\nb\\x1b[31m"
    assert step({"step": 3, "step_source": "order"}) == "#3"


def test_the_page_of_an_evaluation(run):
    """Everything the journal knows, and notes at the top."""
    run.plan("ckpt-1", 100)
    classes = {"test": {"recall": {"cat": value(0.25), "dog": value(0.75)}}}
    run.succeed({"test": {"accuracy": value(0.5)}}, classes=classes, changed=("test",), notes=("read this",))
    details = details_json(run.history.entries[-1]) | {"log": None}
    assert "keep_states" in evaluation_page(details | {"states_removed": True}, "mnist", _files())
    found = Seen(evaluation_page(details, "mnist", _files()))
    assert "keep_states" not in found.text
    for words in ("read this", "do not compare", "0.25", "dog", "3.20 s", "10.0.0.2:21000", "9" * 64, "tensorflow"):
        assert words in found.text
    assert found.open == []


def _files():
    return Files("/static/x")


def test_older_evaluations_without_any():
    """The page says so."""
    assert "no older ones" in evaluations_page([], "mnist", _files())


def test_pictures_name_what_they_show():
    """For readers that do not see them; a class without examples has a row without shades."""
    found = matrix_picture(["cat", "<dog>"], [[3, 1], [0, 0]])
    assert "3 of 4 are on the diagonal" in found
    assert "actual cat, predicted &lt;dog&gt;: 1 (25.0% of actual cat)" in found
    assert found.count('class="right"') == found.count('class="wrong"') == 1
    bar = phases_picture({"restore": 1.0, "evaluate": 3.0, "save": 0.0})
    assert 'width="750.00"' in bar
    assert "evaluate: 3.000 s" in bar
    assert phases_picture({"restore": 0.0})
