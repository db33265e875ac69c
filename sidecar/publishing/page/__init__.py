"""Render the status page: complete HTML without scripts, which own scripts then keep up to date and draw curves into.

`document` builds the page from the status, `evaluation` that of one evaluation, and `static` holds the files that a
browser loads. The scripts replace parts of the page by those of a newer page, so that all text is rendered here.
"""
