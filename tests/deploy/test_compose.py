"""docker-compose.yml, the Dockerfile, the end-to-end test's verdict: what can be judged without an engine."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from sidecar.settings import Settings
from sidecar.version import FALLBACK

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "deploy/Dockerfile").read_text()
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES = COMPOSE["services"]
TENSORFLOW_DAEMONS = ("daemon-chief", "daemon-worker-0", "daemon-worker-1")
TORCH_DAEMONS = tuple(f"torch-{name}" for name in TENSORFLOW_DAEMONS)
DAEMONS = TENSORFLOW_DAEMONS + TORCH_DAEMONS
TENSORFLOW_TRAINERS = ("trainer-chief", "trainer-worker-0", "trainer-worker-1")
TORCH_TRAINERS = ("torch-trainer-0", "torch-trainer-1", "torch-trainer-2")
TRAINERS = TENSORFLOW_TRAINERS + TORCH_TRAINERS
OURS = (*DAEMONS, *TRAINERS, "e2e", "torch-e2e")


@pytest.fixture
def scripts(monkeypatch) -> tuple[ModuleType, ModuleType]:
    """The modules `verdict` and `run_files` of deploy/compose, imported as its scripts do."""
    monkeypatch.syspath_prepend(ROOT / "deploy/compose")
    names = ("verdict", "run_files", "promql")
    import run_files
    import verdict

    yield verdict, run_files
    for name in names:
        sys.modules.pop(name, None)


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_is_confined(name):
    """No root, no capability, no new privilege, nothing to write on but its volumes and a bounded /tmp."""
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["init"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "cap_add" not in service
    assert "privileged" not in service
    assert service["tmpfs"] == ["/tmp:size=256m,mode=1777"]
    assert re.fullmatch(r"[1-9]\d*:\d+", service["user"])
    assert all(mount.endswith(":ro") for mount in service["volumes"] if mount.startswith("."))


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_has_limits_and_a_health_check(name):
    """Memory and processes are bounded in keys that both Compose implementations obey; health is asked for."""
    service = SERVICES[name]
    assert {"mem_limit", "pids_limit", "cpu_shares", "logging", "restart"} <= service.keys()
    assert "deploy" not in service
    assert "healthcheck" in service or (name in DAEMONS and "\nHEALTHCHECK" in DOCKERFILE)


@pytest.mark.parametrize("name", DAEMONS)
def test_daemons_cannot_starve_training(name):
    """A daemon's container yields the processor, may never take all of it, and goes first when memory is short."""
    service = SERVICES[name]
    assert all(service["cpu_shares"] * 8 <= SERVICES[trainer]["cpu_shares"] for trainer in TRAINERS)
    assert service["cpus"] < 1
    assert service["oom_score_adj"] > 0
    assert int(service["stop_grace_period"].removesuffix("s")) > Settings.model_fields["drain_seconds"].default


def test_only_people_s_ports_are_published_and_only_on_this_machine():
    """Prometheus and Grafana listen on loopback; TensorFlow's ports are on a network without a way in or out."""
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert published.keys() == {"prometheus", "grafana"}
    assert all(port.startswith("127.0.0.1:") for ports in published.values() for port in ports)
    assert all(SERVICES[name]["networks"] == ["training"] for name in OURS)
    assert SERVICES["grafana"]["networks"] == ["monitoring"]
    assert COMPOSE["networks"]["training"] == {"internal": True}
    assert not any("network_mode" in service for service in SERVICES.values())


@pytest.mark.parametrize("name", DAEMONS)
def test_daemons_are_given_settings_that_exist(name):
    """Each daemon's environment makes valid settings: its own name, an explicit role, a host that others can dial."""
    environment = SERVICES[name]["environment"]
    given = {variable.removeprefix("SIDECAR_").lower(): value for variable, value in environment.items()}
    settings = Settings(**given)
    torch = name.startswith("torch-")
    assert settings.role == ("chief" if name.endswith("chief") else "worker")
    assert settings.host == name
    assert settings.run == ("digits-torch" if torch else "digits")
    assert settings.checkpoint_dir == Path("/ckpts") / settings.run
    assert f"daemon-{settings.node}" == name.removeprefix("torch-")
    module, function = settings.task.split(":")
    assert f"def {function}(" in (ROOT / f"{module.replace('.', '/')}.py").read_text()


def test_one_user_and_one_volume_so_that_hard_links_work():
    """Trainers and daemons are the user that owns the image's mount point, on one volume."""
    assert {SERVICES[name]["user"] for name in OURS} == {"10001:10001"}
    assert "install --directory --owner=10001 --group=10001 /ckpts" in DOCKERFILE
    assert "\nUSER 10001:10001\n" in DOCKERFILE
    assert all(any(mount.startswith("ckpts:/ckpts") for mount in SERVICES[name]["volumes"]) for name in OURS)


def test_the_training_cluster_is_the_same_for_all():
    """Three TF_CONFIGs name one cluster, whose addresses are the services themselves."""
    configs = {name: json.loads(SERVICES[name]["environment"]["TF_CONFIG"]) for name in TENSORFLOW_TRAINERS}
    clusters = [config["cluster"] for config in configs.values()]
    assert all(cluster == clusters[0] for cluster in clusters)
    for name, config in configs.items():
        task = config["task"]
        assert config["cluster"][task["type"]][task["index"]] == f"{name}:22000"


@pytest.mark.torch
def test_torchrun_is_given_options_that_it_reads():
    """Each PyTorch trainer is a node of one job, by variables that have the names of torchrun's options."""
    from torch.distributed.run import get_args_parser

    options = vars(get_args_parser().parse_args(["train.py"])).keys()
    environments = [SERVICES[name]["environment"] for name in TORCH_TRAINERS]
    for rank, environment in enumerate(environments):
        given = {name: value for name, value in environment.items() if name.startswith("PET_")}
        assert {name.removeprefix("PET_").lower() for name in given} <= options
        assert given["PET_NODE_RANK"] == str(rank)
        assert given["PET_NNODES"] == str(len(environments))
        assert given["PET_MASTER_ADDR"] == TORCH_TRAINERS[0]


@pytest.mark.parametrize("name", TRAINERS)
def test_trainers_save_where_the_daemons_of_their_run_look(name):
    """The folder is named after the run, and the module that is trained exists."""
    service = SERVICES[name]
    assert service["environment"]["RUN"] == ("digits-torch" if name.startswith("torch-") else "digits")
    assert (ROOT / f"{service['entrypoint'][-1].replace('.', '/')}.py").exists()


def test_images_are_pinned_and_the_light_one_is_the_chief_s():
    """Foreign images name a version; the chief's daemon needs no framework."""
    assert re.fullmatch(r"prom/prometheus:\$\{PROMETHEUS_TAG:-v\d+\.\d+\.\d+\}", SERVICES["prometheus"]["image"])
    assert re.fullmatch(r"grafana/grafana:\$\{GRAFANA_TAG:-\d+\.\d+\.\d+\}", SERVICES["grafana"]["image"])
    for name in OURS:
        framework = "torch" if name.startswith("torch-") else "tensorflow"
        target = "daemon" if name.endswith("daemon-chief") else framework
        assert SERVICES[name]["image"] == f"sidecar-evaluator:{target}"
        assert SERVICES[name]["build"]["target"] == target
        assert f" AS {target}\n" in DOCKERFILE


def test_the_image_says_its_version():
    """The default is the version of sources without history, which the context is."""
    assert re.findall(r"^ARG VERSION=(.*)$", DOCKERFILE, re.MULTILINE) == [FALLBACK]


def test_the_context_holds_what_the_build_copies():
    """Every file that the Dockerfile copies from the checkout exists and is let in by .dockerignore."""
    let_in = {line.removeprefix("!") for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] == "!"}
    copies = re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE, re.MULTILINE)
    sources = {source for copy in copies for source in copy.split()[:-1]}
    assert sources == let_in
    assert all((ROOT / source).exists() for source in sources)


@pytest.mark.parametrize("extra", ["tensorflow", "torch"])
def test_the_image_installs_what_the_package_asks_for(tmp_path, extra):
    """The build's list of needs is the package's own, with the extras named."""
    code = "\n".join(re.findall(r"^        '(.*)' (?:\\|> needed\.py)$", DOCKERFILE, re.MULTILINE)).replace("\\n", "\n")
    (tmp_path / "needed.py").write_text(code.replace('sep="\n"', 'sep="\\n"'))
    command = [sys.executable, str(tmp_path / "needed.py"), extra]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert printed == [*project["dependencies"], *project["optional-dependencies"][extra]]
    assert f"RUN python needed.py {extra} > needed.txt" in DOCKERFILE


def test_one_run_starts_by_itself():
    """Grafana is asked for, as its image may be out of reach, and nothing waits for it; so are PyTorch and tests."""
    expected = {"grafana": ["grafana"], "e2e": ["test"], "torch-e2e": ["torch-test"]}
    expected |= {name: ["torch"] for name in (*TORCH_TRAINERS, *TORCH_DAEMONS)}
    assert {name: each["profiles"] for name, each in SERVICES.items() if "profiles" in each} == expected
    waits = {name: each.get("depends_on", {}).keys() for name, each in SERVICES.items()}
    assert waits["e2e"] == {"prometheus", *TENSORFLOW_DAEMONS, *TENSORFLOW_TRAINERS}
    assert waits["torch-e2e"] == {"prometheus", *TORCH_DAEMONS, *TORCH_TRAINERS}
    assert not any(expected.keys() & others for name, others in waits.items() if name != "torch-e2e")


def test_the_overlay_builds_with_the_machine_s_network():
    """Every image that is built, and no other service's."""
    overlay = yaml.safe_load((ROOT / "deploy/compose/ci.yml").read_text())["services"]
    built = {name for name, service in SERVICES.items() if "build" in service}
    assert {name for name, service in overlay.items() if service["build"]["network"] == "host"} == built
    assert overlay.keys() == built


@pytest.mark.parametrize("program", ["docker-compose", "docker"])
def test_compose_itself_reads_the_file(needs, program, monkeypatch):
    """docker-compose 1.29 and Compose v2 both accept it, with and without the overlay, and see the same services."""
    compose = [needs(program)] if program == "docker-compose" else [needs(program), "compose"]
    if subprocess.run([*compose, "version"], capture_output=True).returncode != 0:
        pytest.skip("this docker has no Compose v2")
    monkeypatch.delenv("COMPOSE_FILE", raising=False)
    files = ["--file", "docker-compose.yml"]
    for arguments in (files, [*files, "--file", "deploy/compose/ci.yml"]):
        profiles = ["--profile=test", "--profile=grafana", "--profile=torch", "--profile=torch-test"]
        command = [*compose, *arguments, *profiles, "config", "--services"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert set(done.stdout.split()) == SERVICES.keys()


def good(verdict, run_files):
    """Evidence of two checkpoints evaluated as they should be."""
    checkpoints = [
        verdict.Checkpoint(f"ckpt-{step}", step, float(step), {"accuracy": 0.9, "loss": 0.5}) for step in (20, 40)
    ]
    plans = [
        run_files.Plan(
            number, each.name, "d", ("worker-0", "worker-1"), "succeeded", None, (), dict(each.expected), each.saved_at
        )
        for number, each in enumerate(checkpoints, 1)
    ]
    seen = {(each.step, metric): {value} for each in checkpoints for metric, value in each.expected.items()}
    sizes = {each.step: {2.0} for each in checkpoints}
    return verdict.Evidence(checkpoints, plans, seen, dict(seen), sizes, ["chief"], [0.0, 0.0])


def hurried(evidence):
    """The plans, as if the machine had been so busy that the second evaluation ended 3 s after the first."""
    first, second = evidence.plans
    return [replace(first, completed_at=second.completed_at - 3.0), second]


def test_values_that_were_shown_between_two_scrapes_may_be_missed(scripts):
    """Values that were shown only between two scrapes are not required; those in the journal are still compared."""
    verdict, run_files = scripts
    evidence = good(verdict, run_files)
    later = {key: values for key, values in evidence.scraped.items() if key[0] == 40}
    missed = replace(evidence, plans=hurried(evidence), scraped=later, recorded=later, group_sizes={40: {2.0}})
    assert list(verdict.failures(missed)) == []
    assert list(verdict.failures(replace(missed, plans=evidence.plans)))


@pytest.mark.usefixtures("scripts")
def test_what_is_compared_is_held(tmp_path, monkeypatch):
    """Checkpoints and what workers saved about them are copied, before training and daemons delete them."""
    from fakes import done

    from sidecar.protocol.codec import dumps
    from sidecar.protocol.messages import Join
    from sidecar.protocol.records import Checkpoint, Member, Outcome, Plan

    monkeypatch.delitem(sys.modules, "e2e", raising=False)
    from e2e import Copies

    checkpoints, state = tmp_path / "ckpts", tmp_path / "state"
    copies = Copies(tmp_path / "copies", checkpoints, state)
    for folder in (checkpoints, state / "plans", state / "outcomes"):
        folder.mkdir(parents=True)
    (checkpoints / "ckpt-20.index").write_text("index")
    (checkpoints / "checkpoint").write_text('all_model_checkpoint_paths: "ckpt-20"\n')
    assert copies.look() == 1
    assert copies.saves == {}
    members = tuple(Member(rank, f"worker-{rank}", f"w{rank}", "h:1") for rank in range(2))
    plan = Plan(
        plan=1,
        run="r",
        nonce="n",
        checkpoint=Checkpoint(name="ckpt-20", digest="d", step=20, format="tf_object"),
        attempt=1,
        members=members,
        settles=(),
        task=None,
        proposer="w",
        proposed_at="",
    )
    saves = tuple(f"evaluations/ckpt-20/plan-1/worker-{rank}-of-2" for rank in range(2))
    result = replace(
        done(
            1, Join(group="g", members=members, rank=0, task="t", framework="tensorflow", search_path=".", threads=2)
        ).result,
        saves=saves,
    )
    outcome = Outcome(
        plan=1,
        run="r",
        nonce="n",
        status="succeeded",
        closed_by="worker-0",
        completed_at="2026-01-01T00:00:01Z",
        result=result,
    )
    (state / "plans/1.json").write_bytes(dumps(plan))
    (state / "outcomes/1.json").write_bytes(dumps(outcome))
    for save in result.saves:
        (state / save).mkdir(parents=True)
        (state / save / "weights.index").write_text(save)
    assert copies.look() == 1
    shutil.rmtree(checkpoints)
    shutil.rmtree(state / "evaluations")
    assert (copies.folder / "ckpt-20.index").read_text() == "index"
    held = [(save / "weights.index").read_text() for save in copies.saves["ckpt-20"]]
    assert held == list(result.saves)
    sys.modules.pop("e2e")


def test_the_verdict_passes_what_is_right(scripts):
    """Two checkpoints, each evaluated once by both workers, with the right numbers: nothing to say."""
    verdict, run_files = scripts
    assert list(verdict.failures(good(verdict, run_files))) == []


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda _: {"checkpoints": []}, "no checkpoint was judged"),
        (lambda e: {"checkpoints": [replace(e.checkpoints[0], saved_at=30.0), e.checkpoints[1]]}, "less than 15 s"),
        (lambda e: {"plans": e.plans[1:]}, "ckpt-20 was evaluated 0 times"),
        (lambda e: {"plans": [*e.plans, replace(e.plans[0], number=3)]}, "ckpt-20 was evaluated 2 times"),
        (lambda e: {"plans": [replace(e.plans[0], nodes=("worker-0",)), e.plans[1]]}, "ran on worker-0 and not"),
        (lambda e: {"scraped": e.scraped | {(20, "accuracy"): {0.9 + 2**-53}}}, "accuracy of ckpt-20"),
        (lambda e: {"scraped": e.scraped | {(20, "accuracy"): {0.9, 0.8}}}, "Prometheus saw 0.8, 0.9"),
        (lambda e: {"scraped": e.scraped | {(40, "loss"): {0.5 + 2e-6}}}, "loss of ckpt-40"),
        (lambda e: {"scraped": e.scraped | {(40, "loss"): {float("nan")}}}, "Prometheus saw nan"),
        (lambda _: {"recorded": {}}, "the recording rules saw nothing"),
        (lambda _: {"group_sizes": {20: {1.0}, 40: {2.0}}}, "sidecar_group_size showed 1"),
        (lambda _: {"group_sizes": {}}, "sidecar_group_size showed nothing"),
        (lambda e: {"plans": [*e.plans, replace(e.plans[0], checkpoint="x", nodes=("chief",))]}, "the chief evaluated"),
        (lambda e: {"plans": [replace(e.plans[0], values={"accuracy": 0.8}), e.plans[1]]}, "plan 1 found 0.8"),
        (lambda e: {"checkpoints": e.checkpoints[:1], "plans": hurried(e)}, "shown for 15 s"),
        (lambda e: {"plans": hurried(e), "scraped": {(20, "accuracy"): {0.8}}}, "Prometheus saw 0.8"),
        (lambda e: {"plans": hurried(e), "group_sizes": {20: {1.0}, 40: {2.0}}}, "sidecar_group_size showed 1"),
        (lambda _: {"chief_roles": ["worker"]}, "roles ['worker']"),
        (lambda _: {"chief_roles": []}, "roles []"),
        (lambda _: {"chief_processes": [0.0, 1.0]}, "had 1 worker processes"),
    ],
)
def test_the_verdict_fails_what_is_wrong(scripts, change, sentence):
    """Each thing that the end-to-end test promises to notice is told in one sentence."""
    verdict, run_files = scripts
    evidence = good(verdict, run_files)
    told = list(verdict.failures(replace(evidence, **change(evidence))))
    assert any(sentence in each for each in told), told


def test_who_suffered_a_fault_needs_one_evaluation_by_whoever_was_left(scripts):
    """Attempts that failed are no failure; another number, a second evaluation or none is one."""
    verdict, run_files = scripts
    evidence = good(verdict, run_files)
    checkpoint, plan = evidence.checkpoints[0], replace(evidence.plans[0], nodes=("worker-0",))
    lost = replace(plan, number=9, status="failed", kind="member_lost", values={})
    assert list(verdict.suffered(checkpoint, [lost, plan])) == []
    for plans, sentence in (
        ([lost], "ckpt-20 was evaluated 0 times and not once (other attempts: member_lost)"),
        ([plan, replace(plan, number=3)], "ckpt-20 was evaluated 2 times"),
        ([replace(plan, values={"accuracy": 0.8, "loss": 0.5})], "accuracy of ckpt-20 is 0.9, but plan 1 found 0.8"),
        ([replace(plan, values={"accuracy": 0.9})], "loss of ckpt-20 is 0.5, but plan 1 found None"),
    ):
        assert any(each.startswith(sentence) for each in verdict.suffered(checkpoint, plans))


def test_a_loss_may_differ_by_rounding_and_a_count_may_not(scripts):
    """Sums of logarithms match within 1e-6; accuracy must be the same float."""
    verdict, _ = scripts
    assert verdict.matches("loss", 0.5, {0.5 + 9e-7})
    assert not verdict.matches("accuracy", 0.5, {0.5 + 9e-7})
    assert not verdict.matches("loss", 0.5, set())


def test_values_are_joined_to_steps_by_target_and_time(scripts):
    """A value counts for the step that the same daemon showed in the same scrape."""
    verdict, _ = scripts
    from promql import Series

    steps = [Series({"instance": "a"}, {1.0: 20, 2.0: 40}), Series({"instance": "b"}, {2.0: 20})]
    metrics = [
        Series({"instance": "a", "metric": "loss"}, {1.0: 0.5, 2.0: 0.4, 3.0: 0.3}),
        Series({"instance": "b", "metric": "loss"}, {2.0: 0.6}),
    ]
    assert verdict.join(steps, metrics, by="instance") == {(20, "loss"): {0.5, 0.6}, (40, "loss"): {0.4}}


def test_plans_are_read_as_the_daemons_write_them(scripts, tmp_path):
    """The journal's plans and outcomes, read without the daemon's code; one that only settles is no attempt."""
    _, run_files = scripts
    from fakes import done

    from sidecar.protocol.codec import dumps
    from sidecar.protocol.messages import Join
    from sidecar.protocol.records import Checkpoint, Member, Outcome, Plan

    (tmp_path / "plans").mkdir()
    (tmp_path / "outcomes").mkdir()
    members = tuple(Member(rank, f"worker-{rank}", f"w{rank}", "h:1") for rank in range(2))
    checkpoint = Checkpoint(name="ckpt-20", digest="d", step=20, format="tf_object")
    plan = Plan(
        plan=1,
        run="r",
        nonce="n",
        checkpoint=checkpoint,
        attempt=1,
        members=members,
        settles=(),
        task=None,
        proposer="worker-0",
        proposed_at="2026-01-01T00:00:00Z",
    )
    outcome = Outcome(
        plan=1,
        run="r",
        nonce="n",
        status="failed",
        closed_by="worker-0",
        completed_at="2026-01-01T00:00:01Z",
        kind="stalled",
    )
    (tmp_path / "plans/000000000001.json").write_bytes(dumps(plan))
    (tmp_path / "outcomes/000000000001.json").write_bytes(dumps(outcome))
    (tmp_path / "plans/000000000002.json").write_bytes(dumps(replace(plan, plan=2, members=None)))
    (tmp_path / "plans/000000000003.json").write_bytes(dumps(replace(plan, plan=3)))
    join = Join(group="g", members=members, rank=0, task="t", framework="tensorflow", search_path=".", threads=2)
    success = replace(outcome, plan=4, status="succeeded", kind=None, result=done(4, join).result)
    (tmp_path / "plans/000000000004.json").write_bytes(dumps(replace(plan, plan=4)))
    (tmp_path / "outcomes/000000000004.json").write_bytes(dumps(success))
    *read, last = run_files.plans(tmp_path)
    assert (last.number, last.status, last.values) == (4, "succeeded", {"accuracy": 0.75})
    assert [(each.number, each.status, each.kind) for each in read] == [(1, "failed", "stalled"), (3, None, None)]
    assert read[0].nodes == ("worker-0", "worker-1")


@pytest.mark.parametrize("age", [0, 101])
@pytest.mark.parametrize(("name", "file"), [("ckpt-20", "ckpt-20.index"), ("step-20.pt", "step-20.pt")])
def test_training_is_unhealthy_when_it_stopped_saving(tmp_path, name, file, age):
    """The trainers' health check looks at the age of the newest checkpoint, and fails where there is none."""
    import os
    import time

    command = [sys.executable, "-S", str(ROOT / "deploy/compose/saving.py"), str(tmp_path), "20"]
    assert subprocess.run(command, capture_output=True).returncode == 1
    if name.startswith("ckpt"):
        (tmp_path / "checkpoint").write_text(f'all_model_checkpoint_paths: "{name}"\n')
    else:
        (tmp_path / "step-3.pt").touch()
    (tmp_path / file).touch()
    os.utime(tmp_path / file, (time.time() - age,) * 2)
    assert subprocess.run(command, capture_output=True).returncode == (1 if age else 0)
