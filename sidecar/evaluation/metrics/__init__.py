"""Compute metrics from numpy arrays, for every framework. Imports numpy only."""
