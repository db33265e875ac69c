"""Divide language models among two processes in both ways, and compare them with one process.

Run as `python divided_models.py FOLDER`. It writes JSON: by architecture and way, the largest difference of the logits,
and the part of the parameters that a process holds.
"""

import contextlib
import json
import socket
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

SIZES = {
    "vocab_size": 301,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
CONFIGS = {
    "llama": ("LlamaConfig", {}),
    "qwen3 with tied weights": ("Qwen3Config", {"head_dim": 8, "tie_word_embeddings": True}),
    "qwen2 with biases": ("Qwen2Config", {}),
    "gemma3": ("Gemma3TextConfig", {"head_dim": 8}),
    "gpt-neox": ("GPTNeoXConfig", {}),
    "phi3": ("Phi3Config", {}),
    "olmo2": ("Olmo2Config", {}),
}
NAMES = (*CONFIGS, "a plan of its own")


PLAN = {
    "tokens": "embedding_rowwise",
    "layers.*.w[qkv]": "colwise",
    "layers.*.wo": "rowwise",
    "head": "colwise_rep",
}


def with_a_plan():
    """A model of no library, in the form of torchtitan's, to which `build_model` gives a plan."""
    from torch import nn

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            for name in ("wq", "wk", "wv", "wo"):
                setattr(self, name, nn.Linear(32, 32, bias=False))

        def forward(self, x):
            q, k, v = (layer(x).view(*x.shape[:2], -1, 8).transpose(1, 2) for layer in (self.wq, self.wk, self.wv))
            seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            return x + self.wo(seen.transpose(1, 2).flatten(2))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.head = nn.Embedding(301, 32), nn.Linear(32, 301, bias=False)
            self.layers = nn.ModuleDict({str(number): Layer() for number in range(2)})
            self.tp_plan = PLAN

        def forward(self, tokens):
            x = self.tokens(tokens)
            for layer in self.layers.values():
                x = layer(x)
            return SimpleNamespace(logits=self.head(x))

    return Model()


def build(name):
    """A model of small sizes with random values."""
    import transformers

    if name == "a plan of its own":
        return with_a_plan()
    kind, changes = CONFIGS[name]
    return transformers.AutoModelForCausalLM.from_config(getattr(transformers, kind)(**SIZES | changes))


def logits(model):
    """The outputs for three rows of tokens."""
    import torch

    with torch.inference_mode():
        return (
            model.eval().requires_grad_(requires_grad=False)(torch.arange(33).reshape(3, 11) * 7 % 301).logits.clone()
        )


def compare(process, folder, ports):
    """Divide each model in this process, restore it, and write the outputs."""
    import torch

    from sidecar.evaluation.backends.torch.division import Division
    from sidecar.evaluation.backends.torch.restore import restore
    from sidecar.evaluation.backends.torch.tensors import local_values
    from sidecar.evaluation.backends.torch.weight_files import load
    from sidecar.protocol.messages import Join

    usual = {"group": "g", "members": (), "rank": 0, "task": "", "framework": "torch", "search_path": "", "threads": 1}
    for way, port in ports.items():
        join = Join(**usual, processes=2, process=process, meeting=f"127.0.0.1:{port}")
        division = Division(join, torch.device("cpu"), way)
        for name in NAMES:
            divided = division.divided(partial(build, name), torch.device("cpu"))
            restore(divided, load(f"{folder}/{name}.pt"), None)
            held = sum(local_values(value).numel() for value in divided.parameters())
            torch.save((logits(divided), held), f"{folder}/{name}.{way}.{process}")


def main(folder):
    """Write a checkpoint of each model, let two processes compare, and write what they found."""
    import torch
    from torch.multiprocessing import spawn

    torch.manual_seed(1)
    whole = {name: build(name) for name in NAMES}
    for name, model in whole.items():
        torch.save(model.state_dict(), f"{folder}/{name}.pt")
    with contextlib.ExitStack() as stack:
        ports = {}
        for way in ("tensor", "fully_shard"):
            place = stack.enter_context(socket.socket())
            place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            place.bind(("127.0.0.1", 0))
            ports[way] = place.getsockname()[1]
        spawn(compare, args=(folder, ports), nprocs=2)
    found = {}
    for name, model in whole.items():
        expected, parameters = logits(model), sum(value.numel() for value in model.parameters())
        for way in ports:
            (first, held), (second, _) = (torch.load(f"{folder}/{name}.{way}.{process}") for process in range(2))
            assert torch.equal(first, second), (name, way)
            found[f"{name}: {way}"] = (float((first - expected).abs().max()), held / parameters)
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[4]))
    main(sys.argv[1])
