"""Evaluate with PyTorch."""
