"""Rules of the house that no tool checks."""

import ast
import gc
import re
import tomllib
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
ROOT = TESTS.parent
SOURCES = ROOT / "sidecar"
MOST_WORDS = 5
MOST_FIELDS = 15
MOST_UNTESTED = 40  # entries of UNTESTED; it only falls
MOST_PATCHES = 104  # calls of setattr in tests; it only falls
MOST_PRIVATE_READS = 57  # reads of `_name` of objects in tests; it only falls
RIDDLES = ("What", "Whatever", "Who", "Whoever", "Whose", "Of")  # no sentence of a docstring begins with them
UNTESTED = {
    "commands/bootstrap.py": "puts a daemon together; tests/integration starts it",
    "commands/check/state.py": "needs a run on storage; tests/integration/test_check.py",
    "commands/demo/digits.py": "a task that the demo evaluates; tests/commands/demo/test_run.py",
    "commands/demo/digits_torch.py": "a task that the demo evaluates; tests/commands/demo/test_run.py",
    "commands/demo/job.py": "starts the programs of a demo; tests/commands/demo/test_run.py",
    "commands/daemon_process.py": "starts a daemon; tests/integration/test_eval.py",
    "commands/each_run.py": "lets other commands answer for each run; tests/integration/test_many_runs.py",
    "commands/hints.py": "sentences of other commands; tests/commands/test_cli.py",
    "commands/load.py": "settings of all commands; tests/commands/test_cli.py",
    "commands/observed_nodes.py": "nodes of status and check; tests/commands/check/test_peers.py",
    "commands/port_owner.py": "asks a daemon that serves; tests/commands/test_cli.py",
    "commands/served_run.py": "puts the parts of a run together; tests/commands/test_serve.py",
    "commands/status/command.py": "calls the parts of status; tests/commands/status",
    "commands/status/observe.py": "calls the parts of status; tests/commands/status",
    "commands/terminal.py": "streams of a program; tests/commands/test_cli.py",
    "daemon/build.py": "puts a daemon together; every test with fakes.Node",
    "daemon/workers/ray/actor.py": "runs on a Ray cluster; tests/integration/test_ray.py",
    "daemon/workers/ray/bridge.py": "the connection to a Ray cluster; tests/integration/test_ray.py",
    "errors.py": "classes of errors with their exit codes; tests/commands/test_cli.py",
    "evaluation/backend.py": "the interface of a framework; tests/evaluation/test_framework_traits.py",
    "evaluation/backends/tensorflow/collective.py": "needs real groups; tests/daemon/workers/test_group_processes.py",
    "evaluation/backends/tensorflow/libraries.py": "asks which Keras there is; tests that run with both",
    "evaluation/backends/tensorflow/options.py": "reads fields of a message; tests/protocol/test_messages.py",
    "evaluation/backends/tensorflow/saved_layers.py": "layers of configurations; test_saved_configuration.py",
    "evaluation/backends/tensorflow/strategies.py": "needs real workers; tests/integration/test_strategies.py",
    "evaluation/backends/torch/collective.py": "needs real groups; tests/integration/test_torch_faults.py",
    "evaluation/backends/torch/division.py": "needs real workers; tests/daemon/workers/test_several_processes.py",
    "evaluation/followers.py": "needs real workers; tests/daemon/workers/test_several_processes.py",
    "evaluation/backends/torch/content.py": "parts of a file; tests/evaluation/backends/torch/test_restore.py",
    "evaluation/backends/torch/restore_notes.py": "sentences; tests/evaluation/backends/torch/test_restore.py",
    "evaluation/backends/torch/unreduced_loss.py": "a part of losses; tests/evaluation/backends/torch/test_loss.py",
    "evaluation/backends/torch/weight_sets.py": "names of weights; tests/evaluation/backends/torch/test_restore.py",
    "evaluation/main.py": "a worker process; tests/daemon/workers/test_process.py",
    "evaluation/metrics/metric.py": "the interface of a metric; every test in tests/evaluation/metrics",
    "evaluation/remedy.py": "sentences with their keys; tests/keras/test_words.py",
    "publishing/page/run_list.py": "the list of runs; tests/publishing/http/test_run_pages.py",
    "publishing/plain_structlog.py": "settings of a library at import; tests/publishing/test_log.py",
    "publishing/publisher.py": "puts the views together; tests/support/served_run.py, tests/publishing/http",
    "publishing/run_list.py": "a record of a run; tests/publishing/http/test_run_pages.py",
    "publishing/sinks/wandb_process.py": "needs the library of W&B; tests/publishing/sinks/test_wandb.py",
}
"""Modules that do something and have no test file of their own: why, and where they are tested."""

MANY_FIELDS = {
    "Settings",
    "OutputSettings",
    "Task",
    "ExportedNumber",
    "Manifest",
    "Result",
    "RunObserver",
}  # one for each setting, argument, column or key


PARSED = {}
"""The trees of files that a rule has asked for, while the tests of this file run."""


@pytest.fixture(scope="module", autouse=True)
def _without_garbage_collection():
    """Millions of nodes that all stay would be gone through again and again."""
    gc.disable()
    yield
    PARSED.clear()
    gc.enable()


def trees(folder, pattern=""):
    """Yield the path and the tree of each Python file below a folder whose text has a match of the pattern."""
    for path in sorted(folder.rglob("*.py")):
        if re.search(pattern, text := path.read_text()):
            if path not in PARSED:
                PARSED[path] = ast.parse(text)
            yield path, PARSED[path]


def pattern_of(node):
    """Return the text of a string literal, with a placeholder for each value in it."""
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
    if isinstance(node, ast.BinOp):
        return pattern_of(node.left) + pattern_of(node.right)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def patterns_in(tree):
    """Yield the line and the text of each literal that is given as `match=`."""
    for node in ast.walk(tree):
        for keyword in node.keywords if isinstance(node, ast.Call) else ():
            if keyword.arg == "match":
                yield keyword.value.lineno, pattern_of(keyword.value)


def words_of(pattern):
    """Return the words of a pattern, whatever stands between them."""
    return re.sub(r"\.[*+]\??", " ", pattern).split()


def test_sentences_are_recognised():
    """The rule below finds a sentence in a literal, in an f-string and between wildcards."""
    source = (
        'raises(E, match=f"the file {a} is not there")\nraises(E, match="a b.*c d" + "e f")\nraises(E, match="a.*b")'
    )
    assert [(line, len(words_of(text))) for line, text in patterns_in(ast.parse(source))] == [(1, 6), (2, 5), (3, 2)]


def test_no_pattern_of_an_error_is_a_sentence():
    """Messages may be worded anew without a change of tests, so `match=` holds values and at most five words."""
    found = [
        f"{path.relative_to(TESTS)}:{line}: {text}"
        for path, tree in trees(TESTS, r"\bmatch=")
        for line, text in patterns_in(tree)
        if len(words_of(text)) > MOST_WORDS
    ]
    assert not found, "\n".join(found)


def targets_of(node):
    """Return what an assignment assigns to, tuples taken apart."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return [each for target in targets for each in (target.elts if isinstance(target, ast.Tuple) else [target])]


def layers():
    """Return the levels of folders in the contract of import-linter, from top to bottom."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    found = next(each["layers"] for each in contracts if each["name"] == "Arrows point one way")
    levels = [[part.strip().removeprefix("sidecar.") for part in level.split("|")] for level in found]
    return [[name for name in level if (SOURCES / name).is_dir()] for level in levels]


def test_the_order_of_the_folders_is_told_as_it_is():
    """Every folder has a level; the package lists them as import-linter checks them."""
    levels = [level for level in layers() if level]
    names = [name for level in levels for name in level]
    assert sorted(names) == sorted(path.name for path in SOURCES.iterdir() if (path / "__init__.py").is_file())
    listed = re.findall(r"^- `(\w+)`:", (SOURCES / "__init__.py").read_text(), re.MULTILINE)
    assert listed == names


PARTS = ("state", "schedule", "storage_health", "shutdown", "retention", "runner", "tracker", "timers", "statistics")


def foreign_fields(tree):
    """Yield each attribute of one of a daemon's parts that is assigned outside that part."""
    for node in ast.walk(tree):
        for target in targets_of(node) if isinstance(node, ast.Assign | ast.AugAssign) else ():
            owners = ast.unparse(target.value).split(".") if isinstance(target, ast.Attribute) else []
            if owners[-1:] != ["self"] and set(PARTS) & set(owners):
                yield ast.unparse(target)


def test_foreign_fields_are_recognised():
    """The rule below finds an assignment through `self`, through a local name and in a tuple."""
    source = "self.state.a = 1\nstate.b += 1\nself.c, self.state.tracker.d = 1, 2\nself.times.e = other.state.f"
    assert list(foreign_fields(ast.parse(source))) == ["self.state.a", "state.b", "self.state.tracker.d"]


def test_each_part_of_a_daemon_alone_assigns_its_fields():
    """The other parts call its methods, so that one file shows all that can happen to a field."""
    found = {path.name: list(foreign_fields(tree)) for path, tree in trees(SOURCES / "daemon")}
    assert not {name: fields for name, fields in found.items() if fields}


def lost_modules(text, modules):
    """Return the dotted names in backticks that begin with a folder, end as a module does, and are not its path."""
    ends = {module.rpartition(".")[2] for module in modules}
    folders = {part for module in modules for part in module.split(".")[:-1]} - {"keras", "torch", "tensorflow"}
    names = [name.removeprefix("sidecar.") for name in re.findall(r"`([a-z][a-z_0-9]*(?:\.[a-z][a-z_0-9]*)+)`", text)]
    return [
        name
        for name in names
        if name.partition(".")[0] in folders
        and name.rpartition(".")[2] in ends
        and not any(f".{module}".endswith((f".{name}", f".{name.rpartition('.')[0]}")) for module in modules)
    ]


def test_lost_modules_are_recognised():
    """The rule below knows a module by its whole path or by its end, and attributes are not modules."""
    modules = {"protocol.messages", "daemon.workers.pool", "retention.saves.best"}
    assert (
        lost_modules("`protocol.messages`, `sidecar.retention.saves.best`, `saves.best.best`, `a.best`", modules) == []
    )
    assert lost_modules("`workers.messages`, `sidecar.protocol.best`", modules) == ["workers.messages", "protocol.best"]


def test_the_modules_that_docstrings_name_exist():
    """By the folders of today: a module that was moved has another name in the sentences about it, too."""
    paths = sorted(SOURCES.rglob("*.py"))
    modules = {".".join(path.relative_to(SOURCES).with_suffix("").parts) for path in paths}
    found = {str(path.relative_to(ROOT)): lost for path in paths if (lost := lost_modules(path.read_text(), modules))}
    assert found == {}


def fields_of(definition):
    """Return the names of a class's annotated attributes, and of what its methods assign to `self`."""
    annotated = [each for each in definition.body if isinstance(each, ast.AnnAssign)]
    fields = {each.target.id for each in annotated if not ast.unparse(each.annotation).startswith("ClassVar")}
    for node in ast.walk(definition):
        for target in targets_of(node) if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign) else ():
            if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self":
                fields.add(target.attr)
    return fields


def test_fields_are_recognised():
    """The rule below counts annotations, and what any method assigns to `self`."""
    head = "class A:\n  Z: ClassVar[int] = 0\n  a: int\n  b: int = 1\n"
    source = head + "  def f(self):\n    self.c, self.d = 1, 2\n    self.e += other.f"
    assert fields_of(ast.parse(source).body[0]) == {"a", "b", "c", "d", "e"}


def test_classes_of_the_product_have_few_fields():
    """A class with more fields holds several things that have names of their own."""
    found = {
        node.name: fields
        for _, tree in trees(SOURCES, "class")
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and (fields := len(fields_of(node))) > MOST_FIELDS
    }
    assert found.keys() - MANY_FIELDS == set(), found


def does_something(tree):
    """Tell whether a function of the module has a statement, or the module runs one when it is imported."""
    defined = ast.Import | ast.ImportFrom | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    at_import = [each for each in tree.body if not isinstance(each, defined | ast.Assign | ast.AnnAssign | ast.Expr)]
    at_import = [each for each in at_import if not ast.unparse(each).startswith("if TYPE_CHECKING:")]
    functions = [each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
    return bool(at_import) or any(
        not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant))
        for function in functions
        for statement in function.body
    )


def test_modules_that_do_something_are_recognised():
    """Records, enums, protocols, constants and façades do nothing; a property, a function or a loop does something."""
    head = '"""A module."""\nfrom a import b\nif TYPE_CHECKING:\n    import c\nN = 3\nclass A(Protocol):\n  a: int\n'
    assert not does_something(ast.parse(head + '  def f(self):\n    """Return it."""\n  def g(self): ...\n'))
    assert does_something(ast.parse(head + "  def f(self):\n    return 1\n"))
    assert does_something(ast.parse(head + "for each in N:\n  each()\n"))


def test_the_tests_mirror_the_source():
    """`sidecar/a/b.py` is tested by `tests/a/test_b.py`, unless it does nothing or the table excuses it."""
    found = {
        name.as_posix()
        for path, tree in trees(SOURCES)
        if path.name not in {"__init__.py", "__main__.py"}
        and not (TESTS / (name := path.relative_to(SOURCES)).with_name(f"test_{path.name}")).is_file()
        and does_something(tree)
    }
    assert found == UNTESTED.keys(), "\n".join(sorted(found ^ UNTESTED.keys()))
    assert len(found) <= MOST_UNTESTED


def test_what_is_tested_elsewhere_is_tested_there():
    """Every file and folder that a reason names exists."""
    named = {path for reason in UNTESTED.values() for path in re.findall(r"tests/[\w/]+(?:\.py)?", reason)}
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


def is_patch(node):
    """Tell whether a node calls `setattr` or `monkeypatch.setattr`."""
    return isinstance(node, ast.Call) and "setattr" in (getattr(node.func, "attr", ""), getattr(node.func, "id", ""))


def is_private_read(node):
    """Tell whether a node reads `_name` of anything but `self`, `cls`, `super()` or a module of the system or NumPy.

    `_replace` of a named tuple is public.
    """
    if not isinstance(node, ast.Attribute) or not re.match(r"_(?!replace$)[a-z]", node.attr):
        return False
    owner = ast.unparse(node.value)
    return owner not in {"self", "cls", "super()", "os", "sys"} and not re.match(r"np\b", owner)


def riddles_in(text):
    """Return the sentences of a docstring that begin with one of RIDDLES."""
    sentences = re.split(r"(?<=[.!?])\s+", " ".join(text.split()))
    return [each for each in sentences if each.startswith(tuple(f"{word} " for word in RIDDLES))]


def test_patches_private_reads_and_riddles_are_recognised():
    """The rules below find each of them, and nothing that only looks alike."""
    nodes = list(
        ast.walk(ast.parse("patch.setattr(os, 'x', 1)\nsetattr(a, 'b', c)\na.set(b)\na.b._c(self._d)\nos._exit(0)"))
    )
    assert (sum(map(is_patch, nodes)), sum(map(is_private_read, nodes))) == (2, 1)
    assert riddles_in("Whatever it is. Offer it.\nOf all. What?") == ["Whatever it is.", "Of all."]


def test_tests_patch_and_look_inside_ever_less():
    """The product takes clocks, storage and starters as arguments."""
    nodes = [node for _, tree in trees(TESTS, r"\bsetattr\(|\._[a-z]") for node in ast.walk(tree)]
    assert sum(map(is_patch, nodes)) <= MOST_PATCHES
    assert sum(map(is_private_read, nodes)) <= MOST_PRIVATE_READS


def test_docstrings_of_tests_are_sentences_of_nouns_and_verbs():
    """A sentence has a noun or an imperative as its subject."""
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    found = [
        sentence
        for _, tree in trees(TESTS, rf"\b({'|'.join(RIDDLES)})\s")
        for node in ast.walk(tree)
        if isinstance(node, kinds)
        for sentence in riddles_in(ast.get_docstring(node) or "")
    ]
    assert found == [], "\n".join(found)
