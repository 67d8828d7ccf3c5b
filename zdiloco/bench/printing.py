"""The results of a measurement, for people: a table, a line about each, and one for each bar that is not met."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from zdiloco.bench.results import Result

WIDTH = 100


def print_results(results: Sequence[Result], console: Console | None = None) -> None:
    """Print them on standard output, or where the console writes."""
    out = console or Console(width=WIDTH, highlight=False, markup=False, soft_wrap=True)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for number, column in enumerate(("what", "ours", "reference", "unit", "ratio", "bar", "verdict")):
        table.add_column(column, justify="right" if number in (1, 2, 4, 5) else "left", no_wrap=True)
    for result in results:
        table.add_row(*_cells(result))
    out.print(table)
    for result in results:
        out.print(f"{result.name}: {result.remark}")
    for fault in (fault for result in results for fault in result.faults):
        out.print(f"not met     {fault}")


def _cells(result: Result) -> list[str]:
    sign = "≥" if result.better == "higher" else "≤"
    bar = "none" if result.bound is None else f"{sign} {result.bound:g}"
    verdict = "VOID" if result.void else "FAILED" if result.faults else "" if result.bound is None else "ok"
    ours, reference = f"{result.ours:.3f}", f"{result.reference:.3f}"
    return [result.name, ours, reference, result.unit, f"{result.ratio:.3f}", bar, verdict]
