"""Name the numbers and the lists that pages quote from the code, each with the place in the code that knows it."""

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Final

from blocks import ROOT, SOURCES, texts

from sidecar import EvalSet, Task
from sidecar.protocol import record_limits
from sidecar.protocol.records import PHASES
from sidecar.protocol.states import FailureKind
from sidecar.settings import Settings
from sidecar.settings.hook_values import HOOK_NAMES


def constant(module: str, name: str) -> int | float:
    """Return a number that a module of the package assigns to a name, without the import of the module."""
    for node in ast.parse((SOURCES / module).read_text("utf-8")).body:
        match node:
            case ast.AnnAssign(target=ast.Name(id=found), value=ast.expr() as value) if found == name:
                return _number(value)
    raise LookupError(f"sidecar/{module} assigns no number to {name}")


def _number(node: ast.expr) -> int | float:
    match node:
        case ast.Constant(value=int() | float() as value):
            return value
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return _number(left) * _number(right)
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            return float(_number(left)) ** _number(right)
        case ast.BinOp(left=left, op=ast.LShift(), right=right):
            return int(_number(left)) << int(_number(right))
    raise LookupError(f"{ast.unparse(node)} is not a number")


def _counted(module: str, name: str, unit: int = 1, words: bool = False) -> Callable[[], str]:
    """Return what says a constant as prose does: in units, with commas, or as a word."""
    return partial(_said, module, name, unit, words)


def _said(module: str, name: str, unit: int, words: bool) -> str:
    value = constant(module, name) / unit
    if words:
        return NUMBERS[int(value)]
    return f"{value:,.10g}"


def images() -> str:
    """Return the number of images that people use: the stages of the Dockerfile that begin with its runtime."""
    return NUMBERS[len(re.findall(r"^FROM runtime AS", (ROOT / "deploy/Dockerfile").read_text("utf-8"), re.MULTILINE))]


def _found(file: str, pattern: str, more: int = 0) -> Callable[[], str]:
    """Return what says a number that stands in a file of the repository, by the text around it."""
    return partial(_found_in, file, pattern, more)


def _found_in(file: str, pattern: str, more: int) -> str:
    (number,) = re.findall(pattern, (ROOT / file).read_text("utf-8"))
    return f"{int(number) + more:,}"


MIB: Final = 2**20

EN_DASH: Final = "\N{EN DASH}"

NUMBERS: Final = (
    "no",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
)


def _default(name: str, dash: str = "-") -> Callable[[], str]:
    """Return what says the default of a setting; `dash` stands between the ends of a range."""
    return lambda: f"{Settings.model_fields[name].default}".removesuffix(".0").replace("-", dash)


def _default_in_words(name: str) -> Callable[[], str]:
    return lambda: NUMBERS[int(Settings.model_fields[name].default)]


def limits(kind: str) -> Callable[[], str]:
    """Return what says how large a kind of record may be, in bytes and in values."""
    return partial(_limits, getattr(record_limits, kind))


def _limits(found: record_limits.RecordLimits) -> str:
    size = f"{found.size // MIB} MiB" if found.size >= MIB else f"{found.size // 2**10} KiB"
    return f"{size} | {found.values:,}"


_SIMULATION: Final = "tests/simulation/test_simulation.py"
_MUTATIONS: Final = "tests/simulation/test_mutations.py"

QUOTED: Final[Mapping[str, Mapping[str, Callable[[], str]]]] = {
    "docs/how-to/best-checkpoint.md": {"at most {}": _counted("settings/values.py", "MOST_EXPORTS")},
    "docs/how-to/checkpoints.md": {
        "At most {} folders are scanned": _counted("checkpoints/subfolders.py", "MOST_FOLDERS"),
        "Beyond the {} folders that changed last": _counted("checkpoints/subfolders.py", "_FOLDERS_PER_SWEEP"),
        "The {} newest folders of SavedModels": _counted("checkpoints/watch.py", "_FOLDERS", words=True),
        "as soon as it was written, up to {} MB": _counted(
            "checkpoints/file_group_reader.py", "_QUICKLY_CHECKED_BYTES", MIB
        ),
        "a map of shards above {} MiB": _counted("checkpoints/formats/keras_shards.py", "MAX_MAP_BYTES", MIB),
        "a zip table above {} MiB": _counted("checkpoints/formats/zip_table.py", "MAX_TABLE_BYTES", MIB),
        "an index above {} MiB": _counted("checkpoints/formats/tf_object.py", "MAX_INDEX_BYTES", MIB),
    },
    "docs/how-to/data.md": {"of at most {} files": _counted("evaluation/data/opened_files.py", "_MOST_FILES")},
    "docs/how-to/docker-compose.md": {"builds {} images": images},
    "docs/how-to/firewall.md": {
        "| {} (`port_range`)": _default("port_range", EN_DASH),
        "tcp dport {} accept": _default("port_range"),
        "tcp dport {} drop": _default("port_range"),
    },
    "docs/how-to/gpus.md": {
        "with {} threads each": _default_in_words("threads"),
        "of nice {}": _counted("system/priority.py", "NICENESS"),
        "`yield_seconds` ({})": _default("yield_seconds"),
    },
    "docs/how-to/hooks.md": {
        "| {}: receivers answer in seconds": _counted("settings/hook_values.py", "TIMEOUT_SECONDS"),
        "hold at most {} MiB each": _counted("publishing/sinks/dead_letters.py", "_MOST_BYTES", MIB),
    },
    "docs/how-to/metrics.md": {
        "at most {}. |": _counted("evaluation/metrics/foreign.py", "_MAX_NUMBERS"),
        "{} at most)": _counted("evaluation/metrics/confusion_matrix.py", "_MOST_CLASSES"),
        "in the order of the data, {} MiB at most": _counted("evaluation/states/gathered_batches.py", "MAX_BYTES", MIB),
    },
    "docs/how-to/slurm.md": {
        "the ports {}:": _default("port_range", " to "),
        "`drain_seconds` ({})": _default("drain_seconds"),
    },
    "docs/how-to/monitoring.md": {
        "serves `/metrics` on `{}`": _default("http"),
        "the time of each phase: {}": lambda: ", ".join(PHASES),
        "with up to {} classes": _counted("publishing/evaluation_archive/confusion.py", "_MOST_CLASSES"),
    },
    "docs/how-to/results.md": {
        "the first {} metrics are plotted": _counted("commands/history_plot.py", "PLOTS_SHOWN", words=True),
        "of its last {} evaluations": _counted("commands/status/live_view.py", "_EVALUATIONS_SHOWN"),
        "for the {} best ones": _counted("coordination/totals.py", "RANKED", words=True),
        "for the newest {} evaluations": _counted("coordination/journal_state.py", "FOLDERS_KEPT"),
    },
    "docs/how-to/see-results.md": {
        "of the last {} evaluations": _counted("commands/status/live_view.py", "_EVALUATIONS_SHOWN")
    },
    "docs/how-to/troubleshooting.md": {
        "each is cut to {} MiB": _counted("daemon/workers/logs.py", "LOG_BYTES", MIB),
        "{} must be open": _default("port_range", EN_DASH),
        "the newest {} are kept": _counted("daemon/workers/logs.py", "LOGS_KEPT"),
    },
    "docs/how-to/write-a-sink.md": {
        "{} times for the same result": _counted("publishing/sinks/delivery.py", "_MOST_PROGRAM_ERRORS", words=True),
        "up to {} s": _counted("publishing/sinks/delivery_thread.py", "_LAST_PAUSE_SECONDS"),
    },
    "docs/how-to/write-a-task.md": {
        "Up to {} numbers may be returned": _counted("evaluation/evaluate_functions.py", "MOST_NUMBERS")
    },
    "docs/explanation/architecture.md": {
        "the newest {} stay": _counted("daemon/workers/logs.py", "LOGS_KEPT"),
        "each cut to {} MiB": _counted("daemon/workers/logs.py", "LOG_BYTES", MIB),
        "never for the newest {}": _counted("coordination/segments.py", "KEPT_PLANS"),
        "and the {} best ones": _counted("coordination/totals.py", "RANKED", words=True),
        "After {} times the bound": _counted("daemon/workers/timeouts.py", "_MOST_WAITING", words=True),
    },
    "docs/explanation/glossary.md": {"up to {} closed plans": _counted("coordination/segments.py", "MOST_PLANS")},
    "docs/explanation/pins.md": {
        "Up to {} MiB, every node": _counted("retention/pins/link_or_copy.py", "_SMALL_BYTES", MIB)
    },
    "docs/explanation/protocol.md": {
        "| plan | {} |": limits("PLAN"),
        "| outcome | {} |": limits("OUTCOME"),
        "| heartbeat | {} |": limits("HEARTBEAT"),
        "| manifest of an export | {} |": limits("MANIFEST"),
        "| snapshot | {} |": limits("SNAPSHOT"),
        "| all others | {} |": limits("SMALL"),
        "{} eval sets,": _counted("protocol/records.py", "MOST_EVAL_SETS"),
        "{} metrics,": _counted("protocol/records.py", "MOST_METRICS"),
        "{} numbers of classes": _counted("protocol/records.py", "MOST_CLASSES"),
        "{} slices,": _counted("protocol/records.py", "MOST_SLICES"),
    },
    "docs/explanation/security.md": {
        "may take {} million steps": _counted("checkpoints/work_budget.py", "MOST_UNITS", 10**6),
        "a header of safetensors has up to {} MiB": _counted(
            "checkpoints/formats/safetensors.py", "MAX_HEADER_BYTES", MIB
        ),
        "an index of TensorFlow {} MiB": _counted("checkpoints/formats/tf_object.py", "MAX_INDEX_BYTES", MIB),
        "an index of shards {} MiB": _counted("checkpoints/formats/shards.py", "MAX_INDEX_BYTES", MIB),
        "a table of a zip archive {} MiB": _counted("checkpoints/formats/zip_table.py", "MAX_TABLE_BYTES", MIB),
    },
    "docs/explanation/testing.md": {
        "`make test` runs {} schedules": _found(_SIMULATION, r"\nSCHEDULES = \[\*range\(1, (\d+)\), \d+, \d+\]", 1),
        "`make test-all` {}, always": _found(_SIMULATION, r"\nMORE_SCHEDULES = range\(\d+, (\d+)\)", -1),
        "none of {} scenarios": _found(_MUTATIONS, r"\nWITHIN = (\d+)"),
        "at least {} mutations": _found(_MUTATIONS, r"len\(AFTER\) >= (\d+)"),
    },
    "docs/explanation/worker-processes.md": {
        "that of nice {}": _counted("system/priority.py", "NICENESS"),
        "for `yield_seconds` ({})": _default("yield_seconds"),
        "computes with {} threads": _default("threads"),
    },
    "docs/tutorial.md": {
        "without it after {} s": lambda: f"{Settings(checkpoint_dir=Path('ckpts')).lease_seconds:g}",
        "open the ports {} between": _default("port_range", " to "),
    },
    "docs/reference/http.md": {"the default is `{}`": _default("http")},
    "docs/reference/state-directory.md": {
        "up to {} plans in each file": _counted("coordination/segments.py", "MOST_PLANS"),
        "or each {} MiB of records": _counted("coordination/segments.py", "MOST_BYTES", MIB),
    },
}
"""Sentences of pages with a number in braces, and what says it now."""


def alerts() -> int:
    """Return the number of alerts that Prometheus is given."""
    rules = (ROOT / "deploy/prometheus/rules/alerts.yml").read_text("utf-8")
    return len({*re.findall(r"^ +- alert: (\w+)", rules, re.MULTILINE)})


def dashboards() -> int:
    """Return the number of Grafana dashboards."""
    return len(list((ROOT / "deploy/grafana/dashboards").glob("*.json")))


COUNTED: Final[Mapping[str, Callable[[], int]]] = {"alerts": alerts, "dashboards": dashboards}
"""Nouns, and how many of each there are."""


def metrics() -> set[str]:
    """Return the metrics of this package for tasks."""
    tree = ast.parse((SOURCES / "metrics.py").read_text("utf-8"))
    parts = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    others = {"metric", "required_packages", "sample", "slice_table", "states"}
    kinds = [part for part in parts if str(part.module).rpartition(".")[2] not in others]
    return {alias.name for part in kinds for alias in part.names}


def threads() -> set[str]:
    """Return the names that the modules of a daemon give to their threads, up to the first value in them."""
    folders = ("checkpoints", "coordination", "daemon", "publishing", "retention", "system")
    paths = [path for folder in folders for path in sorted((SOURCES / folder).rglob("*.py"))]
    paths += [SOURCES / "commands" / name for name in ("many_runs.py", "run_finder.py")]
    sources = (source for path in paths if "Thread" in (source := path.read_text("utf-8")))
    return {name for source in sources for name in _threads(ast.parse(source))}


_MAKES_THREADS: Final = ("threading.Thread", "ThreadPoolExecutor", "super().__init__")  # the last of `DeliveryThread`


def _threads(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in _MAKES_THREADS:
            for keyword in node.keywords:
                match keyword:
                    case ast.keyword(arg="name" | "thread" | "thread_name_prefix", value=ast.Constant(value=str(name))):
                        yield name
                    case ast.keyword(
                        arg="name" | "thread", value=ast.JoinedStr(values=[ast.Constant(value=str(name)), *_])
                    ):
                        yield name.strip()


LISTED: Final[Mapping[str, Mapping[tuple[str, int], Callable[[], set[str]]]]] = {
    "docs/explanation/architecture.md": {("| thread | does | may block on |", 0): threads},
    "docs/explanation/protocol.md": {("| class | kinds | final verdict |", 1): lambda: set(FailureKind)},
    "docs/how-to/hooks.md": {
        ("| hook | is called |", 0): lambda: set(HOOK_NAMES),
        ("| key | meaning | default |", 0): lambda: set(texts("settings/hook_values.py", "_KEYS")),
    },
    "docs/how-to/metrics.md": {("| metric | arguments | numbers | 95 % interval |", 0): metrics},
    "docs/how-to/write-a-task.md": {
        ("## The arguments of `Task`\n\n| argument | meaning |", 0): lambda: {each.name for each in fields(Task)},
        ("## The arguments of `EvalSet`\n\n| argument | meaning |", 0): lambda: {each.name for each in fields(EvalSet)},
    },
    "docs/how-to/troubleshooting.md": {("| kind | what happened | what to do |", 0): lambda: set(FailureKind)},
}
"""Tables of pages, by their first line, with the column whose names are those that the code has."""
