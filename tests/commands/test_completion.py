"""Print scripts with which shells complete commands, options and folders."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(type_, shell):
    """It goes where the shell looks for it."""
    code, out, _ = type_("completion", shell)
    assert code == 0
    assert "_SIDECAR_COMPLETE" in out


def test_bash_completes_commands_and_options(type_, tmp_path):
    """Ask a real bash for the words that it offers with the printed script."""
    program = Path(sys.executable).with_name("sidecar")
    printed = tmp_path / "completion"
    printed.write_text(type_("completion", "bash")[1])
    script = (
        f". {printed}; PATH={program.parent}:$PATH; "
        'COMP_WORDS=(sidecar "$1"); COMP_CWORD=1; '
        '[ -z "$2" ] || { COMP_WORDS=(sidecar "$1" "$2"); COMP_CWORD=2; }; '
        '_sidecar_completion sidecar; echo "${COMPREPLY[@]}"'
    )

    def offered(*words):
        done = subprocess.run(
            ["bash", "-c", script, "bash", *words],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            timeout=240,
            check=True,
        )
        return done.stdout.split()

    assert offered("st") == ["status"]
    assert "--once" in offered("run", "--o")


def test_zsh_completes_without_any_other_completion(type_, needs, tmp_path):
    """The script defines what it needs; a real zsh evaluates what the program offers for a word."""
    zsh = needs("zsh")
    printed = tmp_path / "completion"
    printed.write_text(type_("completion", "zsh")[1])
    program = Path(sys.executable).with_name("sidecar")
    script = (
        f"export PATH={program.parent}:$PATH; . {printed}; print -r -- $_comps[sidecar]; "
        "_arguments() { print -r -- $* }; words=(sidecar st); CURRENT=2; _sidecar_completion"
    )
    done = subprocess.run(
        [zsh, "-f", "-c", script], capture_output=True, text=True, timeout=240, env={"HOME": str(tmp_path)}, check=True
    )
    assert done.stderr == ""
    name, offered = done.stdout.split(maxsplit=1)
    assert name == "_sidecar_completion"
    assert "status" in offered


def test_fish_completes_commands_options_and_folders(type_, here, needs):
    """Asked of a real fish with the printed script."""
    fish = needs("fish")
    (here / "ckpts").mkdir()
    printed = here / "completion"
    printed.write_text(type_("completion", "fish")[1])
    program = Path(sys.executable).with_name("sidecar")

    def offered(words):
        script = f"set -x PATH {program.parent} $PATH; source {printed}; complete -C '{words}'"
        done = subprocess.run(
            [fish, "-c", script], capture_output=True, text=True, timeout=240, env={"HOME": str(here)}, cwd=here
        )
        return [line.split("\t")[0] for line in done.stdout.splitlines()]

    assert offered("sidecar st") == ["status"]
    assert "--once" in offered("sidecar run --o")
    assert "ckpts/" in offered("sidecar status ck")
