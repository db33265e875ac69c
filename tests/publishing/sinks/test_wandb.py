"""Log to Weights & Biases with its real library, offline; and to servers that do not work."""

import math
import struct
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from journals import Journal
from processes import children
from publishing.sinks.conftest import without_variables

from sidecar.coordination.run import open_run
from sidecar.coordination.storage import PosixStorage
from sidecar.errors import SettingsError
from sidecar.publishing.sinks.sink import Evaluation, SinkUnavailableError
from sidecar.publishing.sinks.wandb import Wandb

pytestmark = pytest.mark.seconds
BLOCK = 32768


@pytest.fixture
def state(tmp_path):
    (tmp_path / "state").mkdir()
    open_run(PosixStorage(tmp_path / "state"), 0.0)
    return PosixStorage(tmp_path / "state")


@pytest.fixture
def make(state, monkeypatch, tmp_path):
    """Make a sink; its processes end with the test."""
    made = []
    without_variables(monkeypatch, "WANDB_")
    monkeypatch.setenv("HOME", str(tmp_path))  # no login of the user

    def make(seconds=5.0, key_file=None, **environ):
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        made.append(Wandb("digits", state, seconds, environ=environ, key_file=key_file))
        return made[-1]

    yield make
    for sink in made:
        sink.process.close()


@pytest.fixture
def evaluation():
    closed = Journal().evaluate("ckpt-1", 100)
    return Evaluation(
        run="mnist", plan=1, checkpoint=closed.plan.checkpoint, result=closed.outcome.result, milliseconds=1
    )


def records(file):
    """Yield the records of a file of wandb, which is a log of LevelDB's format behind a head of 7 bytes."""
    messages = pytest.importorskip("wandb.proto.wandb_internal_pb2", reason="wandb is not installed")
    data, position, record = file.read_bytes(), 7, b""
    while position + 7 <= len(data):
        if BLOCK - position % BLOCK < 7:
            position += BLOCK - position % BLOCK
            continue
        _, size, kind = struct.unpack_from("<IHB", data, position)
        record += data[position + 7 : position + 7 + size]
        position += 7 + size
        if kind in (1, 4):
            yield messages.Record.FromString(record)
            record = b""


def test_each_result_is_on_disk_when_it_is_delivered(make, evaluation, tmp_path):
    """All results are of one run, also those of another node, at the step of their checkpoint."""
    files = tmp_path / "files"
    files.mkdir()
    for plan in (1, 2, 3):
        sink = make(WANDB_MODE="offline", WANDB_DIR=str(files))
        sink.write(replace(evaluation, plan=plan))
    logged = []
    for file in sorted((files / "wandb").glob("offline-run-*/*.wandb")):
        found = [*records(file)]
        (run,) = (each.run for each in found if each.WhichOneof("record_type") == "run")
        (row,) = (each.history for each in found if each.WhichOneof("record_type") == "history")
        numbers = {"/".join(item.nested_key) or item.key: item.value_json for item in row.item}
        logged.append((run.project, run.run_id, run.display_name, row.step.num, numbers["checkpoint_step"]))
        (metric, value), *_ = evaluation.result.metrics["test"].items()
        assert math.isclose(float(numbers[f"test/{metric}"]), value.number)
    assert len({each[1] for each in logged}) == 1
    assert [(each[0], *each[2:]) for each in logged] == [("digits", "mnist", plan, "100") for plan in (1, 2, 3)]


def test_a_run_that_the_user_names(make, evaluation, tmp_path):
    """Its id is that of WANDB_RUN_ID."""
    make(WANDB_MODE="offline", WANDB_DIR=str(tmp_path), WANDB_RUN_ID="mine").write(evaluation)
    assert [*tmp_path.glob("wandb/offline-run-*-mine/run-mine.wandb")]


@pytest.mark.parametrize(("code", "body"), [(500, b"<html>" + b"x" * 100_000), (200, b"a login page"), (401, b"{}")])
def test_servers_that_do_not_work(make, evaluation, tmp_path, code, body):
    """The result waits; the log gets one sentence without the key, and no process is left behind."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            self.send_response(code)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST  # noqa: N815 - as http.server asks for it

        def log_message(self, *_):
            pass

    key = tmp_path / "key"
    key.write_text("0123456789abcdef" * 2 + "01234567\n")
    before = children()
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        sink = make(2.0, key, WANDB_BASE_URL=f"http://127.0.0.1:{server.server_port}", no_proxy="*")
        with pytest.raises(SinkUnavailableError, match=r"W&B: ") as raised:
            sink.write(evaluation)
        server.shutdown()
    text = str(raised.value)
    assert text.isprintable()
    assert len(text) < 500
    assert "0123456789abcdef" not in text
    sink.process.close()
    assert children() == before


@pytest.mark.parametrize(
    ("environ", "remedy"),
    [
        ({"WANDB_MODE": "disabled"}, "leave wandb_project out"),
        ({"WANDB_MODE": "offline"}, "set the variable WANDB_DIR"),
    ],
)
def test_variables_that_would_lose_all_results(make, environ, remedy):
    """They are refused at the start, with what to write."""
    with pytest.raises(SettingsError, match=remedy):
        make(**environ)
