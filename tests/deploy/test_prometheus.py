"""Show what Prometheus makes of the metrics: its own tools check exposition, configuration and rules."""

import re
import shutil
import subprocess
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
import yaml
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from records import make_plan
from statuses import make_status

from sidecar.coordination.journal_state import JournalState
from sidecar.protocol.records import (
    PHASES,
    Checkpoint,
    FinishedSet,
    Member,
    Nonfinite,
    Outcome,
    Result,
    Settlement,
    Slice,
    Value,
)
from sidecar.protocol.states import FAILURE_CLASSES
from sidecar.publishing.prometheus import Exporter
from sidecar.publishing.result_series import FAMILIES
from sidecar.publishing.status import Newest, SinkStatus, WorkerStatus

pytestmark = pytest.mark.takes_turns(3)

FOLDER = Path(__file__).parents[2] / "deploy" / "prometheus"
TESTS = sorted(path.name for path in (FOLDER / "tests").glob("*.yml"))

TARGETS_OWN = {"up"}
"""What Prometheus itself says of a target."""


def promtool(needs, *arguments, folder=FOLDER, text=None):
    done = subprocess.run(
        [needs("promtool"), *arguments], cwd=folder, input=text, capture_output=True, text=True, timeout=600
    )
    return done.returncode, done.stdout + done.stderr


def rules():
    """Every rule of all files."""
    files = [yaml.safe_load(path.read_text()) for path in sorted((FOLDER / "rules").glob("*.yml"))]
    return [rule for file in files for group in file["groups"] for rule in group["rules"]]


def names_in(expression):
    """Metric names that an expression selects: what is left of it without strings, labels and functions."""
    bare = re.sub(r'"[^"]*"', "", expression)
    bare = re.sub(r"\{[^}]*\}|\b(by|on|group_left|group_right|ignoring|without)\s*\([^)]*\)", " ", bare)
    bare = re.sub(r"\[[^\]]*\]|\boffset\s+\w+", " ", bare)
    words = set(re.findall(r"(?<![\w:.])[a-zA-Z_][\w:]*(?!\s*\(|[\w:])", bare))
    return words - {"and", "or", "unless", "by", "on", "Inf", "NaN"}


@pytest.fixture(scope="module")
def registry():
    """The metrics of a publisher after a long life: each kind of end, failure and number at least once."""
    history, numbers = JournalState(), count(1)

    def plan(name, settles=()):
        number = next(numbers)
        members = (Member(0, "worker-0", f"w{number}-0", "h:1"), Member(1, "worker-1", f"w{number}-1", "h:2"))
        checkpoint = Checkpoint(name=name, digest="digest", step=number * 100, format="tf_object") if name else None
        history.apply(
            make_plan(
                number,
                checkpoint,
                run="digits",
                nonce="n",
                members=members if name else None,
                settles=settles,
                task="t",
                proposer="worker-0",
                proposed_at="2026-01-31T12:00:00.000Z",
            )
        )
        return Outcome(
            plan=number,
            run="digits",
            nonce="n",
            status="failed",
            closed_by="worker-0",
            completed_at="2026-01-31T12:00:01.500Z",
        )

    for kind in (*FAILURE_CLASSES, "of_a_newer_version"):
        history.apply(replace(plan(f"ckpt-{kind}"), kind=kind, node="worker-1", message="it did not work"))
    ends = ("failed", "skipped", "vanished", "corrupt", "requeued")
    plan(
        None,
        tuple(
            Settlement(name=f"ckpt-{end}", digest="digest", step=1, verdict=end, reason="why", task="t") for end in ends
        ),
    )
    for accuracy in (0.9, 0.8):
        metrics = {
            "accuracy": Value(
                value=accuracy, hex=accuracy.hex(), lower=accuracy - 0.01, upper=accuracy + 0.01, goal="max"
            ),
            "loss": Value(value=None, hex="nan", goal="min"),
            'odd "name"\\ of\nall': Value(value=None, hex="-inf", goal="none"),
        }
        result = Result(
            group="g",
            workers=2,
            examples={"test": 1003, "train": 64},
            metrics={"test": metrics, "train": metrics},
            phases=dict.fromkeys(PHASES, 0.2),
            variables="v",
            task="t",
            profile={},
            saves=(),
            classes={"test": {"recall": {"cat": Value(value=accuracy, hex=accuracy.hex())}}},
            nonfinite={"test": {"prediction": Nonfinite(3, 3, 97)}},
            slices={"test": {"night": Slice(examples=7, metrics={"recall": Value(value=0.5, hex=(0.5).hex())})}},
        )
        history.apply(replace(plan(f"ckpt-{accuracy}"), status="succeeded", result=result))
    status = make_status(
        run="digits",
        node="worker-0",
        incarnation="i",
        version="0.1.0",
        role="worker",
        role_source="TF_CONFIG",
        state="ready",
        publisher=True,
        unready=None,
        journal_read=True,
        pending=2,
        oldest_pending=1769860700.5,
        newest=Newest(step=700, written_at=1769860800.25),
        group_size=2,
        groups_formed=4,
        finished=(FinishedSet("test", 1003, {"accuracy": Value(value=0.7, hex=(0.7).hex())}),),
        members={"ready": 2, "chief": 1},
        workers=(
            WorkerStatus(worker="w1", pid=1, state="evaluate", batches=3, total_batches=8),
            WorkerStatus(worker="w2", pid=1, state="standby"),
        ),
        pins_bytes=1024,
        saves_bytes=2048,
    )
    registry = CollectorRegistry()
    sinks = [
        SinkStatus(name="remote_write", pending=2, oldest_pending=1769860700.5, refused=1, failing="away"),
        SinkStatus(name="early_stop", stop_signalled=False),
    ]
    Exporter(registry, sinks=lambda: sinks).update(status, history)
    return registry


def test_every_family_is_there(registry):
    """The exposition that the checks below see leaves out no family of the exporter."""
    shown = {family.name for family in registry.collect() if family.samples}
    assert {family.name for family in Exporter(CollectorRegistry()).describe()} <= shown


def test_promtool_finds_nothing_in_the_metrics(needs, registry):
    """Names, types, units and help texts follow Prometheus' conventions."""
    assert promtool(needs, "check", "metrics", text=generate_latest(registry).decode()) == (0, "")


def test_promtool_would_find_something(needs):
    """The check above can fail: a counter without its suffix and a family without help are told."""
    code, told = promtool(needs, "check", "metrics", text="# TYPE sidecar_evaluated counter\nsidecar_evaluated 1\n")
    assert code != 0
    assert "_total" in told
    assert "help" in told


def test_openmetrics(registry):
    """The stricter format parses, and holds the same families as the old one."""
    families = list(parse_openmetrics(openmetrics_latest(registry).decode()))
    assert {family.name for family in families} == {family.name for family in registry.collect()}
    assert all(family.documentation.endswith(".") for family in families if family.name.startswith("sidecar_"))


def test_configuration(needs):
    """Prometheus accepts the configuration, and finds rule files by it."""
    code, told = promtool(needs, "check", "config", "prometheus.yml")
    assert code == 0, told
    assert f"{len(list((FOLDER / 'rules').glob('*.yml')))} rule files found" in told


def test_rules(needs):
    """No rule has a mistake that Prometheus would find, and no two are the same."""
    code, told = promtool(needs, "check", "rules", "--lint=all", "--lint-fatal", *map(str, FOLDER.glob("rules/*.yml")))
    assert code == 0, told


@pytest.mark.parametrize("file", TESTS)
def test_what_rules_do(needs, file):
    """Each alert fires when it should and is quiet when it should be; each recording rule gives the right number."""
    code, told = promtool(needs, "test", "rules", f"tests/{file}")
    assert code == 0, told


def test_every_alert_is_tried():
    """Each alert fires in some test, with its texts, and is asked to be quiet in some test."""
    files = [yaml.safe_load((FOLDER / "tests" / name).read_text()) for name in TESTS]
    cases = [case for file in files for case in file["tests"]]
    told = {each["alertname"] for case in cases for each in case.get("alert_rule_test", ()) if each["exp_alerts"]}
    quiet = {
        match[1]
        for case in cases
        for each in case.get("promql_expr_test", ())
        if not each["exp_samples"] and (match := re.search(r'alertname="(\w+)"', each["expr"]))
    }
    alerts = {rule["alert"] for rule in rules() if "alert" in rule}
    assert alerts
    assert (alerts - told, alerts - quiet) == (set(), set())


def test_every_recording_rule_is_tried():
    """Each recorded name that dashboards read is asked for, by itself, in some test."""
    cases = yaml.safe_load((FOLDER / "tests" / "recording.yml").read_text())["tests"]
    asked = {each["expr"] for case in cases for each in case["promql_expr_test"]}
    groups = yaml.safe_load((FOLDER / "rules" / "recording.yml").read_text())["groups"]
    assert {rule["record"] for group in groups for rule in group["rules"]} <= asked


def test_rules_ask_for_what_exists(registry):
    """No rule selects a metric that the exporter does not have, or a recorded one that no rule records."""
    exported = {sample.name for family in registry.collect() for sample in family.samples}
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    for rule in rules():
        names = names_in(rule["expr"])
        assert names or rule["expr"] == "vector(1)", rule
        assert not names - exported - recorded - TARGETS_OWN - set(FAMILIES), rule.get("alert") or rule["record"]


def test_texts_ask_for_what_exists():
    """Queries in annotations select recorded names only."""
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    texts = [text for rule in rules() for text in rule.get("annotations", {}).values()]
    asked = {name for text in texts for name in re.findall(r"\bsidecar:[\w:]+", text)}
    assert asked
    assert asked <= recorded


def test_alerts_say_what_to_do():
    """Every alert has a severity that the file explains, a summary that names where, and a first step."""
    for alert in (rule for rule in rules() if "alert" in rule):
        assert alert["labels"]["severity"] in ("critical", "warning"), alert["alert"]
        assert "for" in alert, alert["alert"]
        assert "$labels." in alert["annotations"]["summary"], alert["alert"]
        assert "First" in alert["annotations"]["description"], alert["alert"]


def test_every_alert_has_a_runbook():
    """The page has a section for each alert and for no other, and each alert links to its own."""
    page = (FOLDER.parents[1] / "docs" / "how-to" / "alerts.md").read_text()
    sections = dict(re.findall(r"^## (Sidecar\w+)\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL))
    alerts = {rule["alert"]: rule["annotations"] for rule in rules() if "alert" in rule}
    assert sections.keys() == alerts.keys()
    for name, text in sections.items():
        assert re.findall(r"^\*\*(Meaning|First steps|Silence)\b", text, re.MULTILINE) == [
            "Meaning",
            "First steps",
            "Silence",
        ], name
        assert alerts[name]["runbook_url"].endswith(f"#{name.lower()}"), name
        critical = next(rule["labels"]["severity"] for rule in rules() if rule.get("alert") == name) == "critical"
        assert critical == ("**Meaning.** Critical." in text), name


def test_clusters_can_be_told_apart(needs, tmp_path):
    """The command in recording.yml makes all rules keep a label `cluster`, so that equal run names do not mix."""
    copy = shutil.copytree(FOLDER, tmp_path / "prometheus")
    (command,) = re.findall(r"^# +(sed .*)$", (copy / "rules" / "recording.yml").read_text(), re.MULTILINE)
    subprocess.run(command, shell=True, cwd=copy, check=True)
    west, east, other = (f'cluster="{cluster}", job="j", instance="{at}"' for cluster, at in ("ww", "ew", "ex"))
    metric = 'eval_set="test", metric="loss"'
    series = {
        f"sidecar_eval_completed_timestamp_seconds{{run='r', {west}}}": "100x40",
        f"sidecar_eval_completed_timestamp_seconds{{run='r', {east}}}": "200x40",
        f"sidecar_eval_metric{{run='r', {metric}, {west}}}": "0.1x40",
        f"sidecar_eval_metric{{run='r', {metric}, {east}}}": "0.2x40",
        f"sidecar_publisher{{run='r', node='n', {west}}}": "1x40",
        f"sidecar_publisher{{run='r', node='m', {other}}}": "1x40",
        f"sidecar_node_info{{run='r', node='n', {west}}}": "1x40",
        f"sidecar_node_info{{run='r', node='n', {east}}}": "1x9 stale",
        f"sidecar_node_info{{run='r', node='m', {other}}}": "1x40",
        f"up{{{west}}}": "1x40",
        f"up{{{east}}}": "1x9 0x30",
        f"up{{{other}}}": "1x40",
    }
    latest, firing = "sidecar:eval_metric:latest", 'ALERTS{alertstate="firing"}'
    down = f'alertname="SidecarDaemonDown", run="r", node="n", severity="warning", {east}'
    expected = {
        latest: [
            {"labels": f'{latest}{{run="r", cluster="w", {metric}}}', "value": 0.1},
            {"labels": f'{latest}{{run="r", cluster="e", {metric}}}', "value": 0.2},
        ],
        firing: [{"labels": f'ALERTS{{alertstate="firing", {down}}}', "value": 1}],
    }
    case = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {"expr": expression, "eval_time": "30m", "exp_samples": samples} for expression, samples in expected.items()
        ],
    }
    order = ["sidecar", "sidecar_targets", "sidecar_alerts"]
    test = {"rule_files": ["rules/*.yml"], "evaluation_interval": "1m", "group_eval_order": order, "tests": [case]}
    (copy / "clusters.yml").write_text(yaml.safe_dump(test))
    code, told = promtool(needs, "test", "rules", "clusters.yml", folder=copy)
    assert code == 0, told
