"""Draw an evaluation's confusion matrix and its phases as SVG. Pure.

The content security policy forbids styles in attributes, so colours come from the style sheet, and shades are levels of
opacity in presentation attributes.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Final

from sidecar.publishing.page.markup import cell, head, table, text
from sidecar.system.plain_text import number

_LABELLED: Final = 25
"""The most classes whose names are next to the rows and columns; larger pictures name them in tooltips only."""

_COUNTED: Final = 12
"""The most classes with their counts in the cells."""

_CELL_SIZES: Final = ((12, 28.0), (25, 20.0), (50, 12.0))
"""The width of a cell for up to so many classes."""

_LABEL_CHARACTERS: Final = 14
_CHARACTER: Final = 6.5


def matrix_picture(classes: Sequence[str], matrix: Sequence[Sequence[float]]) -> str:
    """Return a confusion matrix: a row for each actual class, a column for each predicted one.

    The shade of a cell is its share of its row, so that rare classes are visible, too. For readers that do not see the
    picture, and for exact counts, a table follows.
    """
    edge = next((edge for most, edge in _CELL_SIZES if len(classes) <= most), _CELL_SIZES[-1][1])
    size, named = len(classes), len(classes) <= _LABELLED
    shown = [text(name if len(name) <= _LABEL_CHARACTERS else f"{name[: _LABEL_CHARACTERS - 1]}…") for name in classes]
    margin = _CHARACTER * max(map(len, classes)) if named else 0.0
    margin = 24.0 + min(margin, _CHARACTER * _LABEL_CHARACTERS)
    side = size * edge
    middle = f"{margin + side / 2:g}"
    parts = [
        f'<text class="axis" x="{middle}" y="12" text-anchor="middle">predicted</text>',
        f'<text class="axis" text-anchor="middle" transform="translate(10 {middle}) rotate(-90)">actual</text>',
    ]
    if named:
        for place, name in enumerate(shown):
            base = margin + (place + 0.5) * edge + 4
            parts.append(f'<text x="{margin - 4:g}" y="{base:g}" text-anchor="end">{name}</text>')
            parts.append(f'<text transform="translate({base:g} {margin - 4:g}) rotate(-90)">{name}</text>')
    for row, counts in enumerate(matrix):
        total = math.fsum(counts)
        for column, count in enumerate(counts):
            if count:
                share = count / total if total else 0.0
                parts.append(_matrix_cell(classes, row, column, count, share, (edge, margin)))
    frame = f'<rect class="frame" x="{margin:g}" y="{margin:g}" width="{side:g}" height="{side:g}"/>'
    extent = f"{margin + side + 8:g}"
    right = math.fsum(matrix[place][place] for place in range(size))
    total = math.fsum(count for counts in matrix for count in counts)
    label = f"Confusion matrix of {size} classes: {number(right)} of {number(total)} are on the diagonal"
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="Picture of the confusion matrix">'
        f'<svg class="matrix" role="img" aria-label="{text(label)}" viewBox="0 0 {extent} {extent}" width="{extent}" '
        f'height="{extent}">{"".join(parts)}{frame}</svg></div>{_matrix_table(classes, matrix)}'
    )


def _matrix_cell(
    classes: Sequence[str], row: int, column: int, count: float, share: float, place: tuple[float, float]
) -> str:
    edge, margin = place
    x, y, size = margin + column * edge, margin + row * edge, len(classes)
    told = f"actual {classes[row]}, predicted {classes[column]}: {number(count)} ({share:.1%} of actual {classes[row]})"
    style = "right" if row == column else "wrong"
    shape = (
        f'<g><title>{text(told)}</title><rect class="{style}" x="{x:g}" y="{y:g}" width="{edge:g}" height="{edge:g}" '
        f'fill-opacity="{0.12 + 0.88 * share:.3f}"/>'
    )
    if size <= _COUNTED:
        strong = " strong" if share > 0.5 else ""  # noqa: PLR2004 - half of the shades
        middle = f'x="{x + edge / 2:g}" y="{y + edge / 2 + 3.5:g}"'
        shape += f'<text class="count{strong}" {middle} text-anchor="middle">{text(number(count))}</text>'
    return f"{shape}</g>"


def _matrix_table(classes: Sequence[str], matrix: Sequence[Sequence[float]]) -> str:
    heads = [head("actual"), *(head(name, "number") for name in classes)]
    rows = [
        f"<tr><th scope='row'>{text(name)}</th>{''.join(cell(text(number(count)), 'number') for count in counts)}</tr>"
        for name, counts in zip(classes, matrix, strict=True)
    ]
    counts = table(heads, rows, caption="Examples by actual class (rows) and predicted class (columns)")
    return f"<details><summary>Counts as a table</summary>{counts}</details>"


def phases_picture(seconds: Mapping[str, float]) -> str:
    """Return the time of each phase: a bar, and a list of what its parts are."""
    total, start, parts, items = max(sum(seconds.values()), 1e-9), 0.0, [], []
    for place, (name, length) in enumerate(seconds.items()):
        width = 1000 * max(length, 0.0) / total
        shape = f'<rect class="phase-{place}" x="{start:.2f}" y="0" width="{width:.2f}" height="20">'
        parts.append(f"{shape}<title>{text(name)}: {length:.3f} s</title></rect>")
        swatch = f'<svg class="swatch" aria-hidden="true"><rect class="phase-{place}" width="12" height="12"/></svg>'
        items.append(f"<li>{swatch}{text(name)} {length:.2f} s</li>")
        start += width
    return (
        f'<svg class="phases" role="img" aria-label="Share of each phase in the time" viewBox="0 0 1000 20" '
        f'preserveAspectRatio="none">{"".join(parts)}</svg><ul class="phase-list">{"".join(items)}</ul>'
    )
