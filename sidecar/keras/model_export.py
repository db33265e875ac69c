"""Export the best model that `SidecarEvaluator` evaluated, under the number of its checkpoint."""

import glob
import os
import re
import string
from pathlib import Path
from typing import Any, Final

import keras

from sidecar.errors import SettingsError, TaskError
from sidecar.keras.best_value import BestValue
from sidecar.keras.evaluation_loop import number_in
from sidecar.system.confined import open_folder
from sidecar.system.durable import sync_file
from sidecar.system.plain_text import one_line

_SUFFIXES: Final = (".keras", ".h5")
_WEIGHTS: Final = ".weights.h5"


class SidecarEvaluatorModelExport(keras.callbacks.ModelCheckpoint):  # type: ignore[misc]
    """Save the model after an evaluation if it is the best one so far. A callback for `SidecarEvaluator`.

        SidecarEvaluatorModelExport("best/model-{epoch:04d}", "ckpts/ckpt-{epoch:04d}", monitor="accuracy", mode="max")

    The best value is stored next to the exports, so that a restarted evaluator does not export a worse model. It begins
    anew if the data are others. An export
    appears whole, by one rename. To continue training take the checkpoint itself, which the file with the best value
    names: an export need not hold the state of the optimizer.

    Args:
        export_filepath: Path of an export. `{epoch}` is the number in the name of the checkpoint that was evaluated;
            the metrics are placeholders, too. `.keras` is added, or `.weights.h5` with `save_weights_only=True`, if
            the path has neither.
        checkpoint_filepath: Path of the checkpoints as training gives it to `ModelCheckpoint`, such as
            `ckpts/ckpt-{epoch:04d}`. `{epoch}` is the place of the number in their names.
        **kwargs: Other arguments of `keras.callbacks.ModelCheckpoint`. `monitor` is "loss" if it is not given.
    """

    def __init__(self, export_filepath: Any, checkpoint_filepath: Any, **kwargs: Any) -> None:
        if kwargs.get("save_freq") == "eval":  # of the example in the documentation of Keras 2
            del kwargs["save_freq"]
        kwargs.setdefault("monitor", "loss")
        path = _with_suffix(os.fspath(export_filepath), weights_only=bool(kwargs.get("save_weights_only")))
        super().__init__(filepath=path, save_best_only=True, **kwargs)
        self._checkpoint_filepath = os.fspath(checkpoint_filepath)
        self._numbered = _pattern(Path(self._checkpoint_filepath).name)
        self._checkpoint: tuple[str, int | None] | None = None
        self._data: str | None = None
        self._is_read = False
        self.best: float | None
        self._threshold = self.best  # `initial_value_threshold`
        self.export_index = 0

    @property
    def export_folder(self) -> Path:
        """Return the folder of the exports, without those parts of the path that have placeholders."""
        folder = Path(self.filepath).parent
        while "{" in str(folder):
            folder = folder.parent
        return folder

    def set_checkpoint(self, name: str, step: int | None) -> None:
        """Take the name and the step of the checkpoint that is evaluated next. `SidecarEvaluator` calls this."""
        self._checkpoint = name, step

    def set_data(self, data: str | None) -> None:
        """Take what tells the data apart, None if that is unknown. `SidecarEvaluator` calls this before an evaluation.

        The best value begins anew with other data.
        """
        if None not in (data, self._data) and data != self._data:
            self.best, self._is_read = self._threshold, True
        self._data = data

    def _implements_train_batch_hooks(self) -> bool:
        """Return False: the list of callbacks of tf_keras asks each callback, and this one is of Keras 3."""
        return False

    _implements_test_batch_hooks = _implements_predict_batch_hooks = _implements_train_batch_hooks

    def on_test_begin(self, logs: Any = None) -> None:
        """Find the number of the checkpoint: of the one that is evaluated, or else of the newest file."""
        del logs
        name, step = self._checkpoint or (self._newest(), None)
        number = self._number(name)
        self.export_index = max((step or 0) if number is None else number, 1) - 1

    def on_test_end(self, logs: Any = None) -> None:
        """Export the model if it is better than the best one so far. Raises `TaskError` for an unknown metric."""
        logs = dict(logs or {})
        if self.monitor not in logs:
            raise TaskError(
                f"monitor={self.monitor!r} is not a metric of the evaluation: use one of {', '.join(sorted(logs))}"
            )
        if self.monitor_op is None:
            self._set_monitor_op()
        record = BestValue(self.export_folder, self.filepath, self.monitor, self.mode)
        if not self._is_read:
            self._is_read = True
            stored = record.read(self._data)
            if stored is not None and (self.best is None or self._is_improvement(stored, self.best)):
                self.best = stored
        value = float(logs[self.monitor])
        if value != value or (self.best is not None and not self._is_improvement(value, self.best)):  # noqa: PLR0124
            self._tell(f"{self.monitor}={value} did not improve from {self.best}")
            return
        path = Path(self._path(logs))
        self._save(path)
        self.best = value
        record.write(value, path, None if self._checkpoint is None else self._checkpoint[0], self._data)
        self._tell(f"{self.monitor}={value} is the best so far; the model was saved to {path}")

    def _tell(self, message: str) -> None:
        """Print a message if `verbose` asks for it, as Keras does: TensorFlow does not show what is logged as INFO."""
        if self.verbose:
            print(one_line(message))  # noqa: T201

    def _path(self, logs: dict[str, Any]) -> str:
        try:
            return str(self.filepath.format(epoch=self.export_index + 1, **logs))
        except (KeyError, IndexError, ValueError) as error:
            raise SettingsError(
                f"export_filepath={self.filepath!r} has a placeholder that is neither epoch nor a metric of the "
                f"evaluation ({', '.join(sorted(logs))}): {error}"
            ) from error

    def _save(self, path: Path) -> None:
        """Save the model durably under another name, then give it its own name."""
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = f".tmp-{path.name}"
        with open_folder(path.parent) as folder:
            folder.remove(temporary)
            optimizer: Any = getattr(self.model, "optimizer", None)
            if not self.save_weights_only and getattr(optimizer, "built", True) is False:
                optimizer.build(self.model.trainable_variables)  # Keras warns when it loads one without state
            try:
                write = self.model.save_weights if self.save_weights_only else self.model.save
                write(str(path.parent / temporary), overwrite=True)
            except NotImplementedError as error:
                raise TaskError(
                    f"the model ({type(self.model).__name__}) cannot be saved as a whole: give it get_config, or "
                    f"export with save_weights_only=True"
                ) from error
            with folder.open_file(temporary) as file:
                sync_file(file)
            folder.rename(temporary, path.name)
            folder.sync()

    def _number(self, name: str | None) -> int | None:
        """Return the number in the name of a checkpoint: in the place of `{epoch}`, or else at its end."""
        if name is None:
            return None
        match = self._numbered.match(name.rpartition("/")[2])
        return number_in(name) if match is None or match.re.groups == 0 else int(match[1])

    def _newest(self) -> str | None:
        """Return the name of the file that matches `checkpoint_filepath` and was modified last."""
        folder = Path(self._checkpoint_filepath).parent
        files = [path for path in folder.glob(f"{_glob(Path(self._checkpoint_filepath).name)}*") if path.is_file()]
        newest = max(files, key=lambda path: (path.stat().st_mtime_ns, path.name), default=None)
        return None if newest is None else newest.name.removesuffix(".index")


def _with_suffix(path: str, *, weights_only: bool) -> str:
    """Return a path with a suffix that Keras 3 requires."""
    if weights_only:
        return path if path.endswith(_WEIGHTS) else path + _WEIGHTS
    return path if path.endswith(_SUFFIXES) else f"{path}.keras"


def _parts(template: str) -> list[tuple[str, str | None]]:
    """Return the literal texts of a template, each with the placeholder that follows it. Raises `SettingsError`."""
    try:
        return [(literal, field) for literal, field, _, _ in string.Formatter().parse(template)]
    except ValueError as error:
        raise SettingsError(f"checkpoint_filepath={one_line(template)!r} is not a template: {error}") from error


def _pattern(template: str) -> re.Pattern[str]:
    """Return a pattern for names that the template gives, whose group is the first `{epoch}`."""
    pattern, is_found = "", False
    for literal, field in _parts(template):
        pattern += re.escape(literal)
        if field == "epoch" and not is_found:
            pattern, is_found = pattern + "0*([0-9]{1,18})", True
        elif field is not None:
            pattern += ".*?"
    return re.compile(pattern)


def _glob(template: str) -> str:
    return "".join(glob.escape(literal) + ("" if field is None else "*") for literal, field in _parts(template))
