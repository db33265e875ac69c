"""Read folders of Hugging Face's libraries: `checkpoint-<N>/` of the Trainer, and what `save_pretrained` writes.

Sources: transformers `trainer.py` (`_save_checkpoint`), `modeling_utils.py` (`save_pretrained`) and
`trainer_jit_checkpoint.py`; accelerate `checkpointing.py`; peft `peft_model.py`. The weights are safetensors, single or
in shards; older releases use `torch.save`. The Trainer writes everything in place: the weights, the optimizer,
the states of random numbers, and `trainer_state.json` last. While it deletes surplus checkpoints, the weights may be
gone before that file is.

Only the weights and the description of the model are the checkpoint. If the Trainer has begun to save the optimizer,
the folder counts from `trainer_state.json` on, as for the Trainer itself.
"""

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Collection, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from sidecar.checkpoints.files import MOST_ENTRIES, File, Listing, list_files, open_file, read_at, read_file, size_of
from sidecar.checkpoints.formats.format import Candidate, Format, Inspection, about
from sidecar.checkpoints.formats.json_members import has_many_containers
from sidecar.checkpoints.formats.safetensors import Safetensors
from sidecar.checkpoints.formats.shards import as_shard, doubt_about, is_unfinished, read_index, shards_of
from sidecar.checkpoints.formats.torch_zip import check_archive, update_from_archive
from sidecar.checkpoints.work_budget import ENTRY, TEXT_KIB, WorkBudget
from sidecar.errors import CheckpointError, CorruptError, IncompleteError, VanishedError
from sidecar.protocol.records import StepSource
from sidecar.protocol.weight_names import INDEX, main_weights

STATE: Final = "trainer_state.json"

_ADAPTER: Final = "adapter_model"
_ADAPTER_CONFIG: Final = "adapter_config.json"
DESCRIPTIONS: Final = ("config.json", _ADAPTER_CONFIG)
"""The files that describe a model, or an adapter."""

_CONFIGS: Final = ("config.json", "generation_config.json", _ADAPTER_CONFIG)
_SENTINEL: Final = "checkpoint-is-incomplete.txt"
_ARGUMENTS: Final = "training_args.bin"  # only the Trainer writes it
_BEFORE_STATE: Final = ("optimizer.pt", "scheduler.pt", "rng_state*.pth")
_ZERO: Final = "global_step*"
_DEEPSPEED: Final = ("*mp_rank_*_model_states.pt", "*zero_pp_rank_*_optim_states.pt")
_SHARDED: Final = "pytorch_model_fsdp_*"
_STEP: Final = re.compile(rb'"global_step":\s*([0-9]{1,18})\s*[,}]')
_READ_BYTES: Final = 64 * 1024  # keys are sorted, so the long list of logged numbers comes after the step
_TAIL_BYTES: Final = 64
_MAX_CONFIG_BYTES: Final = 4 * 1024 * 1024
_SAFETENSORS: Final = Safetensors()


class PretrainedFolder(Format):
    """Read folders with the weights of one model, as Hugging Face's libraries write them."""

    name: Final = "pretrained_folder"

    def candidates(self, folder: Path, listing: Listing) -> Iterator[Candidate]:
        """Yield every sub-folder with weights, or with the Trainer's state.

        It counts as committed if nothing is newer than that state, which is written last.
        """
        for name in listing.folders:
            with contextlib.suppress(OSError):  # the folder cannot be read, or is gone
                yield from _candidates(folder, name)

    def _inspect(self, folder: Path, name: str, step_key: str | None, work: WorkBudget) -> Inspection:
        """Check the weights as their own format does, and that the description of the model is whole.

        The digest covers both. The step is that of the Trainer, or is in the weights under `step_key`.
        """
        if (folder / name).is_symlink() or not (folder / name).is_dir():
            raise VanishedError(f"{folder / name} is not a folder")
        inner = list_files(folder / name, all_names=True, most=MOST_ENTRIES)
        work.add(ENTRY * len(inner.files))
        names = {*inner.files, *inner.escaping}
        weights = main_weights(names)
        if weights is None:
            raise _without_weights(name, names, inner.folders)
        step = _trainer_step(folder, name, names)
        digest = hashlib.sha256(f"{self.name}\0".encode())
        configs = _update_from_configs(digest, folder, name, names, work)
        if weights.startswith(_ADAPTER) and _ADAPTER_CONFIG not in configs:
            raise IncompleteError(f"{name} has no {_ADAPTER_CONFIG}, which is written after {weights}")
        files, held = _update_from_weights(digest, folder, name, weights, step_key, work)
        doubt = doubt_about(folder / name, weights, files[1:])
        source: StepSource = "step_key" if step_key else "variable"
        state = (STATE,) if STATE in names else ()
        needed = tuple(f"{name}/{file}" for file in (*files, *configs, *state))
        return Inspection(
            digest=digest.hexdigest(), step=held if step_key else step, files=needed, step_source=source, doubt=doubt
        )

    def check(self, folder: Path, name: str) -> None:
        """Compare the checksums of files of `torch.save`. Safetensors have none, so their structure is checked."""
        work = WorkBudget(is_full=True)
        for file in self.inspect(folder, name).files:
            if file.endswith(".bin"):
                check_archive(folder, file, work)


def _candidates(folder: Path, name: str) -> Iterator[Candidate]:
    """Yield the checkpoint in a sub-folder if there is one. Raises OSError."""
    inner = list_files(folder / name, all_names=True, most=MOST_ENTRIES)
    names = {*inner.files, *inner.escaping}
    weights = main_weights(names)
    if weights is None and STATE not in names and not _is_of_deepspeed(names):
        return
    wanted = {weights, STATE, *_CONFIGS, *(shards_of(weights, names) if weights else ())}
    # Unfinished shards are among the files, so that the folder changes as long as they grow.
    files = sorted(file for file in inner.files.values() if file.name in wanted or is_unfinished(file.name))
    leaving = min((f"{name}/{link}" for link in inner.escaping if link in wanted), default=None)
    state = inner.files.get(STATE)
    committed = state is not None and all(file.mtime_ns <= state.mtime_ns for file in files)
    yield Candidate(
        name=name, files=tuple(_in(name, file) for file in files), named=committed, committed=committed, leaving=leaving
    )


def _in(folder: str, file: File) -> File:
    return file._replace(name=f"{folder}/{file.name}")


def _without_weights(name: str, names: Collection[str], folders: Collection[str]) -> CheckpointError:
    """Return the error for a folder without a model's weights, with a remedy if training never writes them."""
    if _is_of_deepspeed(names) or (STATE in names and any(fnmatchcase(inner, _ZERO) for inner in folders)):
        return CorruptError(
            f"{name} holds shards of DeepSpeed, which have no sign of completeness, and which only DeepSpeed can read: "
            f"let training save the model, too (Trainer with ZeRO 3: stage3_gather_16bit_weights_on_model_save), call "
            f"zero_to_fp32.py, or set checkpoint_pattern, complete_marker and Task(restore=…)"
        )
    if STATE not in names:
        return VanishedError(f"{name} holds no weights of a model, or those of several")
    if any(fnmatchcase(inner, _SHARDED) for inner in folders):
        return IncompleteError(f"{name} holds no weights, but a folder of them: set checkpoint_glob to '*/{_SHARDED}'")
    return IncompleteError(f"{name} has a {STATE}, but no weights: they are missing, or are being deleted")


def _is_of_deepspeed(names: Collection[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in _DEEPSPEED for name in names)


def _trainer_step(folder: Path, name: str, names: Collection[str]) -> int | None:
    """Return the step in the Trainer's state; None without that file.

    Raises `IncompleteError` if the Trainer has not written it yet, but has begun to save what comes before it.
    """
    if _SENTINEL in names:
        raise IncompleteError(f"{name} is being written: {_SENTINEL} is there")
    if STATE not in names:
        if _ARGUMENTS in names and any(fnmatchcase(file, pattern) for pattern in _BEFORE_STATE for file in names):
            raise IncompleteError(f"{name} has no {STATE}, which the Trainer writes last")
        return None
    with open_file(folder, f"{name}/{STATE}") as file:
        size = os.fstat(file.fileno()).st_size
        head = read_at(file, _READ_BYTES, 0)
        tail = read_at(file, _TAIL_BYTES, max(0, size - _TAIL_BYTES))
    step = _STEP.search(head)
    is_whole = _is_json(head) if size <= _READ_BYTES else tail.rstrip().endswith(b"\n}")  # the inner } are indented
    if step is None or not is_whole:
        raise IncompleteError(f"{name}/{STATE} is cut off, or holds no global_step")
    return int(step[1])


def _is_json(content: bytes) -> bool:
    if has_many_containers(content):
        return False
    try:
        json.loads(content)
    except (ValueError, RecursionError):
        return False
    return True


def _update_from_configs(
    digest: "hashlib._Hash", folder: Path, name: str, names: Collection[str], work: WorkBudget
) -> tuple[str, ...]:
    """Add the descriptions of the model to a digest, and return their names. Raises `IncompleteError`."""
    configs = tuple(config for config in _CONFIGS if config in names)
    for config in configs:
        size = size_of(folder, f"{name}/{config}") or 0
        work.add(TEXT_KIB * (min(size, _MAX_CONFIG_BYTES) // 1024))
        content = read_file(folder, f"{name}/{config}", limit=_MAX_CONFIG_BYTES)
        if not _is_json(content):
            raise IncompleteError(f"{name}/{config} is cut off, or is not JSON")
        digest.update(f"{config}\0".encode() + content.rstrip())
    return configs


def _update_from_weights(
    digest: "hashlib._Hash", folder: Path, name: str, weights: str, step_key: str | None, work: WorkBudget
) -> tuple[tuple[str, ...], int | None]:
    """Check the weights, add them to a digest, and return their files and the step in them."""
    if weights.endswith(_SAFETENSORS.suffixes):
        with about(name):
            found = _SAFETENSORS.inspect(folder / name, weights, step_key=step_key, work=work)
        digest.update(found.digest.encode())
        return found.files, found.step
    shards = read_index(folder, f"{name}/{weights}", work) if weights.endswith(INDEX) else ()
    for archive in shards or (weights,):
        digest.update(f"{archive}\0".encode())
        with as_shard(f"{name}/{weights}", archive):
            update_from_archive(digest, folder, f"{name}/{archive}", work)
    return (weights, *shards), None
