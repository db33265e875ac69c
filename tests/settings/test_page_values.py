"""Links of the status page are checked, and a mistake is one sentence."""

import pytest

from sidecar.settings import load


@pytest.mark.parametrize(
    ("key", "value", "shown"),
    [
        ("page_links", "Grafana", "not JSON"),
        ("page_links", "[]", "[page_links]"),
        ("page_links", '{"Grafana": "grafana:3000"}', "'Grafana': write the URL"),
        ("page_links", '{"x": "javascript:alert(1)"}', "'x': write the URL"),
        ("page_links", '{"": "https://a"}', "[page_links]"),
        ("page_links", '{"x": 5}', "[page_links]"),
        ("page_url", "worker-0:19108", "write the URL"),
        ("page_url", "http://[::1/", "IPv6"),
        ("page_url", "http://a/\n", "write the URL"),
    ],
)
def test_a_mistake_is_one_sentence(refusal, key, value, shown):
    """Which setting, and what to write."""
    assert shown in refusal(key, value)


def test_links_are_a_table_or_json(tmp_path):
    """In the order in which they are written."""
    (tmp_path / "sidecar.toml").write_text('[page_links]\nGrafana = "https://g/"\n"Our docs" = "http://d:8000/x?y"\n')
    flags = {"checkpoint_dir": tmp_path, "config": tmp_path / "sidecar.toml"}
    links = [("Grafana", "https://g/"), ("Our docs", "http://d:8000/x?y")]
    assert list(load(flags, environ={}).page_links.items()) == links
    environ = {"SIDECAR_PAGE_LINKS": '{"Grafana": "https://g/"}'}
    assert load(flags, environ=environ).page_links == {"Grafana": "https://g/"}
