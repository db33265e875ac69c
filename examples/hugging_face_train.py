"""Train with Hugging Face's Trainer.

    torchrun --nproc-per-node 2 hugging_face_train.py ckpts

Real handwritten digits of scikit-learn are the data.
"""

import sys

from hugging_face_task import build_model, images
from transformers import Trainer, TrainingArguments

arguments = TrainingArguments(
    sys.argv[1],
    num_train_epochs=3,
    per_device_train_batch_size=50,
    learning_rate=0.003,
    save_strategy="epoch",
    save_total_limit=2,
    use_cpu=True,
    report_to=[],
    disable_tqdm=True,
)
Trainer(build_model(), arguments, train_dataset=images(training=True)).train()
