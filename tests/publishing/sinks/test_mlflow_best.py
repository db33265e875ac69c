"""Upload the best export to MLflow as an artifact."""

from pathlib import Path

import pytest
from journals import Journal
from publishing.sinks.mlflow_runs import (
    PATIENCE_SECONDS,
    _clean,
    client,
    evaluation,
    place,
    points,
    runs_of,
    server,
    sinks,
    until,
)

from sidecar.publishing.sinks.mlflow_best import BestUpload

__all__ = ["_clean", "client", "place", "server", "sinks"]

pytestmark = pytest.mark.seconds


def export(place, name, files):
    """Make an export as the daemon does, and let `exports/best` lead to it."""
    folder = place / "exports" / name
    for path, data in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    (place / "exports/best").unlink(missing_ok=True)
    (place / "exports/best").symlink_to(name)


class Events:
    """Notes the names of events and what they are about."""

    def __init__(self):
        self.got = []

    def info(self, event, **fields):
        """Note an event with its export or its reason."""
        self.got.append((event, fields.get("export") or fields["reason"]))

    warning = info


@pytest.fixture
def uploads(sinks, place):
    """Start what uploads the best export, as daemons do; it ends with the test."""
    made = []

    def start(*, delivers=True, look_seconds=0.2, **environ):
        made.append(BestUpload(sinks(**environ), place, lambda: delivers, Events(), look_seconds=look_seconds))
        made[-1].start()
        return made[-1]

    yield start
    for each in made:
        each.close(PATIENCE_SECONDS)


@pytest.mark.nightly
def test_the_best_export_is_an_artifact(client, sinks, uploads, place, tmp_path):
    """Once, by the node that delivers, from the first result on; also one that is made when the daemon ends."""
    first, idle = uploads(), uploads(delivers=False)
    weights = bytes(range(256)) * 1000
    export(place, "ckpt-1@0123456789ab", {"manifest.json": b"{}", "ckpt-1/variables/weights": weights})
    sinks().write(evaluation(Journal().evaluate("ckpt-1", 1)))
    until(lambda: first.log.got)
    (run,) = runs_of(client, place)
    copied = Path(client.download_artifacts(run.info.run_id, "best", str(tmp_path)), "ckpt-1@0123456789ab")
    assert (copied / "ckpt-1/variables/weights").read_bytes() == weights
    assert sorted(path.name for path in copied.rglob("*")) == ["ckpt-1", "manifest.json", "variables", "weights"]
    first.close(PATIENCE_SECONDS)
    last = uploads(look_seconds=PATIENCE_SECONDS)
    export(place, "ckpt-2@0123456789ab", {"manifest.json": b"{}"})
    last.close(PATIENCE_SECONDS)
    assert client.get_run(run.info.run_id).data.tags["sidecar.best"] == "ckpt-2@0123456789ab"
    assert [export for each in (first, last) for _, export in each.log.got] == [
        "ckpt-1@0123456789ab",
        "ckpt-2@0123456789ab",
    ]
    assert idle.log.got == []


@pytest.mark.nightly
def test_an_export_with_a_link(client, sinks, uploads, place, tmp_path):
    """It is not followed. The log says so once, and results are logged meanwhile; a repaired export is uploaded."""
    journal, sink = Journal(), sinks()
    sink.write(evaluation(journal.evaluate("ckpt-1", 1)))
    export(place, "ckpt-2@0123456789ab", {"manifest.json": b"{}"})
    (tmp_path / "secret").write_text("secret")
    planted = place / "exports/ckpt-2@0123456789ab/weights"
    planted.symlink_to(tmp_path / "secret")
    upload = uploads()
    until(lambda: upload.log.got)
    sink.write(evaluation(journal.evaluate("ckpt-2", 2), 1))
    planted.unlink()
    until(lambda: len(upload.log.got) > 1)
    assert [event for event, _ in upload.log.got] == ["best_upload_failed", "best_uploaded"]
    assert str(planted) in upload.log.got[0][1]
    (run,) = runs_of(client, place)
    found = client.list_artifacts(run.info.run_id, "best/ckpt-2@0123456789ab")
    assert [each.path for each in found] == ["best/ckpt-2@0123456789ab/manifest.json"]
    assert [step for step, _, _ in points(client, run.info.run_id, "test/accuracy")] == [1, 2]
