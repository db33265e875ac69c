"""Weights that real libraries saved, and models to restore them into."""


def net(seed=0, dtype=None):
    """A small model whose values depend on the seed."""
    import torch
    from torch import nn

    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)).to(dtype or torch.float32)


def tied_net(seed=0):
    """Two layers with one weight, as language models have."""
    import torch
    from torch import nn

    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
            self.head.weight = self.embed.weight

    torch.manual_seed(seed)
    return Tied()


def restored(path, model, where=None):
    """Restore a checkpoint into a model, and return the notes."""
    from sidecar.evaluation.backends.torch.restore import restore
    from sidecar.evaluation.backends.torch.weight_files import load

    return restore(model, load(str(path)), where)


def same(left, right):
    """Return whether two models have the same bits."""
    import torch

    values, others = left.state_dict(), right.state_dict()
    return values.keys() == others.keys() and all(torch.equal(values[name], others[name]) for name in values)


def save_file(model, path):
    from safetensors.torch import save_file

    save_file(model.state_dict(), path)
    return path


def save_model(model, path):
    from safetensors.torch import save_model

    save_model(model, str(path))
    return path


def save_shards(model, path, **settings):
    from huggingface_hub import save_torch_model

    path.mkdir()
    save_torch_model(model, path, max_shard_size=80, **settings)
    return path


def save_bin_shards(model, path):
    return save_shards(model, path, safe_serialization=False)


def save_wrapped(model, path):
    import torch

    torch.save({"step": 5, "model": {f"module.{name}": value for name, value in model.state_dict().items()}}, path)
    return path


def save_compiled(model, path):
    import torch

    torch.save(torch.compile(model).state_dict(), path)
    return path


def save_distributed(model, path):
    import warnings

    import torch.distributed.checkpoint as dcp

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that no process group is needed is what is wanted
        dcp.save({"model": model.state_dict()}, checkpoint_id=path, no_dist=True)
    return path


def vit():
    """A model whose file has other names than the model: transformers writes those of former releases."""
    import transformers

    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    config = transformers.ViTConfig(image_size=8, patch_size=4, num_channels=1, num_labels=3, **sizes)
    return transformers.ViTForImageClassification(config)
