"""Offer the evaluator that Keras 3 dropped: one process watches a directory and evaluates each new checkpoint.

The interface is that of `tf.keras.utils.SidecarEvaluator`. Users' programs call it; the daemon must not import it.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from sidecar.errors import SettingsError
from sidecar.keras.checkpoint_watch import CheckpointWatch
from sidecar.keras.eval_data import repeatable
from sidecar.keras.evaluation_loop import LOG, EvaluatedCheckpoint, EvaluationLoop, LoopRules
from sidecar.keras.model_evaluation import open_evaluation
from sidecar.system.clock import SystemClock


class SidecarEvaluator:
    """Evaluate the checkpoints that training saves, in a process of its own.

        model = build_model()
        model.compile(loss="sparse_categorical_crossentropy", metrics=["accuracy"])
        SidecarEvaluator(
            model,
            test_data,
            checkpoint_dir="ckpts",
            max_evaluations=10,
            callbacks=[keras.callbacks.TensorBoard(log_dir="logs")],
        ).start()

    Args:
        model: A compiled model, the same as the one that is trained. It is built on a first batch of `data` if need be.
        data: What `model.evaluate` takes as `x`: a `tf.data.Dataset`, a Keras `PyDataset` or a generator of batches; or
            arrays (x, y). The batches of a generator are held in memory for the next checkpoint.
        checkpoint_dir: Directory of the checkpoints; it may not exist yet.
        steps: Number of batches of an evaluation; None: all. Data that repeats for ever needs it.
        max_evaluations: Stop after the checkpoint whose name ends with this number or a larger one, such as `ckpt-10`
            for 10. Names that do not end with `-` and a number count as one evaluation each. None or 0: never stop.
        callbacks: Callbacks of Keras. Their methods for tests are called as by `model.evaluate`.
        interval_seconds: Seconds between two scans.
        timeout_seconds: Seconds without any checkpoint after which a message says so, and again after as long.
        stop_idle_seconds: Stop if no new checkpoint comes for as many seconds; None: wait for ever.
        every: Evaluate every checkpoint, in order of discovery, instead of the latest one only.
        max_retries: Number of further attempts to load a checkpoint that cannot be read; after that it is skipped.
        exact: Compute with exact sums, as the daemon does. False: let `model.evaluate` compute, for models and metrics
            that the exact evaluation refuses.
        batch_size: Number of examples in a batch of arrays.

    Attributes:
        results: The result of each evaluation, in order.
    """

    def __init__(
        self,
        model: Any,
        data: Any,
        checkpoint_dir: Any,
        steps: int | None = None,
        max_evaluations: int | None = None,
        callbacks: Sequence[Any] | None = None,
        *,
        interval_seconds: float = 1.0,
        timeout_seconds: float = 30.0,
        stop_idle_seconds: float | None = None,
        every: bool = False,
        max_retries: int = 3,
        exact: bool = True,
        batch_size: int = 32,
    ) -> None:
        self.model = model
        self.data = data
        self.checkpoint_dir = checkpoint_dir
        self.steps = steps
        self.max_evaluations = max_evaluations
        self.callbacks: list[Any] = list(callbacks or [])
        self.results: list[EvaluatedCheckpoint] = []
        self._rules = LoopRules(
            max_evaluations=max_evaluations,
            interval_seconds=interval_seconds,
            timeout_seconds=timeout_seconds,
            stop_idle_seconds=stop_idle_seconds,
            max_retries=max_retries,
        )
        self._every, self._exact, self._batch_size = every, exact, batch_size

    def start(self) -> None:
        """Evaluate checkpoints until `max_evaluations` or `stop_idle_seconds` says stop, or Ctrl-C is pressed.

        Raises:
            TaskError: The model is not compiled, or data, model or metrics cannot be evaluated.
            SettingsError: Another argument cannot be used.
            EvaluationFailedError: The first checkpoint does not fit the model, or the last one cannot be evaluated.
        """
        tf.get_logger()  # from now on its messages are shown
        directory = self._directory()
        self._check_numbers()
        try:
            source = repeatable(self.data, steps=self.steps, batch_size=self._batch_size)
            evaluation = open_evaluation(self.model, source, self.callbacks, steps=self.steps, exact=self._exact)
            clock, interval = SystemClock(), self._rules.interval_seconds
            with CheckpointWatch(
                directory, every=self._every, interval_seconds=interval, clock=clock, log=LOG
            ) as watch:
                EvaluationLoop(
                    watch, evaluation, self._rules, clock=clock, sleep=time.sleep, report=self.results.append
                ).run()
        except KeyboardInterrupt:
            LOG.info("Interrupted. SidecarEvaluator stops.")

    def _directory(self) -> Path:
        """Return the checkpoint directory. Raises `SettingsError` if it cannot be watched."""
        path = tf.io.gfile.join(self.checkpoint_dir) if self.checkpoint_dir is not None else ""
        if not path or "://" in str(path):
            raise SettingsError(
                f"checkpoint_dir={self.checkpoint_dir!r} must be a directory of a mounted filesystem: mount a bucket, "
                f"for example with gcsfuse"
            )
        directory = Path(path).absolute()
        for callback in self.callbacks:
            folder = getattr(callback, "export_folder", None)
            if folder is not None and folder.absolute() == directory:
                raise SettingsError(
                    f"export_filepath lies in checkpoint_dir {directory} itself, where an export would be taken for a "
                    f"checkpoint: export into another folder, such as {directory / 'best'}"
                )
        return directory

    def _check_numbers(self) -> None:
        """Raise `SettingsError` for a number that makes no sense."""
        rules = self._rules
        for name, value, least in (
            ("steps", self.steps, 1),
            ("max_evaluations", rules.max_evaluations, 0),
            ("max_retries", rules.max_retries, 0),
            ("batch_size", self._batch_size, 1),
        ):
            if value is not None and (
                isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least
            ):
                raise SettingsError(f"{name}={value!r} must be a whole number from {least}")
        for name, seconds, least_seconds in (
            ("interval_seconds", rules.interval_seconds, 0.01),
            ("timeout_seconds", rules.timeout_seconds, 0.01),
            ("stop_idle_seconds", rules.stop_idle_seconds, 0.0),
        ):
            if seconds is not None and not least_seconds <= seconds < float("inf"):
                raise SettingsError(f"{name}={seconds!r} must be a number of seconds from {least_seconds}")
