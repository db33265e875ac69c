"""Make an eval set of texts or packed tokens: the loss of a language model, perplexities, and bits per byte.

Texts are tokenized by every worker, and cut into windows that are ordered by length, and into batches, before workers
are known. The loss of each window has its own place in the state, so the sums run over all windows in one order.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from sidecar.errors import TaskError
from sidecar.evaluation.failures import task_error
from sidecar.evaluation.task import CheckPolicy, EvalSet
from sidecar.lm.models import tokenizer_for

_PACKED: Final = (".bin", ".npy")


def perplexity(
    files: str | Sequence[str],
    *,
    field: str = "text",
    by: str | None = None,
    tokenizer: Any = None,
    window: int = 1024,
    stride: int | None = None,
    dtype: str = "uint16",
    batch_size: int = 8,
    logits: Callable[[Any, Any], Any] | None = None,
    name: str = "perplexity",
    every_nth: int = 1,
) -> dict[str, EvalSet]:
    """Return an eval set of texts, or of tokens that are packed in files, by its name.

    Its numbers are `loss`, the mean over all tokens in nats, and `perplexity`, its exponential. Texts have
    `bits_per_byte`, `byte_perplexity` and `word_perplexity`, too, as the harness counts bytes and words, and 95 %
    intervals by documents. The examples of the set are windows. Each token is predicted once.

    Args:
        files: A path or a pattern such as `"val/*.jsonl"`, or several. JSON lines, which may be compressed (`.gz`,
            `.zst`), or packed tokens: `.npy`, and `.bin` as nanoGPT and Megatron-LM write it.
        field: The field of a line that has the text.
        by: A field by whose values the numbers are given once more, such as `"domain"`.
        tokenizer: For texts, a tokenizer of transformers, or the path of a folder with one.
        window: The most tokens that the model sees at once.
        stride: The most tokens that a window predicts, but for the first one of a document; fewer give each more
            context, and take longer. None: all of the window.
        dtype: The type of tokens in `.bin` without an index of Megatron-LM.
        batch_size: Number of windows in a batch.
        logits: Takes (model, tokens) with tokens (n, t), and returns logits (n, t, vocabulary). None: `model(tokens)`,
            or the `logits` in what that returns.
        name: Name of the set.
        every_nth: See `EvalSet`.

    Raises:
        TaskError: An argument is wrong.
    """
    given = [files] if isinstance(files, str) else list(files)
    if not given or not all(isinstance(each, str) and each for each in given):
        raise TaskError(f"perplexity(files={files!r:.80}) must be a path or a pattern, such as 'val/*.jsonl'")
    packed = [each.endswith(_PACKED) for each in given]
    if any(packed) != all(packed):
        raise TaskError("perplexity(…) takes texts or packed tokens: make a set of each, with name=…")
    if by is not None and packed[0]:
        raise TaskError(f"perplexity(by={by!r}) is for JSON lines: packed tokens have no fields")
    if tokenizer is None and not packed[0]:
        raise TaskError("perplexity(…) of texts needs a tokenizer: write tokenizer='path/to/folder'")
    stride = window if stride is None else stride
    for argument, number in (("window", window), ("stride", stride), ("batch_size", batch_size)):
        if not isinstance(number, int) or isinstance(number, bool) or number < 1:
            raise TaskError(f"perplexity({argument}={number!r}) must be a number from 1")
    if stride > window:
        raise TaskError(f"perplexity(stride={stride}) must be at most the window, {window}")
    one = _TextSet(name, given, (field, by), tokenizer, (window, stride), dtype, batch_size, logits)
    check: CheckPolicy = "sample" if packed[0] else "all"
    return {name: EvalSet(one.open, step=one.step, metrics=one.metrics, check=check, every_nth=every_nth)}


class _TextSet:
    """Cut the data of one set into windows when it is opened, and measure batches of them."""

    def __init__(
        self,
        name: str,
        files: Sequence[str],
        fields: tuple[str, str | None],
        tokenizer: Any,
        lengths: tuple[int, int],
        dtype: str,
        batch_size: int,
        logits: Callable[[Any, Any], Any] | None,
    ) -> None:
        self._name, self._files, self._fields, self._tokenizer = name, files, fields, tokenizer
        self._lengths, self._dtype, self._batch_size, self._logits = lengths, dtype, batch_size, logits
        self._numbers: Any = None  # the metric of the windows

    def open(self) -> Any:
        """Return a loader of windows: tokens (n, t + 1) filled up with 0, and which of them are predicted."""
        from torch.utils.data import DataLoader

        from sidecar.lm.text_numbers import TextNumbers
        from sidecar.lm.token_windows import paths_of, read_packed, read_texts, windows_of

        paths = paths_of(self._files, self._name)
        if self._files[0].endswith(_PACKED):
            documents = read_packed(paths, self._dtype)
        else:
            tokenizer = tokenizer_for(self._tokenizer, None, "perplexity(tokenizer=…)")
            first = tokenizer.eos_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id
            documents = read_texts(
                paths, *self._fields, lambda text: tokenizer.encode(text, add_special_tokens=False), first
            )
        windows = windows_of(documents, *self._lengths)
        self._numbers = TextNumbers(documents, windows)
        return DataLoader(_Windows(documents, windows), batch_size=self._batch_size, collate_fn=_collated)

    def metrics(self) -> list[Any]:
        """Return the metric that sums up the windows."""
        return [self._numbers]

    def step(self, model: Any, batch: Mapping[str, Any]) -> tuple[Any, Any]:
        """Return the numbers of windows, and the sum of the losses of the tokens that each predicts, in float64."""
        import torch
        from torch.nn import functional

        tokens, predicted = batch["tokens"], batch["predicted"]
        inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:]  # models may ask for a view of them
        self._require_fit(model, inputs)
        returned = model(inputs) if self._logits is None else self._logits(model, inputs)
        scores = getattr(returned, "logits", returned)
        if not isinstance(scores, torch.Tensor) or scores.shape[:2] != inputs.shape:
            found = tuple(scores.shape) if isinstance(scores, torch.Tensor) else type(scores).__name__
            raise task_error(
                f"eval set {self._name!r}: the model must return logits {(*inputs.shape, 'vocabulary')}, found "
                f"{found}: give perplexity(logits=…), a function of (model, tokens)"
            )
        losses = functional.cross_entropy(scores.float().flatten(0, 1), targets.flatten(), reduction="none")
        losses = losses.view_as(targets).double().masked_fill(~predicted, 0.0)
        return batch["window"], losses.sum(dim=1)

    def _require_fit(self, model: Any, inputs: Any) -> None:
        config = getattr(model, "config", None)
        positions, tokens = getattr(config, "max_position_embeddings", None), getattr(config, "vocab_size", None)
        if isinstance(positions, int) and inputs.shape[1] > positions:
            raise task_error(
                f"eval set {self._name!r}: windows have {inputs.shape[1]} tokens, and the model takes {positions}: "
                f"write perplexity(window={positions})"
            )
        if isinstance(tokens, int) and (largest := int(inputs.max())) >= tokens:
            raise task_error(
                f"eval set {self._name!r}: there is a token {largest}, and the model has {tokens} of them: is it the "
                f"model's tokenizer, or the right dtype=…?"
            )


class _Windows:
    """A dataset of windows, which reads the tokens of one when it is asked for."""

    def __init__(self, documents: Any, windows: Sequence[Any]) -> None:
        self._documents, self._windows = documents, windows

    def __len__(self) -> int:
        return len(self._windows)

    def __getitem__(self, number: int) -> tuple[int, Any, int]:
        import torch

        window = self._windows[number]
        tokens = self._documents.tokens[window.document]
        of_window = torch.from_numpy(tokens[max(window.begin, 0) : window.end].astype("int64"))
        if window.begin < 0:
            of_window = torch.cat([torch.tensor([self._documents.prefix]), of_window])
        return number, of_window, window.end - window.first


def _collated(windows: Sequence[tuple[int, Any, int]]) -> dict[str, Any]:
    import torch

    longest = max(len(tokens) for _, tokens, _ in windows)
    tokens = torch.zeros((len(windows), longest), dtype=torch.int64)
    predicted = torch.zeros((len(windows), longest - 1), dtype=torch.bool)
    for row, (_, of_window, count) in enumerate(windows):
        tokens[row, : len(of_window)] = of_window
        predicted[row, len(of_window) - 1 - count : len(of_window) - 1] = True
    return {"window": torch.tensor([number for number, _, _ in windows]), "tokens": tokens, "predicted": predicted}
