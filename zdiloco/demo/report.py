"""Everything that a finished demo has to say, gathered from what the processes left in the run folder.

Rule: figures are counted by those who did the work (counter files, checkpoint, journal, learners' logs) and only put
together here. `Report.to_obj` is what `--json` prints.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from zdiloco.core.ledger import Fates
from zdiloco.demo import checks
from zdiloco.demo.checks import Check, Pauses
from zdiloco.demo.learner_log import Notes, log_path, read_notes
from zdiloco.demo.outcome import Outcome, judge, named_values
from zdiloco.demo.story import Story
from zdiloco.rundir.archive import Cut
from zdiloco.rundir.books import Books, Process, read_books, read_cut
from zdiloco.rundir.journal import read_journal
from zdiloco.rundir.lineage import differences
from zdiloco.tensor.layout import Layout
from zdiloco.units import MemberKey

BF16_BYTES = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class LearnerRow:
    """One learner process: `fate` is 'finished', 'killed' or 'returned'; tokens are weighed by parameter share.

    `seconds`: from its join to its end; `rounds`: those that merged something of it; `pauses` None: it made no step.
    """

    name: str
    incarnation: str
    fate: str
    steps: int
    fates: Fates
    rounds: int
    seconds: float
    bytes_up: int
    bytes_down: int
    pauses: Pauses | None

    def to_obj(self) -> dict[str, Any]:
        """The row as builtins, the ledger's words beside the others."""
        rest = {key: value for key, value in asdict(self).items() if key != "fates"}
        return {**rest, **self.fates.rounded()}


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """A finished demo. Bytes are those of all learners; `parameters` those that travel."""

    run_dir: Path
    seconds: float
    training_seconds: float
    target_tokens: int
    outcome: Outcome
    learners: tuple[LearnerRow, ...]
    ledger: Fates
    ledger_fragments: tuple[Fates, ...]
    rounds: int
    mean_participants: float
    parameters: int
    num_learners: int
    checks: tuple[Check, ...]

    @property
    def bytes_up(self) -> int:
        """Sent by all learners."""
        return sum(row.bytes_up for row in self.learners)

    @property
    def bytes_down(self) -> int:
        """Received by all learners."""
        return sum(row.bytes_down for row in self.learners)

    @property
    def fastest_steps(self) -> int:
        """Inner steps of the learner that made most, all its processes together."""
        return fastest_steps([(row.name, row.steps) for row in self.learners])

    @property
    def data_parallel_bytes(self) -> int:
        """What data-parallel training would have moved in the steps of the fastest learner."""
        return data_parallel_bytes(self.parameters, self.num_learners, self.fastest_steps)

    @property
    def times_fewer(self) -> float:
        """Data-parallel's bytes ÷ ours, both sent and received by all learners."""
        return self.data_parallel_bytes / max(1, self.bytes_up + self.bytes_down)

    @property
    def goodput(self) -> float:
        """Learner-seconds whose tokens were merged ÷ learner-seconds between joins and ends."""
        return goodput([(row.seconds, row.fates) for row in self.learners])

    @property
    def passed(self) -> bool:
        """Whether every check holds that this run can tell."""
        return checks.all_hold(self.checks)

    def to_obj(self) -> dict[str, Any]:
        """The report as builtins, for JSON."""
        lone = self.outcome.lone
        return {
            "passed": self.passed,
            "loss_before": self.outcome.loss_before,
            "loss_after": self.outcome.loss_after if math.isfinite(self.outcome.loss_after) else None,
            "lone": {**asdict(lone), "bound": lone.bound} if lone else None,
            "remarks": list(self.outcome.remarks),
            "ledger": self.ledger.rounded(),
            "ledger_fragments": [fates._asdict() for fates in self.ledger_fragments],
            "goodput": self.goodput,
            "learners": [row.to_obj() for row in self.learners],
            "rounds": self.rounds,
            "mean_participants": self.mean_participants,
            "bytes_up": self.bytes_up,
            "bytes_down": self.bytes_down,
            "data_parallel_bytes": self.data_parallel_bytes,
            "times_fewer": self.times_fewer,
            "parameters": self.parameters,
            "target_tokens": self.target_tokens,
            "seconds": self.seconds,
            "training_seconds": self.training_seconds,
            "checks": [asdict(check) for check in self.checks],
            "run_dir": str(self.run_dir),
            "picture": str(picture_path(self.run_dir)),
        }


def picture_path(run_dir: Path) -> Path:
    """Where the picture of a run lies."""
    return run_dir / "demo.png"


def fastest_steps(steps: Sequence[tuple[str, int]]) -> int:
    """Inner steps of the learner that made most; (name, steps) per process, those of one name belong together."""
    sums: dict[str, int] = {}
    for name, count in steps:
        sums[name] = sums.get(name, 0) + count
    return max(sums.values(), default=0)


def data_parallel_bytes(parameters: int, learners: int, steps: int) -> int:
    """Bytes sent and received by all learners, if the gradients in bf16 went through a ring all-reduce each step.

    A ring moves 2 (M - 1) / M times the data out of every member, and as much in.
    """
    each_way = 2 * (learners - 1) * parameters * BF16_BYTES  # all M members together
    return 2 * each_way * steps


def goodput(processes: Sequence[tuple[float, Fates]]) -> float:
    """Learner-seconds whose tokens were merged ÷ learner-seconds provided; 0.0 where there were none.

    A process gives its seconds from join to end; of these, the share that its merged tokens are of its trained ones.
    """
    provided = sum(seconds for seconds, _ in processes)
    merged = sum(seconds * fates.merged / fates.trained for seconds, fates in processes if fates.trained)
    return merged / provided if provided else 0.0


def gather(story: Story, rounds: Sequence[Mapping[str, Any]]) -> Report:
    """Read what a finished run has left and judge it. Raises StoreError where something of it is missing."""
    cut = read_cut(story.run_dir)
    layout = Layout.from_obj(dict(cut.layout))
    books = read_books(story.run_dir, cut, layout.shares)
    rows = tuple(_row(process, story, rounds) for process in books.processes if process.steps)
    steps = fastest_steps([(row.name, row.steps) for row in rows])
    outcome = judge(story.config.task, named_values(cut, layout), steps)
    parts = [fragment.numel for fragment in layout.fragments if not fragment.is_buffers]
    return Report(
        run_dir=story.run_dir,
        seconds=time.monotonic() - story.began_at,
        training_seconds=rounds[-1]["t"] - rounds[0]["t"] if rounds else 0.0,
        target_tokens=story.plot.target_tokens,
        outcome=outcome,
        learners=rows,
        ledger=books.total,
        ledger_fragments=books.per_fragment,
        rounds=len(rounds),
        mean_participants=sum(len(line["members"]) for line in rounds) / max(1, len(rounds)),
        parameters=sum(parts),
        num_learners=len(story.plot.names),
        checks=(
            *_of_model(outcome),
            *_of_story(story, rows, rounds, layout.shares),
            *_of_books(books, rows, cut, rounds),
        ),
    )


def rounds_of(run_dir: Path) -> list[dict[str, Any]]:
    """The rounds of a run, in the order in which they closed."""
    return [line for line in read_journal(run_dir) if line["kind"] == "merge"]


def merged_after(rounds: Sequence[Mapping[str, Any]], key: str, moment: float, shares: Sequence[float]) -> float:
    """Tokens of the process with this incarnation that were merged in rounds which closed after `moment`.

    `shares`: parameter share of each fragment, by which its tokens are weighed.
    """
    merged = (
        shares[line["fragment"]] * tokens
        for line in rounds
        if line["t"] > moment
        for _name, incarnation, _steps, tokens, *_ in line["members"]
        if incarnation == key
    )
    return float(sum(merged))


def _row(process: Process, story: Story, rounds: Sequence[Mapping[str, Any]]) -> LearnerRow:
    incarnation = f"{process.key.incarnation:016x}"
    notes = read_notes(log_path(story.run_dir, process.key))
    fate = _fate(process.key, process.left_in_order, notes, story)
    ended_at = story.killed_at if fate == "killed" else notes.ended_at
    return LearnerRow(
        name=process.key.name,
        incarnation=incarnation,
        fate=fate,
        steps=process.steps,
        fates=process.weighed,
        rounds=sum(any(member[1] == incarnation for member in line["members"]) for line in rounds),
        seconds=max(0.0, ended_at - notes.joined_at),
        bytes_up=notes.bytes_up,
        bytes_down=notes.bytes_down,
        pauses=checks.pauses_of(notes.step_s, notes.call_s) if notes.steps else None,
    )


def _fate(key: MemberKey, left_in_order: bool, notes: Notes, story: Story) -> str:
    if not left_in_order:
        return "killed"
    came_back = key.name == story.plot.victim and notes.joined_at > story.killed_at
    return "returned" if came_back else "finished"


def _of_model(outcome: Outcome) -> tuple[Check, ...]:
    return (
        checks.check_loss(outcome.loss_after),
        checks.check_lone(outcome.loss_after, outcome.lone, outcome.why_no_lone),
    )


def _of_story(
    story: Story, rows: Sequence[LearnerRow], rounds: Sequence[Mapping[str, Any]], shares: Sequence[float]
) -> tuple[Check, ...]:
    killed_at = story.killed_at or math.inf  # no kill: then nothing is after it
    after = {row.incarnation: merged_after(rounds, row.incarnation, killed_at, shares) for row in rows}
    victim = story.plot.victim
    survivors = {name: 0.0 for name in story.plot.names if name != victim}
    survivors |= {row.name: survivors[row.name] + after[row.incarnation] for row in rows if row.name in survivors}
    returned = sum(after[row.incarnation] for row in rows if row.fate == "returned")
    back_s = story.ended_at - story.returned_at if story.returned_at else None
    return (
        checks.check_survivors(survivors, victim, was_killed=bool(story.killed_at)),
        checks.check_returned(victim, returned, back_s),
    )


def _of_books(
    books: Books, rows: Sequence[LearnerRow], cut: Cut, rounds: Sequence[Mapping[str, Any]]
) -> tuple[Check, ...]:
    pauses = {f"{row.name} ({row.fate})": row.pauses for row in rows if row.pauses is not None}
    return (
        checks.check_ledger(books.gaps, differences(cut, rounds), books.total.trained),
        checks.check_pauses(pauses),
    )
