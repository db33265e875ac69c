"""Keep events that no receiver took in a bounded file."""

import json
import resource
from pathlib import Path

import jsonschema
import pytest
from faults import path_of
from publishing.sinks.hooks import SCHEMA, events_of, make, make_journal, target

from sidecar.publishing.sinks.dead_letters import FOLDER, add_dead_letter
from sidecar.publishing.sinks.sink import SinkRefusedError, SinkUnavailableError

__all__ = ["target"]


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


def test_a_file_that_cannot_grow_loses_no_event(tmp_path, target):
    """The event waits until there is room for it, and no part of a line is left."""
    event = events_of(make_journal())[0]
    made = make(tmp_path, target)
    target.raises = [SinkRefusedError("no")]
    with pytest.raises(SinkRefusedError):
        made.write(event)

    _, most = before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((tmp_path / FOLDER / "result.jsonl").stat().st_size + 10, most))
    try:
        target.raises = [SinkRefusedError("no")]
        with pytest.raises(SinkUnavailableError, match="File too large"):
            made.write(event)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    target.raises = [SinkRefusedError("no")]
    with pytest.raises(SinkRefusedError):
        made.write(event)
    assert len(letters(tmp_path)) == 2


def test_dead_letters_are_bounded(tmp_path):
    """The oldest ones go."""
    for plan in range(1, 60):
        body = json.dumps({"plan": plan, "filled": "x" * 500_000}).encode()
        add_dead_letter(tmp_path, "result", body, "no", 0.0)
    files = sorted(path.name for path in (tmp_path / FOLDER).iterdir())
    assert files == ["result.jsonl", "result.old.jsonl"]
    assert sum(path.stat().st_size for path in (tmp_path / FOLDER).iterdir()) <= 16 << 20
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


def test_a_letter_is_durable(tmp_path, target, system_calls):
    """The file and its name are synced before the next event follows."""
    synced = []
    system_calls.observe("fsync", lambda file: synced.append(Path(path_of(file)).name))
    target.raises = [SinkRefusedError("no")]
    with pytest.raises(SinkRefusedError):
        make(tmp_path, target).write(events_of(make_journal())[0])
    assert synced[-1] == "dead_letters"
