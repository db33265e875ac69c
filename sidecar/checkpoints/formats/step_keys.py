"""Name the keys under which training programs save their step."""

from typing import Final

STEP_KEYS: Final = ("global_step", "step", "iteration", "iterations", "iter", "num_updates", "n_iter", "iter_num")
"""The most certain first. Lightning and Hugging Face's Trainer write `global_step`, nanoGPT `iter_num`."""
