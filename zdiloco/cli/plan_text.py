"""A plan as text for people."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from zdiloco.cli.columns import Row, table

if TYPE_CHECKING:
    from zdiloco.plan.against import Beside
    from zdiloco.plan.answer import Answer, Asked


def plan_text(asked: "Asked", answer: "Answer") -> str:
    """All parts, one under the other."""
    parts = [[_head(asked)], _flows(asked, answer), _rounds(asked, answer), _room(answer), _bill(answer, asked.days),
             _bandwidths(answer), _verdict(asked, answer)]  # fmt: skip
    return "\n\n".join("\n".join(line.rstrip() for line in part) for part in parts if part)


def beside_text(rows: "Sequence[Beside]") -> str:
    """Planned and measured, side by side."""
    cells: list[Row] = [("", "planned", "measured", "ratio")]
    for row in rows:
        unit = f" {row.unit}" if row.unit else ""
        measured = "-" if row.measured is None else f"{row.measured:,.3f}"
        cells.append((row.what + unit.replace(" ", ", "), f"{row.planned:,.3f}", measured, _ratio(row.ratio)))
    return "\n".join(line.rstrip() for line in table(cells))


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _head(asked: "Asked") -> str:
    settings, model = asked.settings, asked.model
    return (
        f"{model.parameters:,} parameters in {len(model.numels)} fragments, {asked.fleet.learners} learners in "
        f"{len(asked.fleet.regions)} regions, H = {settings.sync.sync_period}, K = {settings.sync.min_quorum}, "
        f"{settings.codec} up, {settings.published} down{_lossy(asked)}"
    )


def _lossy(asked: "Asked") -> str:
    """Which congestion control is planned for, where it makes a difference."""
    names = sorted({region.congestion for region in asked.fleet.regions if region.loss})
    return f", TCP's {' and '.join(names)}" if names else ""


def _flows(asked: "Asked", answer: "Answer") -> list[str]:
    cells: list[Row] = [("Gbit/s", "out", "peak", "in", "peak", "GB a period", "link up", "down")]
    loads = {trip.region: trip for trip in answer.rounds.trips}
    for name, (out, into) in answer.flows.items():
        trip = loads.get(name)
        full = (f"{trip.up_load:.0%}", f"{trip.down_load:.0%}") if trip else ("-", "-")
        row = [f"{number:.3f}" for flow in (out, into) for number in flow.gbit_s]
        cells.append((name, *row, f"{(out.period_bytes + into.period_bytes) / 1e9:.3f}", *full))
    return table(cells)


def _rounds(asked: "Asked", answer: "Answer") -> list[str]:
    rounds, period = answer.rounds, asked.settings.sync.sync_period
    cells: list[Row] = [("a round, s", "answer", "down", "call to adopted", "in steps", "in time")]
    for region, trip in zip(asked.fleet.regions, rounds.trips, strict=True):
        steps = f"{trip.flight_s / region.step_s:.1f}"
        late = "yes" if trip.in_time else "no"
        cells.append((trip.region, f"{trip.answer_s:.2f}", f"{trip.down_s:.2f}", f"{trip.flight_s:.2f}", steps, late))
    return [
        *table(cells),
        f"quorum {rounds.quorum_s:.2f} s, grace {rounds.grace_s:.2f} s, merge {rounds.sync_s:.2f} s; "
        f"{rounds.participants} of {asked.fleet.learners} contributions a round; H = {period} steps to do it in",
    ]


def _room(answer: "Answer") -> list[str]:
    room = answer.room
    cells: list[Row] = [("GB, at most", "memory", "disk")]
    for name, memory, disk in (
        ("learner, beside its own", room.learner, room.learner_disk),
        ("syncer", room.syncer, room.syncer_disk),
        ("relay", room.relay, 0.0),
    ):
        if memory:
            cells.append((name, f"{memory / 1e9:.2f}", f"{disk / 1e9:.2f}"))
    return [*table(cells), f"the syncer writes {room.disk_bytes_s / 1e9:.3f} GB/s to its disk"]


def _bill(answer: "Answer", days: float) -> list[str]:
    bill = answer.bill
    if bill is None:
        return []
    cells: list[Row] = [("what leaves costs", "a day", f"{days:g} days" if days else "")]
    for name, day, run in (("this run", bill.day, bill.run), ("data-parallel", bill.ring_day, bill.ring_run)):
        cells.append((name, f"{day:,.2f}", f"{run:,.2f}" if days else ""))
    return table(cells)


def _bandwidths(answer: "Answer") -> list[str]:
    cells: list[Row] = [("Gbit/s", "data-parallel", "DiLoCo", "zdiloco", "merged every, steps", "flight, steps")]
    for row in answer.table:
        shares = (f"{row.data_parallel:.1%}", f"{row.diloco:.1%}", "100%")
        cells.append((f"{row.gbit_s:g}", *shares, f"{row.apart:.1f}", f"{row.flight:.1f}"))
    needs: list[Row] = [("busy compute needs", *(f"{need.share:.0%}" for need in answer.needs))]
    needs.append(("data-parallel, Gbit/s", *(f"{need.data_parallel:.1f}" for need in answer.needs)))
    needs.append(("DiLoCo, Gbit/s", *(f"{need.diloco:.1f}" for need in answer.needs)))
    needs.append(("zdiloco, Gbit/s", *(f"{answer.needed_gbit_s:.1f}" for _ in answer.needs)))
    return [*table(cells), "", *table(needs)]


def _verdict(asked: "Asked", answer: "Answer") -> list[str]:
    period = asked.settings.sync.sync_period
    apart = answer.rounds.apart_s
    kept = f"rounds come as H = {period} says" if answer.keeps_pace else "rounds come late"
    busy = f"compute stays busy: a learner never waits; {kept}, every {apart:.1f} s"
    return [busy, *(f"- {line}" for line in answer.advice)] if answer.advice else [f"{busy}; nothing is short"]
