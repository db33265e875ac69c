"""Let a server of vLLM compute log-likelihoods and texts for `harness(engine=…)`, and prove that it has the weights.

Requests and answers are tokens, so the server's own tokenizer takes no part. The restored model stays in this process:
it is saved to the folder that the server reads, and a probe compares both before a number counts. Sources, read in
vLLM's repository: `prompt_logprobs` and `return_token_ids` of `/v1/completions` in
`entrypoints/openai/completion/protocol.py`; `/collective_rpc` and `/reset_prefix_cache` of its development mode.
"""

import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from sidecar.errors import TaskError
from sidecar.evaluation.failures import task_error

_PROBE: Final = "Two programs compute how likely each token of this sentence is, and must find the same."
_PROBE_TOKENS: Final = 32
_MOST_BYTES: Final = 256 * 1024 * 1024  # of one answer
_BLOCK_BYTES: Final = 1024 * 1024
_CLEARLY: Final = 0.5  # the part of the distance to the new weights below which the server has those before


@dataclass(slots=True)
class Completions:
    """Ask one server. `completions` makes it, and says what the fields mean."""

    url: str
    folder: str
    name: str
    batch_invariant: bool
    tolerance: float
    timeout_seconds: float
    api_key: str
    most_bytes: int = _MOST_BYTES
    _weights: tuple[Any, ...] = ()  # what the server reads now

    @property
    def note(self) -> str:
        """Return the note that each result gets."""
        if self.batch_invariant:
            return "computed by a vLLM server, which is said to be batch-invariant"
        return "computed by a vLLM server: not exact, its numbers depend on the batches that it forms"

    def swap(self, model: Any, weights: tuple[Any, ...]) -> None:
        """Save a restored model where the server reads its weights, and let it read them, unless it has these."""
        if weights == self._weights:
            return
        self._weights = ()
        model.save_pretrained(self.folder)
        self._ask("/collective_rpc", {"method": "reload_weights", "timeout": self.timeout_seconds})
        self._ask("/reset_prefix_cache", {})
        self._weights = weights

    def scored(self, prompts: Sequence[Sequence[int]]) -> list[list[tuple[float, bool]]]:
        """Return for each token of each prompt but the first its log-likelihood, and whether none is more likely."""
        choices = self._choices(prompts, {"max_tokens": 1, "prompt_logprobs": 1})
        return [self._scores(tokens, choice) for tokens, choice in zip(prompts, choices, strict=True)]

    def generated(self, prompts: Sequence[Sequence[int]], most_tokens: int, stop: Sequence[str]) -> list[list[int]]:
        """Return the greedy continuation of each prompt as tokens, up to its first stop sequence."""
        given = {"max_tokens": most_tokens, "stop": list(stop), "return_token_ids": True, "skip_special_tokens": False}
        found = []
        for choice in self._choices(prompts, given):
            tokens = choice.get("token_ids")
            if not isinstance(tokens, list) or not all(type(each) is int for each in tokens):
                raise self._failed("its answer lacks token_ids: it is a server of another kind, or of an old release")
            if len(tokens) > most_tokens:
                raise self._failed(f"its answer has {len(tokens)} token_ids, more than the {most_tokens} asked for")
            found.append(tokens)
        return found

    def _choices(self, prompts: Sequence[Sequence[int]], given: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        body: dict[str, Any] = {
            "model": self.name,
            "prompt": [list(each) for each in prompts],
            "temperature": 0.0,
            "seed": 0,
        }
        choices = self._ask("/v1/completions", body | dict(given)).get("choices")
        if not isinstance(choices, list) or not all(isinstance(each, dict) for each in choices):
            raise self._failed("its answer has no choices")
        by_index = {each.get("index"): each for each in choices}
        if len(choices) != len(prompts) or by_index.keys() != set(range(len(prompts))):
            raise self._failed(f"its answer has {len(choices)} choices for {len(prompts)} prompts")
        return [by_index[number] for number in range(len(prompts))]

    def _scores(self, tokens: Sequence[int], choice: Mapping[str, Any]) -> list[tuple[float, bool]]:
        places = choice.get("prompt_logprobs")
        if not isinstance(places, list) or len(places) != len(tokens):
            raise self._failed("its answer lacks prompt_logprobs for each token")
        scores = []
        for token, place in zip(tokens[1:], places[1:], strict=True):
            try:
                likely = {key: float(each["logprob"]) for key, each in place.items()}
                own = likely[str(token)]
            except (AttributeError, KeyError, TypeError, ValueError):
                raise self._failed(f"its answer lacks the log-likelihood of token {token}") from None
            if math.isnan(own):
                raise self._failed(f"the log-likelihood of token {token} is not a number")
            scores.append((own, own >= max(likely.values())))
        return scores

    def _ask(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the JSON object of an answer; empty for an answer without one. It waits for a bounded time."""
        parts, end = urlsplit(self.url), time.monotonic() + self.timeout_seconds
        kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        connection = kind(parts.hostname or "", parts.port, timeout=self.timeout_seconds)
        headers = {"Content-Type": "application/json"} | (
            {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        )
        content = bytearray()
        try:
            connection.request("POST", parts.path.rstrip("/") + path, json.dumps(body).encode(), headers)
            with closing(connection.getresponse()) as answer:
                while (block := answer.read1(_BLOCK_BYTES)) and len(content) <= self.most_bytes:
                    content += block
                    if time.monotonic() > end:
                        raise TimeoutError(f"no whole answer in {self.timeout_seconds:g} s")
        except (OSError, HTTPException) as error:
            raise self._failed(f"{path}: {str(error) or type(error).__name__}") from error
        finally:
            connection.close()
        if len(content) > self.most_bytes:
            raise self._failed(f"its answer has more than {self.most_bytes} bytes")
        if answer.status >= 300:  # noqa: PLR2004 - no redirection is followed
            raise self._failed(f"{path}: {answer.status} {content[:300].decode(errors='replace')}")
        try:
            found = json.loads(content or b"{}")
        except (ValueError, RecursionError):
            raise self._failed(f"{path}: its answer is not JSON") from None
        return found if isinstance(found, dict) else {}

    def _failed(self, why: str) -> Exception:
        return task_error(f"the server of harness(engine=completions({self.url!r}, …)): {why}")


def completions(
    url: str,
    folder: str | os.PathLike[str],
    *,
    name: str | None = None,
    batch_invariant: bool = False,
    tolerance: float = 0.1,
    timeout_seconds: float = 600.0,
    api_key: str = "",
) -> Completions:
    """Return an engine for `harness(engine=…)`: an OpenAI-compatible server of vLLM that serves the model of `folder`.

    Start it with `VLLM_SERVER_DEV_MODE=1 vllm serve FOLDER`, where the folder has the configuration and the tokenizer
    of the model. The weights of each checkpoint are saved there, and the server reads them again. A probe compares the
    server's log-likelihoods with those of the restored model in this process before a number counts. This has been
    tested with answers in the documented form of vLLM, and not tried with vLLM on a GPU.

    One worker process may use a server: write `replicas = 1`, on one node. Requests are answered greedily.

    Args:
        url: The address of the server, such as `http://127.0.0.1:8000`.
        folder: The folder that the server was started with. Only this worker process may write there.
        name: The name of the model in requests. None: the folder, as `vllm serve` names it.
        batch_invariant: Whether the server was started with `VLLM_BATCH_INVARIANT=1`. Otherwise results are noted as
            not exact.
        tolerance: The most by which the log-likelihood of a token of the probe may differ, in nats.
        timeout_seconds: The longest time for one batch of requests, and for reading the weights.
        api_key: The server's key, if it has one.

    Raises:
        TaskError: An argument is wrong.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
        raise TaskError(f"completions({url!r}): write the URL of a server, such as http://127.0.0.1:8000")
    if not Path(folder, "config.json").is_file():
        raise TaskError(
            f"completions(…, {os.fspath(folder)!r}): there is no config.json: name the folder of vllm serve"
        )
    for option, number in (("tolerance", tolerance), ("timeout_seconds", timeout_seconds)):
        if not 0 < number < math.inf:
            raise TaskError(f"completions({option}={number!r}) must be a positive number")
    where = os.fspath(folder)
    return Completions(url, where, name or where, batch_invariant, tolerance, timeout_seconds, api_key)


def served(engine: Completions, model: Any, tokenizer: Any, **options: Any) -> Any:
    """Return the harness's view of a model whose requests a server answers. `refresh` is called before each batch."""
    import torch
    from lm_eval.models.huggingface import HFLM

    class Served(HFLM):  # type: ignore[misc]  # lm-eval has no types
        served_weights: tuple[Any, ...] = ()
        probed: Sequence[float] = ()

        def refresh(self) -> None:
            """Give the server the weights that the model has now, and compare what both compute."""
            weights = tuple((id(each), each.data_ptr(), each._version) for each in self.model.parameters())  # noqa: SLF001
            if weights == self.served_weights:
                return
            if torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1:
                raise task_error("harness(engine=…): one worker process may use a server: write replicas = 1")
            engine.swap(self.model, weights)
            tokens = self.tok_encode(_PROBE)[:_PROBE_TOKENS]
            one_by_one = [(("", ""), tokens[:place], [tokens[place]]) for place in range(1, len(tokens))]
            own = [number for number, _ in super()._loglikelihood_tokens(one_by_one, disable_tqdm=True)]
            compare(own, [number for number, _ in engine.scored([tokens])[0]], self.probed, engine.tolerance)
            self.probed, self.served_weights = own, weights

        def _loglikelihood_tokens(self, requests: Any, **_: Any) -> list[tuple[float, bool]]:
            prompts = [[*context, *continuation][-(self.max_length + 1) :] for _, context, continuation in requests]
            found = []
            for first in range(0, len(prompts), self.batch_size):
                scores = engine.scored(prompts[first : first + self.batch_size])
                for (_, _, continuation), each in zip(requests[first : first + self.batch_size], scores, strict=True):
                    own = each[-len(continuation) :]
                    found.append((math.fsum(number for number, _ in own), all(is_first for _, is_first in own)))
            return found

        def _model_generate(self, context: Any, max_length: int, stop: Any, **given: Any) -> Any:
            if given.get("do_sample") or given.get("temperature"):
                raise task_error("harness(engine=…) answers greedily: set do_sample: false, or leave the engine out")
            rows, mask = context.tolist(), given["attention_mask"].tolist()
            pairs = (zip(*both, strict=True) for both in zip(rows, mask, strict=True))
            prompts = [[token for token, is_there in pair if is_there] for pair in pairs]
            new = engine.generated(prompts, max_length - len(rows[0]), stop)
            longest, pad = max(map(len, new)), self.tokenizer.pad_token_id
            return torch.tensor(
                [[*row, *tokens, *[pad] * (longest - len(tokens))] for row, tokens in zip(rows, new, strict=True)]
            )

    return Served(pretrained=model, tokenizer=tokenizer, **options)


def compare(own: Sequence[float], served: Sequence[float], before: Sequence[float], tolerance: float) -> None:
    """Raise `EvaluationError` unless a server computes with the weights that this process has.

    Args:
        own: Log-likelihoods of the probe's tokens, by the model in this process.
        served: Those by the server.
        before: Those by the model in this process with the weights of the checkpoint before; empty for the first.
        tolerance: The most by which one may differ.
    """
    apart = [abs(one - other) for one, other in zip(own, served, strict=True)]
    place = max(range(len(apart)), key=lambda number: apart[number] if apart[number] == apart[number] else math.inf)
    if not apart[place] <= tolerance:
        raise task_error(
            f"harness(engine=…): for token {place + 1} of a probe the server computes {served[place]:.4f}, and the "
            f"restored model {own[place]:.4f}: no number counts. Does it serve this folder, with weights of this type? "
            f"A larger completions(tolerance={tolerance:g}) accepts more"
        )
    if before and sum(abs(one - other) for one, other in zip(before, served, strict=True)) < _CLEARLY * sum(apart):
        raise task_error(
            "harness(engine=…): the server still computes with the weights of the checkpoint before: no number counts. "
            "Restart it, with VLLM_SERVER_DEV_MODE=1"
        )
