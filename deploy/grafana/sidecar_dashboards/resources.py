"""Build the panels of *Eval fleet* about what daemons and workers use, and about the sinks of results."""

from typing import Final

from sidecar_dashboards import joins, panels
from sidecar_dashboards.panels import BLUE, COUNT, GREEN, ORANGE, VERMILION, Panel, fixed, steps, texts
from sidecar_dashboards.queries import RUN, of_node

JOB: Final = 'job=~".*sidecar.*"'  # a PodMonitor's targets have the job NAMESPACE/sidecar
NO_DAEMON: Final = "No daemon of this run was scraped in this time."


def resources() -> list[Panel]:
    """Return the panels of memory, CPU time, disk space and open files."""
    process = "{{node}} process {{process}}"
    own = {"memory": "process_resident_memory_bytes", "cpu": "process_cpu_seconds_total", "files": "process_open_fds"}
    worker = {"memory": "sidecar_worker_resident_memory_bytes", "cpu": "sidecar_worker_cpu_seconds_total"}

    def rate(counter: str) -> str:
        return of_node(f"rate({counter}[$__rate_interval])")

    def chart(identity: int, title: str, description: str, expr: str, legend: str, unit: str) -> Panel:
        panel = panels.lines(identity, title, description, panels.query("A", expr, legend), slopes=True)
        return panel.unit(unit).min(0).no_value(NO_DAEMON)

    disk = (
        panels.lines(
            403,
            "Disk used on shared storage",
            "Pins: checkpoints held until they are evaluated, mostly hard links, which cost nothing until training "
            "deletes its own name of them. Saves: what workers saved about evaluations; bounded by the keep setting. "
            "Exports: the best checkpoints, as many as export_best says; they cost their full size once training has "
            "deleted its own files.",
            panels.query("A", f"max by (run) (sidecar_pins_bytes{{{RUN}}})", "pins"),
            panels.query("B", f"max by (run) (sidecar_saves_bytes{{{RUN}}})", "saves"),
            panels.query("C", f"max by (run) (sidecar_exports_bytes{{{RUN}}})", "exports"),
        )
        .unit("bytes")
        .min(0)
        .no_value(NO_DAEMON)
    )
    return [
        chart(
            401,
            "Worker processes: memory",
            "Resident memory of each worker process, standbys included. A line that climbs from evaluation to "
            "evaluation is a leak in the task; one that ends at its top was killed for memory (out_of_memory).",
            of_node(f"{worker['memory']}{{{RUN}}}"),
            process,
            "bytes",
        ),
        chart(
            402,
            "Worker processes: CPU",
            "Cores that each worker process keeps busy. What training lacks may be here: limit workers by the "
            "container, the unit or fewer replicas.",
            rate(f"{worker['cpu']}{{{RUN}}}"),
            process,
            "short",
        ),
        panels.dress(disk, {"pins": fixed(BLUE), "saves": fixed(ORANGE), "exports": fixed(GREEN)}),
        chart(
            404,
            "Daemons: memory",
            "Resident memory of each daemon, without its workers. It should be flat for weeks; report it if it is not.",
            of_node(f"{own['memory']}{{{JOB}}}"),
            "{{node}}",
            "bytes",
        ),
        chart(
            405,
            "Daemons: CPU",
            "Cores that each daemon keeps busy: a few hundredths. Report it if one needs more for minutes.",
            rate(f"{own['cpu']}{{{JOB}}}"),
            "{{node}}",
            "short",
        ),
        chart(
            406,
            "Daemons: open files",
            "Open file descriptors of each daemon. It should be flat; report it if it is not.",
            of_node(f"{own['files']}{{{JOB}}}"),
            "{{node}}",
            "none",
        ),
    ]


def sinks() -> list[Panel]:
    """Return the panels of all sinks, by their label: a new kind of sink appears by itself."""
    pending = f"max by (sink) (sidecar_sink_pending_results{{{RUN}}})"
    oldest = f"max by (sink) (sidecar_sink_oldest_pending_timestamp_seconds{{{RUN}}})"
    refused = f"max by (sink) (max_over_time(sidecar_sink_refused_results_total{{{RUN}}}[$__range]))"
    failing = f"max by (sink) (sidecar_sink_failing{{{RUN}}})"
    lag = f"(clamp_min(time() - {oldest}, 0) or 0 * {pending})"
    table = panels.grid(
        501,
        "Sinks",
        "Where the publishing daemon sends results: remote_write, TensorBoard, hooks and others. Lag: the age of the "
        "oldest result that the sink does not have; orange from 15 minutes on, as the alert SidecarSinkBehind. "
        "Refused: results and other events that it will never have; `sink_refused` in the log names them, and those of "
        "hooks are dead letters. Newest delivery: `sink_failed` in the log says why one failed.",
        panels.rows("A", pending),
        panels.rows("B", lag),
        panels.rows("C", refused),
        panels.rows("D", failing),
        width=12,
    )
    columns = {"Value #D": "newest delivery", "Value #A": "pending", "Value #B": "lag", "Value #C": "refused"}
    joins.join_by(table, "sink", columns)
    table.unit(COUNT.unit).decimals(COUNT.decimals).no_value("No sink is set.")
    text: panels.Properties = {"custom.cellOptions": {"type": "color-text"}}
    late, some = (steps({None: BLUE, value: ORANGE}).build() for value in (900, 1))
    panels.dress(
        table,
        {
            "sink": {"unit": "string"},
            "newest delivery": {**text, "mappings": texts({0: ("no failure", BLUE), 1: ("failed", VERMILION)})},
            "lag": {"unit": "s", **text, "thresholds": late},
            "refused": {**text, "thresholds": some},
        },
    )
    over_time = panels.lines(
        502,
        "Sinks: lag over time",
        "The age of the oldest result that each sink does not have; 0 if it has all. A line that climbs is a sink that "
        "is down or fails: `sink_failed` in the log of the publishing daemon says why. Evaluation goes on meanwhile.",
        panels.query("A", lag, "{{sink}}"),
        width=12,
        slopes=True,
    )
    return [table, over_time.unit("s").min(0).no_value("No sink is set.")]
