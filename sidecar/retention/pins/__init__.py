"""Pin checkpoints: protect them against the trainer's own clean-up as long as an evaluation needs them."""
