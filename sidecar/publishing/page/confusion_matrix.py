"""Draw a confusion matrix, or the change of one. Pure."""

import math
from collections.abc import Sequence
from typing import Final, Literal

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


def matrix_picture(
    classes: Sequence[str], matrix: Sequence[Sequence[float]], *, of: Literal["counts", "changes"] = "counts"
) -> str:
    """Return a confusion matrix, or the change of one: a row for each actual class, a column for each predicted one.

    The shade of a cell is its share of its row, so that rare classes are visible, too; that of a change is its share of
    the largest one. For readers that do not see the picture, and for exact counts, a table follows.
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
    largest = max((abs(count) for counts in matrix for count in counts), default=0.0)
    for row, counts in enumerate(matrix):
        total = math.fsum(counts) if of == "counts" else largest
        for column, count in enumerate(counts):
            if count:
                share = count / total if total else 0.0
                told, is_good = _told(classes, row, column, count, share if of == "counts" else None)
                parts.append(_matrix_cell(told, is_good, (row, column), count, share, (edge, margin, size)))
    frame = f'<rect class="frame" x="{margin:g}" y="{margin:g}" width="{side:g}" height="{side:g}"/>'
    extent = f"{margin + side + 8:g}"
    right = math.fsum(matrix[place][place] for place in range(size))
    total = math.fsum(count for counts in matrix for count in counts)
    label, region = f"Confusion matrix of {size} classes: {number(right)} of {number(total)} are on the diagonal", "the"
    if of == "changes":
        label, region = (
            f"Change of the confusion matrix of {size} classes: {right:+g} on the diagonal",
            "a change of the",
        )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="Picture of {region} confusion matrix">'
        f'<svg class="matrix" role="img" aria-label="{text(label)}" viewBox="0 0 {extent} {extent}" width="{extent}" '
        f'height="{extent}">{"".join(parts)}{frame}</svg></div>{_matrix_table(classes, matrix, of)}'
    )


def _told(classes: Sequence[str], row: int, column: int, count: float, share: float | None) -> tuple[str, bool]:
    """Return what a cell says, and whether it is good. `share`: of the row; None: the cell is that of a change."""
    cell = f"actual {classes[row]}, predicted {classes[column]}"
    if share is None:
        return f"{cell}: {_signed(count)}", (row == column) == (count > 0)
    return f"{cell}: {number(count)} ({share:.1%} of actual {classes[row]})", row == column


def _signed(count: float) -> str:
    return f"{'+' * (count > 0)}{number(count)}"


def _matrix_cell(
    told: str, is_good: bool, cell: tuple[int, int], count: float, share: float, place: tuple[float, float, int]
) -> str:
    (row, column), (edge, margin, size) = cell, place
    x, y = margin + column * edge, margin + row * edge
    shape = (
        f'<g><title>{text(told)}</title><rect class="{"right" if is_good else "wrong"}" x="{x:g}" y="{y:g}" '
        f'width="{edge:g}" height="{edge:g}" fill-opacity="{0.12 + 0.88 * abs(share):.3f}"/>'
    )
    if size <= _COUNTED:
        strong = " strong" if abs(share) > 0.5 else ""  # noqa: PLR2004 - half of the shades
        middle = f'x="{x + edge / 2:g}" y="{y + edge / 2 + 3.5:g}"'
        shape += f'<text class="count{strong}" {middle} text-anchor="middle">{text(number(count))}</text>'
    return f"{shape}</g>"


def _matrix_table(classes: Sequence[str], matrix: Sequence[Sequence[float]], of: str) -> str:
    heads, shown = [head("actual"), *(head(name, "number") for name in classes)], number if of == "counts" else _signed
    rows = [
        f"<tr><th scope='row'>{text(name)}</th>{''.join(cell(text(shown(count)), 'number') for count in counts)}</tr>"
        for name, counts in zip(classes, matrix, strict=True)
    ]
    counts = table(heads, rows, caption=f"{of.capitalize()} by actual class (rows) and predicted class (columns)")
    return f"<details><summary>{of.capitalize()} as a table</summary>{counts}</details>"
