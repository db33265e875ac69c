"""Check manifests as a cluster and its Pod Security Standard would."""

import ast
import copy
import ipaddress
import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import yaml

from sidecar.errors import SettingsError
from sidecar.policy.node_identity import advertised_host, node_name
from sidecar.policy.roles import decide_role
from sidecar.settings import load

ROOT = Path(__file__).parents[2]
KUBERNETES = ROOT / "deploy" / "kubernetes"
CHART = ROOT / "deploy" / "helm"
TASK = KUBERNETES / "overlays" / "example" / "my_eval.py"
TREES = ("cluster", "base", "overlays/example", "chart")
VERSIONS = ("1.35", "1.36", "1.37")
"""The newest versions, whose schemas have every field; they are in the package kubernetes-validate."""
CHIEF = {"training.kubeflow.org/job-name": "digits", "training.kubeflow.org/job-role": "master"}
RANK_0 = {  # of a TrainJob
    "jobset.sigs.k8s.io/jobset-name": "digits",
    "jobset.sigs.k8s.io/replicatedjob-name": "node",
    "batch.kubernetes.io/job-completion-index": "0",
}

# What one replica holds in memory, in MB (docs/how-to/gpus.md): the daemon; a worker process; its standby.
DAEMON, WORKER, STANDBY = 70, 700, 540
SAY_GOODBYE_SECONDS = 6  # two beats, and the time that storage and the server get to close

# The operator's API has many more fields. These are all that stand here, as its documentation gives them, so that a
# misspelt one is found; the operator's own schema is in no Python package.
NAMES = {"type": "object", "additionalProperties": {"type": "string"}, "minProperties": 1}
POD_MONITOR = {
    "type": "object",
    "required": ["apiVersion", "kind", "metadata", "spec"],
    "additionalProperties": False,
    "properties": {
        "apiVersion": {"const": "monitoring.coreos.com/v1"},
        "kind": {"const": "PodMonitor"},
        "metadata": {
            "type": "object",
            "required": ["name"],
            "additionalProperties": False,
            "properties": {"name": {"type": "string"}, "namespace": {"type": "string"}, "labels": NAMES},
        },
        "spec": {
            "type": "object",
            "required": ["selector", "podMetricsEndpoints"],
            "additionalProperties": False,
            "properties": {
                "selector": {
                    "type": "object",
                    "required": ["matchLabels"],
                    "additionalProperties": False,
                    "properties": {"matchLabels": NAMES},
                },
                "podMetricsEndpoints": {
                    "type": "array",
                    "minItems": 1,
                    "items": {
                        "type": "object",
                        "required": ["port"],
                        "additionalProperties": False,
                        "properties": {
                            "port": {"type": "string"},
                            "path": {"type": "string", "pattern": "^/"},
                            "interval": {"type": "string", "pattern": "^[0-9]+(ms|s|m)$"},
                            "relabelings": {
                                "type": "array",
                                "items": {
                                    "type": "object",
                                    "required": ["targetLabel", "replacement"],
                                    "additionalProperties": False,
                                    "properties": {
                                        "targetLabel": {"type": "string", "pattern": "^[a-z_]+$"},
                                        "replacement": {"type": "string"},
                                    },
                                },
                            },
                        },
                    },
                },
            },
        },
    },
}


class Objects(list):
    """Hold what `kubectl kustomize` or `helm template` gave, in the order in which a cluster would get it."""

    def one(self, kind):
        """The only object of its kind."""
        (found,) = (each for each in self if each["kind"] == kind)
        return found

    @property
    def workload(self):
        """The object that makes the pods."""
        (found,) = (each for each in self if each["kind"] in ("StatefulSet", "Deployment"))
        return found

    @property
    def pod(self):
        """Return what every pod is made after: its labels and its spec."""
        return self.workload["spec"]["template"]

    @property
    def container(self):
        """The only container of a pod."""
        (found,) = self.pod["spec"]["containers"]
        return found


def render(kubectl, folder):
    done = subprocess.run([kubectl, "kustomize", str(folder)], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return Objects(yaml.safe_load_all(done.stdout))


@pytest.fixture(scope="session")
def kubectl(needs):
    return needs("kubectl")


@pytest.fixture(scope="session")
def helm(needs):
    """`helm(word…)` runs Helm on the chart, with the task of the example; it returns the finished process."""
    program = needs("helm", ROOT / ".venv-helm" / "bin")

    def run(*words, task=TASK):
        given = () if task is None else ("--set-file", f"task={task}")
        return subprocess.run(
            [program, *words, *given], capture_output=True, text=True, timeout=240, check=False, cwd=ROOT
        )

    return run


@pytest.fixture(scope="session")
def trees(kubectl, helm):
    found = {tree: render(kubectl, KUBERNETES / tree) for tree in TREES if tree != "chart"}
    return found | {"chart": chart(helm)}


def chart(helm, *words, release="digits"):
    """Return the objects of a release."""
    done = helm("template", release, str(CHART), "--set", "podMonitor=true", *words)
    assert done.returncode == 0, done.stderr
    return Objects(yaml.safe_load_all(done.stdout))


@pytest.fixture
def base(trees):
    return copy.deepcopy(trees["base"])


@pytest.fixture
def example(trees):
    return copy.deepcopy(trees["overlays/example"])


@pytest.fixture
def changed(kubectl, tmp_path):
    """`changed(file, pattern, replacement)`: the example's objects after that edit of one of its files."""

    def edit(name, pattern, replacement):
        shutil.copytree(KUBERNETES, tmp_path / "kubernetes")
        path = tmp_path / "kubernetes" / "overlays" / "example" / name
        text, times = re.subn(pattern, replacement, path.read_text())
        assert times == 1
        path.write_text(text)
        return render(kubectl, path.parent)

    return edit


@pytest.fixture(params=["base", "overlays/example", "chart"])
def daemons(request, trees):
    return copy.deepcopy(trees[request.param])


def validate(thing):
    if thing["kind"] == "PodMonitor":
        jsonschema.validate(thing, POD_MONITOR)
    else:
        for version in VERSIONS:
            kubernetes_validate.validate(thing, version, strict=True)


def selects(selector, labels):
    """Return whether a label selector matches, as Kubernetes defines it; it knows what is used here."""
    assert set(selector) <= {"matchLabels", "matchExpressions"}
    assert selector, "an empty selector matches everything"
    return all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items()) and all(
        {"In": labels.get(each["key"]) in each["values"]}[each["operator"]]
        for each in selector.get("matchExpressions", [])
    )


def admits(rules, side, port, labels, namespace=None):
    """Whether a NetworkPolicy lets a pod in (or out); one of another namespace is met by that namespace's selector."""

    def meets(peer):
        assert set(peer) in ({"podSelector"}, {"namespaceSelector"})
        if "namespaceSelector" in peer:
            where = {"kubernetes.io/metadata.name": namespace or "training"}
            return selects(peer["namespaceSelector"], where)
        return namespace is None and selects(peer["podSelector"], labels)

    for rule in rules:
        assert rule.get(side), "a rule without peers admits everybody"
        assert rule.get("ports"), "a rule without ports opens all of them"
        ranges = [(each["port"], each.get("endPort", each["port"])) for each in rule["ports"]]
        if any(first <= port <= last for first, last in ranges) and any(meets(peer) for peer in rule[side]):
            return True
    return False


def environment(pod, container, name="sidecar-eval-0", address="10.1.2.3"):
    """Return what the kubelet would give the container, with what every container in Kubernetes gets."""
    fields = {"metadata.name": name, "status.podIP": address}
    given = {
        each["name"]: each["value"] if "value" in each else fields[each["valueFrom"]["fieldRef"]["fieldPath"]]
        for each in container["env"]
    }
    assert not pod["spec"]["enableServiceLinks"]
    return given | {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}


def config_map_at(objects, mount):
    (volume,) = (
        each["name"] for each in objects.container["volumeMounts"] if each["mountPath"] == mount and each["readOnly"]
    )
    (source,) = (each["configMap"] for each in objects.pod["spec"]["volumes"] if each["name"] == volume)
    found = objects.one("ConfigMap")
    assert source == {"name": found["metadata"]["name"]}
    return found["data"]


@pytest.fixture
def settings(daemons, tmp_path):
    given = environment(daemons.pod, daemons.container)
    folder, name = given["SIDECAR_CONFIG"].rsplit("/", 1)
    path = tmp_path / name
    path.write_text(config_map_at(daemons, folder)[name])
    return load({}, environ=given | {"SIDECAR_CONFIG": str(path)})


def megabytes(quantity):
    number, unit = re.fullmatch(r"(\d+)([A-Z]i?)", quantity).groups()
    return int(number) * {"M": 10**6, "G": 10**9, "Mi": 2**20, "Gi": 2**30}[unit] / 10**6


@pytest.mark.parametrize("tree", TREES)
def test_a_current_kubernetes_knows_every_field(trees, tree):
    """Every object is valid by the schemas of the three newest versions, and none has a field that they do not know."""
    assert trees[tree]
    for each in trees[tree]:
        validate(each)


@pytest.mark.parametrize("tree", TREES)
def test_an_unknown_field_is_refused(trees, tree):
    """The validation above would find a misspelt field in each kind of object, and deep inside."""
    for each in copy.deepcopy(trees[tree]):
        inside = (
            each["spec"]["template"]["spec"]
            if each["kind"] in ("StatefulSet", "Deployment")
            else each.get("spec", each)
        )
        for place in (each["metadata"], inside):
            place["misspelt"] = "value"
            with pytest.raises(jsonschema.ValidationError, match="misspelt"):
                validate(each)
            del place["misspelt"]
        validate(each)


def test_the_pod_reads_its_settings(daemons, settings):
    """The file and the environment of the pod make settings without a complaint, and each variable is one of them."""
    assert settings.http == "0.0.0.0:19108"
    assert settings.role == "worker"
    assert settings.task is not None
    names = [each["name"] for each in daemons.container["env"]]
    assert len(names) == len(set(names))
    assert daemons.container["args"] == ["run"]


def test_a_pod_knows_its_role_name_and_address(daemons, settings):
    """The node is named after the pod, which keeps its name; others reach it at the pod's own address."""
    given = environment(daemons.pod, daemons.container)
    assert node_name(settings, given) == "sidecar-eval-0"
    assert advertised_host(settings, given, own=pytest.fail) == "10.1.2.3"
    assert decide_role(settings, "sidecar-eval-0", given).role == "worker"
    with pytest.raises(SettingsError, match="Kubernetes"):
        decide_role(settings.model_copy(update={"role": None}), "sidecar-eval-0", given)


def test_an_ipv6_pod_is_reached_in_brackets(base, settings):
    """A cluster with IPv6 addresses needs no other manifests."""
    address = environment(base.pod, base.container, address="fd00::7")["SIDECAR_HOST"]
    assert ipaddress.ip_address(address).version == 6
    assert advertised_host(type(settings)(checkpoint_dir="/ckpts", host=address), {}) == "[fd00::7]"


def test_what_the_settings_name_is_mounted(daemons, settings):
    """Checkpoints and state lie on the shared volume, logs on the pod's own; the rest of the root is read-only."""
    mounts = {each["mountPath"]: each["name"] for each in daemons.container["volumeMounts"]}
    volumes = {each["name"]: each for each in daemons.pod["spec"]["volumes"]}
    assert set(mounts.values()) == set(volumes)
    shared = next(mount for mount, name in mounts.items() if "persistentVolumeClaim" in volumes[name])
    assert settings.checkpoint_dir.is_relative_to(shared)
    assert settings.state_dir.is_relative_to(shared)
    assert volumes[mounts["/tmp"]]["emptyDir"]["sizeLimit"]
    assert environment(daemons.pod, daemons.container)["HOME"] == "/tmp"
    writable = {each["mountPath"] for each in daemons.container["volumeMounts"] if not each.get("readOnly")}
    assert writable == {shared, "/tmp"}


def test_the_task_is_in_the_config_map(example):
    """The example's settings name a file that its ConfigMap holds, and it is the task that the tutorial explains."""
    data = config_map_at(example, "/etc/sidecar")
    path, attribute = tomllib.loads(data["sidecar.toml"])["task"].split(":")
    folder, _, name = path.rpartition("/")
    assert (folder, attribute) == ("/etc/sidecar", "task")
    explained = re.search(
        r"<!-- my_eval\.py -->\n```python\n(.*?)```", (ROOT / "docs/tutorial.md").read_text(), re.DOTALL
    )
    assert ast.dump(ast.parse(data[name])) == ast.dump(ast.parse(explained[1]))


def test_a_pod_has_time_to_drain(daemons, settings):
    """It is not killed while it finishes its evaluation and says goodbye."""
    grace = daemons.pod["spec"]["terminationGracePeriodSeconds"]
    assert grace >= settings.drain_seconds + SAY_GOODBYE_SECONDS


def test_probes_ask_what_they_should(daemons, settings):
    """A hung loop is restarted, slow storage is not; the port that they ask is the one that is served."""
    (port,) = daemons.container["ports"]
    assert port["containerPort"] == settings.http_port
    assert settings.http_host == "0.0.0.0"
    probes = {kind: daemons.container[f"{kind}Probe"] for kind in ("startup", "liveness", "readiness")}
    assert {kind: each["httpGet"]["path"] for kind, each in probes.items()} == {
        "startup": "/healthz",
        "liveness": "/healthz",
        "readiness": "/readyz",
    }
    assert {each["httpGet"]["port"] for each in probes.values()} == {port["name"]}
    # A loop that is stopped for a lease is not healthy any more, and may still come back.
    liveness = probes["liveness"]
    assert liveness["failureThreshold"] * liveness["periodSeconds"] > settings.lease_seconds


def test_a_pod_has_no_rights(daemons):
    """Require the Pod Security Standard `restricted`, a read-only root, and no token."""
    pod, container = daemons.pod["spec"], daemons.container
    assert pod["automountServiceAccountToken"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC", "initContainers", "serviceAccountName"} & set(pod)
    assert not any("hostPort" in each for each in container["ports"])
    assert all({"configMap", "emptyDir", "persistentVolumeClaim"} & set(each) for each in pod["volumes"])
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_a_pod_is_the_images_user(base):
    """The image's folders belong to the user that the base runs as: no other could write there, nor make hard links."""
    context = base.pod["spec"]["securityContext"]
    user, group = re.search(r"^USER (\d+):(\d+)$", (ROOT / "deploy" / "Dockerfile").read_text(), re.MULTILINE).groups()
    assert (context["runAsUser"], context["runAsGroup"], context["fsGroup"]) == (int(user), int(group), int(group))
    assert context["runAsUser"] != 0
    assert context["fsGroupChangePolicy"] == "OnRootMismatch"


def test_training_comes_first(daemons, trees):
    """The class that the pods name exists, is below that of ordinary pods, and displaces nobody."""
    priority = trees["cluster"].one("PriorityClass")
    assert daemons.pod["spec"]["priorityClassName"] == priority["metadata"]["name"]
    assert -10 <= priority["value"] < 0, "below -10 the cluster autoscaler adds no nodes"
    assert priority["preemptionPolicy"] == "Never"
    assert priority["globalDefault"] is False


def test_memory_is_what_the_processes_need(daemons, settings):
    """The request holds the daemon and each worker with its standby; the limit their prepared data, too."""
    resources = daemons.container["resources"]
    needed = DAEMON + settings.replicas * (WORKER + STANDBY)
    assert megabytes(resources["requests"]["memory"]) >= needed
    assert megabytes(resources["limits"]["memory"]) >= needed + settings.replicas * settings.cache_bytes / 10**6
    assert int(resources["limits"]["cpu"]) >= settings.threads * settings.replicas
    logs = next(each["emptyDir"] for each in daemons.pod["spec"]["volumes"] if "emptyDir" in each)
    assert megabytes(resources["limits"]["ephemeral-storage"]) > megabytes(logs["sizeLimit"])


def test_selectors_find_the_pods(daemons):
    """StatefulSet, Service, PodMonitor and NetworkPolicy mean the same pods, and names fit together."""
    labels = daemons.pod["metadata"]["labels"]
    workload, service = daemons.workload, daemons.one("Service")
    assert selects(workload["spec"]["selector"], labels)
    assert selects({"matchLabels": service["spec"]["selector"]}, labels)
    assert selects(daemons.one("PodMonitor")["spec"]["selector"], labels)
    assert selects(daemons.one("NetworkPolicy")["spec"]["podSelector"], labels)
    if workload["kind"] == "StatefulSet":
        assert workload["spec"]["serviceName"] == service["metadata"]["name"]
    else:
        assert selects(daemons.one("PodDisruptionBudget")["spec"]["selector"], labels)
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    names = {each["name"] for each in daemons.container["ports"]}
    assert {each["targetPort"] for each in service["spec"]["ports"]} == names
    assert {each["port"] for each in daemons.one("PodMonitor")["spec"]["podMetricsEndpoints"]} == names


def kept_apart(objects, labels):
    """Return whether no node may have a daemon and a pod with these labels."""
    terms = objects.pod["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert {each["topologyKey"] for each in terms} == {"kubernetes.io/hostname"}
    return any(selects(each["labelSelector"], labels) for each in terms)


def test_daemons_stand_apart_and_never_beside_the_chief(daemons):
    """No node has two of a run, nor one beside the chief's pod as Kubeflow labels it; its workers are no obstacle."""
    spec = daemons.workload["spec"]
    if daemons.workload["kind"] == "StatefulSet":
        assert spec["podManagementPolicy"] == "Parallel"
    else:
        assert spec["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}, "no node has two"
    assert kept_apart(daemons, daemons.pod["metadata"]["labels"])
    assert kept_apart(daemons, CHIEF)
    assert not kept_apart(daemons, CHIEF | {"training.kubeflow.org/job-role": "worker"})
    assert not kept_apart(daemons, {"app": "somebody else's"})


def test_chiefs_of_other_jobs_are_no_obstacle(base, example):
    """A run names its own job; the base, which knows none, keeps off every chief rather than off none."""
    other = CHIEF | {"training.kubeflow.org/job-name": "letters"}
    assert not kept_apart(example, other)
    assert kept_apart(base, other)


def test_the_chief_of_a_trainjob_is_known_by_its_index(changed):
    """Trainer v2 sets no role: rank 0 is a completion index of a JobSet with the job's name."""
    trainjob = changed("kustomization.yaml", r"path: chief\.yaml", "path: chief-trainjob.yaml")
    assert kept_apart(trainjob, RANK_0)
    assert kept_apart(trainjob, trainjob.pod["metadata"]["labels"])
    for label, value in (
        ("jobset.sigs.k8s.io/jobset-name", "letters"),
        ("jobset.sigs.k8s.io/replicatedjob-name", "dataset-initializer"),
        ("batch.kubernetes.io/job-completion-index", "1"),
    ):
        assert not kept_apart(trainjob, RANK_0 | {label: value})
    for each in trainjob:
        validate(each)


def test_an_image_may_be_named_by_its_digest(changed):
    """As the example's comment says."""
    digest = f"sha256:{'0123' * 16}"
    by_digest = changed("kustomization.yaml", r"newTag: tensorflow", f"digest: {digest}")
    assert by_digest.container["image"].endswith(f"/sidecar-evaluator@{digest}")


def test_no_group_is_given_where_nfs_refuses_it(changed):
    """As the example's comment says."""
    without = changed("run.yaml", r"fsGroup: 10001", "fsGroup: null")
    assert "fsGroup" not in without.pod["spec"]["securityContext"]


def test_eval_ports_are_open_between_members_only(daemons, settings):
    """Members reach each other where workers serve, Prometheus reaches the metrics, and that is all, in and out."""
    policy = daemons.one("NetworkPolicy")["spec"]
    assert set(policy["policyTypes"]) == {"Ingress", "Egress"}
    opened = [each for rule in policy["ingress"] + policy["egress"] for each in rule["ports"]]
    assert {each["protocol"] for each in opened} == {"TCP"}
    member = daemons.pod["metadata"]["labels"]
    first, last, metrics = settings.ports[0], settings.ports[-1], settings.http_port
    who = {
        "a member": {"labels": member},
        "a stranger beside it": {"labels": {"app": "stranger"}},
        "the chief": {"labels": CHIEF},
        "Prometheus": {"labels": {"app": "prometheus"}, "namespace": "monitoring"},
        "a member's twin elsewhere": {"labels": member, "namespace": "elsewhere"},
    }
    tried = (first - 1, first, last, last + 1, metrics, 22, 443)

    def open_to(way, side):
        return {name: [port for port in tried if admits(policy[way], side, port, **one)] for name, one in who.items()}

    members_only = {name: [first, last] if name == "a member" else [] for name in who}
    assert open_to("ingress", "from") == members_only | {"Prometheus": [metrics]}
    assert open_to("egress", "to") == members_only


def test_prometheus_finds_the_job_that_the_rules_ask_for(daemons):
    """A target found by the operator bears the job name of the scrape configuration beside these manifests."""
    (endpoint,) = daemons.one("PodMonitor")["spec"]["podMetricsEndpoints"]
    assert endpoint["path"] == "/metrics"
    scraped = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text())["scrape_configs"]
    (job,) = (each["replacement"] for each in endpoint["relabelings"] if each["targetLabel"] == "job")
    assert job in {each["job_name"] for each in scraped}


def test_the_example_changes_what_a_user_must_change(base, example):
    """Image, volume, names and namespace are the run's own, not the base's."""
    assert example.container["image"] != base.container["image"] == "sidecar-evaluator:tensorflow"
    assert example.container["image"].endswith("/sidecar-evaluator:tensorflow")
    assert {each["metadata"]["namespace"] for each in example} == {"training"}
    for each in base:
        changed = example.one(each["kind"])
        assert changed["metadata"]["name"] != each["metadata"]["name"]
        assert changed["metadata"]["labels"]["app.kubernetes.io/instance"] == "digits"
    assert claim(example) != claim(base)


def claim(objects):
    (found,) = (each for each in objects.pod["spec"]["volumes"] if "persistentVolumeClaim" in each)
    return found["persistentVolumeClaim"]["claimName"]


def test_two_runs_in_one_namespace_stay_apart(kubectl, example, tmp_path):
    """A copy of the example with another name shares no object with the first, and neither meets the other's pods."""
    shutil.copytree(KUBERNETES, tmp_path / "kubernetes")
    folder = tmp_path / "kubernetes" / "overlays" / "second"
    shutil.copytree(KUBERNETES / "overlays" / "example", folder)
    path = folder / "kustomization.yaml"
    changed, times = re.subn(r"(nameSuffix: -|/instance: )digits$", r"\1letters", path.read_text(), flags=re.MULTILINE)
    assert times == 2
    path.write_text(changed)
    chief = folder / "chief.yaml"
    chief.write_text(chief.read_text().replace("- digits", "- letters"))
    second = render(kubectl, folder)
    assert {each["kind"] for each in second} == {each["kind"] for each in example}
    assert not {each["metadata"]["name"] for each in second} & {each["metadata"]["name"] for each in example}

    ours = example.pod["metadata"]["labels"]
    policy = second.one("NetworkPolicy")["spec"]
    assert not selects(second.one("StatefulSet")["spec"]["selector"], ours)
    assert not selects({"matchLabels": second.one("Service")["spec"]["selector"]}, ours)
    assert not selects(second.one("PodMonitor")["spec"]["selector"], ours)
    assert not selects(policy["podSelector"], ours)
    assert not admits(policy["ingress"], "from", 21000, ours)
    assert not kept_apart(second, ours)
    assert not kept_apart(second, CHIEF)
    assert kept_apart(second, CHIEF | {"training.kubeflow.org/job-name": "letters"})


def test_another_task_is_another_pod(kubectl, example, tmp_path):
    """Changing a file of the ConfigMap changes what the pods mount, so that they are replaced one by one."""
    shutil.copytree(KUBERNETES, tmp_path / "kubernetes")
    folder = tmp_path / "kubernetes" / "overlays" / "example"
    task = folder / "my_eval.py"
    task.write_text(task.read_text().replace("batch_size=64", "batch_size=32"))
    changed = render(kubectl, folder)
    assert changed.one("ConfigMap")["metadata"]["name"] != example.one("ConfigMap")["metadata"]["name"]
    assert changed.pod != example.pod


def test_the_chart_gives_the_pods_of_the_base(trees):
    """A change of one of them must be made in the other, too."""
    ours, base = copy.deepcopy(trees["chart"].pod["spec"]), copy.deepcopy(trees["base"].pod["spec"])
    for spec in (ours, base):
        del spec["affinity"], spec["topologySpreadConstraints"]  # their selectors name the run
        (settings,) = (each for each in spec["volumes"] if "configMap" in each)
        del settings["configMap"]
    assert ours == base


def test_the_chart_spreads_its_pods_over_zones(trees):
    """As the base does, and pods that drained nodes lose leave one at a time, without holding up the draining."""
    (spread,) = trees["chart"].pod["spec"]["topologySpreadConstraints"]
    assert (spread["topologyKey"], spread["whenUnsatisfiable"]) == ("topology.kubernetes.io/zone", "ScheduleAnyway")
    assert selects(spread["labelSelector"], trees["chart"].pod["metadata"]["labels"])
    budget = trees["chart"].one("PodDisruptionBudget")["spec"]
    assert (budget["maxUnavailable"], budget["unhealthyPodEvictionPolicy"]) == (1, "AlwaysAllow")


def test_the_chart_has_no_faults(helm):
    """By Helm's own check, with warnings as errors."""
    done = helm("lint", "--strict", str(CHART))
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("words", "value"), [(["replica=3"], "replica"), (["user=0"], "/user"), (["image="], "/image"), ([], "/task")]
)
def test_a_wrong_value_is_refused_by_its_name(helm, words, value):
    """Before anything reaches a cluster; a release without a task, too."""
    given = [word for each in words for word in ("--set", each)]
    done = helm("template", "digits", str(CHART), *given, task=TASK if words else None)
    assert done.returncode != 0
    assert value in done.stderr


def test_values_reach_the_objects(helm, tmp_path):
    """Further settings are lines of the file, which is of this release; another task is another pod."""
    first = chart(helm)
    values = tmp_path / "values.yaml"
    values.write_text(
        'settings: |\n  done_marker = "DONE"\nchief:\n  app: chief\nfsGroup: null\nreplicas: 5\npodMonitor: false\n'
    )
    done = helm("template", "letters", str(CHART), "--values", str(values))
    second = Objects(yaml.safe_load_all(done.stdout))
    assert tomllib.loads(second.one("ConfigMap")["data"]["sidecar.toml"])["done_marker"] == "DONE"
    assert second.workload["spec"]["replicas"] == 5
    assert "fsGroup" not in second.pod["spec"]["securityContext"]
    assert kept_apart(second, {"app": "chief"})
    assert not kept_apart(second, CHIEF)
    assert not kept_apart(second, first.pod["metadata"]["labels"])
    assert {each["kind"] for each in first} - {each["kind"] for each in second} == {"PodMonitor"}
    assert not {each["metadata"]["name"] for each in first} & {each["metadata"]["name"] for each in second}
    assert first.pod["metadata"]["annotations"] != second.pod["metadata"]["annotations"]


IN_THE_JOB = KUBERNETES / "in-the-job"
OPERATORS = json.loads(Path(__file__).with_name("operator_schemas.json").read_text())
POOL = KUBERNETES / "raycluster.yaml"


def test_the_versions_are_the_newest_at_hand():
    """A release of the package with newer schemas is noticed."""
    assert kubernetes_validate.latest_version().startswith(f"{VERSIONS[-1]}.")


def templates(thing):
    """Yield each pod template of an object of any kind, by its name there."""
    spec = thing["spec"]
    if thing["kind"] == "PyTorchJob":
        yield from ((name, each["template"]) for name, each in spec["pytorchReplicaSpecs"].items())
    elif thing["kind"] == "TrainingRuntime":
        for job in spec["template"]["spec"]["replicatedJobs"]:
            yield job["name"], job["template"]["spec"]["template"]
    elif thing["kind"] == "Job":
        yield "job", spec["template"]


def pods_with_daemons():
    """Yield the name, the pod and the daemon's container of each manifest beside the kustomize base."""
    for path in (*sorted(IN_THE_JOB.iterdir()), KUBERNETES / "job.yaml"):
        for thing in yaml.safe_load_all(path.read_text()):
            for name, template in templates(thing):
                pod = template["spec"]
                for container in (*pod.get("initContainers", ()), *pod["containers"]):
                    if container["name"] == "sidecar":
                        yield f"{thing['kind']} {name}", pod, container


PODS = {name: (pod, container) for name, pod, container in pods_with_daemons()}


def given_to(container, index="1"):
    """Return the variables that the kubelet gives a container in the pod of this rank."""
    fields = {
        "metadata.name": f"pod-{index}",
        "metadata.annotations['batch.kubernetes.io/job-completion-index']": index,
        "status.podIP": "10.1.2.3",
    }
    given = {"KUBERNETES_SERVICE_HOST": "10.96.0.1"}
    for each in container["env"]:
        value = each["value"] if "value" in each else fields[each["valueFrom"]["fieldRef"]["fieldPath"]]
        given[each["name"]] = re.sub(r"\$\((\w+)\)", lambda found: given[found[1]], value)
    return given


@pytest.mark.parametrize("kind", OPERATORS)
def test_objects_of_operators_have_only_fields_that_these_know(kind):
    """The parts of their schemas that are used here are kept, with their source; the pods inside are tried below."""
    (thing,) = (
        thing
        for path in (*IN_THE_JOB.iterdir(), POOL)
        for thing in yaml.safe_load_all(path.read_text())
        if thing["kind"] == kind
    )
    jsonschema.validate(thing, OPERATORS[kind]["schema"])
    thing["spec"]["misspelt"] = "value"
    with pytest.raises(jsonschema.ValidationError, match="misspelt"):
        jsonschema.validate(thing, OPERATORS[kind]["schema"])


def test_daemons_are_in_three_kinds_of_pods():
    """The workers of a PyTorchJob, the nodes of a TrainJob, and a job that ends."""
    assert list(PODS) == ["PyTorchJob Worker", "TrainingRuntime node", "Job job"]


@pytest.mark.parametrize("name", PODS)
def test_pods_beside_the_base_are_valid_and_restricted(name):
    """Every field is known, and the daemon's container keeps to the Pod Security Standard `restricted`."""
    pod, container = PODS[name]
    validate({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": pod})
    context = pod.get("securityContext", {}) | container["securityContext"]
    assert context["runAsNonRoot"] is True
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert (context["allowPrivilegeEscalation"], context["readOnlyRootFilesystem"]) == (False, True)
    assert context["capabilities"] == {"drop": ["ALL"]}
    mounted = {each["name"] for each in container["volumeMounts"]}
    assert mounted == {"checkpoints", "task", "sidecar-tmp"} == {each["name"] for each in pod["volumes"]}


@pytest.mark.parametrize("name", PODS)
def test_daemons_beside_the_base_know_their_role(name):
    """Rank 0 of a TrainJob is the chief by its index; the others evaluate, under a name of their own."""
    _, container = PODS[name]
    command, folder, *words = container["args"]
    assert (command, folder) == ("run", "/ckpts")
    task = words[words.index("--task") + 1]
    roles = {}
    for index in ("0", "1", "2"):
        given = given_to(container, index)
        settings = load({"checkpoint_dir": folder, "task": task}, environ=given)
        node = node_name(settings, given)
        roles[node] = decide_role(settings, node, given).role
        assert advertised_host(settings, given, own=pytest.fail) == "10.1.2.3"
    assert len(roles) == 3
    assert list(roles.values()) == (["chief"] if name.startswith("TrainingRuntime") else ["worker"]) + ["worker"] * 2


@pytest.mark.parametrize("name", [name for name in PODS if name != "Job job"])
def test_a_daemon_in_the_job_is_a_native_sidecar(name):
    """It does not keep the pod of a training that has ended, and has the time to end what it does."""
    pod, container = PODS[name]
    assert container in pod["initContainers"]
    assert container["restartPolicy"] == "Always"
    assert pod["terminationGracePeriodSeconds"] >= 25 + SAY_GOODBYE_SECONDS
    assert container["startupProbe"]["httpGet"] == {"path": "/healthz", "port": "sidecar"}


def test_the_job_may_wait_in_a_queue():
    """The lines of its comment make a valid job with the label by which Kueue knows its queue."""
    text = (KUBERNETES / "job.yaml").read_text().replace("  # labels:", "  labels:").replace("  #   kueue", "    kueue")
    job = yaml.safe_load(text)
    validate(job)
    assert job["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "evaluation"}


def test_the_job_ends_and_repeats_no_mistake():
    """It ends when nothing waits. Codes after which a supervisor should start the daemon again are tried again."""
    job = yaml.safe_load((KUBERNETES / "job.yaml").read_text())
    validate(job)
    _, container = PODS["Job job"]
    assert container["args"][-2:] == ["--stop-idle-seconds", "60"]
    (rule,) = job["spec"]["podFailurePolicy"]["rules"]
    assert (rule["action"], rule["onExitCodes"]["containerName"]) == ("FailJob", container["name"])
    assert set(rule["onExitCodes"]["values"]) == {1, 2, 3, 5, 6}
    assert not {4, 70} & set(rule["onExitCodes"]["values"])
    assert job["spec"]["template"]["spec"]["restartPolicy"] == "Never"


def groups_of(pool):
    """Return the groups of a RayCluster by their names, the head among them."""
    spec = pool["spec"]
    return {"head": spec["headGroupSpec"], **{group["groupName"]: group for group in spec["workerGroupSpecs"]}}


def test_pods_of_the_pool_are_valid_and_restricted():
    """Every field is known, and each container keeps to the Pod Security Standard `restricted`."""
    for group in groups_of(yaml.safe_load(POOL.read_text())).values():
        pod = group["template"]["spec"]
        validate({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": pod})
        (container,) = pod["containers"]
        context = pod["securityContext"] | container["securityContext"]
        assert (context["runAsNonRoot"], context["seccompProfile"]) == (True, {"type": "RuntimeDefault"})
        assert (context["allowPrivilegeEscalation"], context["capabilities"]) == (False, {"drop": ["ALL"]})
        assert "restartPolicy" not in pod  # KubeRay refuses it, if its second autoscaler is used
        assert pod["terminationGracePeriodSeconds"] >= 25 + SAY_GOODBYE_SECONDS


def test_the_daemon_of_the_pool_asks_for_what_the_pool_has():
    """Label, number and processors of the machines, the address of the head, its token, and paths that all have."""
    pool = yaml.safe_load(POOL.read_text())
    groups = groups_of(pool)
    (daemon,), (machine,) = (groups[name]["template"]["spec"]["containers"] for name in ("daemon", "eval"))
    given = given_to(daemon)
    settings = load({"checkpoint_dir": "/ckpts", "task": "my_eval.py:task"}, environ=given)
    assert daemon["args"][0].endswith("exec sidecar run /ckpts --task my_eval.py:task")
    assert decide_role(settings, node_name(settings, given), given).role == "worker"
    assert (settings.engine, settings.ray_address) == ("ray", f"{pool['metadata']['name']}-head-svc:6379")
    assert (settings.ray_labels, settings.ray_workers) == (groups["eval"]["labels"], groups["eval"]["maxReplicas"])
    processors = float(machine["resources"]["limits"]["cpu"])
    assert (settings.ray_resources, settings.threads) == ({"CPU": processors}, processors)
    mounts = {each["name"]: each["mountPath"] for each in daemon["volumeMounts"]}
    assert str(settings.ray_token_file) == f"{mounts.pop('token')}/auth_token"
    assert mounts == {each["name"]: each["mountPath"] for each in machine["volumeMounts"]}
    assert daemon["workingDir"] == machine["workingDir"] == mounts["task"]
    volumes = {each["name"]: each for each in groups["daemon"]["template"]["spec"]["volumes"]}
    assert volumes["token"]["secret"]["secretName"] == pool["spec"]["authOptions"]["secretName"]
    assert {daemon["image"], machine["image"]} == {groups["head"]["template"]["spec"]["containers"][0]["image"]}
    for name in ("head", "daemon"):
        assert groups[name]["rayStartParams"] == {"num-cpus": "0"}


def test_the_pool_may_wait_in_a_queue():
    """The lines of its comment make a valid cluster with the label by which Kueue knows its queue."""
    text = POOL.read_text().replace("  # labels:", "  labels:").replace("  #   kueue", "    kueue")
    pool = yaml.safe_load(text)
    for name in ("enableInTreeAutoscaling", "autoscalerOptions"):
        del pool["spec"][name]
    groups_of(pool)["eval"]["replicas"] = 4
    jsonschema.validate(pool, OPERATORS["RayCluster"]["schema"])
    assert pool["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "evaluation"}
