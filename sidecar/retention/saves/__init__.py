"""Artifacts: what workers saved of their evaluations, which of it is retained, and the clean-up of the rest."""
