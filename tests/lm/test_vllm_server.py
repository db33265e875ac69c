"""A server in the documented form of vLLM answers the harness, and no number counts before it has the weights."""

import contextlib
import json
import re
import threading
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from sidecar.errors import TaskError
from sidecar.evaluation.failures import EvaluationError
from sidecar.lm import completions, harness
from sidecar.lm.vllm_server import compare


class Server:
    """Answers as `vllm serve` documents it; `compute` returns the choices of a request."""

    def __init__(self, folder, compute=lambda _: []):
        self.folder, self.compute, self.asked, self.reloads = folder, compute, [], 0
        self.reload, self.answer = lambda: None, None

    def respond(self, path, body):
        """Return the status and the content of an answer."""
        self.asked.append((path, body))
        if path == "/collective_rpc":
            self.reloads += 1
            self.reload()
            return 200, {"results": [None]}
        if path == "/reset_prefix_cache":
            return 200, b""
        if self.answer is not None:
            return self.answer
        return 200, {
            "id": "cmpl-1",
            "object": "text_completion",
            "created": 1764000000,
            "model": body["model"],
            "choices": self.compute(body),
            "usage": {"prompt_tokens": 1, "total_tokens": 2, "completion_tokens": 1},
        }


@pytest.fixture
def serve():
    """Serve until the end of the test, and return the URL."""
    with contextlib.ExitStack() as stack:

        def start(server):
            class Handler(BaseHTTPRequestHandler):
                def do_POST(self):
                    body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"null")
                    status, content = server.respond(self.path, body)
                    data = (
                        content
                        if isinstance(content, bytes)
                        else b""
                        if content is None
                        else json.dumps(content).encode()
                    )
                    self.send_response(status)
                    self.send_header("Content-Length", str(len(data)))
                    self.end_headers()
                    with contextlib.suppress(OSError):  # a client that has read enough
                        self.wfile.write(data)

                def log_message(self, *_):
                    pass

            running = stack.enter_context(ThreadingHTTPServer(("127.0.0.1", 0), Handler))
            thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
            thread.start()
            stack.callback(thread.join)
            stack.callback(running.shutdown)
            return f"http://127.0.0.1:{running.server_port}"

        yield start


@pytest.fixture
def engine(tmp_path, serve):
    """Return a server without a model, and its engine."""
    (tmp_path / "config.json").write_text("{}")

    def make(**options):
        server = Server(tmp_path)
        return server, completions(serve(server), tmp_path, **options)

    return make


def place(token, logprob, **others):
    """Return the log-likelihoods at one place of a prompt, as vLLM writes them."""
    found = {str(token): {"logprob": logprob, "rank": 2, "decoded_token": " a"}}
    return found | {key[1:]: {"logprob": each, "rank": 1, "decoded_token": " b"} for key, each in others.items()}


def choice(index=0, **fields):
    return {"index": index, "text": "", "logprobs": None, "finish_reason": "length", "stop_reason": None} | fields


def test_log_likelihoods_are_those_of_the_tokens_in_the_prompt(engine):
    """Choices may come in any order, and the likeliest token at each place is there, too."""
    server, made = engine()
    both = [
        choice(1, prompt_logprobs=[None, place(9, -1.5, _4=-0.5)]),
        choice(0, prompt_logprobs=[None, place(6, -0.25), place(7, -2.0, _8=-2.5)]),
    ]
    server.compute = lambda _: both
    assert made.scored([[5, 6, 7], [5, 9]]) == [[(-0.25, True), (-2.0, True)], [(-1.5, False)]]
    ((path, body),) = server.asked
    assert (path, body["prompt"], body["max_tokens"], body["prompt_logprobs"]) == (
        *("/v1/completions", [[5, 6, 7], [5, 9]], 1, 1),
    )
    assert (body["model"], body["temperature"]) == (str(server.folder), 0.0)


def test_texts_are_tokens(engine):
    """A text that is decoded and encoded again may have other tokens."""
    server, made = engine(name="served", api_key="secret")
    server.compute = lambda _: [choice(token_ids=[1, 2])]
    assert made.generated([[5]], 3, ["\n"]) == [[1, 2]]
    ((_, body),) = server.asked
    assert (body["model"], body["stop"], body["max_tokens"], body["return_token_ids"]) == ("served", ["\n"], 3, True)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((404, {"error": {"message": "The model does not exist."}}), "404"),
        ((307, b""), "307"),
        ((200, b"<html>"), "not JSON"),
        ((200, b"[" * 100_000), "not JSON"),
        ((200, []), "no choices"),
        ((200, {"choices": [choice()] * 2}), "2 choices for 1 prompts"),
        ((200, {"choices": [choice(index=1)]}), "1 choices"),
        ((200, {"choices": [choice()]}), "lacks prompt_logprobs"),
        ((200, {"choices": [choice(prompt_logprobs=[None])]}), "lacks prompt_logprobs"),
        ((200, {"choices": [choice(prompt_logprobs=[None, place(7, -1.0)])]}), "token 6"),
        ((200, {"choices": [choice(prompt_logprobs=[None, None])]}), "token 6"),
        ((200, {"choices": [choice(prompt_logprobs=[None, place(6, "x")])]}), "token 6"),
        ((200, {"choices": [choice(prompt_logprobs=[None, place(6, float("nan"))])]}), "not a number"),
    ],
)
def test_an_answer_of_another_form_is_one_sentence(engine, answer, said):
    """It names the server, and no number is made of it."""
    server, made = engine()
    server.answer = answer
    with pytest.raises(EvaluationError, match=said) as caught:
        made.scored([[5, 6]])
    assert made.url in str(caught.value)


@pytest.mark.parametrize("tokens", [None, [1.5], [True], [1] * 4, "ab"])
def test_no_more_tokens_are_taken_than_were_asked_for(engine, tokens):
    """A server that does not know `return_token_ids` returns none."""
    server, made = engine()
    server.compute = lambda _: [choice(token_ids=tokens)]
    with pytest.raises(EvaluationError, match="token_ids"):
        made.generated([[5]], 3, [])


def test_a_server_that_is_silent_or_too_loud_is_given_up(engine):
    """The time and the bytes of an answer are bounded."""
    server, made = engine(timeout_seconds=0.2)
    ended = threading.Event()
    server.compute = lambda _: ended.wait(20) and []
    with pytest.raises(EvaluationError, match="timed out"):
        made.scored([[5, 6]])
    ended.set()
    server.answer = 200, b" " * 10_000
    made.most_bytes = 1000
    with pytest.raises(EvaluationError, match="more than 1000 bytes"):
        made.scored([[5, 6]])


@pytest.mark.parametrize(
    ("served", "before", "said"),
    [
        ([-1.0, -2.05], [], None),
        ([-1.0, -2.05], [-3.0, -1.0], None),
        ([-1.0, -2.2], [], "token 2"),
        ([-1.0, float("nan")], [], "token 2"),
        ([-1.0, float("-inf")], [], "token 2"),
        ([-1.02, -2.02], [-1.02, -2.03], "checkpoint before"),
        ([-1.02, -2.02], [-1.05, -2.05], None),
        ([-1.0, -2.0], [-1.0, -2.0], None),
    ],
)
def test_a_probe_tells_the_weights_of_the_checkpoint_before(served, before, said):
    """Within the tolerance the nearer weights count; equal ones cannot be told apart."""
    if said is None:
        compare([-1.0, -2.0], served, before, 0.1)
        return
    with pytest.raises(EvaluationError, match=said):
        compare([-1.0, -2.0], served, before, 0.1)


@pytest.mark.parametrize(
    ("url", "options", "said"),
    [
        ("127.0.0.1:8000", {}, "write the URL"),
        ("http://a/?x", {}, "write the URL"),
        ("http://a", {"tolerance": 0.0}, "tolerance"),
        ("http://a", {"timeout_seconds": float("inf")}, "timeout_seconds"),
    ],
)
def test_a_mistake_is_named(tmp_path, url, options, said):
    """It is named where the engine is made."""
    with pytest.raises(TaskError, match=r"config\.json"):
        completions("http://a", tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(TaskError, match=re.escape(said)):
        completions(url, tmp_path, **options)


class OfModel(Server):
    """Computes with the weights in its folder, as they were when it read them last."""

    def __init__(self, folder):
        super().__init__(folder, self._choices)
        self.reload = self._read

    def _read(self):
        from transformers import AutoModelForCausalLM

        self._model = AutoModelForCausalLM.from_pretrained(self.folder).eval()

    def _choices(self, body):
        return [choice(number, **self._answer(tokens, body)) for number, tokens in enumerate(body["prompt"])]

    def _answer(self, tokens, body):
        import torch

        with torch.no_grad():
            if "prompt_logprobs" not in body:
                new = []
                while len(new) < body["max_tokens"] and new[-1:] != [0]:
                    new.append(int(self._model(torch.tensor([tokens + new])).logits[0, -1].argmax()))
                return {"token_ids": new}
            scores = self._model(torch.tensor([tokens])).logits[0].log_softmax(-1)
        first = scores.argmax(-1).tolist()
        rows = enumerate(tokens[1:])
        return {
            "prompt_logprobs": [
                None,
                *(
                    place(token, float(scores[row, token])) | place(first[row], float(scores[row, first[row]]))
                    for row, token in rows
                ),
            ]
        }


@pytest.mark.torch
@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")
def test_a_server_has_the_numbers_of_the_model(made, serve, tmp_path):
    """For two checkpoints, one after the other; the weights before are refused, and results say what they are."""
    import shutil

    import torch
    from tests_torch import torch_evaluator

    from sidecar import Task
    from sidecar.lm import model

    shutil.copytree(made.folder / "base", tmp_path / "served")
    server = OfModel(tmp_path / "served")
    engine = completions(serve(server), tmp_path / "served", tolerance=1e-3)
    other = tmp_path / "step-2.pt"
    torch.save({"model": {name: each.roll(1, 0) for name, each in made.trained.state_dict().items()}}, other)

    def evaluator(**options):
        sets = harness("choice", "generated", "rolling", include_path=made.folder / "tasks", batch_size=4, **options)
        return torch_evaluator(Task(build_model=model(made.folder / "base"), eval_sets=sets))

    def numbers_of(evaluator, path):
        evaluator.read(lambda: None)
        evaluator.restore(str(path))()
        evaluator.digest()
        return evaluator.compute(evaluator.evaluate(lambda: None))

    own, served = (partial(numbers_of, evaluator(**options)) for options in ({}, {"engine": engine}))
    for path in (made.checkpoint, other, made.checkpoint):
        expected, found = own(path), served(path)
        for name, numbers in expected.items():
            values = {key: each.value for key, each in numbers.values.items()}
            assert {key: each.value for key, each in found[name].values.items()} == pytest.approx(values, rel=1e-5)
            assert any("not exact" in note for note in found[name].notes)
    reloads = server.reloads
    served(made.checkpoint)
    assert server.reloads == reloads + 1, "the weights are read once for all sets"
    server.reload = lambda: None
    with pytest.raises(EvaluationError, match="no number counts"):
        served(other)
