"""Evaluate with any library: the task loads a model and predicts with it."""
