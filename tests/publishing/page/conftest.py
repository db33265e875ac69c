"""A page as a reader sees it."""

from html.parser import HTMLParser

import pytest
from served_run import ServedRun

from sidecar.publishing.page.document import Files, page


class Seen(HTMLParser):
    """Hold what a reader sees, and which elements there are."""

    def __init__(self, markup):
        super().__init__()
        self.text, self.open, self.ids, self.links = "", [], [], {}
        self.feed(markup)

    def handle_starttag(self, tag, attrs):
        """Note an element and its id."""
        self.ids += [given for name, given in attrs if name == "id"]
        if tag not in ("meta", "link", "input", "img"):
            self.open.append(tag)
        if tag == "a":
            self.leads = dict(attrs).get("href")

    def handle_startendtag(self, tag, attrs):
        """Such an element has no end."""

    def handle_endtag(self, tag):
        """Elements end in their order."""
        assert self.open.pop() == tag

    def handle_data(self, data):
        """Note the text between the tags, and the target of a link under its text."""
        self.text += data
        if "a" in self.open:
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


FILES = Files("/static/x")
