"""Build panels, with one function per kind.

The colours are those of Okabe and Ito, which colour-blind people can distinguish. Blue is good, orange needs attention,
vermilion is broken. A text or a number always says the same as the colour.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from grafana_foundation_sdk.builders import (
    bargauge,
    common,
    dashboard,
    prometheus,
    stat,
    statetimeline,
    table,
    timeseries,
    trend,
)
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import common as looks
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from sidecar_dashboards import queries

BLUE: Final = "#56B4E9"
DARK_BLUE: Final = "#0072B2"
GREEN: Final = "#009E73"
YELLOW: Final = "#F0E442"
ORANGE: Final = "#E69F00"
VERMILION: Final = "#D55E00"
PURPLE: Final = "#CC79A7"
GREY: Final = "#999999"

SOURCE: Final = model.DataSourceRef(type_val="prometheus", uid="${datasource}")
MIN_INTERVAL: Final = "5s"  # how often the rules are evaluated

Panel = Builder[model.Panel]
P = TypeVar("P", bound=Panel)

Properties = Mapping[str, object]
"""Settings of some fields: `{"unit": "s"}`."""


@dataclass(frozen=True, slots=True)
class Format:
    """Hold the unit and the decimals of a number."""

    unit: str
    decimals: int

    @property
    def properties(self) -> Properties:
        """Return the settings of a field."""
        return {"unit": self.unit, "decimals": self.decimals}


NUMBER: Final = Format("locale", 6)
"""A metric: 0.00003, 0.969773 and 12,345.6789 are all shown, and zeros at the end are not."""

COUNT: Final = Format("locale", 0)
"""A step, or a number of things: 1,200,000."""

STEP_AXIS: Final[Properties] = {**COUNT.properties, "custom.axisLabel": "step"}


def query(ref: str, expr: str, legend: str = "") -> prometheus.Dataquery:
    """Return a query over the time in view."""
    return _query(ref, expr).range().legend_format(legend)


def now(ref: str, expr: str, legend: str = "") -> prometheus.Dataquery:
    """Return a query for the end of the time in view."""
    return _query(ref, expr).instant().legend_format(legend)


def rows(ref: str, expr: str) -> prometheus.Dataquery:
    """Return a query for the end of the time in view, with one row per series and one column per label."""
    return _query(ref, expr).instant().format(PromQueryFormat.TABLE)


def numbers(identity: int, title: str, description: str, *asked: prometheus.Dataquery, width: int) -> stat.Panel:
    """Return a panel with one large number per series."""
    panel = (
        stat.Panel()
        .height(4)
        .color_mode(looks.BigValueColorMode.VALUE)
        .graph_mode(looks.BigValueGraphMode.NONE)
        .text_mode(looks.BigValueTextMode.VALUE_AND_NAME if len(asked) > 1 else looks.BigValueTextMode.VALUE)
        .justify_mode(looks.BigValueJustifyMode.CENTER)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).values(values=False))
        .thresholds(steps({None: BLUE}))
        .max_data_points(1000)
    )
    _finish(panel, identity, title, description, asked, width)
    return panel


def names(identity: int, title: str, description: str, query: prometheus.Dataquery, *, width: int) -> stat.Panel:
    """Return a panel with the legend of the one series that a query finds, as text."""
    panel = numbers(identity, title, description, query, width=width)
    return panel.height(3).text_mode(looks.BigValueTextMode.NAME).unit("none")


def lines(
    identity: int,
    title: str,
    description: str,
    *asked: prometheus.Dataquery,
    width: int = 8,
    slopes: bool = False,
) -> timeseries.Panel:
    """Return a panel of lines over time, by default as steps, because a published number holds until the next one."""
    panel = (
        timeseries.Panel()
        .height(8)
        .line_width(2)
        .line_interpolation(looks.LineInterpolation.LINEAR if slopes else looks.LineInterpolation.STEP_AFTER)
        .show_points(looks.VisibilityMode.NEVER)
        .legend(_legend("lastNotNull"))
        .tooltip(_tooltip(zeros=True))
    )
    _finish(panel, identity, title, description, asked, width)
    return panel


def bars(identity: int, title: str, description: str, *asked: prometheus.Dataquery, width: int = 8) -> timeseries.Panel:
    """Return a panel of stacked bars, few enough to see each."""
    panel = (
        timeseries.Panel()
        .height(8)
        .draw_style(looks.GraphDrawStyle.BARS)
        .fill_opacity(80)
        .line_width(0)
        .bar_width_factor(0.9)
        .stacking(common.StackingConfig().mode(looks.StackingMode.NORMAL).group("A"))
        .legend(_legend("sum"))
        .tooltip(_tooltip())
        .max_data_points(100)
    )
    _finish(panel, identity, title, description, asked, width)
    return panel


def areas(
    identity: int, title: str, description: str, *asked: prometheus.Dataquery, width: int = 8
) -> timeseries.Panel:
    """Return a panel of stacked areas, whose values add up."""
    panel = lines(identity, title, description, *asked, width=width)
    stacked = common.StackingConfig().mode(looks.StackingMode.NORMAL).group("A")
    return panel.stacking(stacked).fill_opacity(60).line_width(1).decimals(0).min(0)


def states(
    identity: int, title: str, description: str, *asked: prometheus.Dataquery, width: int = 8
) -> statetimeline.Panel:
    """Return a panel with one band per series, coloured by its state."""
    panel = (
        statetimeline.Panel()
        .height(8)
        .row_height(0.8)
        .merge_values(merge_values=True)
        .fill_opacity(70)
        .line_width(0)
        .show_value(looks.VisibilityMode.NEVER)
        .legend(_legend())
        .tooltip(_tooltip())
    )
    _finish(panel, identity, title, description, asked, width)
    return panel


def grid(identity: int, title: str, description: str, *asked: prometheus.Dataquery, width: int = 24) -> table.Panel:
    """Return a table."""
    panel = (
        table.Panel()
        .height(8)
        .filterable(filterable=False)
        .cell_height(looks.TableCellHeight.SM)
        .footer(common.TableFooterOptions().show(show=False).reducer(["sum"]).count_rows(count_rows=False))
    )
    _finish(panel, identity, title, description, asked, width)
    return panel


def by_class(identity: int, title: str, description: str, *asked: prometheus.Dataquery, width: int) -> bargauge.Panel:
    """Return a panel with one horizontal bar per series, named by its legend."""
    panel = (
        bargauge.Panel()
        .height(9)
        .orientation(looks.VizOrientation.HORIZONTAL)
        .display_mode(looks.BarGaugeDisplayMode.BASIC)
        .show_unfilled(show_unfilled=False)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).values(values=False))
        .thresholds(steps({None: BLUE}))
        .min(0)
    )
    _finish(panel, identity, title, description, asked, width)
    return panel


def over_step(
    identity: int, title: str, description: str, *asked: prometheus.Dataquery, width: int = 12
) -> trend.Panel:
    """Return a panel of curves over the field `step`. All curves are fields of one frame, whose steps ascend.

    It is no XY chart: that draws a step which one of several runs lacks as 0, and has no bands.
    """
    panel = (
        trend.Panel()
        .height(9)
        .x_field("step")
        .line_width(2)
        .show_points(looks.VisibilityMode.ALWAYS)
        .point_size(6)
        .span_nulls(span_nulls=True)
        .legend(_legend("lastNotNull"))
        .tooltip(_tooltip(zeros=True))
    )
    _finish(panel, identity, title, description, asked, width)
    return panel


def setup(identity: int, *, width: int) -> stat.Panel:
    """Return the panel that says whether Prometheus has what the others ask for."""
    states = {
        0: ("no daemon was scraped", ORANGE),
        2: ("recording rules are missing", VERMILION),
        3: ("alerts are missing", ORANGE),
        4: ("complete", BLUE),
    }
    panel = numbers(
        identity,
        "Setup",
        "Whether Prometheus has the daemons' metrics and the rules in deploy/prometheus/rules/, in the time in view. "
        "Without the recording rules nearly all panels are empty. The rules are new for a minute after a start.",
        now("A", queries.setup()),
        width=width,
    )
    return panel.mappings(texts(states)).unit("none").no_value("Prometheus does not answer")


def results_shown(identity: int, run: str, *, width: int) -> stat.Panel:
    """Return the panel that says whether curves have a point for each evaluation."""
    states = {
        0: ("the newest of each scrape", GREY),
        1: ("all but the newest ones", ORANGE),
        2: ("every result", BLUE),
    }
    panel = numbers(
        identity,
        "Results shown",
        "Every result: the daemons send each one with its own time, so each evaluation has its point. The newest of "
        "each scrape: two evaluations within one scrape interval leave one point; set remote_write, see the "
        "documentation of monitoring. All but the newest ones: some are on their way; look at Sinks in the fleet's "
        "dashboard.",
        now("A", queries.every_result(run)),
        width=width,
    )
    return panel.mappings(texts(states)).unit("none").no_value("unknown")


def fixed(color: str) -> Properties:
    """Return the settings for one colour, whatever the value."""
    return {"color": {"mode": "fixed", "fixedColor": color}}


def steps(colors: Mapping[float | None, str]) -> dashboard.ThresholdsConfig:
    """Return the thresholds from which each colour holds. None stands for the lowest value."""
    thresholds = [model.Threshold(value=value, color=color) for value, color in colors.items()]
    return dashboard.ThresholdsConfig().mode(model.ThresholdsMode.ABSOLUTE).steps(thresholds)


def texts(known: Mapping[int, tuple[str, str]]) -> list[model.ValueMapping]:
    """Return words and colours for values: `texts({1: ("yes", BLUE)})`."""
    results = {
        str(value): model.ValueMappingResult(text=text, color=color, index=place)
        for place, (value, (text, color)) in enumerate(known.items())
    }
    return [model.ValueMap(options=results)]


def dress(panel: P, fields: Mapping[str, Properties]) -> P:
    """Return the panel with settings by the name of the field."""
    overridden: Any = panel  # each kind of panel has this method, but no base class does
    for name, properties in fields.items():
        values = [model.DynamicConfigValue(id_val=key, value=value) for key, value in properties.items()]
        overridden.override_by_name(name, values)
    return panel


def alerts(identity: int, title: str, description: str, expr: str, *, width: int) -> table.Panel:
    """Return a table of alerts, each linked to the page that explains it. `joins.join_alerts` names its columns."""
    panel = grid(identity, title, description, rows("A", expr), width=width).no_value("Nothing fires.").unit("string")
    runbook = {"title": "What it means", "url": "${docs}/how-to/alerts${suffix}", "targetBlank": True}
    return dress(panel, {"alert": {"links": [runbook]}, "since": {"unit": "dateTimeFromNow"}})


def to_dashboard(title: str, uid: str, run: str) -> Properties:
    """Return a link of a table's cell to another dashboard about one run, at the same time."""
    address = f"/d/{uid}?var-run={run.replace('}', ':percentencode}')}&${{datasource:queryparam}}&${{__url_time_range}}"
    return {"title": title, "url": address}


def linked(panel: P, title: str, page: str) -> P:
    """Return the panel with a link to a page of the documentation, such as `how-to/monitoring` or with an anchor."""
    page, _, anchor = page.partition("#")
    link = dashboard.DashboardLink(title).type(model.DashboardLinkType.LINK).target_blank(target_blank=True)
    address = f"${{docs}}/{page}${{suffix}}" + (f"#{anchor}" if anchor else "")
    documented: Any = panel
    documented.links([link.url(address)])
    return panel


def row(identity: int, title: str) -> dashboard.Row:
    """Return a heading for panels."""
    return dashboard.Row(title).id(identity)


def _query(ref: str, expr: str) -> prometheus.Dataquery:
    return prometheus.Dataquery().ref_id(ref).expr(expr).datasource(SOURCE)


def _finish(
    panel: Any, identity: int, title: str, description: str, asked: Sequence[prometheus.Dataquery], width: int
) -> None:
    panel.id(identity).title(title).description(description).span(width).datasource(SOURCE).interval(MIN_INTERVAL)
    panel.targets(list(asked))


def _legend(*calculations: str) -> common.VizLegendOptions:
    legend = common.VizLegendOptions().show_legend(show_legend=True).placement(looks.LegendPlacement.BOTTOM)
    return legend.display_mode(looks.LegendDisplayMode.LIST).calcs(list(calculations))


def _tooltip(*, zeros: bool = False) -> common.VizTooltipOptions:
    return (
        common.VizTooltipOptions()
        .mode(looks.TooltipDisplayMode.MULTI)
        .sort(looks.SortOrder.DESCENDING)
        .hide_zeros(hide_zeros=not zeros)
    )
