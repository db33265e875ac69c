"""Make the message of a chat program from an event of a hook. Pure.

Formats: Slack's incoming webhooks (docs.slack.dev/messaging/sending-messages-using-incoming-webhooks), Discord's
"Execute Webhook", and the Adaptive Card that a workflow of Microsoft Teams takes ("Post to a channel when a webhook
request is received"). Names of checkpoints and messages are foreign text: they can neither format nor mention.
"""

import json
from typing import Any, Final
from urllib.parse import urlsplit

from sidecar.system.plain_text import cut, one_line

_MOST_CHARACTERS: Final = 2000  # Discord's limit; the others take more
_HOSTS: Final[dict[str, str]] = {
    "hooks.slack.com": "slack",
    "discord.com": "discord",
    "discordapp.com": "discord",
    ".webhook.office.com": "teams",
    ".logic.azure.com": "teams",
    ".powerplatform.com": "teams",
}


def chat_form(url: str) -> str:
    """Return what the host of a URL takes.

    Example:
        >>> chat_form("https://hooks.slack.com/services/T0/B0/x"), chat_form("https://ci.example.com/hook")
        ('slack', 'event')
    """
    host = f".{(urlsplit(url).hostname or '').lower()}"
    return next((form for name, form in _HOSTS.items() if host.endswith(f".{name.lstrip('.')}")), "event")


def chat_message(form: str, event: bytes) -> bytes:
    """Return what is posted for an event, whose field `text` is the message.

    `form`: `event`, `slack`, `discord` or `teams`.
    """
    if form == "event":
        return event
    shown = cut(one_line(str(json.loads(event)["text"])), _MOST_CHARACTERS)
    body: dict[str, Any]
    if form == "slack":
        body = {"text": shown.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")}
    elif form == "discord":
        body = {"content": shown, "allowed_mentions": {"parse": []}}
    else:
        line = {"type": "RichTextBlock", "inlines": [{"type": "TextRun", "text": shown}]}  # a TextBlock has Markdown
        card = {
            "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
            "type": "AdaptiveCard",
            "version": "1.4",
            "body": [line],
        }
        attachment = {"contentType": "application/vnd.microsoft.card.adaptive", "content": card}
        body = {"type": "message", "attachments": [attachment]}
    return json.dumps(body, ensure_ascii=False).encode(errors="replace")
