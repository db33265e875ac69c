"""The floor for PyTorch: one plain process that restores a checkpoint and runs one loop over data in memory.

Forward pass, loss and accuracy, summed in float32, with the threads that torch chooses: nothing that could be left out.
"""

import time

import torch
from answers import serve
from conv_data import BATCH
from conv_torch import conv_net, tensors
from torch.nn import functional

model = conv_net().eval()
x, y = tensors()
batches = list(zip(x.split(BATCH), y.split(BATCH), strict=True))


@torch.inference_mode()
def evaluate(path):
    begin = time.monotonic()
    model.load_state_dict(torch.load(path, weights_only=True, mmap=True)["model"])
    loss, correct = torch.zeros(()), torch.zeros((), dtype=torch.int64)
    for inputs, labels in batches:
        predictions = model(inputs)
        loss += functional.cross_entropy(predictions, labels, reduction="sum")
        correct += (predictions.argmax(1) == labels).sum()
    return {"loss": float(loss) / len(x), "accuracy": int(correct) / len(x), "seconds": time.monotonic() - begin}


serve(evaluate)
