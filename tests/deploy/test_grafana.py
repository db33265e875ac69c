"""The dashboards: what the code gives, and what every panel must have. Their queries: test_grafana_queries.py."""

import json
import re
from itertools import combinations

import pytest
from deploy.dashboard_queries import FILES, GRAFANA, load, panels_of


@pytest.fixture(scope="session")
def code():
    """The module that writes the dashboards."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(GRAFANA)
        import dashboards

        yield dashboards


@pytest.fixture(params=FILES)
def board(request):
    return load(request.param)


def test_committed_files_are_what_the_code_gives(code):
    """A person who changes one without the other learns what to run."""
    for name, text in code.dashboards().items():
        assert (GRAFANA / "dashboards" / name).read_text() == text, "run `python deploy/grafana/dashboards.py`"
    assert {path.name for path in (GRAFANA / "dashboards").iterdir()} == set(FILES) == set(code.dashboards())


def test_grafanas_own_types_read_everything_back(board):
    """Nothing is lost between the file and the SDK's types but what they are known not to hold."""
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.cog.plugins import register_default_plugins
    from grafana_foundation_sdk.models.dashboard import Dashboard

    register_default_plugins()
    for mark in board["annotations"]["list"]:
        for key in ("titleFormat", "textFormat", "tagKeys", "step"):  # Prometheus' own
            mark.pop(key, None)
    read = json.loads(json.dumps(Dashboard.from_json(board), cls=JSONEncoder))
    assert board.pop("id") is None
    assert read == board


def test_panels_fit_the_grid(board):
    """Within 24 columns, none over another, ids and titles unique."""
    cells = [panel["gridPos"] for panel in board["panels"]]
    assert all(cell["x"] >= 0 and cell["x"] + cell["w"] <= 24 and cell["h"] > 0 for cell in cells)
    for one, other in combinations(cells, 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        below = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or below, (one, other)
    for key in ("id", "title"):
        found = [
            panel[key] for panel in (*(each for each in board["panels"] if each["type"] == "row"), *panels_of(board))
        ]
        assert len(set(found)) == len(found)


def test_every_panel_explains_itself(board):
    """A sentence or more, a unit, what to say without data, the chosen data source, a version for its options."""
    for panel in panels_of(board):
        assert len(panel["description"]) > 60, panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["fieldConfig"]["defaults"]["noValue"], panel["title"]
        assert panel["pluginVersion"], panel["title"]  # without it an XY chart is migrated as if it were an old one
        references = [target["refId"] for target in panel["targets"]]
        assert references
        assert len(set(references)) == len(references)
        for each in (panel, *panel["targets"]):
            assert each["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


def test_dashboard_opens_as_people_expect(board):
    """Time zone, range, refresh, links to the other one that keep choices and time; every variable is one it has."""
    assert (board["timezone"], board["time"]["from"], board["refresh"]) == ("browser", "now-24h", "1m")
    assert board["editable"]
    assert board["id"] is None
    (link,) = board["links"]
    # "All" runs, or none, would be no choice for a dashboard about one run.
    assert link["includeVars"] == (board["uid"] in {"sidecar-training-run", "sidecar-eval-fleet"})
    assert link["keepTime"]
    assert set(link["tags"]) <= set(board["tags"])
    own = {variable["name"] for variable in board["templating"]["list"]}
    used = set(re.findall(r"\$\{?([a-z_]+)", json.dumps(board)))
    assert used - own <= {"__range", "__interval", "__rate_interval", "__all", "__data", "__value", "__url_time_range"}
    assert own <= used


def test_provisioned_source_is_the_one_that_is_chosen(board):
    """A fresh Grafana shows data without a choice."""
    source = (GRAFANA / "provisioning" / "datasources" / "prometheus.yml").read_text()
    (variable,) = (each for each in board["templating"]["list"] if each["type"] == "datasource")
    assert re.search(rf"^    uid: {variable['current']['value']}$", source, re.MULTILINE)
    assert re.search(r"^    url: \$\{PROMETHEUS_URL\}$", source, re.MULTILINE)


def test_one_metric_is_open_and_the_others_wait_closed():
    """A run with many metrics asks for one of them until somebody opens another."""
    (repeated,) = (each for each in load("training-run.json")["panels"] if each.get("repeat"))
    assert (repeated["type"], repeated["collapsed"], repeated["repeat"]) == ("row", True, "others")
    assert all("$others" in panel["title"] for panel in repeated["panels"])


def test_the_default_run_is_the_newest(board):
    """The first value is the default, and only runs are listed by their age."""
    for variable in board["templating"]["list"]:
        if variable["name"] == "run":
            assert variable["query"]["query"].startswith("query_result(sort_desc(")
            assert "newest_checkpoint_timestamp_seconds" in variable["query"]["query"]
            assert variable["sort"] == 0


def test_every_panel_leads_to_a_page_that_exists(board):
    """The pages are those of this repository, with the headings that the links name."""
    docs = GRAFANA.parents[1] / "docs"
    for panel in panels_of(board):
        (link,) = panel["links"]
        found = re.fullmatch(r"\$\{docs\}/([\w/-]+)\$\{suffix\}(?:#([\w-]+))?", link["url"])
        page = (docs / f"{found[1]}.md").read_text()
        headings = {
            re.sub(r"[^a-z0-9]+", "-", line.lower()).strip("-") for line in re.findall(r"^#+ (.+)$", page, re.MULTILINE)
        }
        assert found[2] is None or found[2] in headings, link["url"]


def test_data_is_bounded(board):
    """No panel asks for more points than a screen has, whatever the time in view."""
    assert all(panel.get("maxDataPoints", 1000) <= 1000 for panel in panels_of(board))
