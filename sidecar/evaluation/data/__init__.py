"""Exact streams of data: what every rank reads, which batches are its own, and where data come from."""
