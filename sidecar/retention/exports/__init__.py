"""Export the best checkpoints: rename their pins to where people find them, with a manifest."""
