"""Build the common parts of all dashboards: choices, marks on the time axis, links, and their JSON."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as model

from sidecar_dashboards.panels import SOURCE, Panel, linked

GRAFANA: Final = "11.6.0"
"""The version whose options these are. Panels name it, because Grafana migrates panels without it from old options."""

TRAINING_RUN: Final = "sidecar-training-run"
"""The dashboard to which the names of runs lead."""


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
    """Hold a row of panels, its heading, and the page that explains them. The first row has no heading.

    A closed row shows its panels when somebody opens it, and asks for nothing until then.
    """

    heading: dashboard.Row | None
    panels: Sequence[Panel]
    page: str = "how-to/monitoring#dashboards"
    closed: bool = False


def choice(name: str, label: str, query: str) -> dashboard.QueryVariable:
    """Return a choice of label values, which are read again at every refresh, because runs and metrics change."""
    return _variable(name, query, 1).label(label).sort(model.VariableSort.ALPHABETICAL_ASC)


def newest_runs() -> dashboard.QueryVariable:
    """Return the choice of a run. The default is the run that saved the newest checkpoint."""
    saved = "max by (run) (max_over_time(sidecar:newest_checkpoint_timestamp_seconds:latest[$__range]))"
    others = "0 * max by (run) (max_over_time(sidecar_node_info[$__range]))"
    return _ranked("run", "Run", f"{saved} or {others}")


def metrics(labels: str) -> dashboard.QueryVariable:
    """Return the choice of a metric. The default is one to maximise, else one to minimise, else any."""
    of_goal = (
        f'{rank} * max by (metric) (max_over_time(sidecar:eval_metric_info:latest{{{labels},goal="{goal}"}}[$__range]))'
        for rank, goal in ((3, "max"), (2, "min"), (1, "none"))
    )
    return _ranked("metric", "Metric", " or ".join(of_goal))


def _ranked(name: str, label: str, query: str) -> dashboard.QueryVariable:
    """Return a choice of the values of the label of this name, the largest number of a query first."""
    listed = _variable(name, f"query_result(sort_desc({query}))", 3).label(label)
    return listed.sort(model.VariableSort.DISABLED).regex(f'/{name}="(.*)"}} /')


def _variable(name: str, query: str, kind: int) -> dashboard.QueryVariable:
    return (
        dashboard.QueryVariable(name)
        .datasource(SOURCE)
        .query({"qryType": kind, "query": query, "refId": "PrometheusVariableQueryEditor-VariableQuery"})
        .refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
    )


def _documentation() -> list[dashboard.QueryVariable]:
    """Return the address of the documentation, as rules/docs.yml says it, in variables that are not shown."""
    return [
        _variable(name, f"label_values(sidecar:docs:info, {label})", 1).hide(model.VariableHide.HIDE_VARIABLE)
        for name, label in (("docs", "url"), ("suffix", "suffix"))
    ]


def assemble(
    uid: str,
    title: str,
    description: str,
    choices: Sequence[dashboard.QueryVariable],
    marks: Sequence[Mark],
    places: Sequence[Place],
    *,
    one_run: bool = True,
) -> model.Dashboard:
    """Return a whole dashboard. Only one that is about one run hands its choices to the others."""
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
        .include_vars(include_vars=one_run)
        .keep_time(keep_time=True)
    )
    builder = (
        dashboard.Dashboard(title)
        .uid(uid)
        .description(description)
        .tags(["sidecar", "evaluation", "training"])
        .timezone("browser")
        .editable()
        .time("now-24h", "now")
        .refresh("1m")
        .tooltip(model.DashboardCursorSync.CROSSHAIR)
        .variables([source, *choices, *_documentation()])
        .link(other)
    )
    for place in places:
        linked_panels = [linked(panel, "About these panels", place.page) for panel in place.panels]
        if place.heading is not None and place.closed:
            for panel in linked_panels:
                place.heading.with_panel(panel)
        if place.heading is not None:
            builder.with_row(place.heading)
        if not place.closed:
            for panel in linked_panels:
                builder.with_panel(panel)
    built = builder.build()
    built.annotations = model.AnnotationContainer([_of_people(), *marks])
    for made in built.panels or ():
        for each in made.panels if isinstance(made, model.RowPanel) else [made]:
            each.plugin_version = GRAFANA
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
