"""Build Grafana's transformations: they join the results of several queries into the frame that a panel shows."""

from collections.abc import Mapping, Sequence
from typing import Any

from grafana_foundation_sdk.models import dashboard as model

from sidecar_dashboards.panels import P


def transform(panel: P, *transformations: tuple[str, object], only: str | None = None) -> P:
    """Return the panel with transformations, by name, with their options; of one query if it is named."""
    transformed: Any = panel
    matcher = None if only is None else model.MatcherConfig(id_val="byRefId", options=only)
    for name, options in transformations:
        step = model.DataTransformerConfig(id_val=name, options=options, filter_val=matcher)
        transformed.with_transformation(step)
    return panel


def join_results(panel: P, names: Mapping[str, str]) -> P:
    """Turn queries of samples in view into rows: one per step, in order of steps, a column per query.

    Samples of one evaluation have the same time. `names` are the columns by the query's reference; one is `step`. If a
    step was evaluated twice, its last evaluation counts.
    """
    fields = {f"Value #{ref}": name for ref, name in names.items()}
    (step,) = (field for field, name in fields.items() if name == "step")
    grouping = {field: {"operation": "aggregate", "aggregations": ["last"]} for field in fields} | {
        step: {"operation": "groupby", "aggregations": []}
    }
    return transform(
        panel,
        ("filterFieldsByName", {"include": {"names": ["Time", *fields]}}),
        ("merge", {}),
        _sorted_by("Time"),
        ("groupBy", {"fields": grouping}),
        _renamed({field if field == step else f"{field} (last)": name for field, name in fields.items()}, step),
        _sorted_by("step"),
    )


def join_runs(panel: P, value: str, step: str) -> P:
    """Turn a query of values and one of steps into a column per run and a row per step, in order of steps."""
    return transform(
        panel,
        ("filterFieldsByName", {"include": {"names": ["Time", "run", f"Value #{value}", f"Value #{step}"]}}),
        ("merge", {}),
        _sorted_by("Time"),
        (
            "groupingToMatrix",
            {
                "columnField": "run",
                "rowField": f"Value #{step}",
                "valueField": f"Value #{value}",
                "emptyValue": "null",
            },
        ),
        _renamed({f"Value #{step}\\run": "step"}, f"Value #{step}\\run"),
        ("convertFieldType", {"fields": {}, "conversions": [{"targetField": "step", "destinationType": "number"}]}),
        _sorted_by("step"),
    )


def join_evaluations(panel: P, values: str, names: Mapping[str, str]) -> P:
    """Turn queries of samples in view into rows: one per evaluation, newest first, with a column per metric.

    `values` is the reference of the query that has the metrics, `names` are the columns of the others.
    """
    others = {f"Value #{ref}": name for ref, name in names.items()}
    wanted = ["Time", "metric", f"Value #{values}", *others]
    transform(panel, ("filterFieldsByName", {"include": {"names": wanted}}))
    matrix = {"columnField": "metric", "rowField": "Time", "valueField": f"Value #{values}", "emptyValue": "null"}
    transform(panel, ("groupingToMatrix", matrix), only=values)
    return transform(
        panel,
        _renamed({"Time\\metric": "Time"}),
        ("convertFieldType", {"fields": {}, "conversions": [{"targetField": "Time", "destinationType": "time"}]}),
        ("joinByField", {"byField": "Time", "mode": "outer"}),
        _renamed({"Time\\metric": "completed at", "Time": "completed at", **others}, *others, "Time"),
        _sorted_by("completed at", newest_first=True),
    )


def join_by(panel: P, label: str, columns: Mapping[str, str], *, hide: Sequence[str] = ()) -> P:
    """Turn queries with one series per value of a label into a table: a row per value, a column per query.

    `columns` are the names by the field, in their order: `Value #A`, or a label that only one query has.
    """
    names = [label, *columns]
    return transform(
        panel,
        ("filterFieldsByName", {"exclude": {"names": ["Time"]}}),
        ("joinByField", {"byField": label, "mode": "outer"}),
        (
            "organize",
            {
                "excludeByName": dict.fromkeys(hide, True),
                "indexByName": {name: place for place, name in enumerate(names)},
                "renameByName": dict(columns),
            },
        ),
    )


def join_alerts(panel: P, order: Sequence[str], *, hide: Sequence[str]) -> P:
    """Turn the table of alerts into its columns, in the order of their labels."""
    return transform(
        panel,
        (
            "organize",
            {
                "excludeByName": dict.fromkeys(("Time", "__name__", *hide), True),
                "indexByName": {name: place for place, name in enumerate(order)},
                "renameByName": {"alertname": "alert", "Value": "since"},
            },
        ),
    )


def _renamed(names: Mapping[str, str], *order: str) -> tuple[str, object]:
    places = {name: place for place, name in enumerate(order)}
    return ("organize", {"renameByName": dict(names), "indexByName": places, "excludeByName": {}})


def _sorted_by(field: str, *, newest_first: bool = False) -> tuple[str, object]:
    return ("sortBy", {"fields": {}, "sort": [{"field": field, "desc": newest_first}]})
