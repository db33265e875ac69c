"""The unit as systemd reads it, the settings it names, and what its scripts put where.

Under a real systemd it is tried by `make try-systemd`.
"""

import configparser
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from sidecar.errors import SidecarError
from sidecar.policy.roles import decide_role
from sidecar.settings import Settings, load

pytestmark = pytest.mark.takes_turns(3)

FOLDER = Path(__file__).parents[2] / "systemd"
UNIT = FOLDER / "sidecar@.service"
EXPOSURE_LIMIT = 2.5
BACKOFF_SINCE = 254  # the systemd that reads RestartSteps

Needs = Callable[[str], str]


@pytest.fixture
def units(tmp_path: Path) -> Path:
    """A folder that systemd may read units from: ours, with a program that exists on this machine."""
    folder = tmp_path / "units"
    folder.mkdir()
    text = UNIT.read_text().replace("/opt/sidecar/bin/sidecar", sys.executable)
    (folder / UNIT.name).write_text(text)
    (folder / "sidecar.slice").write_text((FOLDER / "sidecar.slice").read_text())
    return folder


def dropped_in(units: Path, *names: str) -> Path:
    """Put drop-ins beside the unit."""
    folder = units / "sidecar@.service.d"
    folder.mkdir()
    for name in names:
        (folder / name).write_text((FOLDER / name).read_text())
    return units


def verify(systemd_analyze: str, units: Path) -> str:
    """Return what systemd has to say about an instance; it exits with 0 even where it ignores a line."""
    done = subprocess.run(
        [systemd_analyze, "verify", "sidecar@digits.service", "sidecar.slice"],
        env=os.environ | {"SYSTEMD_UNIT_PATH": f"{units}:"},
        capture_output=True,
        text=True,
    )
    return f"{done.stdout}{done.stderr}" + (f"exit code {done.returncode}" if done.returncode else "")


def assess(systemd_analyze: str, units: Path) -> tuple[float, list[str]]:
    """Exposure from 0 to 10, and the directives that systemd counts as missing."""
    names = sorted(path.name for path in (units / "sidecar@.service.d").glob("*.conf"))
    joined = units / "joined@.service"  # offline, it reads one file alone
    joined.write_text(
        "\n".join(
            path.read_text() for path in (units / UNIT.name, *(units / "sidecar@.service.d" / name for name in names))
        )
    )
    command = [systemd_analyze, "security", "--offline=yes", str(joined)]
    shown = subprocess.run(command, capture_output=True, text=True).stdout
    level = re.search(r"Overall exposure level for \S+: ([\d.]+)", shown)
    assert level, shown
    rows = json.loads(subprocess.run([*command, "--json=short"], capture_output=True, text=True).stdout)
    return float(level[1]), [row["name"] for row in rows if row["set"] is False]


def directives(path: Path) -> dict[str, str]:
    """The service's directives; of one that is given more than once, the last."""
    parser = configparser.RawConfigParser(strict=False, delimiters=("=",), comment_prefixes=("#",))
    parser.optionxform = str
    parser.read(path)
    return dict(parser["Service"])


def seconds(span: str) -> float:
    """A time span of the forms used here."""
    number, unit = re.fullmatch(r"(\d+)(s|min)", span).groups()
    return int(number) * {"s": 1, "min": 60}[unit]


@pytest.mark.parametrize("drop_ins", [(), ("site.conf",), ("gpu.conf",), ("site.conf", "gpu.conf")])
def test_systemd_reads_the_unit_without_a_warning(needs: Needs, units: Path, drop_ins: tuple[str, ...]) -> None:
    """Every line is understood, with and without the drop-ins."""
    assert verify(needs("systemd-analyze"), dropped_in(units, *drop_ins)) == ""


def test_a_misspelt_line_is_noticed(needs: Needs, units: Path) -> None:
    """The check above can fail."""
    unit = units / UNIT.name
    unit.write_text(unit.read_text().replace("WatchdogSec=", "WatchDogSeconds="))
    assert "WatchDogSeconds" in verify(needs("systemd-analyze"), units)


def test_growing_pauses_are_read_where_they_exist(needs: Needs, units: Path) -> None:
    """The drop-in that `install` adds under newer versions is understood by them."""
    program = needs("systemd-analyze")
    version = int(subprocess.run([program, "--version"], capture_output=True, text=True).stdout.split()[1])
    if version < BACKOFF_SINCE:
        pytest.skip(f"systemd {version} has no growing pauses")
    assert verify(program, dropped_in(units, "backoff.conf")) == ""


@pytest.mark.parametrize("drop_ins", [(), ("site.conf",), ("gpu.conf",), ("site.conf", "gpu.conf")])
def test_the_exposure_is_low(needs: Needs, units: Path, drop_ins: tuple[str, ...]) -> None:
    """As `systemd-analyze security` counts it, also with the GPUs' device files."""
    level, _ = assess(needs("systemd-analyze"), dropped_in(units, *drop_ins))
    assert level <= EXPOSURE_LIMIT


def test_each_protection_that_is_left_out_has_a_reason(needs: Needs, units: Path) -> None:
    """Options that systemd counts as missing stand in a comment, or are given with a weaker value below one."""
    _, missing = assess(needs("systemd-analyze"), dropped_in(units))
    assert "PrivateNetwork=" in missing  # the list is read as it should be
    text = UNIT.read_text()
    comments = "\n".join(line for line in text.splitlines() if line.startswith("#"))
    explained = {match for line in comments.splitlines() for match in re.findall(r"@?\w+", line)}
    below_a_comment = set(re.findall(r"^#.*\n(\w+)=", text, re.MULTILINE))
    for name in missing:
        directive, _, value = name.partition("=~")
        wanted = {part.rstrip("=") for part in directive.split("/")} | ({value} if value else set())
        assert wanted & (explained | below_a_comment), f"{name} is left out without a word"


def test_what_a_person_must_mend_is_not_tried_again() -> None:
    """The exit codes of all errors that trying again cannot help with, and no others."""

    def tree(error: type[SidecarError]) -> list[type[SidecarError]]:
        return [error, *(found for child in error.__subclasses__() for found in tree(child))]

    prevented = {int(code) for code in directives(UNIT)["RestartPreventExitStatus"].split()}
    final = {error.exit_code for error in tree(SidecarError) if not error.retryable}
    may_pass = {4, 70}  # storage, and bugs, which may be races
    assert prevented == final - may_pass


def test_it_has_the_time_it_needs() -> None:
    """Starting, draining and turning the loop fit into what systemd waits for."""
    unit = directives(UNIT)
    defaults = Settings(checkpoint_dir=Path("/checkpoints"))
    farewell = 4 + 2 + 2  # said to storage, the last request, the HTTP server
    assert seconds(unit["TimeoutStopSec"]) >= 2 * defaults.drain_seconds > defaults.drain_seconds + farewell
    assert seconds(unit["TimeoutStartSec"]) > defaults.join_timeout_seconds + defaults.first_batch_timeout_seconds
    assert seconds(unit["WatchdogSec"]) > 3 * defaults.lease_seconds


def test_the_example_can_be_used_as_it_is(tmp_path: Path) -> None:
    """Every line of it, also those in comments, is a setting; and it says which node is the chief."""
    text = (FOLDER / "example.toml").read_text()
    everything = re.sub(r"^#(\w+ = )", r"\1", text, flags=re.MULTILINE).replace("/opt/train/bin/python", sys.executable)
    for content in (text.replace("/opt/train/bin/python", sys.executable), everything):
        path = tmp_path / "example.toml"
        path.write_text(content)
        settings = load({"config": path}, environ={})
        hidden = {"NOTIFY_SOCKET": "/run/systemd/notify"}
        assert decide_role(settings, "node-007", hidden).role == "worker"
        assert decide_role(settings, "node-000", hidden).role == "chief"
    assert len(everything.splitlines()) == len(text.splitlines())
    assert everything != text


def test_the_environment_example_can_be_used_as_it_is() -> None:
    """Variables of ours in it, all in comments, are settings."""
    lines = (FOLDER / "example.env").read_text().splitlines()
    assert all(re.fullmatch(r"#.*|", line) for line in lines)
    given = dict(line[1:].split("=", 1) for line in lines if re.match(r"#[A-Z_]+=", line))
    ours = {name: value for name, value in given.items() if name.startswith("SIDECAR_")}
    assert ours
    assert load({"checkpoint_dir": Path("/checkpoints")}, environ=ours).role == "worker"


def test_without_a_role_it_refuses_under_systemd(tmp_path: Path) -> None:
    """Exit code 2, which is not tried again, and a remedy."""
    path = tmp_path / "run.toml"
    path.write_text(f'checkpoint_dir = "{tmp_path}"\ntask = "my_eval.py:task"\nhttp = "127.0.0.1:0"\n')
    done = subprocess.run(
        [sys.executable, "-c", "from sidecar.commands.cli import main; main()", "run", "--config", path],
        env={"PATH": os.environ["PATH"], "NOTIFY_SOCKET": str(tmp_path / "notify")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2, done.stderr
    assert "chief_nodes" in done.stderr
    assert "role" in done.stderr


@pytest.mark.parametrize("script", ["install", "uninstall"])
def test_the_scripts_have_no_known_pitfall(needs: Needs, script: str) -> None:
    """As shellcheck knows them."""
    done = subprocess.run([needs("shellcheck"), FOLDER / script], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


class Staged:
    """Both scripts, in a folder that stands for a machine."""

    def __init__(self, root: Path, wheel: Path) -> None:
        self.root, self.wheel = root, wheel

    def call(
        self, script: str, *arguments: str | Path, folder: Path = FOLDER, **environ: str
    ) -> "subprocess.CompletedProcess[str]":
        """Run a script; pip installs nothing but the wheel."""
        own = {"DESTDIR": str(self.root), "PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1", "PYTHON": sys.executable}
        return subprocess.run(
            [folder / script, *arguments], env=os.environ | own | environ, capture_output=True, text=True
        )

    def install(self, *arguments: str | Path) -> str:
        """Return what it prints."""
        done = self.call("install", "--from", self.wheel, *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def files(self) -> set[str]:
        """Return what there is, without the environment's own."""
        found = (path.relative_to(self.root) for path in self.root.rglob("*") if path.is_file())
        return {str(path) for path in found if path.parts[0] != "opt"}


@pytest.fixture
def staged(tmp_path: Path) -> Staged:
    """Nothing is installed yet; a wheel that stands for the daemon's is there."""
    return stage(tmp_path)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Staged:
    """It is installed, which takes seconds; tests leave it installed."""
    staged = stage(tmp_path_factory.mktemp("installed"))
    staged.install()
    return staged


def stage(folder: Path) -> Staged:
    """Put a wheel that stands for the daemon's next to the folder that stands for a machine."""
    wheel = folder / "sidecar_evaluator-1.0-py3-none-any.whl"
    info = "sidecar_evaluator-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("standing_in.py", "def main():\n    print('sidecar-evaluator 1.0')\n")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: sidecar-evaluator\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/entry_points.txt", "[console_scripts]\nsidecar = standing_in:main\n")
        archive.writestr(f"{info}/RECORD", "")
    return Staged(folder / "machine", wheel)


def test_installing_twice_keeps_settings(installed: Staged) -> None:
    """The second time renews everything but what may have been changed by hand."""
    settings = installed.root / "etc/sidecar/example.toml"
    unit = installed.root / "usr/local/lib/systemd/system/sidecar@.service"
    settings.write_text("mine")
    unit.write_text("old")
    assert "kept /etc/sidecar/example.toml" in installed.install()
    assert settings.read_text() == "mine"
    assert unit.read_text() == UNIT.read_text()
    program = installed.root / "opt/sidecar/bin/sidecar"
    assert program.read_text().startswith("#!/opt/sidecar/bin/python")  # not where it was staged
    assert (installed.root / "etc/sidecar/example.env").stat().st_mode & 0o777 == 0o600


@pytest.mark.nightly
def test_another_prefix_is_named_in_the_unit(staged: Staged) -> None:
    """The unit starts what was installed."""
    staged.install("--prefix", "/srv/evaluator", "--gpu")
    units = staged.root / "usr/local/lib/systemd/system"
    assert "ExecStart=/srv/evaluator/bin/sidecar run" in (units / "sidecar@.service").read_text()
    assert (units / "sidecar@.service.d/gpu.conf").exists()
    assert (staged.root / "srv/evaluator/bin/sidecar").exists()


@pytest.mark.nightly
def test_uninstalling_leaves_settings_unless_purged(staged: Staged) -> None:
    """And nothing else; it can be called again."""
    staged.install("--gpu")
    ours = staged.root / "etc/systemd/system/sidecar@digits.service.d/override.conf"
    ours.parent.mkdir(parents=True)
    ours.write_text("[Service]\n")
    for _ in range(2):
        done = staged.call("uninstall")
        assert done.returncode == 0, done.stderr
        kept = {"etc/sidecar/example.toml", "etc/sidecar/example.env", str(ours.relative_to(staged.root))}
        assert staged.files() == kept
    assert not (staged.root / "opt/sidecar").exists()
    assert staged.call("uninstall", "--purge").returncode == 0
    assert staged.files() == set()


def test_a_folder_that_is_no_environment_is_left_alone(staged: Staged) -> None:
    """A prefix given by mistake destroys nothing, neither in coming nor in going."""
    precious = staged.root / "home/precious"
    precious.parent.mkdir(parents=True)
    precious.write_text("mine")
    done = staged.call("install", "--from", staged.wheel, "--prefix", "/home")
    assert done.returncode == 1
    assert "choose another --prefix" in done.stderr
    assert "left /home alone" in staged.call("uninstall", "--prefix", "/home").stdout
    assert precious.read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--with", "pytorch"), "tensorflow, torch or gpu is possible"),
        (("--prefix", "opt/sidecar"), "an absolute path is needed"),
        (("--python", "no-such-python"), "apt install python3"),
        (("--from", "/nowhere/"), "no such file or folder"),
        (("--from", "sidecar-evaluator"), "--from sidecar-evaluator: no such file or folder"),
        (("--from", "sidecar-evaluator==1.0"), "names are not looked up"),
        (("--froom", "x"), "unknown option --froom"),
        (("--from",), "--from needs a value"),
    ],
)
def test_mistakes_are_told(staged: Staged, arguments: tuple[str, ...], told: str) -> None:
    """With what to do instead, before anything is written."""
    done = staged.call("install", *arguments)
    assert done.returncode == 1
    assert told in done.stderr
    assert not staged.root.exists()


def test_nothing_is_installed_by_its_name(staged: Staged, tmp_path: Path) -> None:
    """A package index that has something under our name is not asked: neither outside a checkout nor with --from."""
    alone = tmp_path / "alone" / "systemd"
    shutil.copytree(FOLDER, alone)
    index = {"PIP_FIND_LINKS": str(staged.wheel.parent)}
    for arguments, told in (
        ((), "--from"),
        (("--with", "tensorflow"), "--from"),
        (("--from", "sidecar-evaluator"), "no such file or folder"),
    ):
        done = staged.call("install", *arguments, folder=alone, **index)
        assert done.returncode == 1
        assert told in done.stderr
        assert len(done.stderr.splitlines()) == 1
        assert not staged.root.exists()


@pytest.mark.nightly
def test_it_installs_what_a_url_names(staged: Staged, tmp_path: Path) -> None:
    """Outside a checkout, too; from a path with a space likewise, and with an extra."""
    alone = tmp_path / "alone" / "systemd"
    shutil.copytree(FOLDER, alone)
    spaced = tmp_path / "with space" / staged.wheel.name
    spaced.parent.mkdir()
    shutil.copy(staged.wheel, spaced)
    for source in (staged.wheel.as_uri(), spaced):
        done = staged.call("install", "--from", str(source), "--with", "tensorflow", folder=alone)
        assert done.returncode == 0, done.stderr
        assert list((staged.root / "opt/sidecar").glob("lib/python*/site-packages/standing_in.py"))
        shutil.rmtree(staged.root)


def test_the_unit_s_documentation_is_installed(installed: Staged) -> None:
    """The unit and the slice name the README, which lies where they say; no address that somebody else may own.

    The pages that the README leads to lie next to it.
    """
    for unit in (UNIT, FOLDER / "sidecar.slice"):
        (url,) = re.findall(r"^Documentation=(.*)$", unit.read_text(), re.MULTILINE)
        assert (installed.root / url.removeprefix("file:///")).is_file()
    shared = installed.root / "usr/local/share/sidecar"
    assert (shared / "docs/how-to/systemd.md").is_file()
    assert (shared / "docs/tutorial.md").is_file()


def test_an_old_python_is_refused(staged: Staged, tmp_path: Path) -> None:
    """By its version, with the option that names another."""
    old = tmp_path / "python3.9"
    old.write_text('#!/bin/sh\n[ "$1" = -V ] && echo Python 3.9.2\nexit 1\n')
    old.chmod(0o755)
    done = staged.call("install", "--python", str(old))
    assert done.returncode == 1
    assert "Python 3.11 or newer is needed" in done.stderr
    assert "Python 3.9.2" in done.stderr
