"""Evaluate language models: tasks of lm-evaluation-harness, and perplexities, as eval sets. Part of the public API.

It is for tasks of PyTorch (`framework = "torch"`), in worker processes and in users' programs. Importing it is light:
transformers, datasets and lm-eval are imported when they are needed. No daemon and no command imports it.
"""

from sidecar.lm.harness import harness
from sidecar.lm.models import model
from sidecar.lm.perplexity import perplexity
from sidecar.lm.vllm_server import completions

__all__ = ["completions", "harness", "model", "perplexity"]
