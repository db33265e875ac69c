"""Tell in one sentence what an environment lacks, without a traceback through the modules of this program."""

import subprocess
import sys

import pytest

from sidecar.system.required_packages import requiring


@pytest.mark.parametrize(
    ("package", "line", "module"),
    [
        ("keras", "from sidecar.keras import EarlyStop", "sidecar.keras"),
        ("tensorflow", "from sidecar.keras import SidecarEvaluator", "sidecar.keras"),
    ],
)
def test_the_environment_of_the_daemon_may_lack_a_package(package, line, module):
    """One sentence with the remedy names the module that was imported, the package, and the interpreter."""
    blocked = f"import sys; sys.modules[{package!r}] = None; {line}"
    done = subprocess.run([sys.executable, "-c", blocked], capture_output=True, text=True, timeout=240)
    *above, last = done.stderr.splitlines()
    assert last.startswith(f"ImportError: {module} needs {package}, which {sys.executable} lacks")
    assert "sidecar/evaluation" not in "".join(above)


def test_another_missing_module_is_told_as_it_is():
    """A bug of this program, or a broken installation, keeps its traceback."""
    with pytest.raises(ModuleNotFoundError, match="nowhere"), requiring("numpy", by="sidecar.metrics"):
        import nowhere  # noqa: F401
