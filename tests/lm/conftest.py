"""Let the tests import lm-eval, which lies in an environment of its own, and let nothing be fetched."""

import sys
from pathlib import Path

import pytest

PACKAGES = Path(__file__).parents[2] / ".venv-lm" / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
"""Where `make test-all` installs lm-eval. Its frameworks are those of the environment of the tests."""


@pytest.fixture(scope="session")
def lm_eval(needs):
    """The module of the harness."""
    needs("lm-eval", PACKAGES.parents[2] / "bin")
    sys.path.append(str(PACKAGES))
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import lm_eval
    yield lm_eval
    sys.path.remove(str(PACKAGES))


@pytest.fixture(autouse=True)
def offline(monkeypatch, tmp_path_factory):
    """No test reads what another program fetched, or fetches anything."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path_factory.getbasetemp() / "datasets"))
