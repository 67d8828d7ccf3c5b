"""The report of a demo, for people: one table, a few lines of figures, and every check with its figure."""

from rich.console import Console
from rich.table import Table

from zdiloco.core.ledger import Fates
from zdiloco.demo.report import LearnerRow, Report, picture_path

WIDTH = 130
VERDICTS = {True: "ok", False: "FAILED", None: "not judged"}
COLUMNS = (
    "learner", "fate", "steps", "trained", "merged", "left", "lost", "dropped", "rounds", "step ms", "p99 ms", "max ms",
    "MB up", "MB down",
)  # fmt: skip


def print_report(report: Report, console: Console | None = None) -> None:
    """Print the report on standard output, or where the console writes."""
    out = console or Console(width=WIDTH, highlight=False, markup=False, soft_wrap=True)
    out.print(_table(report))
    for line in _figures(report):
        out.print(line)
    out.print()
    for check in report.checks:
        out.print(f"{VERDICTS[check.passed]:<10}  {check.name}: {check.figure}")
    for remark in report.outcome.remarks:
        out.print(f"{'note':<10}  {remark}")
    open_ = sum(check.passed is None for check in report.checks)
    if open_:
        out.print(f"\n{open_} of {len(report.checks)} claims could not be judged: that wants a longer run (--tokens)")
    out.print(f"\npicture {picture_path(report.run_dir)}\nrun     {report.run_dir}")


def _table(report: Report) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for number, column in enumerate(COLUMNS):
        table.add_column(column, justify="left" if number < 2 else "right", no_wrap=True)
    for row in report.learners:
        table.add_row(*_cells(row))
    steps = sum(row.steps for row in report.learners)
    traffic = (f"{report.bytes_up / 1e6:.1f}", f"{report.bytes_down / 1e6:.1f}")
    table.add_row("all", "", f"{steps:,}", *_tokens(report.ledger), str(report.rounds), "", "", "", *traffic)
    return table


def _cells(row: LearnerRow) -> list[str]:
    pauses = row.pauses
    times = [f"{s * 1e3:.1f}" for s in (pauses.step_s, pauses.p99_s, pauses.longest_s)] if pauses else ["", "", ""]
    traffic = [f"{row.bytes_up / 1e6:.1f}", f"{row.bytes_down / 1e6:.1f}"]
    return [row.name, row.fate, f"{row.steps:,}", *_tokens(row.fates), str(row.rounds), *times, *traffic]


def _tokens(fates: Fates) -> list[str]:
    return [f"{value:,.0f}" for value in (fates.trained, fates.merged, fates.left, fates.lost, fates.dropped)]


def _figures(report: Report) -> list[str]:
    ledger, outcome = report.ledger, report.outcome
    fates = list(ledger._asdict().items())[1:]
    terms = " + ".join(f"{word} {tokens:,.0f}" for word, tokens in fates)
    lone = outcome.lone
    alone = f"{lone.loss:.3f} ± {lone.noise:.3f} in {lone.steps:,} steps" if lone else "not judged"
    return [
        "",
        f"loss      {outcome.loss_before:.3f} before, {outcome.loss_after:.3f} after [validation, nats per byte]; one "
        f"learner alone: {alone}",
        f"rounds    {report.rounds}, with {report.mean_participants:.2f} learners on average",
        f"goodput   {report.goodput:.3f} [learner-seconds whose tokens were merged, of those between joins and ends]",
        f"ledger    trained {ledger.trained:,.0f} = {terms} [tokens, weighed by parameter share]",
        f"bytes     {report.bytes_up / 1e6:.1f} MB up, {report.bytes_down / 1e6:.1f} MB down; data-parallel would have "
        f"moved {report.data_parallel_bytes / 1e9:.2f} GB: {report.times_fewer:.0f} times fewer",
        f"          [all {report.parameters:,} gradients in bf16 round a ring of {report.num_learners} at each of "
        f"{report.fastest_steps:,} steps, 2(M-1)/M out of and into each]",
        f"time      {report.seconds:.0f} s in all, {report.training_seconds:.0f} s from the first merge to the last",
    ]
