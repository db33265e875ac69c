"""Train with Lightning on two processes, without validation.

    torchrun --nproc-per-node 2 lightning_train.py ckpts

Real handwritten digits of scikit-learn are the data.
"""

import sys

import pytorch_lightning as lightning
from lightning_task import Digits
from torch.utils.data import DataLoader
from torch_digits import digits

trainer = lightning.Trainer(
    accelerator="cpu",
    devices=2,
    strategy="ddp",
    max_epochs=3,
    limit_val_batches=0,
    logger=False,
    enable_progress_bar=False,
    callbacks=[lightning.callbacks.ModelCheckpoint(sys.argv[1], filename="{step}", save_top_k=-1, save_last=True)],
)
trainer.fit(Digits(), DataLoader(digits(training=True), 50, shuffle=True))
