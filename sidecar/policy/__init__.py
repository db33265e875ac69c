"""Decide which nodes evaluate which checkpoint, and when. Pure: from state and time to a decision."""
