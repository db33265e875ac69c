"""Find the Python interpreter of the user's training."""

import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from sidecar.system.training_python import line_to_write, training_python


@pytest.fixture
def environment(tmp_path):
    """Make an environment that has some modules, and return its folder."""

    def make(name, *modules):
        venv.create(tmp_path / name, symlinks=True, with_pip=False)
        for module in modules:
            Path(sysconfig.get_path("purelib", vars={"base": str(tmp_path / name)}), f"{module}.py").touch()
        return tmp_path / name

    return make


def python_of(folder):
    return folder / "bin" / "python"


@pytest.mark.parametrize("variable", ["VIRTUAL_ENV", "CONDA_PREFIX"])
def test_an_active_environment_is_found(environment, variable):
    """Also if the own interpreter has the modules: the person activated the other one."""
    train, own = environment("train", "numbers1", "frame"), environment("own", "numbers1", "frame")
    found = training_python("numbers1", "frame", environ={variable: str(train)}, own=str(python_of(own)))
    assert found == (python_of(train), variable)


def test_an_environment_that_lacks_a_module_is_passed_over(environment):
    """The next one may have it."""
    train, other, own = environment("train", "frame"), environment("other"), environment("own")
    environ = {"VIRTUAL_ENV": str(other), "CONDA_PREFIX": str(train)}
    assert training_python("frame", environ=environ, own=str(python_of(own))) == (python_of(train), "CONDA_PREFIX")


def test_the_own_environment_stays_if_it_is_active(environment):
    """Nothing has to be written then."""
    train, own = environment("train", "frame"), environment("own", "frame")
    environ = {"VIRTUAL_ENV": str(own), "CONDA_PREFIX": str(train)}
    assert training_python("frame", environ=environ, own=str(python_of(own))) is None


def test_the_python_on_the_path_is_found_if_it_is_needed(environment):
    """Nobody activated it, so it does not replace an interpreter that has the modules."""
    train, own = environment("train", "frame"), environment("own")
    environ = {"PATH": str(train / "bin")}
    found = training_python("frame", environ=environ, own=str(python_of(own)))
    assert found == (train / "bin" / "python3", "python3 on the PATH")
    Path(sysconfig.get_path("purelib", vars={"base": str(own)}), "frame.py").touch()
    assert training_python("frame", environ=environ, own=str(python_of(own))) is None


def test_a_script_that_chooses_an_interpreter_is_looked_through(environment, tmp_path):
    """A script such as pyenv's chooses by the current directory, so the interpreter behind it is used instead."""
    train, own = environment("train", "frame"), environment("own")
    script = tmp_path / "shims" / "python3"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\nexec {python_of(train)} "$@"\n')
    script.chmod(0o755)
    environ = {"PATH": f"{script.parent}:/usr/bin:/bin"}
    found = training_python("frame", environ=environ, own=str(python_of(own)))
    assert found == (python_of(train), "python3 on the PATH")
    assert training_python("frame", environ=environ, own=str(python_of(train))) is None


def test_the_line_to_write(environment):
    """With the Python that has the module, or else with a place for it, before any advice to install something."""
    train, own = environment("train", "frame"), environment("own")
    line = line_to_write("frame", environ={"VIRTUAL_ENV": str(train)}, own=str(python_of(own)))
    assert f'worker_python = "{python_of(train)}"' in line
    assert f"SIDECAR_WORKER_PYTHON={python_of(train)}" in line
    assert "install" not in line
    line = line_to_write("frame", environ={"VIRTUAL_ENV": "/nowhere"}, own=sys.executable)
    assert line.index('worker_python = "/') < line.index("install it")
