"""What both dashboards share: choices, marks on the time axis, links, and how they become JSON."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as model

from sidecar_dashboards.panels import SOURCE, Panel

GRAFANA: Final = "11.6.0"
"""Whose options these are. Panels say so, since Grafana takes an XY chart that does not for one before 10.4."""


class Mark(model.AnnotationQuery):
    """An annotation from Prometheus: one mark wherever the query gives more than 0."""

    def __init__(self, name: str, color: str, expr: str, title: str, text: str, tags: str) -> None:
        super().__init__(name=name, datasource=SOURCE, icon_color=color, expr=expr)
        self._texts = {"titleFormat": title, "textFormat": text, "tagKeys": tags, "step": "10s"}

    def to_json(self) -> dict[str, object]:
        """With the fields of this data source, which the generated class does not know."""
        return super().to_json() | self._texts


@dataclass(frozen=True, slots=True)
class Place:
    """A row and what stands in it; the first has no heading."""

    heading: dashboard.Row | None
    panels: Sequence[Panel]


def choice(name: str, label: str, query: str) -> dashboard.QueryVariable:
    """A choice of label values; looked up anew with every refresh, since runs and metrics come and go."""
    return (
        dashboard.QueryVariable(name)
        .label(label)
        .datasource(SOURCE)
        .query({"qryType": 1, "query": query, "refId": "PrometheusVariableQueryEditor-VariableQuery"})
        .refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(model.VariableSort.ALPHABETICAL_ASC)
    )


def assemble(
    uid: str,
    title: str,
    description: str,
    choices: Sequence[dashboard.QueryVariable],
    marks: Sequence[Mark],
    places: Sequence[Place],
) -> model.Dashboard:
    """A whole dashboard."""
    source = (
        dashboard.DatasourceVariable("datasource")
        .label("Data source")
        .type("prometheus")
        .current(model.VariableOption(selected=True, text="Prometheus", value="prometheus"))
    )
    other = (
        dashboard.DashboardLink("Sidecar dashboards")
        .type(model.DashboardLinkType.DASHBOARDS)
        .tags(["sidecar"])
        .include_vars(include_vars=True)
        .keep_time(keep_time=True)
    )
    builder = (
        dashboard.Dashboard(title)
        .uid(uid)
        .description(description)
        .tags(["sidecar", "evaluation", "training"])
        .timezone("browser")
        .editable()
        .time("now-1h", "now")
        .refresh("10s")
        .tooltip(model.DashboardCursorSync.CROSSHAIR)
        .variables([source, *choices])
        .link(other)
    )
    for place in places:
        if place.heading is not None:
            builder.with_row(place.heading)
        for panel in place.panels:
            builder.with_panel(panel)
    built = builder.build()
    built.annotations = model.AnnotationContainer([_of_people(), *marks])
    for made in built.panels or ():
        if isinstance(made, model.Panel):
            made.plugin_version = GRAFANA
    return built


def to_json(built: model.Dashboard) -> str:
    """As it is committed: the order of keys is the SDK's, so a changed panel changes its own lines only."""
    plain: dict[str, Any] = {"id": None} | json.loads(json.dumps(built, cls=JSONEncoder))
    return json.dumps(plain, indent=2, ensure_ascii=False) + "\n"


def _of_people() -> model.AnnotationQuery:
    """What people mark by hand."""
    return model.AnnotationQuery(
        name="Annotations & Alerts",
        datasource=model.DataSourceRef(type_val="grafana", uid="-- Grafana --"),
        hide=True,
        icon_color="rgba(0, 211, 255, 1)",
        type_val="dashboard",
        built_in=1,
    )
