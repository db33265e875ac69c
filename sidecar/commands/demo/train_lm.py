"""The training job of `sidecar demo --framework lm`: a tiny Llama learns Python, to be read and copied.

It saves folders of Hugging Face, as `save_pretrained` writes them. Start it with torchrun:

    torchrun --nproc-per-node 2 train_lm.py --checkpoints ckpts
"""

import argparse
import gc
import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn.parallel import DistributedDataParallel
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from sidecar.commands.demo.texts import training_texts

BATCH_SIZE: Final = 8  # for each process
WINDOW: Final = 128  # tokens
VOCABULARY: Final = 1024
END: Final = "<eos>"
LEARNING_RATE: Final = 2e-3
SEED: Final = 1
LOG_EVERY: Final = 10  # steps
KEPT: Final = 3  # checkpoints


def main(arguments: list[str]) -> None:
    """Train for a number of steps and save a checkpoint every `--save-every` steps."""
    parser = argparse.ArgumentParser(description="Train a language model on the sources of Python.")
    parser.add_argument("--checkpoints", type=Path, required=True, help="directory to save checkpoints in")
    parser.add_argument("--steps", type=int, default=960, help="how long to train")
    parser.add_argument("--save-every", type=int, default=120, help="steps between two checkpoints")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds to sleep per step, as if it were larger")
    options = parser.parse_args(arguments)

    dist.init_process_group("gloo")
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    texts = training_texts()
    tokenizer = shared_tokenizer(texts)
    model = DistributedDataParallel(LlamaForCausalLM(config_of(tokenizer)))
    optimizer = torch.optim.AdamW(model.parameters(), LEARNING_RATE)

    batches = own_batches(texts, tokenizer)
    for step in range(1, options.steps + 1):
        tokens = next(batches)
        model(tokens, labels=tokens).loss.backward()  # gradients are averaged over the processes here
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(options.pause)
        if step % options.save_every == 0 and dist.get_rank() == 0:
            save(options.checkpoints, step, model.module, tokenizer)
        if step % LOG_EVERY == 0 or step == options.steps:
            say(f"step {step} of {options.steps}")
    dist.barrier()
    del model
    gc.collect()  # frees what uses the process group: PyTorch may abort at exit if its threads still run
    dist.destroy_process_group()


def shared_tokenizer(texts: list[str]) -> Any:
    """Return a byte-level BPE, which the first process learns for all."""
    learnt: list[Any] = [None]
    if dist.get_rank() == 0:
        raw = Tokenizer(models.BPE())
        raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        raw.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=VOCABULARY, special_tokens=[END], initial_alphabet=alphabet, show_progress=False
        )
        raw.train_from_iterator(texts, trainer)
        learnt = [raw.to_str()]
    dist.broadcast_object_list(learnt, src=0)
    special = {"eos_token": END, "pad_token": END}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(learnt[0]), **special)


def config_of(tokenizer: Any) -> LlamaConfig:
    """Return the configuration of a Llama with 0.4 million values."""
    return LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=96,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=1024,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.eos_token_id,
    )


def own_batches(texts: list[str], tokenizer: Any) -> Iterator[torch.Tensor]:
    """Yield this process's batches for ever: windows at random places of all texts."""
    documents = tokenizer(texts)["input_ids"]
    tokens = torch.tensor([token for document in documents for token in (*document, tokenizer.eos_token_id)])
    draw = torch.Generator().manual_seed(SEED + dist.get_rank())
    while True:
        begins = torch.randint(len(tokens) - WINDOW, (BATCH_SIZE,), generator=draw)
        yield torch.stack([tokens[begin : begin + WINDOW] for begin in begins.tolist()])


def save(checkpoints: Path, step: int, model: Any, tokenizer: Any) -> None:
    """Save under another name, then rename it: nobody sees a part of it. Keep the newest few."""
    checkpoints.mkdir(parents=True, exist_ok=True)
    unfinished = checkpoints / f".checkpoint-{step}"
    model.save_pretrained(unfinished)
    tokenizer.save_pretrained(unfinished)  # so that each checkpoint can be evaluated alone
    unfinished.rename(checkpoints / f"checkpoint-{step}")
    saved = sorted(checkpoints.glob("checkpoint-*"), key=lambda path: int(path.name.removeprefix("checkpoint-")))
    for old in saved[:-KEPT]:
        shutil.rmtree(old)


def say(line: str) -> None:
    """Print a line and flush it; one process speaks for all."""
    if dist.get_rank() == 0:
        sys.stdout.write(line + os.linesep)
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
