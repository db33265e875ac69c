"""Every code block that readers can copy is run, or a reason stands here why it is not."""

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
GENERATED = DOCS / "reference"  # written from the code, and compared with it
TUTORIAL = DOCS / "tutorial.md"
PAGES = [
    TUTORIAL,  # first, since its commands make the checkpoints that those of other pages need
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "examples/README.md")),
    *sorted(page for page in DOCS.rglob("*.md") if GENERATED not in page.parents and page != TUTORIAL),
]
FENCE = re.compile(
    r"^(?:<!-- (?P<file>[\w.]+) -->\n)?(?P<indent> *)```(?P<language>\w+)\n(?P<code>.*?)^ *```",
    re.DOTALL | re.MULTILINE,
)

RUN_BY = {
    "train_on_jax.py": "tests/test_readme.py",
    "jax_eval.py": "tests/test_readme.py",
    "train.py": "tests/test_readme.py",
    "my_eval.py": "tests/test_readme.py",
    "read_saves.py": "tests/test_readme.py",
    "several_sets.py": "tests/docs/test_code_blocks.py",
    "own_metrics.py": "tests/docs/test_code_blocks.py",
    "train_lm.py": "tests/lm/test_recipe.py",
    "perplexity_task.py": "tests/lm/test_recipe.py",
    "lm_task.py": "tests/lm/test_recipe.py",
    "code_task.py": "tests/lm/test_recipe.py",
    "train_peft.py": "tests/lm/test_recipe.py",
    "train_fsdp.py": "tests/lm/test_recipe.py",
    "nanogpt_task.py": "tests/lm/test_recipe.py",
    "titan_task.py": "tests/lm/test_recipe.py",
    "titan_parallel_task.py": "tests/lm/test_torchtitan.py",
    "harness.py": "tests/evaluation/test_evaluate_functions.py",
    "in_turn.py": "tests/evaluation/metrics/test_foreign.py",
    "runner_task.py": "tests/integration/test_evaluate_functions.py",
    "play.py": "tests/evaluation/test_evaluate_functions.py",
    "slices.py": "tests/evaluation/data/test_slice_table.py",
    "sums.py": "tests/evaluation/metrics/test_sums.py",
    "perplexity.py": "tests/evaluation/backends/tensorflow/test_derived_results.py",
    "restore_averaged.py": "tests/docs/test_code_blocks.py",
    "evaluate.py": "tests/test_readme.py",
    "train_ddp.py": "tests/docs/test_code_blocks.py",
    "model.py": "tests/docs/test_code_blocks.py",
    "my_torch_eval.py": "tests/docs/test_code_blocks.py",
    "sidecar_task.py": "tests/docs/test_code_blocks.py",
    "jsonl_sink.py": "tests/publishing/sinks/test_installed.py",
    "traits.py": "tests/evaluation/test_framework_traits.py",
    "backend.py": "tests/evaluation/test_framework_traits.py",
    "my_hook.py": "tests/docs/test_hook_pages.py",
    "my_receiver.py": "tests/docs/test_hook_pages.py",
    "stop_loop.py": "tests/docs/test_hook_pages.py",
    "post_text.py": "tests/docs/test_faq.py",
    "wandb_log.py": "tests/docs/test_faq.py",
    "dataframe.py": "tests/docs/test_faq.py",
    "plot.py": "tests/docs/test_faq.py",
    "compare.py": "tests/docs/test_faq.py",
}
"""Python blocks that are marked with the name of a file, and the test that runs them."""

NOT_RUN = {
    "git clone": "a clone has no address here",
    "pip install": "downloads 700 MB; tests/deploy/readme/walk.py does the like in a chroot",
    "python3 -m venv": "installs packages; tests/deploy/readme/walk.py does it in a chroot",
    "~/sidecar-env/bin/sidecar": "test_the_first_screen_works runs it, and tests/deploy/readme/walk.py in a chroot",
    "curl": "asks a daemon that stays; tests/publishing/http asks for each of its pages",
    "~/sidecar-env/bin/pip install '.[mlflow]'": "downloads 60 MB",
    "~/sidecar-env/bin/pip install '.[wandb]'": "downloads 60 MB",
    "export MLFLOW_RUN_ID": "needs a server; tests/publishing/sinks/test_mlflow.py creates such a run",
    "make": "starts this suite, or takes minutes; .ci/run does it",
    ".venv/bin/pytest": "starts this suite",
    "sidecar best": "needs a run with exports; tests/commands/test_best.py tries each form",
    'python -c "import keras, sys': "needs an export; tests/integration/test_exports.py loads one",
    "sidecar requeue": "needs checkpoints that failed; tests/commands/test_requeue.py tries each form",
    "sidecar compare": "needs two evaluations with saved predictions; tests/commands/test_compare.py tries each form",
    "docker": "needs a Docker engine; deploy/compose/try walks through it",
    "xdg-open": "needs a screen",
    "kubectl": "needs a cluster; tests/deploy/test_kubernetes.py builds what is applied",
    "helm install": "needs a cluster; tests/deploy/test_kubernetes.py renders what is installed",
    "cp -r deploy/kubernetes": "tests/deploy/test_kubernetes.py builds what is applied",
    "systemd/install": "needs root; tests/deploy/systemd/try walks through it",
    "install -D": "needs root; tests/deploy/systemd/try walks through it",
    "cp systemd/": "needs root; tests/deploy/systemd/try walks through it",
    "systemctl": "needs systemd; tests/deploy/systemd/try walks through it",
    "#!": "tests/deploy/test_slurm.py runs it",
    "#SBATCH": "tests/deploy/test_slurm.py runs it",
    "rm -f": "tests/deploy/test_slurm.py runs it",
    "sidecar run ckpts --task my_eval.py:task --http 0.0.0.0": "tests/publishing/http/test_access.py serves by it",
    "srun": "tests/deploy/test_slurm.py runs it",
    "sidecar run ckpts --task my_eval.py:task --done-marker": "tests/deploy/test_slurm.py runs it",
    "sidecar run ckpts --task my_eval.py:task --role worker --stop": "tests/deploy/test_slurm.py runs it",
    "export RAY_AUTH_MODE": "tests/support/ray_cluster.py starts nodes so",
    "ray start": "tests/support/ray_cluster.py starts nodes so",
    "squeue": "tests/deploy/test_slurm.py runs it",
    "sbatch": "tests/deploy/test_slurm.py runs it",
    "VLLM_SERVER_DEV_MODE": "needs vLLM and a GPU; tests/lm/test_vllm_server.py has a server of its form",
    "sidecar run ckpts --task lm_task.py": "tests/lm/test_recipe.py runs it",
    "sidecar run outputs/checkpoint --task titan_task.py": "tests/lm/test_recipe.py evaluates with it",
    "sidecar run out --task nanogpt_task.py": "tests/lm/test_recipe.py evaluates with it",
    "sidecar run\n": "tests/integration/test_many_runs.py serves many runs",
    "torchrun": "test_the_pytorch_page_works runs it",
    "sidecar run ckpts --task my_torch_eval.py": "test_the_pytorch_page_works runs it",
    "wait": "tests/deploy/test_slurm.py runs it",
    "cd examples": "tests/examples/test_examples.py runs these in a copy",
    "python digits_train.py": "tests/examples/test_examples.py runs it",
    "sidecar run ckpts --task digits_task.py": "tests/examples/test_examples.py runs it",
    "python train_on_jax.py": "tests/test_readme.py runs it",
    "sidecar run ckpts --task jax_eval.py": "tests/test_readme.py runs it",
    "python read_predictions.py": "tests/examples/test_examples.py runs it",
    "tar -": "tests/docs/test_faq.py saves and restores a run",
    "sidecar restore-state": "tests/integration/test_state_backup.py restores a run",
    "mv ckpts": "tests/docs/test_faq.py renames a run",
    "rm -r ckpts": "tests/docs/test_faq.py deletes a run",
    "sidecar export": "tests/publishing/test_export.py lets a real Prometheus read it",
    "amtool": "needs Alertmanager, which no test starts",
    "promtool": "tests/publishing/test_export.py runs it",
    "sidecar hooks test": "needs receivers; tests/commands/test_hooks.py has some",
    "(umask 077": "tests/docs/test_hook_pages.py runs it",
    "tail -n 1 ckpts": "needs an event that was given up; tests/publishing/sinks/test_hook.py has some",
    "rm ckpts/.sidecar": "tests/publishing/sinks/test_early_stop.py removes the signal",
    "export AWS_": "tests/integration/test_buckets.py sets them for a local server",
    "export GOOGLE_": "needs an account",
    "sidecar page exp-*/ckpts": "tests/commands/test_page.py serves such runs until it is interrupted",
    "sidecar check s3://": "tests/integration/test_buckets.py runs it against a local server",
    "sidecar run s3://": "tests/integration/test_buckets.py runs it against a local server",
    "sidecar run gs://": "needs an account",
    "sidecar eval ckpts --task own_metric_task.py": "tests/examples/test_examples.py runs it",
}
"""Beginnings of shell commands, which end with a line break, and why the walk below leaves them out."""

WALKED = (
    "python train.py",
    "python -c",
    "sidecar check",
    "sidecar eval",
    "sidecar history",
    "sidecar run",
    "sidecar status",
)
UNMARKED_PYTHON = {
    "from tf_keras.utils import SidecarEvaluator": "two imports, of which readers take one",
    "engine = completions(": "tests/lm/test_vllm_server.py evaluates with such an engine",
    "sidecar.notify(": "tests/integration/test_notices.py notifies a daemon",
    "from sidecar.keras import EarlyStop": "tests/keras/test_early_stop.py trains with it",
    "dist.broadcast(answer, src=0)": "a part of examples/early_stop_train.py, which tests/commands/demo runs",
    'os.environ["TF_USE_LEGACY_KERAS"] = "1"': "tests/evaluation/test_peer_scenarios.py sets it so",
    "import xgboost": "XGBoost is not among the development tools",
    "import onnxruntime": "ONNX Runtime is not among the development tools",
    "from flax import": "Flax is not among the development tools",
}
"""A line of a Python block that has no file name, and why the block is not run."""


def blocks(*languages):
    """Return page, file name and code of every block in one of the languages."""
    return [
        (page, found["file"], textwrap.dedent(found["code"]))
        for page in PAGES
        for found in FENCE.finditer(page.read_text())
        if found["language"] in languages
    ]


def commands():
    """Return page and command of every line of every shell block, without comments."""
    for page, _, code in blocks("sh", "console"):
        for line in code.splitlines():
            if command := line.removeprefix("$ ").partition("  #")[0].strip():
                yield page, command


def begins(command, *starts):
    """Whether a command begins with one of these texts; a line break stands for its end."""
    return f"{command}\n".startswith(starts)


def test_every_block_has_a_language_that_is_dealt_with():
    """A block in another one would escape the tests of this file."""
    languages = {found["language"] for page in PAGES for found in FENCE.finditer(page.read_text())}
    assert languages == {"console", "python", "sh", "text", "toml", "yaml"}


def test_every_python_block_is_run():
    """Marked with a file name that a test runs, or given a reason."""
    assert [
        (page.name, code.splitlines()[0])
        for page, file, code in blocks("python")
        if file not in RUN_BY and not any(line in code for line in UNMARKED_PYTHON)
    ] == []
    assert [test for test in RUN_BY.values() if not (ROOT / test).exists()] == []


def test_every_command_is_walked_or_has_a_reason():
    """A new command is neither forgotten nor run by chance."""
    assert [f"{page.name}: {command}" for page, command in commands() if not begins(command, *WALKED, *NOT_RUN)] == []


def test_no_reason_is_left_over():
    """Refuse excuses for commands that no page shows any more."""
    shown = [command for _, command in commands()]
    assert [start for start in (*WALKED, *NOT_RUN) if not any(begins(each, start) for each in shown)] == []


def test_every_toml_block_is_read(tmp_path):
    """By the settings, without a complaint; the readers' own interpreter is replaced by this one."""
    from sidecar.settings import load

    for _, _, code in blocks("toml"):
        path = tmp_path / "sidecar.toml"
        path.write_text(code.replace("/opt/train/bin/python", sys.executable))
        given = {} if "checkpoint_dir" in code else {"checkpoint_dir": "ckpts"}
        given |= {} if "[lm]" in code else {"task": "my_eval.py:task"}
        task = load({"config": path, **given}, environ={}).task
        assert task.partition(":")[0] in ("my_eval.py", "sidecar.lm.table")


def test_every_yaml_block_is_what_the_deployed_prometheus_has():
    """The scrape configuration that is shown names files as the deployed one does."""
    deployed = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())["scrape_configs"]
    for _, _, code in (block for block in blocks("yaml") if block[1] is None):
        for shown in yaml.safe_load(code)["scrape_configs"]:
            (same,) = (each for each in deployed if each["job_name"] == shown["job_name"])
            assert shown["file_sd_configs"][0]["files"] == same["file_sd_configs"][0]["files"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with the tutorial's training script and task, and what the pages call other ones."""
    folder = tmp_path_factory.mktemp("reader")
    for page, file, code in blocks("python"):
        if page.name == "tutorial.md":
            (folder / file).write_text(code)
    shutil.copy(folder / "my_eval.py", folder / "other_eval.py")
    return folder


def run(folder, command):
    """Run a command as a reader does; return what it prints."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SIDECAR_", "TF_CONFIG"))}
    environment |= {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    bounded = ["timeout", "--kill-after=20", "800", "sh", "-c", command]  # it ends all that the shell has started
    done = subprocess.run(bounded, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.nightly
@pytest.mark.tensorflow
@pytest.mark.timeout(900)  # a dozen commands that import TensorFlow
def test_the_commands_work_in_their_order(folder):
    """Run each command of all pages once. A daemon ends by itself; paths of the readers' storage are in the folder."""
    walked = dict.fromkeys(command for _, command in commands() if command.startswith(WALKED))
    for command in walked:
        if begins(command, *NOT_RUN):
            continue
        if "other/ckpts" in command:
            shutil.copytree(folder / "ckpts", folder / "other/ckpts", ignore=shutil.ignore_patterns(".sidecar"))
        if "/shared/" in command and not (folder / "shared").exists():
            (folder / "shared").mkdir()
            shutil.copytree(folder / "ckpts", folder / "shared/ckpts", ignore=shutil.ignore_patterns(".sidecar"))
            shutil.copy(folder / "my_eval.py", folder / "shared")
        typed = command.replace("/shared/", f"{folder}/shared/")
        if command.startswith("sidecar run"):
            typed = re.sub(r" --http \S+", "", typed) + " --once --http 127.0.0.1:0"
        run(folder, typed)
    assert '"succeeded"' in run(folder, "sidecar history ckpts --json")


@pytest.mark.nightly
@pytest.mark.torch
@pytest.mark.seconds
def test_the_pytorch_page_works(ddp_folder):
    """The page's command evaluates each checkpoint with the page's task."""
    (ddp_folder / "my_torch_eval.py").write_text(code_of("pytorch.md", "my_torch_eval.py"))
    (evaluate,) = (command for page, command in commands() if page.name == "pytorch.md" and "sidecar" in command)
    run(ddp_folder, f"{evaluate} --once --http 127.0.0.1:0")
    assert_all_were_evaluated(ddp_folder)


@pytest.mark.torch
@pytest.mark.seconds
def test_the_first_screen_works(ddp_folder):
    """`sidecar init` finds the checkpoints, and with the README's task `sidecar run` needs no argument."""
    init, evaluate = (command for page, command in commands() if page.name == "README.md" and "bin/sidecar" in command)
    said = run(ddp_folder, init.replace("~/sidecar-env/bin/", ""))
    assert "complete checkpoints: 3" in said
    assert "from sidecar.metrics" in (ddp_folder / "sidecar_task.py").read_text()
    (ddp_folder / "sidecar_task.py").write_text(code_of("README.md", "sidecar_task.py"))
    run(ddp_folder, f"{evaluate.replace('~/sidecar-env/bin/', '')} --once --http 127.0.0.1:0")
    assert_all_were_evaluated(ddp_folder)


@pytest.fixture
def ddp_folder(tmp_path):
    """Return a folder in which two ranks under torchrun have trained the page's model with the page's script."""
    for name in ("model.py", "train_ddp.py"):
        (tmp_path / name).write_text(code_of("pytorch.md", name))
    (train,) = (command for page, command in commands() if page.name == "pytorch.md" and "torchrun" in command)
    run(tmp_path, f"OMP_NUM_THREADS=1 {train}")
    return tmp_path


def code_of(page_name, file):
    """Return the code of a page that is marked with the name of a file."""
    (code,) = (code for page, name, code in blocks("python") if (page.name, name) == (page_name, file))
    return code


def assert_all_were_evaluated(folder):
    """The three epochs of the script succeeded, with numbers that show that it has learnt."""
    rows = json.loads(run(folder, "sidecar history ckpts --json"))
    assert [(row["step"], row["status"]) for row in rows] == [(20, "succeeded"), (40, "succeeded"), (60, "succeeded")]
    assert rows[-1]["examples"] == {"test": 1003}
    assert rows[-1]["metrics"]["test"]["accuracy"]["value"] > 0.8


@pytest.mark.nightly
@pytest.mark.tensorflow
def test_the_parts_of_tasks_work(folder):
    """The task of several sets can be made; averaged weights are restored from a checkpoint that has them."""
    chosen = ("several_sets.py", "own_metrics.py", "restore_averaged.py")
    parts = {file: code for _, file, code in blocks("python") if file in chosen}
    program = f"""
import keras, numpy as np, tensorflow as tf
from my_eval import build_model, test_set
from sidecar import EvalSet, Task
from sidecar.metrics import MAE, Accuracy
hard_set = angles_set = test_set
made = {parts["several_sets.py"].strip()}
assert set(made.eval_sets) == {{"test", "hard"}}
made = {parts["own_metrics.py"].strip()}
assert [made.of_set(name).metrics()[0].name for name in ("test", "angles")] == ["accuracy", "mae"]
{parts["restore_averaged.py"]}
model, optimizer = build_model(), keras.optimizers.Adam(0.1, use_ema=True, ema_momentum=0.5)
model.build((None, 8))
optimizer.build(model.trainable_variables)
for _ in range(3):
    optimizer.apply([tf.ones_like(each) for each in model.trainable_variables], model.trainable_variables)
average = np.asarray(optimizer._model_variables_moving_average[0])
path = tf.train.Checkpoint(model=model, optimizer=optimizer).write("averaged")
other = build_model()
other.build((None, 8))
restore_averaged(other, path)
assert np.array_equal(other.trainable_variables[0], average)
assert not np.array_equal(model.trainable_variables[0], average)
"""
    (folder / "parts.py").write_text(program)
    run(folder, "python parts.py")
