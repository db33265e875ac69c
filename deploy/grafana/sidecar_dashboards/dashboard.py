"""Build the common parts of both dashboards: choices, marks on the time axis, links, and their JSON."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as model

from sidecar_dashboards.panels import SOURCE, Panel

GRAFANA: Final = "11.6.0"
"""The version whose options these are. Panels name it, because Grafana takes an XY chart without it as before 10.4."""


class Mark(model.AnnotationQuery):
    """Define an annotation from Prometheus: a mark at each time when the query is greater than 0."""

    def __init__(self, name: str, color: str, expr: str, title: str, text: str, tags: str) -> None:
        super().__init__(name=name, datasource=SOURCE, icon_color=color, expr=expr)
        self._texts = {"titleFormat": title, "textFormat": text, "tagKeys": tags, "step": "10s"}

    def to_json(self) -> dict[str, object]:
        """Return the JSON with the fields of this data source, which the generated class lacks."""
        return super().to_json() | self._texts


@dataclass(frozen=True, slots=True)
class Place:
    """Hold a row of panels and its heading. The first row has none."""

    heading: dashboard.Row | None
    panels: Sequence[Panel]


def choice(name: str, label: str, query: str) -> dashboard.QueryVariable:
    """Return a choice of label values, which are read again at every refresh, because runs and metrics change."""
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
    """Return a whole dashboard."""
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
    """Return the JSON to commit. Keys have the SDK's order, so that a changed panel changes only its own lines."""
    plain: dict[str, Any] = {"id": None} | json.loads(json.dumps(built, cls=JSONEncoder))
    return json.dumps(plain, indent=2, ensure_ascii=False) + "\n"


def _of_people() -> model.AnnotationQuery:
    """Return the annotations that people add by hand."""
    return model.AnnotationQuery(
        name="Annotations & Alerts",
        datasource=model.DataSourceRef(type_val="grafana", uid="-- Grafana --"),
        hide=True,
        icon_color="rgba(0, 211, 255, 1)",
        type_val="dashboard",
        built_in=1,
    )
