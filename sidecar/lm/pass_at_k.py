"""Run the programs that a model writes by a function of the user's, and estimate pass@k from those that pass.

Nothing here runs or imports a text of the model: the function gets it as a string. Source of the estimator: Chen et
al., Evaluating Large Language Models Trained on Code, arXiv 2107.03374, section 2.1.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from threading import Thread
from typing import Any

from sidecar.errors import TaskError
from sidecar.evaluation.failures import task_error

RunCode = Callable[[str, Mapping[str, Any]], bool]
"""Takes an answer and its document, and returns whether the program that it makes of both passes its tests."""


@dataclass(frozen=True, slots=True)
class PassAtK:
    """Judge answers, and estimate how likely one of k passes. `pass_at_k` makes it."""

    run_code: RunCode
    ks: Sequence[int]
    seconds: float

    def passes(self, answer: str, document: Mapping[str, Any], where: str) -> bool:
        """Return whether an answer passes. Raises `EvaluationError` if the function takes too long.

        `where` names the document in messages.
        """
        done: Future[Any] = Future()

        def run() -> None:
            try:
                done.set_result(self.run_code(answer, document))
            except BaseException as error:  # noqa: BLE001 - raised by `result`
                done.set_exception(error)

        Thread(target=run, name="run_code", daemon=True).start()
        if wait([done], self.seconds).not_done:
            raise task_error(
                f"{where}: harness(run_code=…) did not return within {self.seconds:g} s: let it end the program, for "
                f"example by subprocess.run(…, timeout={self.seconds / 2:g}), or write "
                f"run_code_seconds={2 * self.seconds:g}"
            )
        passed = done.result()
        if not isinstance(passed, bool):
            raise task_error(
                f"{where}: harness(run_code=…) returned {passed!r:.80}: let it return True for an answer that passes, "
                f"else False"
            )
        return passed

    def require_answers(self, eval_set: str, repeats: Mapping[str, int]) -> None:
        """Refuse an eval set whose tasks, given by name, ask for fewer answers to a document than the largest k."""
        if not repeats:
            raise task_error(f"eval set {eval_set!r}: no text is generated, so leave out run_code=… for it")
        for task, answers in repeats.items():
            if answers < self.ks[-1]:
                raise task_error(
                    f"eval set {eval_set!r}: pass_at={self.ks[-1]} needs as many answers to each document, and task "
                    f"{task!r} asks for {answers}: write repeats: {self.ks[-1]} in its YAML file, and do_sample: true "
                    f"in generation_kwargs"
                )

    def estimates(self, judged: Sequence[Sequence[bool]]) -> dict[str, list[float]]:
        """Return for each k the unbiased estimate of every document, from the judgements of its answers."""
        return {f"pass@{k}": [estimate(len(each), sum(each), k) for each in judged] for k in self.ks}


def estimate(answers: int, passed: int, k: int) -> float:
    """Return the part of all choices of k answers in which at least one passes: 1 - C(n - c, k) / C(n, k)."""
    choices = math.comb(answers, k)
    return (choices - math.comb(answers - passed, k)) / choices


def pass_at_k(run_code: RunCode | None, ks: int | Sequence[int] | None, seconds: float) -> PassAtK | None:
    """Return the judge of these arguments of `harness`; None without any. Raises `TaskError` for a wrong one."""
    if run_code is None:
        if ks is not None:
            raise TaskError(
                f"harness(pass_at={ks!r}) runs what the model writes, and there is no sandbox here: write run_code=…, "
                f"a function of an answer and its document that runs the program in yours and returns whether it passes"
            )
        return None
    if not callable(run_code):
        raise TaskError(f"harness(run_code={run_code!r:.80}) must be a function of an answer and its document")
    given = (1,) if ks is None else (ks,) if isinstance(ks, int) else tuple(ks)
    if not given or not all(type(k) is int and k >= 1 for k in given):
        raise TaskError(f"harness(pass_at={ks!r}) must be numbers from 1, such as (1, 10)")
    if not 0 < seconds < math.inf:
        raise TaskError(f"harness(run_code_seconds={seconds!r}) must be a positive number")
    return PassAtK(run_code, sorted(set(given)), seconds)
