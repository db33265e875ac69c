"""Chat programs get the sentence of an event, which can neither format nor mention."""

import json

import pytest

from sidecar.publishing.sinks.chat_message import chat_form, chat_message

EVENT = json.dumps({"text": "run a: <!channel> @everyone [x](http://evil) & more", "run": "a"}).encode()


@pytest.mark.parametrize(
    ("url", "form"),
    [
        ("https://hooks.slack.com/services/T0/B0/x", "slack"),
        ("https://discord.com/api/webhooks/1/x", "discord"),
        ("https://ptb.discord.com/api/webhooks/1/x", "discord"),
        ("https://acme.webhook.office.com/webhookb2/x", "teams"),
        ("https://prod-1.westeurope.logic.azure.com:443/workflows/x", "teams"),
        ("https://default1.2.environment.api.powerplatform.com/powerautomate/x", "teams"),
        ("https://HOOKS.SLACK.COM/x", "slack"),
        ("https://hooks.slack.com.evil.example/x", "event"),
        ("https://nothooks.slack.com/x", "event"),
        ("https://ci.example.com/hook", "event"),
    ],
)
def test_the_host_tells_the_form(url, form):
    """By its whole name, or by the end of it."""
    assert chat_form(url) == form


def test_slack():
    """Its control characters are escaped: a name of a checkpoint cannot call a channel."""
    assert json.loads(chat_message("slack", EVENT)) == {
        "text": "run a: &lt;!channel&gt; @everyone [x](http://evil) &amp; more"
    }


def test_discord():
    """Nobody is mentioned, and its limit of 2,000 characters holds."""
    long = json.dumps({"text": "x" * 5000}).encode()
    assert json.loads(chat_message("discord", EVENT))["allowed_mentions"] == {"parse": []}
    assert len(json.loads(chat_message("discord", long))["content"]) == 2000


def test_teams():
    """A card without Markdown."""
    (attachment,) = json.loads(chat_message("teams", EVENT))["attachments"]
    assert attachment["contentType"] == "application/vnd.microsoft.card.adaptive"
    (line,) = attachment["content"]["body"]
    assert line["inlines"] == [{"type": "TextRun", "text": json.loads(EVENT)["text"]}]


def test_others_get_the_event():
    """To the byte, since its signature is checked."""
    assert chat_message("event", EVENT) is EVENT
