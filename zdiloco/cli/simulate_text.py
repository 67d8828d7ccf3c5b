"""What `zdiloco simulate` answers, for people: tables, what they depend on, and verdicts."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict

from rich.console import Console
from rich.table import Table

from zdiloco.sim import paper, scavenging, unequal
from zdiloco.sim.chips import Scenario
from zdiloco.sim.paper import Cell
from zdiloco.sim.questions import Answer, FleetAnswer, PaperAnswer, ScavengingAnswer, UnequalAnswer

WIDTH = 130
MEANINGS = {
    "reconfigure_s": "s, a learner stands still to go on with fewer slices, or to take some in",
    "grow_wait_s": "s, slices that are back wait for others, or for a failure",
    "restart_s": "s, without elasticity everything stands still to start again",
    "return_median_s": "s, half of the failed slices are back within",
    "step_s": "s, an inner step; one that is broken off is lost",
    "slice_chips": "chips that a failed one takes out with it",
    "shape": "of the exponentiated Weibull distribution of the time to return",
    "power": "of the exponentiated Weibull distribution of the time to return",
}


def print_answer(answer: Answer, console: Console | None = None) -> None:
    """Print the answer on standard output, or where the console writes."""
    out = console or Console(width=WIDTH, highlight=False, markup=False, soft_wrap=True)
    if isinstance(answer, PaperAnswer):
        _paper(out, answer)
    elif isinstance(answer, UnequalAnswer):
        _unequal(out, answer)
    elif isinstance(answer, ScavengingAnswer):
        _scavenging(out, answer)
    else:
        _fleet(out, answer)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    for number, column in enumerate(head):
        table.add_column(column, justify="left" if number < left else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def _seeds(seeds: Sequence[int]) -> str:
    """The seeds in short: '1 to 5' where they follow each other."""
    if len(seeds) > 2 and list(seeds) == list(range(seeds[0], seeds[-1] + 1)):
        return f"mean of seeds {seeds[0]} to {seeds[-1]}"
    return f"{'mean of seeds' if len(seeds) > 1 else 'seed'} {', '.join(map(str, seeds))}"


def _fleet(out: Console, answer: FleetAnswer) -> None:
    scenario, mean = answer.scenario, answer.outcome
    goodputs = [100 * each.goodput for each in answer.outcomes]
    kind = "" if scenario.elastic else ", without elasticity"
    lines = [
        f"{scenario.chips:,} chips in {scenario.learners:,} learners{kind}, {scenario.hours:g} hours, steps of "
        f"{scenario.step_s:g} s, {_seeds(answer.seeds)}",
        f"of each chip {scenario.mtbi_hours:g} hours between interruptions: one of the fleet every "
        f"{scenario.mtbi_hours * 3600 / scenario.chips:,.1f} s",
        "",
        f"goodput       {mean.goodput:8.2%}   [chip-seconds of training that was not lost, of all provided; "
        f"{min(goodputs):.2f} to {max(goodputs):.2f}]",
        f"uptime        {mean.uptime:8.3%}   [time in which at least {scenario.min_quorum} of the learners train]",
        f"participants  {mean.participants:8.2f}   [learners that answer a call at once; within the longest grace "
        f"window {mean.in_grace:.2f}]",
        f"failures      {mean.failures:8,}   [of slices in use]",
        f"downtimes     {mean.downtimes:8,}   [of one learner, to go on without a slice or to take some in]",
        "",
    ]
    for line in lines:
        out.print(line)
    _constants(out, scenario)


def _constants(out: Console, scenario: Scenario) -> None:
    rows = [(name, f"{value:g}", MEANINGS[name]) for name, value in asdict(scenario.constants).items()]
    rows += [(name, f"{getattr(scenario, name):g}", f"{MEANINGS[name]} (assumed)") for name in paper.ASSUMED]
    for name, value, meaning in rows:
        out.print(f"{name:<16} {value:>6} {meaning}")


def _paper(out: Console, answer: PaperAnswer) -> None:
    scenario, cells = answer.scenario, answer.cells
    out.print(
        f"goodput [%], published, difference [points]; {scenario.hours:g} hours, steps of {scenario.step_s:g} s, "
        f"{_seeds(answer.seeds)}; *: two sources agree, and within {paper.BOUND_POINTS:g} points is wanted\n"
    )
    head = ["system", *(f"{size:,} chips" for size in paper.SIZES)]
    by_row = [[cell for cell in cells if cell.system == system.name] for system in paper.SYSTEMS]
    out.print(_table(head, ([row[0].system, *map(_compared, row)] for row in by_row)))
    out.print("\nuptime [%]: time in which at least one learner trains\n")
    out.print(_table(head, ([row[0].system, *(f"{cell.uptime:.2f}" for cell in row)] for row in by_row)))
    _shifts(out, answer)
    marked = [cell for cell in cells if cell.mark]
    far = max(marked, key=lambda cell: abs(cell.diff))
    other = max((cell for cell in cells if not cell.mark), key=lambda cell: abs(cell.diff))
    out.print(f"\nfarthest marked cell   {far.diff:+.1f}: {far.system} at {far.chips:,} chips, of {len(marked)}")
    out.print(f"farthest of the others {other.diff:+.1f}: {other.system} at {other.chips:,} chips")
    out.print(f"spread of the seeds    {max(cell.spread for cell in cells):.1f} points at most")
    for fault in answer.faults:
        out.print(f"not met                {fault}")
    if not answer.faults:
        out.print("met                    marked cells, order of rows and columns, uptime with 8 learners and more")


def _compared(cell: Cell) -> str:
    """Ours, the published one with its mark, and the difference."""
    return f"{cell.goodput:.1f}  {cell.paper}{cell.mark or ' '} {cell.diff:+.1f}"


def _shifts(out: Console, answer: PaperAnswer) -> None:
    """Each constant with its meaning, and what a tenth less and more of it does."""
    out.print(f"\na tenth less or more (seed {answer.seeds[0]}): largest move, and the farthest marked cell\n")
    rows = []
    for shift in answer.shifts:
        kind = "fitted" if shift.fitted else "assumed"
        move = f"{shift.largest:+.2f}"
        change, farthest = f"{shift.change:+.0%}", f"{shift.farthest:.2f}"
        rows.append((shift.name, kind, f"{shift.value:g}", change, move, farthest, shift.largest_at))
    out.print(_table(("name", "", "value", "change", "move", "farthest", "moves most"), rows, left=2))
    out.print("")
    _constants(out, answer.scenario)


def _unequal(out: Console, answer: UnequalAnswer) -> None:
    out.print(
        f"{unequal.LEARNERS} learners, half of them {unequal.BEHIND:.0%} slower, each step {unequal.VARIANCE:.0%} "
        f"uneven; {unequal.STEPS} steps of {answer.step_s:g} s, {_seeds(answer.seeds)}\n"
    )
    head = ("setting", "goodput %", "published", "learners in a round", "of them late %", "rounds in 100 steps")
    rows = [
        (
            row.setting, f"{row.goodput:.1f}", str(row.paper or "-"), f"{row.participants:.2f}", f"{row.late:.1f}",
            f"{row.rounds:.2f}",
        )
        for row in answer.rows
    ]  # fmt: skip
    out.print(_table(head, rows))
    out.print(
        "\nlockstep is a model of training that waits; in the other rows the syncer's own rules decide. Late work "
        "missed\nits round and is in the next one of that fragment: it is not lost, but older, and that costs quality."
    )


def _scavenging(out: Console, answer: ScavengingAnswer) -> None:
    out.print(
        f"{scavenging.BASE_LEARNERS} learners, and extra ones that are there half of the time, in stays of "
        f"{scavenging.STAY_S / 60:g} minutes on average; {_seeds(answer.seeds)}\n"
        "time until the work is done that the base learners alone do in "
        f"{answer.scenario.hours:g} hours, relative to that\n"
    )
    head = ("extra compute", "learners", "decoupled", "published", "DP elastic", "DP restarting", "DP published")
    rows = [
        (
            f"+{row.extra}%", str(row.learners), f"{row.decoupled:.2f}", f"{row.paper:.2f}", f"{row.elastic:.2f}",
            f"{row.restarting:.2f}", f"{row.paper_dp:.2f}",
        )
        for row in answer.rows
    ]  # fmt: skip
    out.print(_table(head, rows))
    out.print("\nwhen the extra learners of the published table were there is not known; nothing is fitted to it")
