"""What lies in the checkpoint directory: found, known to be complete, held against deletion."""
