"""Show what the daemon's side imports: no framework, and nothing that a plain install does not bring."""

import json
import re
import subprocess
import sys
from importlib.metadata import distribution, packages_distributions

import pytest

FRAMEWORKS = {"tensorflow", "keras", "tf_keras", "torch", "numpy"}
LOOKED_FOR = {"attrs", "greenlet"}  # rich and structlog care for them where they are, and do without elsewhere

OF_USERS = {
    "evaluation",
    "commands.demo",
    "keras",
    "lm",
    "metrics",
    "results",
}  # only workers and users' code import them

EVERYTHING = f"""
import importlib, json, pkgutil, sys
import sidecar, sidecar.commands.cli, sidecar.commands.serve
def walk(package):
    for each in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        if each.name.removeprefix("sidecar.") not in {OF_USERS}:
            module = importlib.import_module(each.name)
            if each.ispkg:
                walk(module)
walk(sidecar)
from sidecar import Task
print(json.dumps(sorted(sys.modules)))
"""


@pytest.fixture(scope="module")
def imported():
    """Names of all modules that are there once everything but what users' own code imports is imported."""
    done = subprocess.run([sys.executable, "-c", EVERYTHING], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


def test_no_framework_is_imported(imported):
    """The daemon, the commands and `from sidecar import Task` do without."""
    assert "sidecar.daemon.loop" in imported
    assert {name.partition(".")[0] for name in imported} & FRAMEWORKS == set()


def test_the_daemon_imports_no_rich():
    """It writes tracebacks plainly; the commands that draw tables find rich as ever."""
    code = "import sys, sidecar.commands.serve; assert 'rich' not in sys.modules; import rich.table"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_only_declared_dependencies_are_imported(imported):
    """The package imports only its declared dependencies, since others may be installed here and missing elsewhere."""
    owners = packages_distributions()
    used = {_normal(owner) for name in imported if "." not in name for owner in owners.get(name, ())}
    # Those of the interpreter's own start-up: `.pth` files of tools.
    bare = subprocess.run(
        [sys.executable, "-c", "import sys; print(*sys.modules)"], capture_output=True, text=True, check=True
    )
    used -= {_normal(owner) for name in bare.stdout.split() for owner in owners.get(name, ())}
    assert used - LOOKED_FOR <= _required_by("sidecar-evaluator"), "not brought by a plain install"


def _required_by(name, seen=None):
    """A distribution and all that it requires without extras."""
    seen = set() if seen is None else seen
    if _normal(name) not in seen:
        seen.add(_normal(name))
        for requirement in distribution(name).requires or ():
            if "extra ==" not in requirement:
                required = re.match(r"[\w.-]+", requirement)[0]
                if _normal(required) in _INSTALLED:
                    _required_by(required, seen)
    return seen


def _normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


_INSTALLED = {_normal(owner) for owners in packages_distributions().values() for owner in owners}


def test_a_worker_of_one_process_imports_nothing_that_divides_tensors(tmp_path):
    """It evaluates a PyTorch model without 44 MB of modules, `sympy` among them, which only several processes need."""
    code = f"""
import sys, torch
import sidecar.evaluation.backends.torch.backend
from sidecar import Task
from sidecar.evaluation.backends.torch.evaluator import TorchEvaluator
from sidecar.evaluation.data.shard import Shard
torch.save(torch.nn.Linear(2, 2).state_dict(), {str(tmp_path / "model.pt")!r})
data = torch.utils.data.TensorDataset(torch.ones(5, 2), torch.zeros(5).long())
task = Task(lambda: torch.nn.Linear(2, 2), {{"test": lambda: data}}, loss=torch.nn.CrossEntropyLoss(), batch_size=4)
evaluator = TorchEvaluator.build(task, Shard(0, 1), cache_bytes=1 << 20, device=torch.device("cpu"))
evaluator.read(lambda: None)
evaluator.restore({str(tmp_path / "model.pt")!r})()
assert evaluator.compute(evaluator.evaluate(lambda: None))["test"].values["loss"].value > 0
print(*{{"sympy", "torch.distributed.tensor", "torch.distributed.fsdp", "torch._dynamo"}} & sys.modules.keys())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "\n", "")
