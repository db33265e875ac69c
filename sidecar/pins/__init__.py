"""Pins: checkpoints protected against the trainer's own clean-up for as long as some evaluation needs them."""
