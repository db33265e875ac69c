"""Views of what happened: one record in, one medium out."""
