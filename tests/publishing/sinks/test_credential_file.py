"""Credentials for receivers of results come from files, and are sent as they stand there at the time."""

import os

import pytest
from journals import Journal
from receivers import raw_server, receiver

from sidecar.coordination.storage import PosixStorage
from sidecar.publishing.sinks.mlflow import MLflow
from sidecar.publishing.sinks.remote_write import RemoteWrite
from sidecar.publishing.sinks.sink import Evaluation, SinkRefusedError, SinkUnavailableError
from sidecar.publishing.sinks.webhook import Webhook

SECONDS = 20.0


@pytest.fixture
def evaluation():
    """Return an evaluation as sinks get it."""
    closed = Journal().evaluate("ckpt-1", 100)
    return Evaluation(
        run="mnist", plan=1, checkpoint=closed.plan.checkpoint, result=closed.outcome.result, milliseconds=1
    )


@pytest.fixture
def server():
    with receiver() as made:
        yield made


def test_credentials_come_from_a_file_each_time(server, tmp_path):
    """A renewed token is used at once; a file that cannot be used is named, without what it holds."""
    file = tmp_path / "token"
    hook = Webhook(server.url.replace("://", "://me:old@"), None, SECONDS, file)
    for token in ("Bearer one", "Bearer two"):
        file.write_text(token + "\n")
        hook.send(b"{}", "run-7-best")
        assert server.requests[-1].headers["authorization"] == token
    for content in (b"", b"a\nb", b"\xff", b"x" * 20_000):
        file.write_bytes(content)
        with pytest.raises(SinkUnavailableError, match=f"{file}.*16384"):
            hook.send(b"{}", "run-7-best")
    file.unlink()
    with pytest.raises(SinkUnavailableError, match=f"{file}.*No such file"):
        hook.send(b"{}", "run-7-best")
    os.mkfifo(file)
    with pytest.raises(SinkUnavailableError, match=f"{file}.*16384"):
        hook.send(b"{}", "run-7-best")


def test_remote_write_sends_the_value_of_a_file(server, evaluation, tmp_path):
    """The value comes in the place of the user and the password in the URL."""
    (tmp_path / "token").write_text("Bearer abc\n")
    sink = RemoteWrite(server.url.replace("://", "://me:old@"), SECONDS, tmp_path / "token")
    sink.write(evaluation)
    assert server.requests[-1].headers["authorization"] == "Bearer abc"


@pytest.mark.seconds
def test_mlflow_gets_the_token_of_a_file_and_the_renewed_one(evaluation, tmp_path):
    """The process that talks to MLflow starts anew with another token."""
    pytest.importorskip("mlflow")
    heads = []

    def talk(connection, _ended):
        heads.append(connection.recv(65536).decode(errors="replace"))
        connection.sendall(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

    with raw_server(talk) as url:
        environ = {"MLFLOW_RUN_ID": "0" * 32}
        storage, file = PosixStorage(tmp_path), tmp_path / "token"
        sink = MLflow(url, storage, tmp_path, SECONDS, environ=environ, token_file=file)
        for token in ("one", "two"):
            file.write_text(token + "\n")
            with pytest.raises((SinkUnavailableError, SinkRefusedError)):
                sink.write(evaluation)
            assert f"Authorization: Bearer {token}" in heads[-1]
        file.write_text("three")
        sink.renew_token()  # which ends the process that has the old one
