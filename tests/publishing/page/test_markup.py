"""Show texts from outside without any effect of theirs."""

from sidecar.publishing.page.markup import lines, step, text


def test_texts_from_outside():
    """Markup, line ends, changes of direction and halves of characters are shown and have no effect."""
    assert text("<b>\n\u202e\ud800&\"'") == "&lt;b&gt;\\n\\u202e\\ud800&amp;&quot;&#x27;"
    assert lines("a\r\nb\x1b[31m") == "a\nb\\x1b[31m"
    assert step({"step": 3, "step_source": "order"}) == "#3"
