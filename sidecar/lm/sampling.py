"""Sample each answer with a generator of its own, so that it depends neither on the batch nor on the worker.

The generator is seeded by the weights, the document, and the number of the answer among those to the document. A token
is drawn from the scores that transformers would draw from, after temperature, top-k and so on, by the inverse of their
distribution function. Called by `sidecar.lm.harness`. torch and lm-eval are imported by what needs them.
"""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, Final, Self

from sidecar.evaluation.failures import task_error

NOTE: Final = (
    "sampled answers are seeded by the weights, the document and the number of the answer: other documents, batch "
    "sizes and workers change them only where they change the rounding of a score"
)
_WHOLE: Final = 2**52  # probabilities are counted in parts of it, because sums of whole numbers have no rounding


class Prompt(str):
    """A prompt that knows which answer is asked for."""

    __slots__ = ("answer",)

    answer: tuple[str, int, int]
    """Name of the task, number of the document, and number of the answer among those to the document."""

    @classmethod
    def of(cls, text: str, *answer: Any) -> Self:
        """Return the prompt for this answer."""
        prompt = cls(text)
        prompt.answer = answer
        return prompt


def is_sampled(given: Any) -> bool:
    """Return whether the options of a request ask for a sampled answer."""
    return bool(given.get("do_sample", given.get("temperature")))


def sampling(weights_digest: Callable[[], str], model: Any, **options: Any) -> Any:
    """Return the harness's view of a model of transformers, for requests whose contexts are of `Prompt`.

    `weights_digest`: returns the digest of the values that the model has at the time of a request.
    """
    from lm_eval.models.huggingface import HFLM

    class Sampling(HFLM):  # type: ignore[misc]  # lm-eval has no types
        rows: Sequence[Prompt] = ()  # of the batch whose answers are generated

        def tok_batch_encode(self, strings: Any, *arguments: Any, **named: Any) -> Any:
            self.rows = strings
            return super().tok_batch_encode(strings, *arguments, **named)

        def _model_generate(self, *arguments: Any, **given: Any) -> Any:
            if is_sampled(given):
                weights = weights_digest()
                seeds = [seed(weights, *prompt.answer) for prompt in self.rows]
                given["custom_generate"] = _decoder(seeds)
            return super()._model_generate(*arguments, **given)

    return Sampling(model, **options)


def seed(weights: str, task: str, document: int, repeat: int) -> int:
    """Return the seed of one answer, a number below 2^64. `weights`: digest of the model's values."""
    text = f"{weights} {document} {repeat} {task}"
    return int.from_bytes(hashlib.sha256(text.encode(errors="surrogateescape")).digest()[:8], "big")


def drawing(seeds: Sequence[int]) -> Callable[[Any, Any], Any]:
    """Return a processor of scores that draws the next token of each row, and leaves no other one possible.

    Raises `EvaluationError` for scores that are no numbers.
    """
    import torch

    generators = [torch.Generator().manual_seed(each) for each in seeds]  # on the CPU, for the same draws everywhere

    def draw(_: Any, scores: Any) -> Any:
        parts = torch.stack([torch.rand((), dtype=torch.float64, generator=each) for each in generators])
        probabilities = torch.softmax(scores, -1, dtype=torch.float64)
        if not probabilities.isfinite().all():
            raise task_error("an answer cannot be sampled: the model's scores are NaN or infinite")
        up_to = (probabilities * _WHOLE).long().cumsum(-1)
        whole = up_to[:, -1:]
        place = torch.minimum((parts.to(scores.device)[:, None] * whole).long(), whole - 1)
        chosen = torch.searchsorted(up_to, place, right=True)
        return torch.full_like(scores, -torch.inf).scatter_(1, chosen, 0.0)

    return draw


def _decoder(seeds: Sequence[int]) -> Callable[..., Any]:
    """Return a loop of `generate` that draws the tokens of each row from its own generator."""
    from copy import copy

    from transformers.generation import GenerationMode

    def decode(model: Any, *tokens: Any, logits_processor: Any, generation_config: Any, **given: Any) -> Any:
        mode = generation_config.get_generation_mode()
        if mode not in (GenerationMode.SAMPLE, GenerationMode.GREEDY_SEARCH):
            raise task_error(
                f"generation_kwargs ask for sampling with {mode.value}, whose draws belong to a batch: write "
                f"do_sample: false, or num_beams: 1"
            )
        of_sampling = [drawing(seeds)] if mode == GenerationMode.SAMPLE else []
        greedy = copy(generation_config)
        greedy.do_sample = False  # one token is left
        processors = type(logits_processor)([*logits_processor, *of_sampling])
        return model._sample(*tokens, logits_processor=processors, generation_config=greedy, **given)  # noqa: SLF001

    return decode
