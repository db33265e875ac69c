"""The public module gives its names when they are used."""

import subprocess
import sys

import pytest


def test_the_module_imports_no_framework():
    """A program that only looks at its names is not slowed down."""
    code = (
        "import sys, sidecar.keras as module; "
        "print(sorted(module.__all__)); "
        "print([name for name in ('keras', 'tensorflow', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    names = "['EarlyStop', 'SidecarEvaluator', 'SidecarEvaluatorModelExport']"
    assert done.stdout.splitlines() == [names, "[]"], done.stderr


def test_an_unknown_name_is_an_error():
    """As of any module."""
    import sidecar.keras

    with pytest.raises(AttributeError, match="Evaluater"):
        sidecar.keras.Evaluater  # noqa: B018 - it raises
