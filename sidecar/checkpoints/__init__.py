"""Find checkpoints in the checkpoint directory, and decide whether they are complete."""
