"""Let the tests import lm-eval, which lies in an environment of its own, and let nothing be fetched."""

import os
import sys
import types
from pathlib import Path

import pytest
from lm import tiny

PACKAGES = Path(__file__).parents[2] / ".venv-lm" / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
"""Where `make test-all` installs lm-eval. Its frameworks are those of the environment of the tests."""


@pytest.fixture(scope="module")
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


@pytest.fixture(scope="module")
def made(lm_eval, tmp_path_factory):  # noqa: ARG001 - it can be imported then
    """A checkpoint, a folder with configuration and tokenizer, and tasks."""
    import torch

    folder = tmp_path_factory.mktemp("lm")
    tiny.tokenizer(folder / "base")
    tiny.config().save_pretrained(folder / "base")
    trained = tiny.build_model()
    torch.save({"model": trained.state_dict()}, folder / "step-1.pt")
    names = tiny.write_tasks(folder / "tasks")
    tiny.write_tasks(folder / "few", documents=3)
    return types.SimpleNamespace(folder=folder, trained=trained.eval(), names=names, checkpoint=folder / "step-1.pt")


@pytest.fixture(scope="module", autouse=True)
def _environment():
    """Remove the variables that transformers and lm-eval set when they are imported, and when a model generates."""
    before = {*os.environ}
    yield
    for name in os.environ.keys() - before:
        del os.environ[name]


@pytest.fixture(autouse=True)
def offline(monkeypatch, tmp_path_factory):
    """No test reads what another program fetched, or fetches anything."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path_factory.getbasetemp() / "datasets"))
