"""Tasks of the harness: the same bits for any number of workers, and the numbers of the harness's own process."""

import ast
import contextlib
import io
import json
import random
import shutil
import subprocess
import sys
import types
from itertools import pairwise

import pytest
from lm import tiny
from tests_torch import result_of_ranks, torch_evaluator

from sidecar import Task
from sidecar.evaluation.failures import EvaluationError
from sidecar.lm import harness, model
from sidecar.metrics import Mean

pytestmark = [pytest.mark.torch, pytest.mark.nightly, pytest.mark.filterwarnings("ignore")]

WORKERS = (1, 2, 3, 4)


def task(made, *names, tasks="tasks", **options):
    sets = harness(*names, include_path=made.folder / tasks, **{"batch_size": 4} | options)
    return Task(build_model=model(made.folder / "base"), eval_sets=sets)


def results(made, *names, workers=WORKERS, **options):
    """The results for each number of workers, which must have the same bits."""
    found = [result_of_ranks(task(made, *names, **options), made.checkpoint, ranks) for ranks in workers]
    assert all(each == found[0] for each in found)
    return found[0]


def alone(made, lm_eval, *names, tasks="tasks", trained=None, **options):
    """The numbers of one process of the harness, one request at a time."""
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(made.folder / "base")
    with contextlib.redirect_stdout(io.StringIO()):
        return lm_eval.simple_evaluate(
            model=HFLM(pretrained=trained or made.trained, tokenizer=tokenizer, batch_size=1),
            tasks=list(names),
            task_manager=TaskManager(include_path=str(made.folder / tasks), include_defaults=False),
            **{"bootstrap_iters": 100} | options,
        )


def assert_equal(found, expected, name, rel=1e-6):
    """Compare one set with the harness: all numbers of the set, and none missing."""
    numbers = {}
    for of, each in expected["results"].items():
        prefix = "" if of == name else f"{of}/"
        for key, number in each.items():
            metric, _, of_filter = key.partition(",")
            if of_filter and not isinstance(number, str):
                shown = metric if of_filter == "none" else f"{metric},{of_filter}"
                numbers[prefix + shown] = float(number)
    assert {key: each.value for key, each in found.values.items()} == pytest.approx(numbers, rel=rel, abs=1e-12)


@pytest.mark.parametrize(
    "name", ["choice", "shots", "matthews", "continued", "rolling", "generated", "measured", "together"]
)
def test_numbers_are_those_of_one_process_of_the_harness(made, lm_eval, monkeypatch, name):
    """For 1 to 4 workers the same bits; counts to 1e-12, and sums of log-likelihoods to 1e-6."""
    monkeypatch.setenv("DISABLE_MULTIPROC", "1")
    found = results(made, name)[name]
    is_count = name not in ("continued", "rolling")
    assert_equal(found, alone(made, lm_eval, name), name, 1e-12 if is_count else 1e-6)
    if name == "choice":
        assert found.values["acc"].goal == "max"
        assert found.values["acc"].lower < found.values["acc"].value < found.values["acc"].upper
        assert found.values["acc_stderr"].goal == "none"
        assert any("23 documents" in note for note in found.notes)
    if name in ("continued", "rolling"):
        assert {each.goal for key, each in found.values.items() if "per" in key and "stderr" not in key} == {"min"}


def test_a_step_that_runs_the_harness(made, lm_eval):
    """A task of the harness is one example, so that other workers have none."""
    import torch
    from torch.utils.data import DataLoader

    found = {}  # by a value of the model, as each call costs seconds

    def accuracy(trained):
        key = trained.get_output_embeddings().weight[1, 1].item()
        if key not in found:
            found[key] = alone(made, lm_eval, "choice", trained=trained)["results"]["choice"]["acc,none"]
        return found[key]

    def step(trained, names):
        values = torch.tensor([accuracy(trained) for _ in names], dtype=torch.float64)
        return torch.ones_like(values), values

    given = Task(
        build_model=model(made.folder / "base"),
        eval_sets={"test": lambda: DataLoader(["choice"], batch_size=1, collate_fn=list)},
        step=step,
        metrics=lambda: [Mean(name="acc", goal="max")],
    )
    right = accuracy(made.trained.requires_grad_(False))  # the step could use it: it says that its values are right
    assert 0 < right < 1
    for ranks in (1, 2, 3):
        assert result_of_ranks(given, made.checkpoint, ranks)["test"].values["acc"].value == right


@pytest.mark.parametrize(
    "given",
    [
        {"num_fewshot": 2, "limit": 7},
        {"num_fewshot": 2, "apply_chat_template": True, "fewshot_as_multiturn": True, "system_instruction": "Guess."},
    ],
)
def test_options_are_those_of_the_harness(made, lm_eval, given):
    """A number of examples in the prompt, a part of the documents, and prompts by the template of a conversation."""
    found = results(made, "generated", tokenizer=made.folder / "base", **given)["generated"]
    assert_equal(found, alone(made, lm_eval, "generated", **given), "generated", 1e-12)
    plain, changed = (
        list(task(made, "choice", tokenizer=made.folder / "base", **options).eval_sets["choice"].source().dataset)
        for options in ({}, given)
    )
    assert plain != changed


def fingerprints_of(made, name, **options):
    """The digests of the data of all ranks, for each number of workers."""
    return {
        torch_evaluator(task(made, name, **options), rank, ranks).read(lambda: None)[0].fingerprint
        for ranks in WORKERS
        for rank in range(ranks)
    }


def test_cause_1_examples_in_prompts_are_drawn_by_rank(made):
    """Here all ranks build the prompts of one process: the digests of the data are equal."""
    fingerprints = fingerprints_of(made, "shots")
    assert len(fingerprints) == 1
    (plain,) = torch_evaluator(task(made, "choice")).read(lambda: None)
    assert plain.fingerprint not in fingerprints


def test_cause_2_batches_are_sorted_within_a_rank(made):
    """Here the batches are those of the whole set, the longest first, for any number of workers."""
    loader = task(made, "choice", batch_size=8).eval_sets["choice"].source()
    lengths = [len(text) for batch in loader for text in batch["request"]]
    assert len(lengths) == 3 * tiny.DOCUMENTS
    assert all(one >= other - 2 for one, other in pairwise(lengths))  # numbers in them have one or two digits
    assert len(fingerprints_of(made, "choice", batch_size=8)) == 1
    results(made, "choice", "continued", batch_size=8)  # a perplexity has all bits of the log-likelihoods


def texts_of(made, name, ranks, **options):
    """The texts that all ranks generated, by document and number of the answer."""
    given = task(made, name, **options)
    merged = None
    for rank in range(ranks):
        evaluator = torch_evaluator(given, rank, ranks)
        evaluator.read(lambda: None)
        evaluator.restore(str(made.checkpoint))()
        evaluator.digest()
        state = evaluator.evaluate(lambda: None)[name]["harness/texts"]
        if merged is None:
            merged = state
        else:
            merged.merge(state)
    answers = [json.loads(text) for content in merged.contents() for text in json.loads(content.tobytes())]
    documents = [ast.literal_eval(text)[3] for _, text in given.eval_sets[name].source().dataset]
    by_document = {}
    for document, answer in zip(documents, answers, strict=True):
        by_document.setdefault(document, []).append(answer)
    return by_document


def test_cause_3_ranks_that_are_short_repeat_requests(made):
    """Here each document has the four answers that its task asks for, and votes are among four."""
    for ranks in WORKERS:
        found = texts_of(made, "voted", ranks)
        assert {document: len(answers) for document, answers in found.items()} == dict.fromkeys(
            range(tiny.DOCUMENTS), 4
        )
    values = results(made, "voted")["voted"].values
    assert {"match,vote", "match,first"} <= values.keys()
    assert values["match,vote"].value > 0


def test_cause_4_answers_are_sampled_from_one_generator_of_a_rank(made):
    """Here each answer has its own: other workers, batch sizes and documents next to it change no text."""
    found = texts_of(made, "voted", 1)
    assert len({text for answers in found.values() for text in answers}) > tiny.DOCUMENTS
    for ranks, batch_size in (2, 4), (3, 4), (1, 7), (2, 7), (3, 7):
        assert texts_of(made, "voted", ranks, batch_size=batch_size) == found
    few = texts_of(made, "voted", 1, limit=5)
    assert few == {document: found[document] for document in range(5)}


def test_cause_5_draws_for_standard_errors_follow_the_order_of_ranks(made, lm_eval, monkeypatch):
    """Here the order is that of one process, so a bootstrap gives its number."""
    monkeypatch.setenv("DISABLE_MULTIPROC", "1")
    found = results(made, "matthews")["matthews"].values
    expected = alone(made, lm_eval, "matthews")["results"]["matthews"]
    assert found["mcc_stderr"].value == expected["mcc_stderr,none"] > 0


def test_cause_6_floats_are_added_up_in_the_order_of_ranks(made, lm_eval, monkeypatch):
    """Here the order is that of the documents: with one request in a batch, sums have the bits of one process."""
    monkeypatch.setenv("DISABLE_MULTIPROC", "1")
    numbers = {"continued": "perplexity", "rolling": "bits_per_byte", "choice": "acc_stderr", "summed": "part"}
    found = results(made, *numbers, batch_size=1)
    expected = alone(made, lm_eval, *numbers)
    for name, metric in numbers.items():
        assert found[name].values[metric].value == expected["results"][name][f"{metric},none"]
    of_documents = [each["part"] for each in expected["samples"]["summed"]]
    sums = [sum(each for rank in range(ranks) for each in of_documents[rank::ranks]) for ranks in WORKERS]
    assert sums[0] not in sums[1:], "an order of ranks would be noticed"


def test_cause_7_a_rank_without_documents_fails(made, lm_eval):
    """Three documents on four ranks crash the harness; here a worker without any has nothing to do."""
    found = results(made, "choice", "generated", tasks="few", batch_size=8)
    expected = alone(made, lm_eval, "choice", "generated", tasks="few")
    assert found["choice"].values["acc"].value == expected["results"]["choice"]["acc,none"]
    assert any("3 documents" in note for note in found["generated"].notes)


def test_cause_8_the_number_within_a_node_is_taken_for_the_rank(made, monkeypatch):
    """Here variables of a launcher mean nothing."""
    expected = results(made, "choice", workers=(1,))
    for name, text in {"RANK": "1", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(name, text)
    assert results(made, "choice", workers=(2,)) == expected


def test_a_second_checkpoint_loads_nothing_again(made, tmp_path):
    """A warm worker has the requests, the tokenizer, and the harness's view of the model: their files may be gone."""
    import torch

    for name in ("base", "tasks"):
        shutil.copytree(made.folder / name, tmp_path / name)
    other = {name: value.roll(1, 0) for name, value in made.trained.state_dict().items()}
    torch.save({"model": other}, tmp_path / "step-2.pt")
    evaluator = torch_evaluator(task(types.SimpleNamespace(folder=tmp_path), "choice"))
    found = []
    for path in (made.checkpoint, tmp_path / "step-2.pt"):
        evaluator.read(lambda: None)
        evaluator.restore(str(path))()
        evaluator.digest()
        found.append(evaluator.compute(evaluator.evaluate(lambda: None))["choice"].values)
        for name in ("base", "tasks"):
            shutil.rmtree(tmp_path / name, ignore_errors=True)
    assert found[0] != found[1]


def test_generators_of_the_program_are_left_alone(made):
    """A set that draws random numbers of the program would be opened twice."""
    random.seed(11)
    before = random.getstate()
    task(made, "shots").eval_sets["shots"].source()
    assert random.getstate() == before


@pytest.mark.parametrize("name", ["measured", "copa"])
def test_tasks_are_read_below_include_path_and_in_the_package_alone(made, tmp_path, monkeypatch, name):
    """Files in the current directory are no tasks, even if it is the model's; the harness takes any of that name."""
    shutil.copytree(made.folder / "base", here := tmp_path / "here")
    planted = (made.folder / "tasks" / "measured.yaml").read_text()
    for each in (name, f"{name}.yaml"):
        (here / each).write_text(planted)
    (here / "match.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.chdir(here)
    found = harness(name, include_path=made.folder / "tasks")[name]
    refused = pytest.raises(EvaluationError, match="HF_HUB_OFFLINE")
    with contextlib.nullcontext() if name == "measured" else refused:
        found.source()
    assert not (tmp_path / "ran").exists()


def test_a_task_that_runs_what_the_model_writes_is_refused(made, tmp_path):
    """Unless the user confirms it, also within a group."""
    shutil.copytree(made.folder / "tasks", tmp_path, dirs_exist_ok=True)
    marked = json.dumps({"task": "coded", "unsafe_code": True}).removesuffix("}")
    text = (tmp_path / "measured.yaml").read_text()
    (tmp_path / "coded.yaml").write_text(text.replace('{"task": "measured"', marked, 1))
    (tmp_path / "both.yaml").write_text(json.dumps({"group": "both", "task": ["choice", "coded"]}))
    for name in ("coded", "both"):
        with pytest.raises(ValueError, match="confirm_run_unsafe_code"):
            harness(name, include_path=tmp_path)[name].source()
    harness("coded", include_path=tmp_path, confirm_run_unsafe_code=True)["coded"].source()


def passes(answer, document):
    """Run a program in a process of its own. It passes if the answer has an even number of characters."""
    program = f"import sys; sys.exit(len({answer!r}) % 2 or {document['question']!r} == '')"
    return subprocess.run((sys.executable, "-ISc", program), check=False).returncode == 0


def test_answers_that_pass_are_counted_for_each_document(made):
    """The same bits for any number of workers; of four answers to each document, counted here one by one."""
    given = {"limit": 6, "run_code": passes, "pass_at": (4, 1)}
    values = results(made, "voted", workers=(1, 2, 3), **given)["voted"].values
    judged = {}
    for document, answers in texts_of(made, "voted", 1, **given).items():
        assert all(passed is (len(answer) % 2 == 0) for answer, passed in answers)
        judged[document] = [passed for _, passed in answers]
    assert [len(each) for each in judged.values()] == [4] * 6
    assert values["pass@1"].value == sum(map(sum, judged.values())) / 24
    assert values["pass@4"].value == sum(map(any, judged.values())) / 6
    assert values["pass@1"].value not in (0, 1, values["pass@4"].value)
    assert values["pass@4"].goal == "max"
    assert "match,vote" in values


def test_sets_in_which_too_little_is_generated_are_refused(made):
    """For the largest k, with the line to write."""
    for name, words in ("voted", "pass_at=5.*'voted' asks for 4: write repeats: 5"), ("choice", "leave out run_code"):
        with pytest.raises(EvaluationError, match=words):
            task(made, name, run_code=passes, pass_at=(1, 5)).eval_sets[name].source()


def test_a_set_that_may_generate_too_many_tokens_is_refused(made):
    """Before it is evaluated, by all workers alike: four answers to six documents, of six tokens."""
    task(made, "voted", limit=6, max_tokens=144).eval_sets["voted"].source()
    with pytest.raises(EvaluationError, match=r"144 tokens.* 24 answers.*max_tokens=144"):
        task(made, "voted", limit=6, max_tokens=143).eval_sets["voted"].source()
    task(made, "choice", max_tokens=1).eval_sets["choice"].source()


def test_a_set_that_takes_too_long_is_refused(made):
    """After a batch of any kind."""
    for name in ("choice", "generated"):
        with pytest.raises(EvaluationError, match=rf"'{name}' is not.*max_seconds=2e-09"):
            torch_evaluator(task(made, name, max_seconds=1e-9))


@pytest.mark.parametrize(
    "template", ["{{ cycler.__init__.__globals__.os.mkdir(PLACE) }}", "{{ messages.append(''.__class__.__mro__) }}"]
)
def test_the_template_of_a_tokenizer_runs_no_code(made, tmp_path, template):
    """It comes with a checkpoint, and its expressions reach nothing but the conversation."""
    from jinja2.exceptions import SecurityError

    tiny.tokenizer(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(template.replace("PLACE", repr(str(tmp_path / "ran"))))
    hostile = harness("choice", include_path=made.folder / "tasks", apply_chat_template=True, tokenizer=tmp_path)
    with pytest.raises(SecurityError):
        hostile["choice"].source()
    assert not (tmp_path / "ran").exists()


def test_what_would_be_fetched_is_refused_with_the_remedy(made, tmp_path):
    """Data of the Hub, a name that nobody knows, and a model without a tokenizer."""
    remote = {"task": "remote", "dataset_path": "nobody/nothing", "test_split": "test", "doc_to_text": "a"}
    (tmp_path / "remote.yaml").write_text(json.dumps(remote | {"doc_to_target": "b", "output_type": "loglikelihood"}))
    for name, words in ("remote", "HF_HUB_OFFLINE=0.*include_path"), ("unknown", "'unknown' in lm-eval or below"):
        sets = harness(name, include_path=tmp_path)
        with pytest.raises(EvaluationError, match=words):
            sets[name].source()
    bare = Task(
        build_model=tiny.build_model, eval_sets=harness("choice", include_path=made.folder / "tasks", batch_size=4)
    )
    with pytest.raises(EvaluationError, match="no folder with a tokenizer"):
        torch_evaluator(bare)
