"""Questions of new users are answered within two clicks: a page of the menu or a hit of the search, and its heading."""

import functools
import http.server
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from urllib.parse import urlencode

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
FAQ = "how-to/faq.md"

QUESTIONS = {
    "share the GPU": (FAQ, "Share the GPU with training, multi-GPU"),
    "several eval sets": ("how-to/write-a-task.md", "Several eval sets"),
    "slurm": ("how-to/slurm.md", "Run with Slurm"),
    "kubernetes": ("how-to/kubernetes.md", "Run on Kubernetes"),
    "docker": (FAQ, "Docker: an image for my job"),
    "evaluate old checkpoints again": (FAQ, "Evaluate old checkpoints again, after a fix of a metric"),
    "resume": (FAQ, "Resume after a crash or a preemption, spot instances"),
    "rename a run": (FAQ, "Rename a run"),
    "delete results": (FAQ, "Delete results, start over"),
    "backup": (FAQ, "Backup and restore"),
    "cost for training": (FAQ, "Cost for training, slowdown, overhead"),
    "several runs": ("how-to/several-runs.md", "Evaluate several runs, tasks or test sets"),
    "private network login": (FAQ, "Private network, login, authentication, password, TLS"),
    "s3 gcs": (FAQ, "S3, GCS and other buckets"),
    "llm": (FAQ, "Language models, LLM"),
    "lora": (FAQ, "LoRA, peft, adapters"),
    "slack": (FAQ, "Slack, Discord, Teams, email"),
    "pandas dataframe": (FAQ, "pandas: results as a DataFrame"),
    "compare two runs": (FAQ, "Compare two runs"),
    "custom plot": (FAQ, "matplotlib: a custom plot of a metric"),
    "early stop": ("how-to/early-stop.md", "Stop training early"),
    "significantly better": (FAQ, "A/B test, statistical significance: is checkpoint A significantly better than B?"),
    "upgrade": ("how-to/upgrade.md", "Upgrade"),
    "wandb": (FAQ, "Weights & Biases (wandb)"),
    "nothing is evaluated": (FAQ, "Nothing is evaluated, what is wrong?"),
    "best checkpoint": ("how-to/best-checkpoint.md", "Keep and deploy the best checkpoint"),
    "helm": (FAQ, "Kubernetes, k8s, Helm"),
    "uninstall": (FAQ, "Uninstall"),
    "email": (FAQ, "Slack, Discord, Teams, email"),
    "debug": (FAQ, "Debug a task"),
    "overfitting": (FAQ, "Overfitting: curves of train and test"),
    "parquet": (FAQ, "Parquet, WebDataset, streaming data sets"),
    "optuna": (FAQ, "Hyperparameter search: Optuna, Hydra, Ray Tune"),
    "apptainer": (FAQ, "Podman, Apptainer, Singularity"),
    "ray": (FAQ, "Ray: evaluate on other machines than those that train"),
    "many runs": ("how-to/many-runs.md", "Evaluate many runs with one daemon"),
    "language models": ("how-to/language-models.md", "Evaluate language models"),
    "fsdp": (FAQ, "A model larger than one GPU or process: FSDP, tensor parallel, torchtitan"),
    "vllm": ("how-to/language-models.md", "A server of vLLM"),
    "slices": (FAQ, "Slices: numbers for parts of a test set, subgroups, fairness"),
    "k8s": (FAQ, "Kubernetes, k8s, Helm"),
    "overhead": (FAQ, "Cost for training, slowdown, overhead"),
    "authentication": (FAQ, "Private network, login, authentication, password, TLS"),
    "statistical significance": (
        FAQ,
        "A/B test, statistical significance: is checkpoint A significantly better than B?",
    ),
    "several datasets": (FAQ, "Several test sets or datasets, several runs, many runs"),
    "new version": (FAQ, "Upgrade, update to a new version"),
    "mmlu": ("how-to/language-models.md", "Evaluate language models"),
    "perplexity texts": ("how-to/language-models.md", "Perplexity of your own texts"),
    "tensor parallel": (FAQ, "A model larger than one GPU or process: FSDP, tensor parallel, torchtitan"),
    "pass@k": ("how-to/language-models.md", "Programs that the model writes"),
    "spot instance": (FAQ, "Resume after a crash or a preemption, spot instances"),
    "minio credentials": ("how-to/buckets.md", "Credentials"),
    "ray autoscaler": ("how-to/ray.md", "On Kubernetes"),
    "slurm requeue": ("how-to/slurm.md", "Next to training"),
    "priority turns": ("how-to/many-runs.md", "Turns"),
    "worst slice": ("how-to/metrics.md", "Slices"),
    "clustered standard errors": (FAQ, "Confidence intervals, error bars, standard errors, bootstrap"),
    "confidence intervals": (FAQ, "Confidence intervals, error bars, standard errors, bootstrap"),
    "sample size": (FAQ, "Sample size, power: how many examples does a test set need?"),
    "examples broke": (FAQ, "Which examples broke, got worse or were fixed between two checkpoints?"),
    "offline": (FAQ, "Offline, no internet, air-gapped"),
    "notify": (FAQ, "Evaluate at once after a save: notify"),
}
"""What people type, with the page and the heading that answer it."""

PATIENCE = 240_000  # milliseconds
FIRST_HITS = 5


def in_menu(nav, depth=0):
    """Yield each page of the navigation with the number of sections around it."""
    for entry in nav:
        for target in entry.values() if isinstance(entry, dict) else [entry]:
            if isinstance(target, list):
                yield from in_menu(target, depth + 1)
            else:
                yield target, depth


def section(page, heading):
    """Return the text of the section with a heading, the heading included."""
    text = (DOCS / page).read_text()
    found = re.search(rf"^(#+) {re.escape(heading)}$(.*?)(?=^#{{1,6}} |\Z)", text, re.DOTALL | re.MULTILINE)
    assert found, f"{page} has no heading {heading!r}"
    return f"{heading}\n{found[2]}"


@pytest.mark.parametrize("words", QUESTIONS)
def test_a_question_has_its_section(words):
    """The words stand in it, and two clicks in the menu lead to its page: sections are open, groups in them are not."""
    page, heading = QUESTIONS[words]
    text = section(page, heading).lower()
    assert [word for word in words.lower().split() if word not in text] == []
    configuration = (ROOT / "mkdocs.yml").read_text()
    menu = dict(in_menu(yaml.safe_load(configuration)["nav"]))
    assert menu[page] <= 2
    assert "navigation.sections" in configuration


def test_the_guides_are_in_five_groups():
    """A list of thirty would have to be read from top to bottom."""
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    (guides,) = (entry["How-to guides"] for entry in nav if "How-to guides" in entry)
    sizes = [len(pages) for group in guides for pages in group.values()]
    assert len(sizes) == 5
    assert max(sizes) <= 8


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The address of the built site."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)]
    subprocess.run(command, cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, check=True, timeout=600)

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_the_search_finds_the_answers(site, needs):
    """The page of each answer is among the first five that the site's own search shows, in a real browser."""
    path = needs("chromium")
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    missed = {}
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])  # root has no sandbox
        tab = browser.new_page()
        tab.set_default_timeout(PATIENCE)
        for words, (page, _) in QUESTIONS.items():
            tab.goto(f"{site}/index.html?{urlencode({'q': words})}")  # as if typed
            tab.wait_for_selector(".md-search-result__item")
            items = tab.locator(".md-search-result__item > a").evaluate_all("all => all.map(each => each.pathname)")
            found = [*dict.fromkeys(name.removeprefix("/") for name in items)][:FIRST_HITS]
            if page.replace(".md", ".html") not in found:
                missed[words] = found
        browser.close()
    assert missed == {}
