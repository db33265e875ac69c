"""The training process of `numpy_trainer`, whose models are saved by `torch.save` for tasks/torch_*.py."""

import numpy as np
from numpy_trainer import NumpyTrainer

TORCH = {"SIDECAR_FRAMEWORK": "torch"}
"""The settings of daemons for tasks that import those of numpy, too."""


class TorchTrainer(NumpyTrainer):
    """Saves one model per step."""

    suffix = ".pt"

    def _write(self, file, step, model):
        import torch

        values = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in model.items()}
        torch.save({"step": step, "model": values}, file)
