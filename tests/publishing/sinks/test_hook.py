"""Each hook gets the events of its kind, and an event that no receiver takes is kept in a file."""

import errno
import json
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
from journals import Journal, settlement

from sidecar.protocol.records import Nonfinite, Value
from sidecar.publishing.sinks import dead_letters
from sidecar.publishing.sinks.best_so_far import BestSoFar
from sidecar.publishing.sinks.dead_letters import FOLDER
from sidecar.publishing.sinks.hook import HOOKS, Hook
from sidecar.publishing.sinks.journal_events import event_of, placed, run_end
from sidecar.publishing.sinks.sink import Evaluation, SinkRefusedError, SinkUnavailableError
from sidecar.system.confined import Folder

SCHEMA = json.loads((Path(__file__).parents[3] / "docs/reference/hook-event.schema.json").read_text())
NAN = Value(value=None, hex="nan", goal="max")
NASTY = '<script>alert(1)</script>\n\x1b[31m\udc80"\u202e' + "x" * 300


class Target:
    """Notes what it gets, after the exceptions that `raises` lists."""

    shown = "target"

    def __init__(self):
        self.got, self.ids, self.raises = [], [], []

    def send(self, body, id_):
        """Note it."""
        if self.raises:
            raise self.raises.pop(0)
        self.got.append(json.loads(body.decode()))
        self.ids.append(id_)

    def close(self):
        """Do nothing."""


def value(number):
    return {"accuracy": Value(value=number, hex=number.hex(), goal="max")}


def events_of(journal):
    """The events of a journal, as a delivery makes them, and the end of the run."""
    found, milliseconds = [], 0
    for place, entry in placed(journal.history.entries):
        if (event := event_of(entry, place, "mnist", milliseconds)) is not None:
            milliseconds = event.milliseconds
            found.append(event)
    end = run_end("mnist", journal.history, "all is done", 1)
    return [*found, replace(end, milliseconds=milliseconds + 1, id=f"{journal.run}-{end.plan}-end")]


def make_journal():
    """One of everything."""
    journal = Journal()
    journal.evaluate("ckpt-1", 100, value(0.5))
    journal.evaluate("ckpt-2", 200, value(0.4))
    journal.plan("ckpt-3", step=300)
    journal.fail()
    journal.plan("ckpt-4", step=400, settles=[settlement("ckpt-3"), settlement("ckpt-0", "skipped")])
    journal.succeed(value(0.6), nonfinite={"prediction": Nonfinite(3, 1, 65)})
    journal.evaluate("ckpt-5", 500, {"accuracy": NAN})
    journal.plan(None, settles=[settlement("ckpt-6", "vanished"), settlement("ckpt-7", "corrupt")])
    return journal


@pytest.fixture
def target():
    return Target()


def make(tmp_path, target, hook="result", **more):
    return Hook(hook=hook, target=target, run_dir=tmp_path, **({"deadline_seconds": 100.0} | more))


@pytest.mark.parametrize(
    ("hook", "plans"),
    [
        ("result", [1, 2, 4, 5]),
        ("best", [1, 4]),
        ("failure", [3, 4, 6, 6]),
        ("nan", [4, 5]),
        ("end", [6]),
    ],
)
def test_each_hook_gets_the_events_of_its_kind(tmp_path, target, hook, plans):
    """In their order, each with an id of its own, and as the schema says."""
    made = make(tmp_path, target, hook)
    for event in events_of(make_journal()):
        made.write(event)
    assert [each["plan"] for each in target.got] == plans
    assert len(set(target.ids)) == len(plans)
    assert [each["id"] for each in target.got] == target.ids
    for each in target.got:
        jsonschema.validate(each, SCHEMA)
        assert each["event"] == hook


def test_numbers_are_those_of_the_history(tmp_path, target):
    """With all of their bits, and the best one so far."""
    made = make(tmp_path, target)
    for event in events_of(make_journal()):
        made.write(event)
    second = target.got[1]
    assert second["metrics"]["test"]["accuracy"] == {"value": 0.4, "hex": (0.4).hex(), "lower": None, "upper": None}
    assert second["best"]["checkpoint"]["name"] == "ckpt-1"
    assert second["best"]["evaluations_since"] == 1
    assert target.got[3]["metrics"]["test"]["accuracy"]["hex"] == "nan"


def test_failures_say_whether_the_checkpoint_is_given_up(tmp_path, target):
    """An attempt that failed, and ends without a result."""
    made = make(tmp_path, target, "failure")
    for event in events_of(make_journal()):
        made.write(event)
    assert [(each["final"], each["kind"], each["checkpoint"]["name"]) for each in target.got] == [
        (False, "stalled", "ckpt-3"),
        (True, "failed", "ckpt-3"),
        (True, "vanished", "ckpt-6"),
        (True, "corrupt", "ckpt-7"),
    ]


@pytest.mark.parametrize("hook", HOOKS)
def test_hostile_names(tmp_path, target, hook):
    """Names of files and messages of user code reach the receiver as valid JSON, and a text of one line."""
    journal = Journal()
    journal.plan(NASTY, step=1)
    journal.fail(message=NASTY)
    journal.evaluate(NASTY, 1, value(0.5), eval_sets=(NASTY,))
    journal.evaluate("ckpt", 2, {NASTY: NAN})
    made = make(tmp_path, target, hook)
    for event in events_of(journal):
        made.write(event)
    assert target.got
    for each in target.got:
        jsonschema.validate(each, SCHEMA)
        assert each["text"].isprintable()


def test_an_event_that_comes_again_is_the_same(tmp_path, target):
    """A second delivery after a crash, or by another node, has the same id and content."""
    for _ in range(2):
        made = make(tmp_path, target, "best")
        for event in events_of(make_journal()):
            made.write(event)
    assert target.got[:2] == target.got[2:]


def test_a_best_one_is_judged_by_the_past(tmp_path, target):
    """After a restart, and once for each evaluation, however often it is tried."""
    first, second, *_ = (event for event in events_of(make_journal()) if isinstance(event, Evaluation))
    made = make(tmp_path, target, "best")
    made.resume([first])
    made.write(second)
    assert target.got == []
    target.raises = [SinkUnavailableError("away")] * 3
    made.resume([])
    for _ in range(3):
        with pytest.raises(SinkUnavailableError):
            made.write(first)
    made.write(first)
    made.write(second)
    assert [each["plan"] for each in target.got] == [1]


def letters(tmp_path, hook="result"):
    return [json.loads(line) for line in (tmp_path / FOLDER / f"{hook}.jsonl").read_text().splitlines()]


def test_an_event_that_is_refused_becomes_a_dead_letter(tmp_path, target):
    """With the reason, and the event as it would have been delivered."""
    event = events_of(make_journal())[0]
    target.raises = [SinkRefusedError("answered 404")]
    made = make(tmp_path, target, wall=lambda: 0.0)
    with pytest.raises(SinkRefusedError, match=r"result\.jsonl"):
        made.write(event)
    (letter,) = letters(tmp_path)
    assert letter["given_up_at"] == "1970-01-01T00:00:00.000Z"
    assert "answered 404" in letter["reason"]
    jsonschema.validate(letter["event"], SCHEMA)


def test_an_event_is_given_up_at_its_deadline(tmp_path, target):
    """Counted from its own first attempt, so that the next one has its time, too."""
    now = [0.0]
    first, second = events_of(make_journal())[:2]
    made = make(tmp_path, target, now=lambda: now[0])
    target.raises = [SinkUnavailableError("away")] * 5
    for at, kind in ((0.0, SinkUnavailableError), (99.0, SinkUnavailableError), (100.0, SinkRefusedError)):
        now[0] = at
        with pytest.raises(kind):
            made.write(first)
    for at in (100.0, 199.0):
        now[0] = at
        with pytest.raises(SinkUnavailableError):
            made.write(second)
    made.write(second)
    assert [letter["event"]["plan"] for letter in letters(tmp_path)] == [1]
    assert [each["plan"] for each in target.got] == [2]


def test_a_full_disk_loses_no_event(tmp_path, target, monkeypatch):
    """The event waits until there is room for it, and no part of a line is left."""
    event = events_of(make_journal())[0]
    made = make(tmp_path, target)
    target.raises = [SinkRefusedError("no")]
    with pytest.raises(SinkRefusedError):
        made.write(event)

    def full(file, data):
        file.write(data[:10])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(dead_letters, "_write_whole", full)
        target.raises = [SinkRefusedError("no")]
        with pytest.raises(SinkUnavailableError, match="No space"):
            made.write(event)
    target.raises = [SinkRefusedError("no")]
    with pytest.raises(SinkRefusedError):
        made.write(event)
    assert len(letters(tmp_path)) == 2


def test_dead_letters_are_bounded(tmp_path, target, monkeypatch):
    """The oldest ones go."""
    monkeypatch.setattr(dead_letters, "_MOST_BYTES", 5000)
    made = make(tmp_path, target)
    event = events_of(make_journal())[0]
    for plan in range(1, 60):
        target.raises = [SinkRefusedError("no")]
        with pytest.raises(SinkRefusedError):
            made.write(replace(event, plan=plan))
    files = sorted(path.name for path in (tmp_path / FOLDER).iterdir())
    assert files == ["result.jsonl", "result.old.jsonl"]
    assert sum(path.stat().st_size for path in (tmp_path / FOLDER).iterdir()) <= 10_000
    assert letters(tmp_path)[-1]["event"]["plan"] == 59


def test_a_torn_line_spoils_no_other(tmp_path, target):
    """A daemon was killed while it wrote."""
    (tmp_path / FOLDER).mkdir(parents=True)
    (tmp_path / FOLDER / "result.jsonl").write_text('{"given_up_at": "20')
    target.raises = [SinkRefusedError("no")]
    with pytest.raises(SinkRefusedError):
        make(tmp_path, target).write(events_of(make_journal())[0])
    _, line = (tmp_path / FOLDER / "result.jsonl").read_text().splitlines()
    assert json.loads(line)["event"]["plan"] == 1


def test_a_planted_link_is_not_followed(tmp_path, target):
    """Neither in place of the file, nor of its folder."""
    outside = tmp_path / "outside"
    outside.write_text("mine")
    run_dir = tmp_path / "run"
    (run_dir / FOLDER).mkdir(parents=True)
    (run_dir / FOLDER / "result.jsonl").symlink_to(outside)
    target.raises = [SinkRefusedError("no")]
    with pytest.raises(SinkUnavailableError, match="link"):
        make(run_dir, target).write(events_of(make_journal())[0])
    assert outside.read_text() == "mine"


def test_a_letter_is_durable(tmp_path, target, monkeypatch):
    """The file and its name are synced before the next event follows."""
    synced = []
    monkeypatch.setattr(Folder, "sync", lambda folder: synced.append(folder.path.name))
    target.raises = [SinkRefusedError("no")]
    with pytest.raises(SinkRefusedError):
        make(tmp_path, target).write(events_of(make_journal())[0])
    assert synced[-1] == "dead_letters"


def test_the_metric_of_the_settings_decides(tmp_path, target):
    """Not the first one of the task."""
    journal = Journal()
    for step, (accuracy, loss) in enumerate([(0.5, 2.0), (0.4, 1.0)]):
        numbers = {**value(accuracy), "loss": Value(value=loss, hex=loss.hex(), goal="min")}
        journal.evaluate(f"ckpt-{step}", step, numbers)
    made = make(tmp_path, target, "best", best=BestSoFar(metric="test/loss"))
    for event in events_of(journal):
        made.write(event)
    assert [each["plan"] for each in target.got] == [1, 2]
    assert target.got[1]["best"]["metric"] == "test/loss"
