"""Evaluate checkpoints in worker processes, which are disposable. No other code may import a framework."""
