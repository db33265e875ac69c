"""Metrics that look at arrays, whatever the framework; imports numpy only."""
