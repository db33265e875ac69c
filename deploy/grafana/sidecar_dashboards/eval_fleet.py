"""Build the dashboard *Eval fleet*: the daemons and their work, the use of time and memory, and the problems."""

from typing import Final

from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models.common import VisibilityMode

from sidecar_dashboards import joins, panels, queries
from sidecar_dashboards.dashboard import Place, assemble, newest_runs
from sidecar_dashboards.panels import (
    BLUE,
    DARK_BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    VERMILION,
    YELLOW,
    Panel,
    fixed,
    steps,
    texts,
)
from sidecar_dashboards.queries import NODE_INFO, RUN, last, of_node, rule
from sidecar_dashboards.resources import JOB, NO_DAEMON, resources, sinks
from sidecar_dashboards.training_run import failures

UID: Final = "sidecar-eval-fleet"

_PHASES: Final = {
    "detect": GREY,
    "agree": YELLOW,
    "join": PURPLE,
    "restore": DARK_BLUE,
    "evaluate": BLUE,
    "reduce": ORANGE,
    "save": GREEN,
    "publish": VERMILION,
}


def build() -> model.Dashboard:
    """Return the dashboard."""
    return assemble(
        UID,
        "Sidecar: eval fleet",
        "The daemons and worker processes that evaluate a training run's checkpoints.",
        [newest_runs()],
        [failures()],
        [
            Place(None, _at_a_glance()),
            Place(panels.row(100, "What is broken"), [_alerts(), _failures()], "how-to/troubleshooting"),
            Place(panels.row(200, "Nodes"), [_nodes(), _publisher(), _ready(), _members()]),
            Place(panels.row(300, "Work"), [_phases(), _progress(), _workers(), _group(), _formed()]),
            Place(panels.row(400, "Resources"), resources(), "how-to/gpus"),
            Place(panels.row(500, "Sinks of results"), sinks(), "how-to/monitoring#get-every-number"),
        ],
    )


def _at_a_glance() -> list[Panel]:
    return [
        panels.numbers(
            1,
            "Ready nodes",
            "Nodes that could take part in an evaluation, as the publisher sees their heartbeats. Fewer than you "
            "started: look at Nodes below for the one that is missing or not ready.",
            panels.now("A", rule("members:max", f'{RUN},state="ready"')),
            width=4,
        )
        .unit("none")
        .thresholds(steps({None: VERMILION, 1: BLUE}))
        .no_value("no daemon"),
        panels.numbers(
            2,
            "Publishing nodes",
            "Nodes that decide and export results: 1. None for more than a minute: no daemon of role worker is ready. "
            "Two for more than a minute: they do not see each other's files; check the shared storage's caching.",
            panels.now("A", rule("publishers:sum")),
            width=3,
        )
        .unit("none")
        .thresholds(steps({None: ORANGE, 1: BLUE, 2: VERMILION}))
        .no_value("no daemon"),
        panels.numbers(
            3,
            "Group size now",
            "Worker processes that evaluate together at this moment; 0 between groups.",
            panels.now("A", rule("group_size:max")),
            width=3,
        )
        .unit("none")
        .no_value("no daemon"),
        panels.numbers(
            4,
            "Failed attempts in view",
            "Attempts at an evaluation that failed within the time in view. One that is tried again with success costs "
            "only time; Failures by kind says what to look at.",
            panels.now(
                "A", f"sum({last(rule('plans_failed:max'))} - min_over_time({rule('plans_failed:max')}[$__range]))"
            ),
            width=4,
        )
        .unit("none")
        .thresholds(steps({None: BLUE, 1: ORANGE}))
        .no_value("no daemon"),
        panels.numbers(
            5,
            "Targets down",
            "Daemons of all runs that Prometheus cannot scrape. Target health on Prometheus' status page names them.",
            panels.now("A", f"count(up{{{JOB}}} == 0) or vector(0)"),
            width=4,
        )
        .unit("none")
        .thresholds(steps({None: BLUE, 1: VERMILION}))
        .no_value("unknown"),
        panels.numbers(
            6,
            "Alerts firing",
            "Alerts about this run and about daemons of no known run; listed below.",
            panels.now("A", f"count({queries.ALERTS}) or vector(0)"),
            width=3,
        )
        .unit("none")
        .thresholds(steps({None: BLUE, 1: VERMILION}))
        .no_value("unknown"),
        panels.setup(7, width=3),
    ]


def _alerts() -> Panel:
    since = 'ALERTS_FOR_STATE{alertname=~"Sidecar.*",run=~"$run|"}'
    panel = panels.alerts(
        101,
        "Alerts",
        "What fires now about this run or about daemons of no known run, and since when its condition holds. The "
        "link of an alert explains it and says what to do first.",
        f"1000 * {since} and ignoring (alertstate) {queries.ALERTS}",
        width=12,
    )
    return joins.join_alerts(panel, ("alertname", "severity", "node", "instance", "Value"), hide=("run", "job"))


def _failures() -> Panel:
    counted = rule("plans_failed:max")
    return (
        panels.bars(
            102,
            "Failures by kind",
            "Attempts that failed, where they failed. mismatch, task_error, stream_differs, nonfinite_input, count: "
            "the task, its data or the checkpoint; see `sidecar history` and the workers' logs. corrupt, vanished: "
            "the files. drained, restarted: a daemon was stopped or began anew, which is normal. All others: machines, "
            "memory or network; see Nodes and Resources at that time.",
            panels.query("A", f"{queries.per_interval(counted)} and on (kind) ({counted} > 0)", "{{kind}}"),
            width=12,
        )
        .unit("none")
        .decimals(0)
        .no_value("No attempt of this run has failed.")
    )


def _nodes() -> Panel:
    python = f"max by (node, python) (sidecar_build_info * on (job, instance) group_left (node) {NODE_INFO})"
    panel = panels.grid(
        201,
        "Nodes now",
        "Daemons that run now; click an address to see its status page (if your browser reaches it). role source: "
        "where the role was found; a surprise there explains a node that does nothing. A node that is missing has no "
        "daemon, or Prometheus cannot reach it. Different versions: finish the rollout.",
        panels.rows("A", f"max by (node, role, role_source, version, instance) ({NODE_INFO})"),
        panels.rows("B", f"max by (node) (sidecar_ready{{{RUN}}})"),
        panels.rows("C", f"max by (node) (sidecar_publisher{{{RUN}}})"),
        panels.rows("D", f"1000 * max by (node) ({of_node(f'process_start_time_seconds{{{JOB}}}')})"),
        panels.rows("E", python),
        width=24,
    ).no_value(NO_DAEMON)
    columns = {
        "role": "role",
        "role_source": "role source",
        "Value #B": "ready",
        "Value #C": "publisher",
        "Value #D": "started",
        "instance": "address",
        "version": "version",
        "python": "python",
    }
    joins.join_by(panel, "node", columns, hide=("Value #A", "Value #E"))
    joins.transform(panel, ("sortBy", {"fields": {}, "sort": [{"field": "node"}]}))
    coloured: panels.Properties = {"custom.cellOptions": {"type": "color-text"}}
    page = {"title": "Status page", "url": "http://${__value.raw}/", "targetBlank": True}
    return panels.dress(
        panel.unit("string"),
        {
            "ready": {**coloured, "mappings": texts({0: ("not ready", VERMILION), 1: ("ready", BLUE)})},
            "publisher": {**coloured, "mappings": texts({0: ("no", GREY), 1: ("publisher", BLUE)})},
            "started": {"unit": "dateTimeFromNow"},
            "address": {"links": [page]},
        },
    )


def _publisher() -> Panel:
    return (
        panels.states(
            202,
            "Publisher over time",
            "Which node published. One band at a time; a change is a hand-over and normal when a node leaves. Two at "
            "once for long, or none, is not.",
            panels.query("A", f"max by (node) (sidecar_publisher{{{RUN}}})", "{{node}}"),
        )
        .mappings(texts({0: ("no", GREY), 1: ("publisher", BLUE)}))
        .unit("none")
        .no_value(NO_DAEMON)
    )


def _ready() -> Panel:
    return (
        panels.states(
            203,
            "Ready over time",
            "Whether each daemon could do its work (its /readyz). Not ready for long: /readyz and the page of that "
            "daemon say why, most often storage that cannot be reached. A gap: no daemon.",
            panels.query("A", f"max by (node) (sidecar_ready{{{RUN}}})", "{{node}}"),
        )
        .mappings(texts({0: ("not ready", VERMILION), 1: ("ready", BLUE)}))
        .unit("none")
        .no_value(NO_DAEMON)
    )


def _members() -> Panel:
    panel = panels.areas(
        204,
        "Nodes by state",
        "Nodes whose heartbeat the publisher sees. Starting for minutes: the framework's import is slow, or the task "
        "cannot be imported; see the workers' logs. Draining: being stopped. Chief: runs no evaluation, by its role.",
        panels.query("A", rule("members:max"), "{{state}}"),
    ).no_value(NO_DAEMON)
    colours = {"starting": YELLOW, "ready": BLUE, "draining": ORANGE, "left": GREY, "chief": GREEN}
    return panels.dress(panel.unit("none"), {state: fixed(colour) for state, colour in colours.items()})


def _phases() -> Panel:
    spent, counted = (
        queries.per_interval(rule(f"evaluation_phase_duration_seconds_{part}:max")) for part in ("sum", "count")
    )
    panel = panels.bars(
        301,
        "Phases of an evaluation",
        "Seconds of each phase, on the slowest worker, averaged over the evaluations that ended at that point. detect "
        "and agree long: shared storage is slow. join long: nodes do not find each other's ports, or import. restore "
        "long: storage. evaluate long: the task itself; more nodes or replicas help.",
        panels.query("A", f"{spent} / ({counted} > 0)", "{{phase}}"),
        width=12,
    ).no_value("No evaluation has ended in this time.")
    return panels.dress(panel.unit("s"), {phase: fixed(colour) for phase, colour in _PHASES.items()})


def _progress() -> Panel:
    done, share = (of_node(f"sidecar_worker_{part}batches{{{RUN}}}") for part in ("", "expected_"))
    return (
        panels.lines(
            302,
            "Progress of the running evaluation",
            "Batches that each worker process has done of its share; empty between evaluations. One line that stands "
            "still while others are done is the straggler: look at its CPU and memory below.",
            panels.query("A", f"({done}) / (({share}) > 0)", "{{node}} process {{process}}"),
            width=12,
        )
        .unit("percentunit")
        .decimals(0)
        .min(0)
        .max(1)
        .show_points(VisibilityMode.ALWAYS)
        .no_value("No evaluation has run in this time, or each was over between two scrapes.")
    )


def _workers() -> Panel:
    return (
        panels.areas(
            303,
            "Worker processes by state",
            "All nodes' worker processes. importing for minutes: slow storage under the Python environment. Rising "
            "and falling all the time: they die; see Failures by kind.",
            panels.query("A", f"sum by (state) (sidecar_worker_processes{{{RUN}}})", "{{state}}"),
        )
        .unit("none")
        .no_value("No worker process in this time.")
    )


def _group() -> Panel:
    panel = panels.lines(
        304,
        "Group size over time",
        "Worker processes that evaluate together. It changes when nodes come and go; 0 while a group forms.",
        panels.query("A", rule("group_size:max"), "processes"),
    ).no_value(NO_DAEMON)
    return panels.dress(panel.unit("none").decimals(0).min(0), {"processes": fixed(BLUE)})


def _formed() -> Panel:
    return (
        panels.lines(
            305,
            "Eval groups formed, by node",
            "Groups that each daemon has been part of since it started. A group should live for days: a line that "
            "rises steadily is churn; look at Failures by kind and at Ready over time.",
            panels.query("A", of_node(f"sidecar_groups_formed_total{{{RUN}}}"), "{{node}}"),
        )
        .unit("none")
        .decimals(0)
        .min(0)
        .no_value(NO_DAEMON)
    )
