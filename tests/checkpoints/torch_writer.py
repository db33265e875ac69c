"""A real PyTorch process: writes checkpoints of every kind of TORCH_KINDS when it is asked to.

A line of input is JSON with the kind and the folder; each is answered by a line of JSON.
"""

import contextlib
import io
import json
import logging
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

STEP = 5


def model(dtype: torch.dtype = torch.float32) -> nn.Module:
    """A small model with values that no other call gives."""
    return nn.Sequential(nn.Linear(30, 20), nn.BatchNorm1d(20), nn.Linear(20, 4)).to(dtype)


def training() -> dict[str, Any]:
    """Return what many training loops save: a model after some steps, its optimizer, and the step."""
    trained = model()
    optimizer = torch.optim.AdamW(trained.parameters())
    trained(torch.randn(8, 30)).sum().backward()
    optimizer.step()
    return {"model": trained.state_dict(), "optimizer": optimizer.state_dict(), "step": STEP}


def _buffer(folder: Path) -> None:
    buffer = io.BytesIO()
    torch.save(training(), buffer)
    (folder / "m-5.pth").write_bytes(buffer.getvalue())


def _unchecked(folder: Path) -> None:
    torch.serialization.set_crc32_options(False)
    try:
        torch.save(model().state_dict(), folder / "m-5.pt")
    finally:
        torch.serialization.set_crc32_options(True)


def _exported(folder: Path) -> None:
    program = torch.export.export(model().eval(), (torch.randn(2, 30),))
    torch.export.save(program, folder / "m-5.pt2")
    (folder / "m-5.pt2").rename(folder / "m-5.pt")


def _lightning_model() -> Any:
    import pytorch_lightning as lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = model()

        def training_step(self, batch: torch.Tensor) -> torch.Tensor:
            loss = self.net(batch).square().mean()
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters())

    return Module()


def _lightning(folder: Path, temporary: str | Path | None = None, epochs: int = 1, **settings: Any) -> None:
    """Train with Lightning's ModelCheckpoint, 5 steps an epoch. `temporary`: where unfinished files are."""
    import pytorch_lightning as lightning

    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    settings = {"filename": "m-5", "enable_version_counter": False} | settings
    before, tempfile.tempdir = tempfile.tempdir, None if temporary is None else str(temporary)
    try:
        trainer = lightning.Trainer(
            max_epochs=epochs,
            accelerator="cpu",
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[lightning.callbacks.ModelCheckpoint(folder, **settings)],
        )
        trainer.fit(_lightning_model(), torch.utils.data.DataLoader(torch.randn(20, 30), batch_size=4))
    finally:
        tempfile.tempdir = before


def _on_the_same_filesystem(folder: Path) -> None:
    temporary = folder.parent.parent / "temporary"
    temporary.mkdir(exist_ok=True)
    _lightning(folder, temporary)


def _last(folder: Path, **settings: Any) -> None:
    _lightning(folder, epochs=2, filename=None, **settings)


def _language_model() -> Any:
    """A small model of Hugging Face, built from its description."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    sizes = {"hidden_size": 8, "intermediate_size": 8, "max_position_embeddings": 16, "vocab_size": 40}
    return transformers.BertForSequenceClassification(
        transformers.BertConfig(num_hidden_layers=1, num_attention_heads=2, **sizes)
    )


def _trainer(folder: Path, steps: int = STEP, **settings: Any) -> None:
    """Train with Hugging Face's Trainer, which saves to `checkpoint-<step>` every 5 steps."""
    import transformers

    class Examples(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 4 * steps

        def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
            return {"input_ids": torch.arange(6) + index % 30, "labels": torch.tensor(index % 2)}

    settings = {"max_steps": steps, "save_steps": STEP, "per_device_train_batch_size": 4, "seed": _seed()} | settings
    arguments = transformers.TrainingArguments(
        str(folder), use_cpu=True, report_to=[], disable_tqdm=True, logging_strategy="no", **settings
    )
    with contextlib.redirect_stdout(sys.stderr):
        transformers.Trainer(_language_model(), arguments, train_dataset=Examples()).train()


def _seed() -> int:
    """A number that no other call gives; the Trainer would seed all calls alike."""
    return int(torch.randint(2**31, ()))


def _trainer_as_m(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as temporary:  # its path is in a file that is recorded
        _trainer(Path(temporary))
        shutil.move(Path(temporary) / f"checkpoint-{STEP}", folder / "m-5")


def _in_shards(folder: Path, name: str, **settings: Any) -> None:
    from huggingface_hub import save_torch_state_dict

    folder.mkdir(exist_ok=True)
    save_torch_state_dict(model().state_dict(), folder, filename_pattern=name, max_shard_size="1KB", **settings)


def _safetensors(folder: Path) -> None:
    from safetensors.torch import save_file

    save_file(model().state_dict(), folder / "m-5.safetensors", metadata={"format": "pt", "global_step": str(STEP)})


def _bin(folder: Path) -> None:
    _in_shards(folder / "m-5", "pytorch_model{suffix}.bin", safe_serialization=False)


def _dcp(folder: Path) -> None:
    import torch.distributed.checkpoint as dcp

    dcp.save(training(), checkpoint_id=folder / "m-5", no_dist=True)


def _dcp_async(folder: Path) -> None:
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp

    with tempfile.TemporaryDirectory() as meeting:
        dist.init_process_group("gloo", f"file://{meeting}/store", rank=0, world_size=1)
        dcp.async_save(training(), checkpoint_id=folder / "m-5").result()
        dist.destroy_process_group()


def _dcp_sharded(folder: Path) -> None:
    import sharded_writer

    sharded_writer.save(folder / "m-5", _seed())
    (folder / "m-5.expected").unlink()


WRITERS: dict[str, Callable[[Path], Any]] = {
    "torch_state": lambda folder: torch.save(model().state_dict(), folder / "m-5.pt"),
    "torch_training": lambda folder: torch.save(training(), folder / "m-5.pt"),
    "torch_buffer": _buffer,
    "torch_bfloat16": lambda folder: torch.save(model(torch.bfloat16).state_dict(), folder / "m-5.pth.tar"),
    "torch_unchecked": _unchecked,
    "lightning": _lightning,
    "lightning_same_filesystem": _on_the_same_filesystem,
    "lightning_other_filesystem": lambda folder: _lightning(folder, "/dev/shm"),
    "lightning_last": lambda folder: _last(folder, save_top_k=-1, save_last=True),
    "lightning_best_and_last": lambda folder: _last(folder, monitor="loss", mode="max", save_last=True),
    "lightning_link": lambda folder: _last(folder, save_top_k=-1, save_last="link"),
    "safetensors": _safetensors,
    "safetensors_shards": lambda folder: _in_shards(folder, "m-5{suffix}.safetensors"),
    "pretrained": lambda folder: _language_model().save_pretrained(folder / "m-5"),
    "pretrained_shards": lambda folder: _language_model().save_pretrained(folder / "m-5", max_shard_size="4KB"),
    "pretrained_bin_shards": _bin,
    "trainer": _trainer_as_m,
    "trainer_in_place": _trainer,
    "trainer_limited": lambda folder: _trainer(folder, 15, save_total_limit=1),
    "dcp": _dcp,
    "dcp_sharded": _dcp_sharded,
    "dcp_async": _dcp_async,
    "legacy": lambda folder: torch.save(training(), folder / "m-5.pt", _use_new_zipfile_serialization=False),
    "script": lambda folder: torch.jit.script(model()).save(str(folder / "m-5.pt")),
    "exported": _exported,
}


def main() -> None:
    warnings.simplefilter("ignore")
    for line in sys.stdin:
        asked = json.loads(line)
        answer = None
        if asked["kind"]:
            folder = Path(asked["folder"])
            folder.mkdir(parents=True, exist_ok=True)
            answer = WRITERS[asked["kind"]](folder)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
