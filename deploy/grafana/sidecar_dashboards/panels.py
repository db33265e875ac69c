"""Build panels, with one function per kind.

The colours are those of Okabe and Ito, which colour-blind people can distinguish. Blue is good, orange needs attention,
vermilion is broken. A text or a number always says the same as the colour.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

from grafana_foundation_sdk.builders import (
    common,
    dashboard,
    prometheus,
    stat,
    statetimeline,
    table,
    timeseries,
    xychart,
)
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import common as looks
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models import xychart as xy
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

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


def query(ref: str, expr: str, legend: str = "") -> prometheus.Dataquery:
    """Return a query over the time in view."""
    return _query(ref, expr).range().legend_format(legend)


def now(ref: str, expr: str, legend: str = "") -> prometheus.Dataquery:
    """Return a query for the end of the time in view."""
    return _query(ref, expr).instant().legend_format(legend)


def rows(ref: str, expr: str) -> prometheus.Dataquery:
    """Return a query for the end of the time in view, with one row per series and one column per label."""
    return _query(ref, expr).instant().format(PromQueryFormat.TABLE)


def numbers(identity: int, title: str, description: str, *queries: prometheus.Dataquery, width: int) -> stat.Panel:
    """Return a panel with one large number per series."""
    panel = (
        stat.Panel()
        .height(4)
        .color_mode(looks.BigValueColorMode.VALUE)
        .graph_mode(looks.BigValueGraphMode.NONE)
        .text_mode(looks.BigValueTextMode.VALUE_AND_NAME if len(queries) > 1 else looks.BigValueTextMode.VALUE)
        .justify_mode(looks.BigValueJustifyMode.CENTER)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).values(values=False))
        .thresholds(steps({None: BLUE}))
        .max_data_points(1000)
    )
    _finish(panel, identity, title, description, queries, width)
    return panel


def names(identity: int, title: str, description: str, query: prometheus.Dataquery, *, width: int) -> stat.Panel:
    """Return a panel with the legend of the one series that a query finds, as text."""
    panel = numbers(identity, title, description, query, width=width)
    return panel.height(3).text_mode(looks.BigValueTextMode.NAME).max_data_points(5000).unit("none")


def lines(
    identity: int,
    title: str,
    description: str,
    *queries: prometheus.Dataquery,
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
        .tooltip(_tooltip())
    )
    _finish(panel, identity, title, description, queries, width)
    return panel


def bars(
    identity: int, title: str, description: str, *queries: prometheus.Dataquery, width: int = 8
) -> timeseries.Panel:
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
    _finish(panel, identity, title, description, queries, width)
    return panel


def areas(
    identity: int, title: str, description: str, *queries: prometheus.Dataquery, width: int = 8
) -> timeseries.Panel:
    """Return a panel of stacked areas, whose values add up."""
    panel = lines(identity, title, description, *queries, width=width)
    stacked = common.StackingConfig().mode(looks.StackingMode.NORMAL).group("A")
    return panel.stacking(stacked).fill_opacity(60).line_width(1).decimals(0).min(0)


def states(
    identity: int, title: str, description: str, *queries: prometheus.Dataquery, width: int = 8
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
    _finish(panel, identity, title, description, queries, width)
    return panel


def grid(identity: int, title: str, description: str, *queries: prometheus.Dataquery, width: int = 24) -> table.Panel:
    """Return a table."""
    panel = (
        table.Panel()
        .height(8)
        .filterable(filterable=False)
        .cell_height(looks.TableCellHeight.SM)
        .footer(common.TableFooterOptions().show(show=False).reducer(["sum"]).count_rows(count_rows=False))
    )
    _finish(panel, identity, title, description, queries, width)
    return panel


def over(
    x: str, curves: Sequence[str], identity: int, title: str, description: str, *queries: prometheus.Dataquery
) -> xychart.Panel:
    """Return a panel of curves over a field other than the time. All curves are fields of one frame."""
    series: list[Builder[xy.XYSeriesConfig]] = [
        xychart.XYSeriesConfig()
        .name(xychart.XychartXYSeriesConfigName().fixed(curve))
        .frame(xychart.XychartXYSeriesConfigFrame().matcher(_xy_matcher("byIndex", 0)))
        .x(xychart.XychartXYSeriesConfigX().matcher(_xy_matcher("byName", x)))
        .y(xychart.XychartXYSeriesConfigY().matcher(_xy_matcher("byName", curve)))
        for curve in curves
    ]
    panel = (
        xychart.Panel()
        .height(9)
        .mapping(xy.SeriesMapping.MANUAL)
        .series(series)
        .show(xy.XYShowMode.POINTS_AND_LINES)
        .point_size(xychart.XychartFieldConfigPointSize().fixed(6))
        .line_width(2)
        .legend(_legend())
        .tooltip(common.VizTooltipOptions().mode(looks.TooltipDisplayMode.SINGLE).sort(looks.SortOrder.NONE))
    )
    _finish(panel, identity, title, description, queries, 12)
    return panel


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


def transform(panel: P, *transformations: tuple[str, object]) -> P:
    """Return the panel with transformations, by name, with their options."""
    transformed: Any = panel
    for name, options in transformations:
        transformed.with_transformation(model.DataTransformerConfig(id_val=name, options=options))
    return panel


def as_matrix(panel: P, row_label: str, order: Sequence[str] = (), *, newest_first: bool) -> P:
    """Turn `queries.columns` into a table: a row per value of the label, a number, and a field per column."""
    return transform(
        panel,
        ("sortBy", {"fields": {}, "sort": [{"field": "column"}]}),  # a fixed order, because series have none
        (
            "groupingToMatrix",
            {"columnField": "column", "rowField": row_label, "valueField": "Value", "emptyValue": "null"},
        ),
        (
            "organize",
            {
                "renameByName": {f"{row_label}\\column": row_label},
                "indexByName": {name: place for place, name in enumerate((f"{row_label}\\column", *order))},
                "excludeByName": {},
            },
        ),
        (
            "convertFieldType",
            {"fields": {}, "conversions": [{"targetField": row_label, "destinationType": "number"}]},
        ),
        ("sortBy", {"fields": {}, "sort": [{"field": row_label, "desc": newest_first}]}),
    )


def row(identity: int, title: str) -> dashboard.Row:
    """Return a heading for the panels that follow."""
    return dashboard.Row(title).id(identity)


def _query(ref: str, expr: str) -> prometheus.Dataquery:
    return prometheus.Dataquery().ref_id(ref).expr(expr).datasource(SOURCE)


def _finish(
    panel: Any, identity: int, title: str, description: str, queries: Sequence[prometheus.Dataquery], width: int
) -> None:
    panel.id(identity).title(title).description(description).span(width).datasource(SOURCE).interval(MIN_INTERVAL)
    panel.targets(list(queries))


def _legend(*calculations: str) -> common.VizLegendOptions:
    legend = common.VizLegendOptions().show_legend(show_legend=True).placement(looks.LegendPlacement.BOTTOM)
    return legend.display_mode(looks.LegendDisplayMode.LIST).calcs(list(calculations))


def _tooltip() -> common.VizTooltipOptions:
    return (
        common.VizTooltipOptions()
        .mode(looks.TooltipDisplayMode.MULTI)
        .sort(looks.SortOrder.DESCENDING)
        .hide_zeros(hide_zeros=True)
    )


def _xy_matcher(identity: str, options: object) -> xychart.MatcherConfig:
    return xychart.MatcherConfig().id(identity).options(options)
