"""The progress protocol of one fragment: nothing counted twice, nothing thrown away.

Rule: the syncer takes a contribution only if it starts exactly where that learner's merged work ends (`after`), so two
overlapping pieces can never both be merged. The learner keeps what it sent until its fate is known, and what was
merged until that is stable. Both sides live here, side by side, because each is right only with the other.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from zdiloco.core.messages import Contribution
from zdiloco.units import ContributionId, Epoch, MemberKey, Merged, Stamp


class Refusal(StrEnum):
    """Why a contribution is not taken."""

    EPOCH = "epoch"
    """Cut on a state of another epoch: the learner adopts the newest one and cuts again."""
    AFTER = "after"
    """It does not start where the learner's merged work ends."""
    SEQ = "seq"
    """Older than what is held, or than what it says it follows."""
    LAYOUT = "layout"
    """No such fragment, codec, or length."""
    COUNTERS = "counters"
    """Steps or tokens that cannot be."""
    NON_FINITE = "non_finite"
    """NaN or infinity among the values: the learner starts over from published values."""
    NORM = "norm"
    """Values so large that they cannot be work: the learner starts over from published values."""
    BUDGET = "budget"
    """No room: sent back, to be cut again later."""
    BODY = "body"
    """Its bytes did not come through."""
    CLOSED = "closed"
    """The run is ending: nothing more is merged."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    """A contribution whose bytes are here and sound, waiting for a close."""

    id: ContributionId
    message: Contribution
    arrived_at: float
    norm: float


class Intake:
    """The syncer's side of one fragment: what is merged of whom, and what is held.

    `map` holds the sums per process, as in a full update; it runs ahead of the published one while a merge is made.
    """

    def __init__(self, map_: Iterable[Merged] = ()) -> None:
        self.map: dict[MemberKey, Merged] = {entry.key: entry for entry in map_}
        self.held: dict[MemberKey, Held] = {}
        self._before = self.map

    def merged_seq(self, key: MemberKey) -> int:
        """The newest merged seq of this process; 0: none."""
        entry = self.map.get(key)
        return entry.seq if entry else 0

    def held_seq(self, key: MemberKey) -> int:
        """The held seq of this process; 0: none."""
        held = self.held.get(key)
        return held.id.seq if held else 0

    def judge(self, key: MemberKey, message: Contribution, epoch: Epoch) -> Refusal | None:
        """Say why this contribution cannot be taken; None: it can. Judged when offered and again when it has come."""
        if message.stamp.epoch != epoch:
            return Refusal.EPOCH
        if message.after != self.merged_seq(key):
            return Refusal.AFTER
        if message.seq <= message.after or message.seq < self.held_seq(key):
            return Refusal.SEQ
        return None

    def hold(self, held: Held) -> Held | None:
        """Keep a judged contribution; the one of the same process that it replaces is returned."""
        key = held.id.key
        before = self.held.get(key)
        self.held[key] = held
        return before if before and before.id.seq != held.id.seq else None

    def close(self) -> tuple[list[Held], tuple[Merged, ...]]:
        """Take all that is held, in (learner, incarnation) order, as merged. Returns it with its record."""
        taken = [self.held[key] for key in sorted(self.held)]
        self.held.clear()
        record = tuple(Merged(h.id.name, h.id.incarnation, h.id.seq, h.message.steps, h.message.tokens) for h in taken)
        self._before, self.map = self.map, add_record(self.map, record)
        return taken, record

    def reopen(self) -> None:
        """The merge of what was closed last has come to nothing: the map is again what it was before."""
        self.map = self._before


def add_record(map_: dict[MemberKey, Merged], record: Iterable[Merged]) -> dict[MemberKey, Merged]:
    """The map after one more version: sums of steps and tokens, and the newest seq, per process."""
    result = dict(map_)
    for entry in record:
        old = result.get(entry.key)
        steps, tokens = (old.steps, old.tokens) if old else (0, 0)
        result[entry.key] = entry._replace(steps=entry.steps + steps, tokens=entry.tokens + tokens)
    return result


class Fate(StrEnum):
    """What an update means for a learner's own work."""

    OLD = "old"
    """Not newer than what is adopted: ignored."""
    CARRIED = "carried"
    """Nothing of mine is newly in it: u is carried over whole."""
    MERGED = "merged"
    """One of mine is newly in it: u goes on with what came after that."""
    ROLLED_BACK = "rolled_back"
    """Less of mine is in it than I knew of: that branch has died, and its work goes back into u."""
    GIVEN_UP = "given_up"
    """One of mine is in it whose bytes I no longer have: u is dropped rather than counted twice."""


class CutRow(NamedTuple):
    """A contribution whose fate was open when the row was written; `void`: u no longer held its tokens."""

    seq: int
    tokens: int
    void: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Cut:
    """One contribution as the learner remembers it. `void`: dropped meanwhile, so never to be subtracted.

    `row`: what is written down of it in every step, made once.
    """

    seq: int
    steps: int
    tokens: int
    void: bool = False
    row: CutRow = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "row", CutRow(self.seq, self.tokens, self.void))


@dataclass(frozen=True, kw_only=True, slots=True)
class Kept:
    """A merged contribution whose bytes are kept until the state that holds it is stable."""

    cut: Cut
    at: Stamp


@dataclass(frozen=True, kw_only=True, slots=True)
class Adoption:
    """How an update is to be adopted: what to subtract from u and what to add to it, by seq; what to forget."""

    fate: Fate
    stamp: Stamp
    mine: int = 0
    mine_tokens: int = 0
    subtract: int = 0
    restore: tuple[int, ...] = ()


@dataclass(slots=True)
class Tally:
    """A learner's own counts for one fragment, in tokens. trained = merged + unmerged + dropped + lost, always."""

    trained: int = 0
    merged: int = 0
    dropped: int = 0
    lost: int = 0


@dataclass(slots=True)
class LearnerProgress:
    """The learner's side of one fragment. `steps` and `tokens` count what is in u = values - R."""

    seen: Stamp
    seq: int = 0
    after: int = 0
    steps: int = 0
    tokens: int = 0
    sent: dict[int, Cut] = field(default_factory=dict)
    kept: dict[int, Kept] = field(default_factory=dict)
    tally: Tally = field(default_factory=Tally)

    def step(self, tokens: int) -> None:
        """One more inner step is in u."""
        self.steps += 1
        self.tokens += tokens
        self.tally.trained += tokens

    def cut(self) -> Cut:
        """A new contribution of all of u, as it is now."""
        self.seq += 1
        self.sent[self.seq] = Cut(seq=self.seq, steps=self.steps, tokens=self.tokens)
        return self.sent[self.seq]

    def judge(self, stamp: Stamp, mine: int, mine_tokens: int) -> Adoption:
        """Say what a state means for u. `mine`: newest own seq merged in it; `mine_tokens`: sum of own tokens in it."""
        if stamp <= self.seen:
            return Adoption(fate=Fate.OLD, stamp=stamp)
        if mine > self.after:
            cut = self.sent.get(mine)
            fate = Fate.MERGED if cut else Fate.GIVEN_UP
            subtract = mine if cut and not cut.void else 0
            return Adoption(fate=fate, stamp=stamp, mine=mine, mine_tokens=mine_tokens, subtract=subtract)
        if mine < self.after:
            back = tuple(seq for seq in sorted(self.kept) if seq > mine)
            alive = tuple(seq for seq in back if not self.kept[seq].cut.void)
            return Adoption(fate=Fate.ROLLED_BACK, stamp=stamp, mine=mine, mine_tokens=mine_tokens, restore=alive)
        return Adoption(fate=Fate.CARRIED, stamp=stamp, mine=mine, mine_tokens=mine_tokens)

    def adopt(self, adoption: Adoption) -> tuple[int, ...]:
        """Follow an adoption in the counts. Returns the seqs whose bytes are needed no more."""
        forget: set[int] = set()
        mine = adoption.mine
        if adoption.fate is Fate.MERGED:
            self._take_merged(self.sent[mine], adoption.stamp)
        elif adoption.fate is Fate.GIVEN_UP:
            newly = adoption.mine_tokens - self.tally.merged
            self.tally.dropped += self.tokens - newly
            self.tally.merged = adoption.mine_tokens
            self.steps = self.tokens = 0
        elif adoption.fate is Fate.ROLLED_BACK:
            forget |= self._take_back(mine, adoption.mine_tokens)
        if mine != self.after or adoption.stamp.epoch != self.seen.epoch:
            forget |= set(self.sent) - set(self.kept)
            self.after, self.sent = mine, {}
        self.seen = adoption.stamp
        return tuple(sorted(forget))

    def _take_merged(self, cut: Cut, stamp: Stamp) -> None:
        self.tally.merged += cut.tokens
        if cut.void:
            self.tally.dropped -= cut.tokens  # it was not lost after all
        else:
            self.steps -= cut.steps
            self.tokens -= cut.tokens
        self.kept[cut.seq] = Kept(cut=cut, at=stamp)

    def _take_back(self, mine: int, mine_tokens: int) -> set[int]:
        back = [seq for seq in self.kept if seq > mine]
        missing = self.tally.merged - mine_tokens
        for seq in back:
            cut = self.kept.pop(seq).cut
            missing -= cut.tokens
            if cut.void:
                self.tally.dropped += cut.tokens
            else:
                self.steps += cut.steps
                self.tokens += cut.tokens
        self.tally.lost += missing  # only if a disk forgot what it had called stable
        self.tally.merged = mine_tokens
        return set(back)

    def drop(self) -> int:
        """Give u up, and void all that is under way, so that it is never subtracted. Returns the tokens given up."""
        given, self.steps, self.tokens = self.tokens, 0, 0
        self.tally.dropped += given
        self.sent = {seq: Cut(seq=seq, steps=c.steps, tokens=c.tokens, void=True) for seq, c in self.sent.items()}
        return given

    def on_stable(self, stable: Stamp) -> tuple[int, ...]:
        """This state and all before it are durable. Returns the seqs whose bytes are needed no more."""
        if stable.epoch != self.seen.epoch:
            return ()  # only the syncer whose state is adopted may say so
        gone = [seq for seq, kept in self.kept.items() if not (kept.at > stable and kept.at.epoch == stable.epoch)]
        for seq in gone:
            del self.kept[seq]
        return tuple(sorted(gone))
