"""Make eval sets of tasks of lm-evaluation-harness, whose numbers do not depend on the number of workers.

Every worker builds all requests as one process of the harness would, with `lm_eval.simple_evaluate`. The requests are
ordered by length over the whole set, and cut into batches before workers are known. A worker sends its batches to the
model through the harness's own `HFLM`. At the end `lm_eval.evaluate` gets the answers of all workers, in the order in
which it asks for them: its filters, `process_results`, aggregations, groups and standard errors run as in one process.
Source: lm-eval 0.4.12 and 0.4.13, `evaluator.py`, `api/task.py`, `api/model.py`.
"""

import contextlib
import io
import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any, Final

from sidecar.errors import TaskError
from sidecar.evaluation.failures import task_error
from sidecar.evaluation.task import EvalSet
from sidecar.lm.bounds import Bounds
from sidecar.lm.models import tokenizer_for
from sidecar.lm.offline import offline, would_fetch
from sidecar.lm.pass_at_k import PassAtK, RunCode, pass_at_k
from sidecar.lm.sampling import NOTE, Prompt, is_sampled, sampling
from sidecar.lm.vllm_server import Completions, served

_GENERATION: Final = "generate_until"
_ROLLING: Final = "loglikelihood_rolling"
_METHODS: Final = {"loglikelihood": "loglikelihood", "multiple_choice": "loglikelihood"}
_LIMITS: Final = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
_USUAL_LIMIT: Final = 256
"""Tokens of an answer of `HFLM` to a request without one of these."""

_OPTIONS: Final = (
    *("apply_chat_template", "fewshot_as_multiturn", "system_instruction", "gen_kwargs", "fewshot_random_seed"),
    *("confirm_run_unsafe_code", "metadata"),
)
_OF_EVALUATE: Final = ("limit", "bootstrap_iters", "confirm_run_unsafe_code")  # the others belong to the prompts


def harness(
    *tasks: str,
    include_path: str | os.PathLike[str] | None = None,
    num_fewshot: int | None = None,
    limit: float | None = None,
    tokenizer: Any = None,
    batch_size: int = 8,
    max_length: int | None = None,
    bootstrap_iters: int = 100,
    every_nth: int = 1,
    engine: Completions | None = None,
    max_tokens: int | None = 20_000_000,
    max_seconds: float | None = 86_400.0,
    run_code: RunCode | None = None,
    pass_at: int | Sequence[int] | None = None,
    run_code_seconds: float = 60.0,
    **options: Any,
) -> dict[str, EvalSet]:
    """Return an eval set for each task, group or tag of lm-evaluation-harness, by name.

    The set of a group has the numbers of the group, and those of its tasks as TASK/METRIC. Numbers of a filter have its
    name, as in the harness: `exact_match,strict-match`. A number that is a mean over documents has a 95 % interval, and
    next to it the harness's standard error, such as `acc_stderr`. The goal is the harness's `higher_is_better`.

    Nothing is fetched: a task whose data are not on this machine is refused. `HF_HUB_OFFLINE=0` in the environment
    allows it.

    Args:
        tasks: Names of the harness, or of YAML files below `include_path`, or paths of YAML files.
        include_path: A folder with tasks of your own.
        num_fewshot: Number of examples in the prompt. None: as each task says.
        limit: The first so many documents of each task, or a part of them if it is below 1.
        tokenizer: A tokenizer of transformers, or the path of a folder with one. None: the one in the folder from which
            the model was configured; then requests are ordered by characters, not by tokens, which costs time.
            `apply_chat_template` needs a tokenizer here.
        batch_size: Number of requests in a batch.
        max_length: The longest input in tokens. None: as the model's configuration says.
        bootstrap_iters: Number of draws for standard errors that have no formula. The harness's own default is 100000.
        every_nth: See `EvalSet`.
        engine: A server that answers the requests, made by `completions`. None: the model in the worker process does.
        max_tokens: The most tokens that the requests of a set may ask for, each with its own limit (`max_gen_toks`). A
            set that asks for more is refused before it is evaluated. The default takes six hours at 1,000 tokens per
            second. None: any number.
        max_seconds: The longest time that one worker may take for a set, looked at after each batch; then the
            evaluation fails. The default is a day, for which newer checkpoints would wait. None: any time.
        run_code: A function that runs a program which the model wrote, in a sandbox of yours. It gets an answer and its
            document, and returns True if the program passes its tests, else False. It has to end the program.
        pass_at: Values of k, for the metrics `pass@k` of `run_code`, which are estimated without bias from all answers
            to a document (`repeats` of the task). None: 1.
        run_code_seconds: The longest time of one call of `run_code`; then the evaluation fails.
        options: Further arguments of `lm_eval.simple_evaluate`: apply_chat_template, fewshot_as_multiturn,
            system_instruction, gen_kwargs, fewshot_random_seed, confirm_run_unsafe_code, metadata.

    Raises:
        TaskError: An argument is wrong.
    """
    if not tasks or not all(isinstance(task, str) and task for task in tasks):
        raise TaskError(f"harness(…) takes names of tasks, such as harness('arc_easy'), found {tasks!r:.80}")
    if unknown := [name for name in options if name not in _OPTIONS]:
        raise TaskError(f"harness({unknown[0]}=…): there is no such option, but {', '.join(_OPTIONS)}")
    if not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size < 1:
        raise TaskError(f"harness(batch_size={batch_size!r}) must be a number from 1")
    if options.get("apply_chat_template") and tokenizer is None:
        raise TaskError("harness(apply_chat_template=…) needs the tokenizer, too: write tokenizer='path/to/folder'")
    judge = pass_at_k(run_code, pass_at, run_code_seconds)
    given = {"num_fewshot": num_fewshot, "limit": limit, "bootstrap_iters": bootstrap_iters} | options
    sets = {}
    for spec in tasks:
        name = Path(spec).stem if spec.endswith((".yaml", ".yml")) else spec
        if name in sets:
            raise TaskError(f"harness(…) names the task {name!r} twice")
        path = None if include_path is None else os.fspath(include_path)
        bounds = Bounds(name, max_tokens, max_seconds)
        one = _HarnessSet(name, spec, path, given, tokenizer, batch_size, max_length, engine, bounds, judge)
        sets[name] = EvalSet(one.open, step=one, metrics=one.metrics, check="all", every_nth=every_nth)
    return sets


@dataclass(frozen=True, slots=True)
class _Requests:
    """The requests of one set: as the harness asks them, and the place of each in the order of the data."""

    tasks: Mapping[str, Any]  # what `TaskManager.load` returned
    asked: Sequence[tuple[str, Any]]  # method of the model, and instance, in the order in which the harness asks
    repeats: Sequence[int]  # for each of `asked`, its number among those of the same instance
    order: Sequence[int]  # for each place in the data, the number of its request in `asked`
    has_texts: bool  # among the answers


class _HarnessSet:
    """Build, run and aggregate the requests of one eval set. The harness is loaded when the set is opened."""

    def __init__(
        self,
        name: str,
        spec: str,
        include_path: str | None,
        given: Mapping[str, Any],
        tokenizer: Any,
        batch_size: int,
        max_length: int | None,
        engine: Completions | None,
        bounds: Bounds,
        judge: PassAtK | None,
    ) -> None:
        self._engine, self._bounds, self._judge = engine, bounds, judge
        self._name, self._spec, self._include_path, self._given = name, spec, include_path, given
        self._tokenizer, self._batch_size, self._max_length = tokenizer, batch_size, max_length
        self._requests: _Requests | None = None
        self._lm: Any = None
        self._weights_digest: Callable[[], str] = str

    def seed_with(self, weights_digest: Callable[[], str]) -> None:
        """Seed sampled answers from now on with the digest that this function waits for."""
        self._weights_digest = weights_digest

    def _digest(self) -> str:
        return self._weights_digest()

    def open(self) -> Any:
        """Return a loader of the requests: a text for each, which has all that the model is asked."""
        from torch.utils.data import DataLoader

        self._requests = requests = self._built()
        version = _imported().__version__ + ("" if self._engine is None else " vllm")
        version += "" if self._judge is None else f" pass@{self._judge.ks}"
        texts = [_text(version, *requests.asked[number]) for number in requests.order]
        return DataLoader(
            list(enumerate(texts)),
            batch_size=self._batch_size,
            collate_fn=_collated,
        )

    def __call__(self, model: Any, batch: Mapping[str, Any]) -> tuple[Any, Any]:
        """Return the places of the requests of a batch, and the model's answers."""
        import torch

        with self._bounds.batch():
            answers = self._answers(model, batch["place"].tolist())
        if self._loaded.has_texts:
            return batch["place"], [_encoded(answer) for answer in answers]
        return batch["place"], torch.tensor([_pair(answer) for answer in answers], dtype=torch.float64)

    def _answers(self, model: Any, places: Sequence[int]) -> list[Any]:
        """Return the answers to the requests of these places: those of the model, texts with a judgement."""
        requests = self._loaded
        asked = [requests.asked[requests.order[place]] for place in places]
        lm = self._lm_of(model)
        if self._engine is not None:
            lm.refresh()
        answers: dict[int, Any] = {}
        for method in dict.fromkeys(method for method, _ in asked):
            own = [place for place, (of_request, _) in zip(places, asked, strict=True) if of_request == method]
            instances = [self._instance(place) for place in own]
            with _quiet():
                found = getattr(lm, method)(instances, disable_tqdm=True)
            answers |= dict(zip(own, found, strict=True))
        if self._judge is not None:
            for place, (method, instance) in zip(places, asked, strict=True):
                if method == _GENERATION:
                    where = f"eval set {self._name!r}, document {instance.doc_id} of task {instance.task_name!r}"
                    answers[place] = answers[place], self._judge.passes(answers[place], instance.doc, where)
        return [answers[place] for place in places]

    def _instance(self, place: int) -> Any:
        """Return what the model is asked at this place, which tells whose answer it is if a text is generated."""
        requests, number = self._loaded, self._loaded.order[place]
        method, instance = requests.asked[number]
        if method != _GENERATION:
            return instance
        text, given = instance.args
        prompt = Prompt.of(text, instance.task_name, instance.doc_id, requests.repeats[number])
        return SimpleNamespace(args=(prompt, given))

    def metrics(self) -> list[Any]:
        """Return the metric that turns all answers into the harness's numbers."""
        from sidecar.lm.answers import HarnessNumbers

        notes: tuple[str, ...] = () if self._engine is None else (self._engine.note,)
        has_texts = self._loaded.has_texts
        if any(method == _GENERATION and is_sampled(instance.args[1]) for method, instance in self._loaded.asked):
            notes += (NOTE,)
        begin = partial(self._bounds.begin, of=len(self._loaded.order))
        return [HarnessNumbers(self._name, begin, self._aggregated, has_texts=has_texts, notes=notes)]

    @property
    def _loaded(self) -> _Requests:
        assert self._requests is not None, "the set is opened first"
        return self._requests

    def _lm_of(self, model: Any) -> Any:
        """Return the harness's view of a model, and keep it for the next batches."""
        if self._lm is None or self._lm.model is not model:
            tokenizer = tokenizer_for(self._tokenizer, model, f"harness({self._spec!r}, tokenizer=…)")
            in_process = partial(sampling, self._digest, model)
            make = in_process if self._engine is None else partial(served, self._engine, model)
            with _quiet():
                self._lm = make(tokenizer=tokenizer, batch_size=self._batch_size, max_length=self._max_length)
        return self._lm

    def _built(self) -> _Requests:
        """Return all requests, as one process of the harness builds them."""
        lm_eval = _imported()
        if self._given.get("apply_chat_template"):
            self._tokenizer = tokenizer_for(self._tokenizer, None, f"harness({self._spec!r}, tokenizer=…)")
        recorder = _answering(_recorded, self._tokenizer)
        is_file = self._spec.endswith((".yaml", ".yml")) and Path(self._spec).is_file()
        managers = [] if self._include_path is None else [False]
        for include_defaults in [*managers, True]:
            manager = _capturing(include_path=self._include_path, include_defaults=include_defaults)
            if is_file or self._spec in manager.all_tasks:
                break
        else:  # the harness would take a file of this name in the current directory, and run what it names
            where = "" if self._include_path is None else f" or below {self._include_path}"
            raise task_error(f"eval set {self._name!r}: there is no task {self._spec!r} in lm-eval{where}")
        try:
            with _same_random_numbers(), offline(), _quiet(), contextlib.suppress(_RecordedError):
                lm_eval.simple_evaluate(model=recorder, tasks=[self._spec], task_manager=manager, **self._given)
        except Exception as error:
            if would_fetch(error):
                raise task_error(self._remedy()) from error
            raise
        by_method: dict[str, list[tuple[Any, int]]] = {}
        for task in manager.loaded["tasks"].values():
            for instance in task.instances:
                method = _METHODS.get(instance.request_type, instance.request_type)
                by_method.setdefault(method, []).extend((instance, repeat) for repeat in range(instance.repeats))
            task.build_all_requests = _keep
        generations = [instance for instance, _ in by_method.get(_GENERATION, [])]
        self._bounds.require_tokens([_most_tokens(*instance.args) for instance in generations])
        if self._judge is not None:
            self._judge.require_answers(self._name, {each.task_name: each.repeats for each in generations})
        asked = [(method, instance) for method, pairs in by_method.items() for instance, _ in pairs]
        repeats = [repeat for pairs in by_method.values() for _, repeat in pairs]
        lengths = self._lengths([instance for _, instance in asked])
        order = sorted(range(len(asked)), key=lambda number: (-lengths[number], number))
        return _Requests(manager.loaded, asked, repeats, order, has_texts=_GENERATION in by_method)

    def _lengths(self, instances: Sequence[Any]) -> list[int]:
        """Return the length of each request: in tokens if the tokenizer is known before the model, else in characters.

        Requests of the same number of characters can have very different numbers of tokens, and a batch is filled up to
        its longest.
        """
        texts = ["".join(part for part in instance.args if isinstance(part, str)) for instance in instances]
        if self._tokenizer is None or not texts:
            return [len(text) for text in texts]
        self._tokenizer = tokenizer_for(self._tokenizer, None, f"harness({self._spec!r}, tokenizer=…)")
        return [len(tokens) for tokens in self._tokenizer(texts)["input_ids"]]

    def _remedy(self) -> str:
        return (
            f"eval set {self._name!r}: the data of this task would be fetched from the Hugging Face Hub, and nothing "
            f"is fetched here: load it once with HF_HUB_OFFLINE=0, or write a YAML file with dataset_path: json and "
            f"dataset_kwargs: {{data_files: …}}, and name its folder in harness(include_path=…)"
        )

    def _aggregated(self, answers: Sequence[Any]) -> dict[str, Any]:
        """Return the harness's results for the answers to all requests, in the order of the data."""
        lm_eval = _imported()
        requests = self._loaded
        by_number = dict(zip(requests.order, answers, strict=True))
        by_method: dict[str, list[Any]] = {}
        judged: dict[str, dict[int, list[bool]]] = {}
        for number, (method, instance) in enumerate(requests.asked):
            answer = by_number[number]
            if self._judge is not None and method == _GENERATION:
                answer, passed = answer
                judged.setdefault(instance.task_name, {}).setdefault(instance.doc_id, []).append(passed)
            by_method.setdefault(method, []).append(answer)
        for task in requests.tasks["tasks"].values():
            for instance in task.instances:
                instance.resps, instance.filtered_resps = [], {}
        given = {name: self._given[name] for name in _OF_EVALUATE if name in self._given}
        with _same_random_numbers(), offline(), _quiet(), _one_process():
            results: dict[str, Any] = lm_eval.evaluate(
                lm=_answering(partial(_given_answers, by_method)), task_dict=requests.tasks, **given
            )
        estimates = {
            task: self._judge.estimates(list(by_document.values()))
            for task, by_document in judged.items()
            if self._judge is not None
        }
        return results | {"tasks": requests.tasks["tasks"], "version": lm_eval.__version__, "estimates": estimates}


def _imported() -> Any:
    """Return the module of the harness. Raises `TaskError` if it is not installed."""
    try:
        with offline():
            import lm_eval
    except ModuleNotFoundError as error:
        raise TaskError(
            f"sidecar.lm.harness needs lm-eval, and {error.name} is missing: pip install lm-eval, for this interpreter"
        ) from error
    return lm_eval


def _capturing(**options: Any) -> Any:
    """Return a `TaskManager` that keeps what it loaded as `loaded`."""
    from lm_eval.tasks import TaskManager

    class Capturing(TaskManager):  # type: ignore[misc]  # lm-eval has no types
        loaded: Mapping[str, Any]

        def load(self, task_list: Any) -> Any:
            self.loaded = super().load(task_list)
            return self.loaded

    with _quiet():
        return Capturing(**options)


class _RecordedError(Exception):
    """Ends the harness's evaluation when all requests are built."""


def _recorded(*_: Any) -> Any:
    raise _RecordedError


def _given_answers(by_method: Mapping[str, list[Any]], method: str, requests: Sequence[Any]) -> list[Any]:
    answers = by_method[method]
    assert len(answers) == len(requests), f"{len(requests)} requests of {method}, {len(answers)} answers"
    return [answer[0] for answer in answers] if method == _ROLLING else answers


def _answering(answer: Callable[[str, Sequence[Any]], Any], chat: Any = None) -> Any:
    """Return a model of the harness that answers all requests with this function. `chat`: the tokenizer of prompts."""
    from lm_eval.api.model import LM
    from lm_eval.models.huggingface import HFLM

    class Answering(LM):  # type: ignore[misc]  # lm-eval has no types
        tokenizer, chat_template_args = chat, MappingProxyType[str, Any]({})
        tokenizer_name, apply_chat_template = HFLM.tokenizer_name, HFLM.apply_chat_template

        def loglikelihood(self, requests: Any) -> Any:
            return answer("loglikelihood", requests)

        def loglikelihood_rolling(self, requests: Any) -> Any:
            return answer(_ROLLING, requests)

        def generate_until(self, requests: Any) -> Any:
            return answer(_GENERATION, requests)

    return Answering()


def _keep(**_: Any) -> None:
    """Take the place of `build_all_requests` of a task whose requests are built."""


@contextmanager
def _same_random_numbers() -> Iterator[None]:
    """Let the block draw any random numbers, and restore the generators of Python, numpy and torch afterwards."""
    import numpy as np
    import torch

    of_python, of_numpy, of_torch = random.getstate(), np.random.get_state(), torch.random.get_rng_state()  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)  # noqa: NPY002
        torch.random.set_rng_state(of_torch)


@contextmanager
def _one_process() -> Iterator[None]:
    """Let the harness bootstrap in this process, which gives the same numbers as its pool of processes."""
    before = os.environ.get("DISABLE_MULTIPROC")
    os.environ["DISABLE_MULTIPROC"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["DISABLE_MULTIPROC"]
        else:
            os.environ["DISABLE_MULTIPROC"] = before


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the harness's bars of progress out of the worker's log; what it logs stays."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


def _most_tokens(_: str, given: Mapping[str, Any]) -> int:
    """Return the most tokens that the answer to a request can have, by its arguments."""
    return max((int(given[name]) for name in _LIMITS if given.get(name) is not None), default=_USUAL_LIMIT)


def _text(version: str, method: str, instance: Any) -> str:
    """Return all that an answer depends on, but for the model. Texts of all requests are the set's fingerprint."""
    return repr((version, method, instance.task_name, instance.doc_id, instance.idx, instance.args))


def _collated(examples: Sequence[tuple[int, str]]) -> dict[str, Any]:
    import torch

    places, texts = zip(*examples, strict=True)
    return {"place": torch.tensor(places), "request": list(texts)}


def _pair(answer: Any) -> tuple[float, float]:
    """Return a log-likelihood, and whether it is that of the greedy continuation; 0 for one that is not asked."""
    return (float(answer[0]), float(answer[1])) if isinstance(answer, tuple) else (float(answer), 0.0)


def _encoded(answer: Any) -> str:
    """Return an answer as a text: that of a generation, with its judgement, or numbers, of which each bit is kept."""
    import json

    if isinstance(answer, str) or (isinstance(answer, tuple) and isinstance(answer[0], str)):
        return json.dumps(answer)
    return json.dumps([number.hex() for number in _pair(answer)])
