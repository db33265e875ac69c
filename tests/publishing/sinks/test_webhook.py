"""Events are posted so that anybody's library verifies them, and no receiver can hold the thread or mislead it."""

import base64
import json
import socket

import pytest
from receivers import receiver

from sidecar.publishing.sinks.sink import SinkRefusedError, SinkUnavailableError
from sidecar.publishing.sinks.webhook import Webhook, signed_headers

SECRET = bytes(range(32))

BODY = json.dumps({"event": "best", "text": "ü"}).encode()

LIMIT_SECONDS = 0.5

MOST_SECONDS = 20.0  # far more than the limit, and far less than what a hostile receiver tries


@pytest.fixture
def server():
    with receiver() as made:
        yield made


def post(url, secret=None, seconds=LIMIT_SECONDS):
    Webhook(url, secret, seconds).send(BODY, "run-7-best")


def test_a_library_of_others_verifies_the_signature(server):
    """That of the Standard Webhooks project, with the key as a user has it; it refuses another body."""
    standardwebhooks = pytest.importorskip("standardwebhooks")
    post(server.url, SECRET, MOST_SECONDS)
    (request,) = server.requests
    verifier = standardwebhooks.Webhook("whsec_" + base64.b64encode(SECRET).decode())
    assert verifier.verify(request.body, request.headers) == json.loads(BODY)
    with pytest.raises(standardwebhooks.WebhookVerificationError):
        verifier.verify(request.body + b" ", request.headers)
    assert request.headers["webhook-id"] == "run-7-best"
    assert request.headers["content-type"] == "application/json"


def test_without_a_key_nothing_is_signed(server):
    """The id is still there, by which a receiver knows a second delivery; a user in the URL becomes a header."""
    post(server.url.replace("://", "://me:p%40ss@"), None, MOST_SECONDS)
    headers = server.requests[0].headers
    assert "webhook-signature" not in headers
    assert headers["webhook-id"] == "run-7-best"
    assert headers["authorization"] == "Basic " + base64.b64encode(b"me:p@ss").decode()


def test_a_chat_gets_its_message(server):
    """The signature is that of what is posted."""
    Webhook(server.url, SECRET, MOST_SECONDS, form="slack").send(json.dumps({"text": "a <b>"}).encode(), "run-7-best")
    (request,) = server.requests
    assert json.loads(request.body) == {"text": "a &lt;b&gt;"}
    timestamp = int(request.headers["webhook-timestamp"])
    signed = signed_headers(request.body, "run-7-best", timestamp, SECRET)
    assert request.headers["webhook-signature"] == signed["webhook-signature"]


@pytest.mark.parametrize("code", [200, 202, 204, 299])
def test_answers_that_take_an_event(server, code):
    """All of the class 2xx."""
    server.answers = [code]
    post(server.url, None, MOST_SECONDS)


@pytest.mark.parametrize("code", [408, 425, 429, 500, 503, 599])
def test_answers_that_ask_for_another_try(server, code):
    """Those of a server in trouble, and of one with too much to do."""
    server.answers = [code]
    with pytest.raises(SinkUnavailableError, match=str(code)):
        post(server.url, None, MOST_SECONDS)


@pytest.mark.parametrize("code", [300, 301, 302, 307, 308, 400, 401, 404, 410, 422])
def test_answers_that_refuse(server, code):
    """Another try would end in the same way."""
    server.answers, server.headers = [code], {"Location": server.url}
    with pytest.raises(SinkRefusedError, match=str(code)):
        post(server.url, None, MOST_SECONDS)
    assert len(server.requests) == 1


def test_nothing_secret_is_shown(server):
    """Passwords, and paths, which are the secret of some chat programs."""
    url = server.url.replace("://", "://me:password@") + "/T0/B0/secret?token=hidden"
    server.answers = [404, 500]
    for kind in (SinkRefusedError, SinkUnavailableError):
        with pytest.raises(kind) as caught:
            post(url, None, MOST_SECONDS)
        assert not any(word in str(caught.value) for word in ("password", "secret", "hidden"))
    assert "password" not in Webhook(url, None, 1.0).shown


def test_nobody_listens():
    """It is delivered again later."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    with pytest.raises(SinkUnavailableError):
        post(f"http://127.0.0.1:{port}/")
