"""Fill the parts of hand-written pages that the code decides. `make reference` writes them, `make docs` compares them.

A part stands between `<!-- generated: NAME -->` and `<!-- end of NAME -->`, in lines of its own or within a sentence.
"""

import ast
import json
import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from sidecar import errors
from sidecar.settings.values import FORMATS

ROOT: Final = Path(__file__).parents[1]
SOURCES: Final = ROOT / "sidecar"
DECISIONS: Final = ROOT / "docs/adr"

_BLOCK: Final = re.compile(r"<!-- generated: (?P<name>[\w-]+) -->.*?<!-- end of (?P=name) -->", re.DOTALL)
_MARK: Final = re.compile(r"<!-- (?:generated:|end of) ([\w-]+) -->")


class UnknownBlockError(Exception):
    """A page has a mark that is not closed, or that names no block."""


def filled(text: str) -> str:
    """Return the text of a page with the newest content of each block. Raises `UnknownBlockError`."""
    found = [match["name"] for match in _BLOCK.finditer(text)]
    marks = _MARK.findall(text)
    if odd := {name for name in marks if name not in BLOCKS or marks.count(name) != 2 * found.count(name)}:
        raise UnknownBlockError(f"no whole block of a known name: {', '.join(sorted(odd))}")
    return _BLOCK.sub(lambda match: _marked(match["name"]), text)


def _marked(name: str) -> str:
    content = BLOCKS[name]()
    around = "\n\n" if "\n" in content else ""
    return f"<!-- generated: {name} -->{around}{content}{around}<!-- end of {name} -->"


def levels() -> list[list[str]]:
    """Return the folders of the package by their levels, from top to bottom, as import-linter checks them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = project["tool"]["importlinter"]["contracts"]
    (layers,) = (each["layers"] for each in contracts if each["name"] == "Arrows point one way")
    names = [[part.strip().removeprefix("sidecar.") for part in level.split("|")] for level in layers]
    return [kept for level in names if (kept := [name for name in level if (SOURCES / name).is_dir()])]


def importers(library: str) -> list[Path]:
    """Return the modules of the package that import a library or a module of the package, wherever they do."""
    named = (path for path in sorted(SOURCES.rglob("*.py")) if library in path.read_text(encoding="utf-8"))
    return [path for path in named if library in {*_imported(path)}]


def _imported(path: Path) -> Iterator[str]:
    for node in ast.walk(_tree(path)):
        match node:
            case ast.Import(names=names):
                yield from (each.name.partition(".")[0] for each in names)
            case ast.ImportFrom(module=str(name), names=names, level=0):
                yield from (name.partition(".")[0], name, *(f"{name}.{each.name}" for each in names))


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _first_sentence(path: Path) -> str:
    text = " ".join((ast.get_docstring(_tree(path)) or "").partition("\n\n")[0].split())
    return re.split(r"(?<=\.) ", text)[0]


def _folders() -> str:
    docstring = ast.get_docstring(_tree(SOURCES / "__init__.py")) or ""
    holds = dict(re.findall(r"^- `(\w+)`: (.*)$", docstring, re.MULTILINE))
    rows = [f"| {n} | `{name}` | {holds[name]} |" for n, level in enumerate(levels(), start=1) for name in level]
    return "\n".join(["| level | folder of `sidecar/` | holds |", "|---|---|---|", *rows])


def _public_modules() -> str:
    docstring = ast.get_docstring(_tree(SOURCES / "__init__.py")) or ""
    public = re.findall(r"`sidecar\.(\w+)`", docstring.partition("\n- ")[0])
    return ", ".join(f"`{name}`" for name in public if (SOURCES / f"{name}.py").is_file())


def _starts_processes() -> str:
    rows = [f"| `{path.relative_to(ROOT)}` | {_first_sentence(path)} |" for path in importers("sidecar.system.child")]
    return "\n".join(["| module | does |", "|---|---|", *rows])


def _watches_files() -> str:
    return ", ".join(f"`{path.relative_to(ROOT)}`" for path in importers("watchdog"))


def _formats() -> str:
    return ", ".join(f"`{name}`" for name in FORMATS)


def _exit_codes() -> str:
    rows = [f"| {code} | {meaning} |" for code, meaning in errors.EXIT_CODES.items()]
    return "\n".join(["| exit code | meaning |", "|---|---|", *rows])


def _decisions() -> str:
    titles = [(path.name, path.read_text(encoding="utf-8").splitlines()[0]) for path in sorted(DECISIONS.glob("0*.md"))]
    return "\n".join(re.sub(r"# (\d+\. )(.*)", rf"\1[\2]({name})", title) for name, title in titles)


def texts(module: str, name: str) -> list[str]:
    """Return the texts of a tuple that a module of the package assigns to a name, without the import of the module."""
    for node in _tree(SOURCES / module).body:
        match node:
            case ast.AnnAssign(target=ast.Name(id=found), value=ast.Tuple() as value) if found == name:
                return [str(text) for text in ast.literal_eval(value)]
    raise LookupError(f"sidecar/{module} assigns no tuple to {name}")


def _listed(module: str, name: str) -> Callable[[], str]:
    return lambda: ", ".join(f"`{text}`" for text in texts(module, name))


def _slowdown() -> str:
    """Return what the newest benchmark says about the steps of training next to an evaluation."""
    results = (ROOT / "tests/benchmarks/RESULTS.md").read_text(encoding="utf-8")
    table = results.partition("\n## Trainer:")[2].partition("\n## ")[0]
    rows = {name.strip(): rest.split("|") for name, rest in re.findall(r"^\| ([^|]+)\|(.*)\|$", table, re.MULTILINE)}
    alone, beside, torch_alone, torch_beside = (
        f"{float(rows[name][2]):.2f}"
        for name in (
            *("pinned", "unpinned, worker niced"),
            *("PyTorch, pinned", "PyTorch, unpinned, worker niced"),
        )
    )
    return (
        f"{alone} times as long with TensorFlow and {torch_alone} times with PyTorch where each had a core of its own, "
        f"and {beside} and {torch_beside} times where both used the same two cores"
    )


def _time_evaluating() -> str:
    """Return for which share of the time the worker next to the trainer evaluated, in the newest benchmark."""
    table = json.loads((ROOT / "tests/benchmarks/results/trainer.json").read_text(encoding="utf-8"))
    rows = (cells for cells in table["rows"] if not cells[0].startswith("inline"))  # those with a daemon
    shares = sorted(int(cells[table["columns"].index("time evaluating")].rstrip("%")) for cells in rows)
    return f"{shares[0]} to {shares[-1]} % of the time"


def _refused_with_load() -> str:
    """Return the arguments of `Task` that a task with `load` and `predict` must not have."""
    task = _tree(SOURCES / "evaluation/task.py")
    (method,) = (node for node in ast.walk(task) if getattr(node, "name", "") == "_check_loaded_model")
    loops = [node.iter for node in ast.walk(method) if isinstance(node, ast.For)]
    (names,) = ([str(name) for name in ast.literal_eval(each)] for each in loops if isinstance(each, ast.Tuple))
    *first, last = (f"`{name}`" for name in names)
    return f"{', '.join(first)} and {last}"


def _cost_of_checks() -> str:
    """Return what the checks of a first evaluation add to it, by framework, as the newest benchmark measured it."""
    table = json.loads((ROOT / "tests/benchmarks/results/checks.json").read_text(encoding="utf-8"))
    ratio = table["columns"].index("ratio")  # the first one is that of a first evaluation
    more = {cells[0]: 100 * (cells[ratio] - 1) for cells in table["rows"]}
    names = {"torch": "PyTorch", "python": '`framework = "python"`', "tensorflow": "TensorFlow"}
    shares = [f"{max(0.0, more[key]):.1f} % more with {name}".replace("0.0 %", "0 %") for key, name in names.items()]
    return f"{shares[0]}, {shares[1]} and {shares[2]}"


def _measured(topic: str, column: str, *row: str | float) -> Callable[[], str]:
    """Return what gives a cell of the table that a benchmark wrote: in `column`, of the row that begins so."""

    def cell() -> str:
        table = json.loads((ROOT / f"tests/benchmarks/results/{topic}.json").read_text(encoding="utf-8"))
        (found,) = (cells for cells in table["rows"] if cells[: len(row)] == [*row])
        value = found[table["columns"].index(column)]
        return f"{value:.1f}" if isinstance(value, float) else str(value).replace("%", " %")

    return cell


def _sample_coverage() -> str:
    """Return how often the intervals of each number contain the truth, over the data of the benchmark."""
    table = json.loads((ROOT / "tests/benchmarks/results/sample_coverage.json").read_text(encoding="utf-8"))
    found: dict[str, dict[int, list[float]]] = {}
    for number, data, examples, left_out, _, contain in table["rows"]:
        is_few = "2 errors" in data and examples == _FEW_EXAMPLES
        name = "any of them with 2 wrong of 100" if is_few else f"{number}{' (left out)' if left_out else ''}"
        if contain and not (is_few and left_out):
            found.setdefault(name, {}).setdefault(examples, []).append(float(contain.rstrip("%")))
    few = {name: shares for name, shares in found.items() if name.startswith("any")}
    ordered = sorted(found.keys() - few.keys(), key=lambda name: (name.endswith(")"), list(found).index(name)))
    rows = [
        f"| {name} | {' | '.join(_range(found[name].get(examples, [])) for examples in (_FEW_EXAMPLES, 1000))} |"
        for name in (*ordered, *few)
    ]
    return "\n".join(["| number | 100 examples | 1,000 examples |", "|---|---|---|", *rows])


_FEW_EXAMPLES: Final = 100


def _range(shares: list[float]) -> str:
    if not shares:
        return ""
    least, most = min(shares), max(shares)
    return f"{least:.1f} %" if least == most else f"{least:.1f} to {most:.1f} %"


_EQUAL: Final = ("false best", 1000, 0.9)
_BETTER: Final = (1000, 0.9, "", 25)

_ROWS: Final = ("accuracy 0.8 of rows in groups", 1000)
_RARE: Final = "mean of values, 1 % of them 100 times larger"
_SKEWED: Final = "mean of very skewed values (lognormal)"

BLOCKS: Final[dict[str, Callable[[], str]]] = {
    "folders": _folders,
    "public-modules": _public_modules,
    "starts-processes": _starts_processes,
    "watches-files": _watches_files,
    "formats": _formats,
    "exit-codes": _exit_codes,
    "decisions": _decisions,
    "slowdown": _slowdown,
    "time-evaluating": _time_evaluating,
    "cost-of-checks": _cost_of_checks,
    "refused-with-load": _refused_with_load,
    "early-stop-before": _measured("early_stop", "slow: lost", "100%", 5, "patience alone"),
    "early-stop-lost": _measured("early_stop", "slow: lost", "100%", 5, "levelled off"),
    "early-stop-3-before": _measured("early_stop", "slow: lost", "100%", 3, "patience alone"),
    "early-stop-3": _measured("early_stop", "slow: lost", "100%", 3, "levelled off"),
    "early-stop-flat": _measured("early_stop", "flat: evaluations", "100%", 5, "levelled off"),
    "early-stop-flat-before": _measured("early_stop", "flat: evaluations", "100%", 5, "patience alone"),
    "early-stop-sticky": _measured("early_stop", "slow: lost", "30%", 5, "levelled off"),
    "looks-95-1000": _measured("many_looks", "usual", *_EQUAL, "100%"),
    "looks-1000": _measured("many_looks", "many looks", *_EQUAL, "100%"),
    "looks-95-1000-sticky": _measured("many_looks", "usual", *_EQUAL, "30%"),
    "looks-1000-sticky": _measured("many_looks", "many looks", *_EQUAL, "30%"),
    "looks-95-found": _measured("many_looks", "usual", "found", *_BETTER),
    "looks-found": _measured("many_looks", "many looks", "found", *_BETTER),
    "looks-95-once": _measured("many_looks", "usual", "at once", *_BETTER),
    "looks-once": _measured("many_looks", "many looks", "at once", *_BETTER),
    "groups-50-before": _measured("coverage", "before", *_ROWS, 50, 0.2),
    "groups-50": _measured("coverage", "now", *_ROWS, 50, 0.2),
    "groups-20-before": _measured("coverage", "before", *_ROWS, 20, 0.2),
    "groups-20": _measured("coverage", "now", *_ROWS, 20, 0.2),
    "groups-200-before": _measured("coverage", "before", *_ROWS, 200, 0.3),
    "groups-200": _measured("coverage", "now", *_ROWS, 200, 0.3),
    "skewed-20-before": _measured("coverage", "before", _SKEWED, 20),
    "rare-100": _measured("coverage", "now", _RARE, 100),
    "rare-1000": _measured("coverage", "now", _RARE, 1000),
    "rare-any": _measured("coverage", "now", f"{_RARE}, if any", 100),
    "rare-none": _measured("coverage", "now", f"{_RARE}, if none", 100),
    "sums-100": _measured("coverage", "now", "Sums: F1", 100),
    "sums-1000": _measured("coverage", "now", "Sums: F1", 1000),
    "sample-coverage": _sample_coverage,
    "skewed-20": _measured("coverage", "now", _SKEWED, 20),
    "skewed-1000": _measured("coverage", "now", _SKEWED, 1000),
    "step-keys": _listed("checkpoints/formats/format.py", "STEP_KEYS"),
    "variables-of-the-job": _listed("daemon/workers/environment.py", "_OF_THE_JOB"),
}
"""Every block by its name."""
