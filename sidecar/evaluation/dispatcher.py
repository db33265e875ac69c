"""Carry out a daemon's commands in a worker process: check a task, form a group, evaluate a checkpoint.

The built task stays in memory between checkpoints, until its data change. Every failure becomes a `Failed` report,
never an exception.
"""

import ctypes
import gc
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from typing import Final

from sidecar.evaluation.backend import Backend, Collective, Evaluator
from sidecar.evaluation.data.opened_files import OpenedFiles
from sidecar.evaluation.data.shard import Shard
from sidecar.evaluation.evaluate_functions import EvaluateFunctions
from sidecar.evaluation.failures import EvaluationError, as_failed
from sidecar.evaluation.framework_traits import traits_of
from sidecar.evaluation.rank_evaluation import RankEvaluation
from sidecar.evaluation.set_order import globals_of, notes_on_sets
from sidecar.evaluation.task_loader import LoadedTask, load
from sidecar.protocol.messages import Check, Checked, Command, Done, Evaluate, Join, Joined, Phase, Report
from sidecar.protocol.records import EvalData
from sidecar.protocol.states import WorkerPhase

_keeps_freed_memory: Final = "MALLOC_TRIM_THRESHOLD_" in os.environ
_return_free_memory: Final = getattr(ctypes.CDLL(None), "malloc_trim", None) if _keeps_freed_memory else None
"""glibc's malloc_trim(3), if glibc was told not to call it; None with another C library."""


class Dispatcher:
    """Carry out commands, one at a time.

    `report`: sends a report to the daemon. `files`: knows from which files the data were read. None: nothing is known.
    """

    def __init__(self, framework: Backend, report: Callable[[Report], None], files: OpenedFiles | None = None) -> None:
        self._backend = framework
        self._report = report
        self._join: Join | None = None
        self._collective: Collective | None = None
        self._evaluator: Evaluator | None = None
        self._loaded: LoadedTask | None = None
        self._files = files or OpenedFiles()
        self._data: dict[str, EvalData] = {}  # of each eval set, as evaluated last
        self._phase = WorkerPhase.IMPORT
        self._frozen = False
        self._notes: tuple[str, ...] | None = None  # about the task's code
        # One thread for all evaluations: a new one each time would leave its buffers in another arena of the C library.
        self._writing = ThreadPoolExecutor(1, thread_name_prefix="weights")

    def run(self, command: Command | Report) -> None:
        """Carry out one command; a failure is reported, never raised."""
        plan = command.plan if isinstance(command, Evaluate) else None
        try:
            if isinstance(command, Check):
                self._check(command)
            elif isinstance(command, Join):
                self._form(command)
            elif isinstance(command, Evaluate):
                self._evaluate(command)
            else:
                raise EvaluationError("join", f"{type(command).__name__} is not a command")  # noqa: TRY301 - see below
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the daemon decides; tasks may call sys.exit
            rank = self._join.rank if self._join else None
            failed = as_failed(
                error,
                phase=self._phase,
                plan=plan,
                rank=rank,
                out_of_memory=self._backend.out_of_memory,
                path=command.path if isinstance(command, Evaluate) else None,
            )
            if isinstance(command, Evaluate):  # users know the name, not the path of the pin, which is temporary
                failed = replace(failed, message=failed.message.replace(command.path, command.checkpoint.name))
            self._report(failed)

    def _enter(self, phase: WorkerPhase, plan: int | None = None) -> None:
        self._phase = phase
        self._report(Phase(phase, plan))

    def _check(self, command: Check) -> None:
        self._enter(WorkerPhase.IMPORT)
        loaded = _loaded(command)
        sets, builds = (
            (*loaded.task.eval_sets, *loaded.task.evaluate),
            bool(loaded.task.build_model or loaded.task.load),
        )
        self._report(Checked(loaded.digest, sets, self._backend.profile(command), builds))

    def _form(self, command: Join) -> None:
        if self._join is not None:
            self._form_again(command, self._join)
            return
        self._enter(WorkerPhase.JOIN)
        self._join = command
        self._collective = self._backend.join(command)
        # The task is imported after the join: TensorFlow refuses a cluster after any operation of the task's module.
        self._enter(WorkerPhase.IMPORT)
        self._loaded = loaded = _loaded(command)
        self._enter(WorkerPhase.BUILD)
        self._evaluator = evaluator = self._build(loaded, command)
        sets = (*loaded.task.eval_sets, *loaded.task.evaluate)
        self._report(Joined(command.group, loaded.digest, self._backend.profile(command), sets))
        if evaluator.loads_graphs:
            self._tidy()  # freezes all objects; done now, because a stored graph must not be frozen

    def _form_again(self, command: Join, before: Join) -> None:
        """Form another group of this process alone, and retain the task as it is built: another run has the same."""
        are_alike = replace(before, group=command.group, members=command.members) == command
        is_alone = len(before.members) == len(command.members) == 1
        if not is_alone or not are_alike or self._loaded is None or self._evaluator is None:
            why = "a worker joins one group, unless it is alone in all"
            raise EvaluationError("join", f"cannot join {command.group} after {before.group}: {why}")
        self._join, task = command, self._loaded.task
        sets = (*task.eval_sets, *task.evaluate)
        self._report(Joined(command.group, self._loaded.digest, self._backend.profile(command), sets))

    def _build(self, loaded: LoadedTask, join: Join) -> Evaluator:
        self._files.forget()
        with self._files.reading():
            return self._backend.build(loaded.task, Shard(join.rank, len(join.members)), join)

    @property
    def _shard(self) -> Shard:
        assert self._join is not None
        return Shard(self._join.rank, len(self._join.members))

    def _evaluate(self, command: Evaluate) -> None:
        if self._join is None or self._collective is None or self._loaded is None or self._evaluator is None:
            raise EvaluationError("join", "cannot evaluate before the group is formed and the task is built")
        changed = self._files.changed(command.path, command.save_root or command.save_to)
        if self._evaluator.differs(bool(changed)):
            self._enter(WorkerPhase.BUILD, command.plan)
            self._build_anew(self._loaded, self._join)
        evaluator = self._evaluator
        with self._files.reading(command.path, command.save_root or command.save_to):
            done = RankEvaluation(
                command=command,
                join=self._join,
                collective=self._collective,
                evaluator=evaluator,
                task_digest=self._loaded.digest,
                profile=self._backend.profile(self._join),
                enter=lambda phase: self._enter(phase, command.plan),
                report=self._report,
                in_parallel=self._writing,
                functions=EvaluateFunctions(self._loaded.task, self._shard) if self._loaded.task.evaluate else None,
                goals=self._loaded.task.goals,
                reports_sets=self._notes is not None,
            ).run()
        done = self._with_notes(done, evaluator)
        self._report(done)
        self._note_data(done, changed)
        self._tidy()

    def _with_notes(self, done: Done, evaluator: Evaluator) -> Done:
        """Return a result with notes about the task's code, which are found once, after the first evaluation."""
        if self._notes is None:
            assert self._loaded is not None, "the task was loaded to evaluate it"
            task = self._loaded.task
            of_task = {f"Task({each.name}=…)": getattr(task, each.name) for each in fields(task)}
            roots = globals_of(self._loaded.modules) | of_task | {"model": evaluator.restored_model()}
            self._notes = (*self._loaded.notes, *notes_on_sets(roots))
        if done.result is None or not self._notes:
            return done
        return replace(done, result=replace(done.result, notes=(*done.result.notes, *self._notes)))

    def _build_anew(self, loaded: LoadedTask, join: Join) -> None:
        """Build the task on data that changed. No error is lasting, as the data may be in the middle of a change."""
        self._evaluator = None  # memory may not be sufficient for two
        gc.unfreeze()
        self._frozen = False
        self._tidy()
        try:
            self._evaluator = self._build(loaded, join)
        except Exception as error:
            error.lasting = None  # type: ignore[attr-defined]
            raise

    def _note_data(self, done: Done, changed: list[str]) -> None:
        """Note the fingerprints. Files that changed without a change of the data are not looked at for ever."""
        data = {} if done.result is None else done.result.data
        are_equal = (self._data.get(name) == each and each.fingerprint is not None for name, each in data.items())
        if changed and data and all(are_equal):
            self._files.count_useless(changed)
        self._data |= data

    def _tidy(self) -> None:
        """Free unused objects and return their memory to the system, at a time when nobody waits."""
        gc.collect()
        if _return_free_memory is not None:
            _return_free_memory(0)
        if not self._frozen:  # excludes the million objects of a framework, which take 0.2 s each time
            gc.freeze()
            self._frozen = True


def _loaded(command: Check | Join) -> LoadedTask:
    loaded = load(command.task, command.search_path)
    traits_of(command.framework).require(loaded.task)
    return loaded
