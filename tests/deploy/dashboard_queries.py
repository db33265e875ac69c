"""The dashboards as Grafana reads them: their panels and queries, and what Prometheus answers."""

import json
import math
import re
import socket
from dataclasses import dataclass, replace
from http import HTTPStatus
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import ProxyHandler, build_opener

import pytest

GRAFANA = Path(__file__).parents[2] / "deploy" / "grafana"
FILES = ("training-run.json", "eval-fleet.json", "compare-runs.json", "all-runs.json")

open_url = build_opener(ProxyHandler({})).open


@dataclass(frozen=True)
class Query:
    """A query as Grafana would send it, but for its variables."""

    where: str  # dashboard and panel, variable or annotation
    expr: str
    instant: bool = False
    interval: int = 1  # seconds: the panel's own least one
    points: int = 1000
    metric: str = "accuracy"
    labels: tuple[str, ...] = ()  # of each series, as legends and tables use them

    def __str__(self):
        return self.where


def load(name):
    return json.loads((GRAFANA / "dashboards" / name).read_text())


def panels_of(board):
    """All but headings, with those in closed rows."""
    return [
        panel for each in board["panels"] for panel in (each.get("panels", ()) if each["type"] == "row" else [each])
    ]


def queries_of(board):
    """Every query of a dashboard: its variables', its annotations', its panels'."""
    uid = board["uid"]
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            yield Query(f"{uid}: variable {variable['name']}", variable["query"]["query"])
    for mark in board["annotations"]["list"]:
        if "expr" in mark:
            used = tuple(re.findall(r"{{(\w+)}}", mark["titleFormat"] + mark["textFormat"]))
            yield Query(f"{uid}: {mark['name']}", mark["expr"], interval=10, points=100, metric=".*", labels=used)
    for panel in panels_of(board):
        for target in panel["targets"]:
            yield Query(
                f"{uid}: {panel['title']} {target['refId']}",
                target["expr"],
                instant=target["instant"],
                interval=int(panel["interval"].removesuffix("s")),
                points=panel.get("maxDataPoints", 1000),
                labels=tuple(re.findall(r"{{(\w+)}}", target.get("legendFormat", ""))),
            )


ALL = [query for name in FILES for query in queries_of(load(name))]


def panel(name, identity):
    """A panel's queries, at the resolution at which their series were made."""
    (found,) = (each for each in panels_of(load(name)) if each["id"] == identity)
    return [
        replace(query, interval=1, points=1000, metric=".*")
        for query in ALL
        if query.where[:-2] == f"{load(name)['uid']}: {found['title']}"
    ]


def joined(prometheus, name, identity, metric=".*"):
    """Return the rows of a panel, as {time: {column: value}}: the samples of one evaluation have one time."""
    (shown,) = (each for each in panels_of(load(name)) if each["id"] == identity)
    names = {}
    for step in shown["transformations"]:
        names |= step["options"].get("renameByName", {})
    found = {}
    for query in panel(name, identity):
        field = f"Value #{query.where[-1]}"
        for labels, stamp, value in prometheus.samples(replace(query, metric=metric)):
            column = names.get(field) or names.get(f"{field} (last)") or labels["metric"]
            found.setdefault(stamp, {})[column] = value
    return found


class Prometheus:
    """Asks a Prometheus at a free port, as Grafana would with these choices.

    `start` and `end` are the time in view.
    """

    start: float
    end: float

    def __init__(self, scrape_seconds, **choices):
        self._scrape_seconds, self._choices = scrape_seconds, choices
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{probe.getsockname()[1]}"

    def ask(self, endpoint, **parameters):
        """Prometheus' answer; empty while it does not listen."""
        try:
            with open_url(f"http://{self.address}/api/v1/{endpoint}", urlencode(parameters).encode(), 30) as answer:
                data = json.load(answer)["data"]
        except HTTPError as error:
            if error.code != HTTPStatus.SERVICE_UNAVAILABLE:
                pytest.fail(f"{parameters}: {error.read().decode()}")
            return []
        except URLError:
            return []
        return data["result"] if isinstance(data, dict) else data

    def ask_for(self, query):
        """Prometheus' answer to a query, as Grafana would ask for the time from the beginning to the end."""
        span = self.end - self.start
        step = max(query.interval, self._scrape_seconds, math.ceil(span / query.points))
        values = self._choices | {
            "metric": query.metric,
            "__interval": f"{step}s",
            "__range": f"{round(span)}s",
            "__rate_interval": f"{max(step + self._scrape_seconds, 4 * self._scrape_seconds)}s",
        }
        expr = re.sub(r"\$\{?([a-z_]+)\}?", lambda match: values[match[1]], query.expr)
        if found := re.fullmatch(r"label_values\((\S+), (\w+)\)", expr):
            series = self.ask("series", **{"match[]": found[1], "start": self.start, "end": self.end})
            return [{"metric": {found[2]: each[found[2]]}, "value": (self.end, "1")} for each in series]
        if query.instant or expr.startswith("query_result("):
            return self.ask("query", query=expr.removeprefix("query_result"), time=self.end)
        start, end = (int(edge // step) * step for edge in (self.start, self.end))  # aligned, as Grafana does
        return self.ask("query_range", query=expr, start=start, end=end, step=step)

    def data(self, query):
        """Series as (labels, values)."""
        return [
            (each["metric"], [float(value) for _, value in each.get("values") or [each["value"]]])
            for each in self.ask_for(query)
        ]

    def samples(self, query):
        """Samples as (labels, time, value), of a query that asks for all samples in view."""
        return [
            (each["metric"], stamp, float(value)) for each in self.ask_for(query) for stamp, value in each["values"]
        ]
