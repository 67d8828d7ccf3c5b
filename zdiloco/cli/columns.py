"""Figures in columns, for people."""

from collections.abc import Sequence

Row = Sequence[str]


def table(rows: Sequence[Row]) -> list[str]:
    """Columns as wide as their widest cell; a column of figures is flush right, its heading with it."""
    columns = list(zip(*rows, strict=True))
    widths = [max(len(cell) for cell in column) for column in columns]
    figures = [len(column) > 1 and all(cell[:1] in "-0123456789" for cell in column[1:]) for column in columns]
    return [
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, figures, strict=True)
        )
        for row in rows
    ]
