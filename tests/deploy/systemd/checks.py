"""Check what must hold of the unit under a real systemd, one part of a service's life after the other."""

import json
import re
import time

from trial import Trial, booted, tell

DIGITS = "sidecar@digits.service"
EXPOSURE_LIMIT = 2.5
PATIENCE = 600  # seconds, for what takes a few: importing TensorFlow alone took two minutes on a busy machine
SITE = """\
[Unit]
RequiresMountsFor=/shared
[Service]
User=trainer
Group=trainer
ReadWritePaths=/shared
"""


def main() -> int:
    """Go through all parts; 1 if a check failed."""
    began = time.monotonic()
    with booted() as trial:
        try:
            for part in (installed, started, evaluates, stays_inside, frozen, mistaken, drained, cut_short, removed):
                part(trial)
        except BaseException:
            trial.failed += 1
            raise
        finally:
            if trial.failed:
                tell(trial.run("journalctl", "-u", "sidecar@*", "-o", "short-monotonic", "--no-pager").stdout[-30000:])
    tell(f"{trial.failed} checks failed, after {time.monotonic() - began:.0f} s")
    return 1 if trial.failed else 0


def installed(trial: Trial) -> None:
    """The unit as systemd reads it on that machine."""
    verified = trial.run("systemd-analyze", "verify", DIGITS)
    trial.check(
        "the installed unit is free of warnings", not verified.stdout + verified.stderr, verified.stderr.strip()
    )
    trial.check("the user `sidecar` was made", trial.run("id", "sidecar").returncode == 0)
    trial.ask("install", "-d", "-o", "trainer", "-g", "trainer", "/shared/checkpoints", "/srv/checkpoints")
    trial.write("/etc/systemd/system/sidecar@.service.d/site.conf", SITE)
    trial.ask("systemctl", "daemon-reload")


def started(trial: Trial) -> None:
    """`systemctl start` returns once the daemon said READY."""
    began = time.monotonic()
    done = trial.run("systemctl", "start", DIGITS, seconds=300)
    ready = time.monotonic() - began
    trial.check(
        "it starts, READY after the task was checked", done.returncode == 0, f"{ready:.1f} s {done.stderr.strip()}"
    )
    trial.check("it is active", trial.property(DIGITS, "ActiveState") == "active")
    checked = "task_checked" in trial.journal(DIGITS)
    trial.check("READY came after the check, not before", checked)
    trial.check("it says what it does", text := trial.property(DIGITS, "StatusText"), text)
    owner = trial.ask("stat", "-c", "%U", f"/proc/{trial.property(DIGITS, 'MainPID')}")
    trial.check("it runs as training's user", owner == "trainer", owner)
    exposure = re.search(r"exposure level for \S+ ([\d.]+)", trial.run("systemd-analyze", "security", DIGITS).stdout)
    level = float(exposure[1]) if exposure else 10.0
    trial.check("its exposure is low", level <= EXPOSURE_LIMIT, level)


def evaluates(trial: Trial) -> None:
    """A checkpoint of tf.train.CheckpointManager, by two worker processes, in the sandbox."""
    name = save(trial)
    trial.check(
        "a real checkpoint is evaluated in the sandbox", trial.wait(lambda: succeeded(trial, name), PATIENCE), name
    )
    entry = next((entry for entry in history(trial) if entry["checkpoint"] == name), {})
    trial.check("by two processes in one group", entry.get("workers") == 2)
    trial.check("over all examples", entry.get("examples") == {"test": 200})
    trial.check("and the number is in the metrics", "sidecar_eval_metric{" in metrics(trial))
    told = trial.wait(lambda: name in trial.property(DIGITS, "StatusText"), PATIENCE)
    trial.check("`systemctl status` shows it", told, trial.property(DIGITS, "StatusText"))
    pause(trial, 4)
    name = save(trial)
    trial.wait(lambda: evaluating(trial), PATIENCE)
    data = f"/shared/checkpoints/{name}.data-00000-of-00001"
    links = trial.ask("stat", "-c", "%h", data)
    trial.check("it is held by a hard link, not a copy", links == "2", f"{links} links")
    trial.wait(lambda: succeeded(trial, name), PATIENCE)
    pause(trial, 0)


def stays_inside(trial: Trial) -> None:
    """Return what the sandbox forbids, asked from inside: in the namespaces and limits of the unit itself."""
    pid = trial.property(DIGITS, "MainPID")
    for path, allowed in (
        ("/shared/checkpoints/probe", True),
        ("/home/trainer/probe", False),
        ("/srv/checkpoints/probe", False),
    ):
        done = trial.run("nsenter", "-t", pid, "-m", "-S", "1000", "-G", "1000", "touch", path)
        as_meant = done.returncode == 0 if allowed else "Read-only" in done.stderr
        trial.check(f"it can{'' if allowed else 'not'} write {path}", as_meant, done.stderr.strip())
    state = trial.ask("cat", f"/proc/{pid}/status")
    for line in ("CapBnd:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"):
        trial.check(f"its process has {' '.join(line.split())}", line in state)


def frozen(trial: Trial) -> None:
    """SIGSTOP: nothing but the watchdog can notice."""
    trial.write("/run/systemd/system/sidecar@digits.service.d/soon.conf", "[Service]\nWatchdogSec=8s\nRestartSec=1s\n")
    trial.ask("systemctl", "daemon-reload")
    trial.ask("systemctl", "restart", DIGITS, seconds=300)
    pid, former = trial.property(DIGITS, "MainPID"), processes(trial)
    began = time.monotonic()
    trial.ask("systemctl", "kill", "--kill-who=main", "--signal=STOP", DIGITS)
    again = trial.wait(lambda: int(trial.property(DIGITS, "NRestarts")) > 0, PATIENCE)
    trial.check("frozen: the watchdog fires, and it is started again", again, f"{time.monotonic() - began:.0f} s")
    active = trial.wait(lambda: trial.property(DIGITS, "ActiveState") == "active", PATIENCE)
    trial.check("it is active again, as another process", active and trial.property(DIGITS, "MainPID") != pid)
    trial.check("no process of before is left", not former & processes(trial), f"{len(former)} before")
    journal = trial.journal(DIGITS)
    trial.check("the journal says so", "Watchdog timeout" in journal)
    # CPython walks the other threads while they run, so that it may end in the middle of what it tells.
    dump = journal.partition("Fatal Python error: Aborted")[2]
    trial.check("and where threads stood", dump.count("most recent call first") > 1 and ", line " in dump)
    name = save(trial)
    trial.check("it evaluates as before", trial.wait(lambda: succeeded(trial, name), PATIENCE), name)


def mistaken(trial: Trial) -> None:
    """Mistakes that a person must mend: told with the remedy, and not tried again."""
    trial.settings("spelling", replicas="many", http="127.0.0.1:19109")
    trial.settings("norole", role=None, http="127.0.0.1:19109")
    trial.settings("notask", task="/opt/digits/other.py:task", http="127.0.0.1:19109")
    for run, code, told in (
        ("spelling", "2", "replicas: 'many'"),
        ("absent", "2", "/etc/sidecar/absent.toml: cannot be read"),
        ("norole", "2", "or list the chief's nodes in chief_nodes"),
        ("notask", "3", "other.py"),
    ):
        unit = f"sidecar@{run}.service"
        trial.run("systemctl", "start", unit, seconds=120)
        state = trial.property(unit, "ActiveState"), trial.property(unit, "ExecMainStatus")
        trial.check(f"{run}: failed with exit code {code}", state == ("failed", code), " ".join(state))
        trial.check(f"{run}: not tried again", trial.property(unit, "NRestarts") == "0")
        line = next((line for line in trial.journal(unit).splitlines() if told in line), "")
        trial.check(f"{run}: told what to do", line, line[:300])
    trial.settings("unnamed", checkpoint_dir="/srv/checkpoints", http="127.0.0.1:19109")
    unit = "sidecar@unnamed.service"
    trial.ask("systemctl", "start", "--no-block", unit)
    failed = trial.wait(lambda: trial.property(unit, "ExecMainStatus") == "4", PATIENCE)
    trial.check("ReadWritePaths forgotten: exit code 4", failed)
    line = next((line for line in trial.journal(unit).splitlines() if "Read-only file system" in line), "")
    trial.check("ReadWritePaths forgotten: told which path", "/srv/checkpoints" in line, line[:300])
    trial.check("and it is tried again", trial.wait(lambda: trial.property(unit, "SubState") == "auto-restart", 20))
    trial.ask("systemctl", "stop", unit)


def drained(trial: Trial) -> None:
    """Stopped while it evaluates: what can end in time is ended."""
    pause(trial, 2)
    name = save(trial)
    trial.check("it evaluates when it is stopped", trial.wait(lambda: evaluating(trial), PATIENCE), name)
    took = stop(trial)
    trial.check("stopped: the evaluation was finished first", succeeded(trial, name), f"{took:.1f} s")
    gone(trial)


def cut_short(trial: Trial) -> None:
    """Stopped while it evaluates: what cannot end in time is handed over, and tried again by whoever is there."""
    trial.ask("systemctl", "start", DIGITS, seconds=300)
    pause(trial, 120)
    name = save(trial)
    trial.wait(lambda: evaluating(trial), PATIENCE)
    took = stop(trial)
    kinds = [entry["kind"] for entry in history(trial) if entry["checkpoint"] == name]
    trial.check("stopped: an evaluation too long to finish is closed as drained", kinds == ["drained"], f"{took:.1f} s")
    gone(trial)
    pause(trial, 0)
    trial.ask("systemctl", "start", DIGITS, seconds=300)
    trial.check("started again: it is evaluated after all", trial.wait(lambda: succeeded(trial, name), PATIENCE), name)


def removed(trial: Trial) -> None:
    """Uninstalled, twice: settings stay until --purge."""
    trial.ask("/src/systemd/uninstall")
    trial.check("uninstalled: stopped", trial.property(DIGITS, "ActiveState") == "inactive")
    trial.check("uninstalled: no unit left", trial.property(DIGITS, "LoadState") == "not-found")
    trial.check("uninstalled: no program left", trial.run("test", "-e", "/opt/sidecar").returncode == 1)
    trial.check("uninstalled: settings kept", trial.run("test", "-e", "/etc/sidecar/digits.toml").returncode == 0)
    trial.ask("/src/systemd/uninstall", "--purge")
    trial.check("purged: settings gone", trial.run("test", "-e", "/etc/sidecar").returncode == 1)
    trial.check("purged: results kept", trial.run("test", "-e", "/shared/checkpoints/.sidecar/digits").returncode == 0)


def stop(trial: Trial) -> float:
    """Stop the unit; how long that took."""
    began = time.monotonic()
    trial.ask("systemctl", "stop", DIGITS, seconds=120)
    return time.monotonic() - began


def gone(trial: Trial) -> None:
    """Return what is left of a stopped unit: nothing, and no complaint."""
    result = trial.property(DIGITS, "Result")
    trial.check("it ended by itself, in time", result == "success", result)
    trial.check("no process is left", not processes(trial))


def save(trial: Trial) -> str:
    """Train a little; the name of the checkpoint that was saved."""
    python = trial.ask("sed", "-n", 's/^worker_python = "\\(.*\\)"/\\1/p', "/etc/sidecar/digits.toml")
    # Its model stands in the task's file, which names Task; training's own environment need not have the daemon.
    script = 'cd /opt/sidecar/lib/python3*/site-packages && PYTHONPATH=$PWD exec "$0" /opt/digits/train.py'
    return trial.ask("sh", "-c", script, python, user="trainer", seconds=180).splitlines()[-1]


def pause(trial: Trial, seconds: float) -> None:
    """How long reading the evaluation data takes from now on."""
    trial.write("/shared/pause", str(seconds))


def history(trial: Trial) -> list[dict]:
    """Return what the journal in shared storage holds."""
    command = ("/opt/sidecar/bin/sidecar", "history", "--config", "/etc/sidecar/digits.toml", "--json")
    return json.loads(trial.ask(*command, user="trainer"))


def succeeded(trial: Trial, name: str) -> bool:
    """Return whether a checkpoint was evaluated."""
    return any(entry["checkpoint"] == name and entry["status"] == "succeeded" for entry in history(trial))


def evaluating(trial: Trial) -> bool:
    """Return whether an evaluation is going on."""
    return trial.property(DIGITS, "StatusText").startswith("evaluating")


def metrics(trial: Trial) -> str:
    """Return what Prometheus would read."""
    script = "import urllib.request as r; print(r.urlopen('http://127.0.0.1:19108/metrics').read().decode())"
    return trial.ask("/opt/sidecar/bin/python", "-c", script)


def processes(trial: Trial) -> set[str]:
    """Process ids of training's user: the daemon's and its workers', as nothing else of his runs now."""
    listed = trial.ask("sh", "-c", 'find /proc -maxdepth 1 -user trainer -name "[0-9]*" -printf "%f\\n"')
    return set(listed.split())
