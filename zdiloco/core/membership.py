"""Who is in the fleet: one member per name, a newer incarnation replaces an older one, silence is measured here.

Rule: states move only along TABLE. Only LIVE, SUSPECT and QUARANTINED members contribute; only LIVE and SUSPECT ones
count for the quorum; only LIVE ones are waited for. Where K cannot be reached without those in quarantine, they do.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from zdiloco.core.grace import Average
from zdiloco.core.moments import Moments
from zdiloco.core.moves import moved
from zdiloco.core.ordered import Ordered
from zdiloco.core.params import SyncParams
from zdiloco.units import FragmentId, MemberKey


class MemberState(StrEnum):
    """What a member is to the syncer."""

    JOINING = "joining"
    """Welcomed; loads the published values, has made no step yet."""
    LIVE = "live"
    """Trains and is heard: counted, and waited for."""
    SUSPECT = "suspect"
    """Silent for suspect_after_s: not waited for, still counted."""
    GONE = "gone"
    """Silent for gone_after_s, or replaced: not counted."""
    QUARANTINED = "quarantined"
    """Sent values that could not be merged; counts again after one clean round."""
    FINISHED = "finished"
    """Took leave in order."""
    WATCHING = "watching"
    """Listens only; never counts."""


class MemberEvent(StrEnum):
    """What can happen to a member."""

    STEPPED = "first step reported"
    SILENT = "silent"
    LOST = "silent for too long"
    HEARD = "heard again"
    OFFENDED = "sent what cannot be merged"
    CLEAN = "a clean round"
    LEFT = "took leave"


_S, _E = MemberState, MemberEvent
TABLE: dict[tuple[MemberState, MemberEvent], MemberState] = {
    (_S.JOINING, _E.STEPPED): _S.LIVE,
    (_S.JOINING, _E.LOST): _S.GONE,
    (_S.JOINING, _E.LEFT): _S.FINISHED,
    (_S.LIVE, _E.SILENT): _S.SUSPECT,
    (_S.LIVE, _E.OFFENDED): _S.QUARANTINED,
    (_S.LIVE, _E.LEFT): _S.FINISHED,
    (_S.SUSPECT, _E.HEARD): _S.LIVE,
    (_S.SUSPECT, _E.LOST): _S.GONE,
    (_S.SUSPECT, _E.OFFENDED): _S.QUARANTINED,
    (_S.SUSPECT, _E.LEFT): _S.FINISHED,
    (_S.QUARANTINED, _E.CLEAN): _S.LIVE,
    (_S.QUARANTINED, _E.LOST): _S.GONE,
    (_S.QUARANTINED, _E.LEFT): _S.FINISHED,
    (_S.WATCHING, _E.LOST): _S.GONE,
    (_S.WATCHING, _E.LEFT): _S.FINISHED,
    (_S.GONE, _E.LEFT): _S.FINISHED,
}
COUNTED = frozenset({_S.LIVE, _S.SUSPECT})
MOST_MEMBERS = 16_384
"""Beyond so many, whoever is gone, only watches or has made no step is forgotten; those that train never are."""
FORGETTABLE = (_S.GONE, _S.FINISHED, _S.WATCHING, _S.JOINING)
MOST_REPLACED = 1024
"""Replaced incarnations that are remembered; the oldest are forgotten first."""
MOST_OFFENDERS = 1024
"""Names that sent what cannot be merged and have not behaved since; the oldest are forgotten first."""
CONTRIBUTING = frozenset({_S.LIVE, _S.SUSPECT, _S.QUARANTINED})


@dataclass(slots=True)
class Member:
    """One process as the syncer sees it. Steps are its own count; times are the syncer's clock.

    `first_step`: None until its first report, whatever else has come of it. `marks`: per fragment, the step of its last
    cut sent or merged; `called`: its step when the fragment was last called, reckoned until a report has come since
    then (`reckoned`: the calls, and when).
    """

    key: MemberKey
    order: int
    state: MemberState
    heard_at: float
    watching: bool = False
    listening: bool = True
    step: int = 0
    step_at: float = 0.0
    first_step: int | None = None
    pace: Average = field(default_factory=lambda: Average(0.125))
    answer: Average = field(default_factory=lambda: Average(0.125))
    marks: dict[FragmentId, int] = field(default_factory=dict)
    called: dict[FragmentId, float] = field(default_factory=dict)
    reckoned: dict[FragmentId, float] = field(default_factory=dict)
    trained_tokens: int = 0
    unmerged_tokens: float = 0.0
    dropped_tokens: float = 0.0
    left_tokens: float = 0.0
    merged_tokens: float = 0.0
    rounds: int = 0
    codec: str = ""
    codec_why: str = ""
    region: str = ""
    staleness: Average = field(default_factory=lambda: Average(0.125))
    refused: dict[str, int] = field(default_factory=dict)
    remarks: dict[str, int] = field(default_factory=dict)
    why: str = "welcomed"
    moved: Callable[["Member"], None] | None = None

    def move(self, event: MemberEvent, why: str) -> None:
        """Go where TABLE says; anything else is our mistake."""
        self.state, self.why = moved(TABLE, self.state, event, f"member {self.key.name}"), why
        if self.moved:
            self.moved(self)

    def report(self, step: int, now: float) -> None:
        """Take the member's step count; the pace is measured on our clock, between two reports of progress.

        What it had made at a call since its last report is set right: that call lies between two known moments.
        """
        if self.first_step is None:
            self.first_step, self.step, self.step_at = step, step, now
        elif step > self.step:
            made, took_s = step - self.step, now - self.step_at
            if took_s > 0:  # two at one moment have come late: they tell nothing of the pace
                self.pace.add(took_s / made)
            for fragment, at in self.reckoned.items():
                self.called[fragment] = self.step + made * ((at - self.step_at) / took_s if took_s > 0 else 1.0)
            self.reckoned.clear()
            self.step, self.step_at = step, now

    def call(self, fragment: FragmentId, now: float, horizon_s: float) -> None:
        """The fragment is called: its next period counts from here too; before its first report, from that one."""
        if self.first_step is not None:
            self.called[fragment], self.reckoned[fragment] = self.steps_at(now, horizon_s), now

    def steps_at(self, now: float, horizon_s: float) -> float:
        """The steps it has made by `now`, extrapolated at its average pace for at most `horizon_s` seconds."""
        if self.pace.value is None or self.pace.value <= 0:
            return float(self.step)
        return self.step + min(now - self.step_at, horizon_s) / self.pace.value


class Fleet:
    """All members by name, newest incarnation only, and the incarnations that were replaced.

    Who counts, who is waited for and whose silence is due is kept member by member, so that nothing here is paid per
    event and member. `on_moved` and `on_stepped` hear of each change of a member's state and of its steps.
    """

    def __init__(self, params: SyncParams) -> None:
        self.params = params
        self.members: dict[str, Member] = {}
        self.replaced: dict[MemberKey, None] = {}
        self.past_tokens = 0
        self.offenders: dict[str, None] = {}
        self.order = 0
        self.in_state: dict[MemberState, dict[MemberKey, Member]] = {state: {} for state in MemberState}
        self.paces, self.answers = Ordered(), Ordered()
        """Of the counted members: seconds per step, and average seconds from call to complete arrival."""
        self.on_moved: Callable[[Member], None] = _nobody_hears
        self.on_stepped: Callable[[Member], None] = _nobody_hears
        self._placed: dict[MemberKey, MemberState] = {}
        self._counted: dict[MemberKey, Member] = {}
        self._live: set[MemberKey] = set()
        self._quarantined: set[MemberKey] = set()
        self._short = True
        self._silences = Moments()

    def _moved(self, member: Member) -> None:
        """Somebody came, moved or went: sort it in anew, and those in quarantine where K needs them (no more)."""
        key = member.key
        was = self._placed.pop(key, None)
        if was is not None:
            del self.in_state[was][key]
        if self.members.get(key.name) is member:
            self._placed[key] = member.state
            self.in_state[member.state][key] = member
        if self.members.get(key.name, member) is member:  # no newer process of its name
            self._silences.expect(key.name, None)
        if key in self._placed:
            self._silences.expect(key.name, self._silence_due(member))
        # without those in quarantine there might never be a round again in which they could show that they behave
        short = sum(len(self.in_state[state]) for state in COUNTED) < self.params.min_quorum
        turned = list(self.in_state[MemberState.QUARANTINED].values()) if short != self._short else []
        self._short = short
        for one in (member, *turned):
            self._sort_in(one)
        for one in (member, *turned):
            self.on_moved(one)

    def _sort_in(self, member: Member) -> None:
        key, state = member.key, self._placed.get(member.key)
        needed = state is MemberState.QUARANTINED and self._short
        _put(self._live, key, state is MemberState.LIVE or needed)
        _put(self._quarantined, key, state is MemberState.QUARANTINED and not needed)
        counts = state in COUNTED or needed
        if counts == (key in self._counted):
            return
        if counts:
            self._counted[key] = member
        else:
            member = self._counted.pop(key)
        for values, value in ((self.paces, member.pace.value or None), (self.answers, member.answer.value)):
            if value is not None:
                (values.add if counts else values.remove)(value)

    def __iter__(self) -> Iterator[Member]:
        return iter(self.members.values())

    def find(self, key: MemberKey) -> Member | None:
        """The member with exactly this incarnation, whatever its state."""
        member = self.members.get(key.name)
        return member if member and member.key == key else None

    def welcome(self, key: MemberKey, watching: bool, now: float) -> tuple[Member, MemberKey | None]:
        """Take a process in. Returns it, and the older incarnation that it replaces, if any.

        The caller has refused incarnations that are in `replaced`. A known process that says hello again is the same
        member; its state starts over only if it was gone or finished.
        """
        known = self.members.get(key.name)
        if known and known.key == key and known.state not in (MemberState.GONE, MemberState.FINISHED):
            known.heard_at = now
            return known, None
        old = known.key if known and known.key != key else None
        if old:
            self._replace(old)
        while known is None and len(self.members) >= MOST_MEMBERS and self._forget_one():
            pass
        self.order += 1
        state = MemberState.WATCHING if watching else MemberState.JOINING
        member = Member(key=key, order=self.order, state=state, heard_at=now, watching=watching)
        for average in (member.pace, member.answer, member.staleness):
            average.share = self.params.average
        if known:  # what its name was told stays to be seen, however often it starts over
            member.refused, member.remarks = known.refused, known.remarks
        if known and known.key == key:
            member.rounds, member.merged_tokens = known.rounds, known.merged_tokens
            member.trained_tokens = known.trained_tokens
        member.moved = self._moved
        self.members[key.name] = member
        if known and old:
            self._moved(known)
        self._moved(member)
        return member, old

    def _forget_one(self) -> bool:
        """Forget the member that matters least, with what it has trained; False: every one of them trains.

        One that had trained must not come back as if it were new: its tokens would count twice.
        """
        free = [member for state in FORGETTABLE for member in self.in_state[state].values()]
        if not free:
            return False
        least = min(free, key=lambda m: (m.trained_tokens > 0, FORGETTABLE.index(m.state), m.order))
        if least.trained_tokens:
            self._replace(least.key)
        self._forget(least)
        return True

    def _forget(self, member: Member) -> None:
        del self.members[member.key.name]
        self._moved(member)

    def _replace(self, old: MemberKey) -> None:
        """Remember an incarnation that must not come back, and what it had trained."""
        self.past_tokens += self.members[old.name].trained_tokens
        self.replaced[old] = None
        while len(self.replaced) > MOST_REPLACED:
            del self.replaced[next(iter(self.replaced))]

    def hear(self, key: MemberKey, now: float) -> Member | None:
        """A sign of life of this process. Returns the member, or None where it is not (or no longer) known."""
        member = self.find(key)
        if member is None or member.state in (MemberState.GONE, MemberState.FINISHED):
            return None
        member.heard_at = now
        if member.state is MemberState.SUSPECT:
            member.move(MemberEvent.HEARD, "heard again")
        return member

    def begin(self, member: Member) -> None:
        """The member has made a step here: it is live, or in quarantine if its name sent what cannot be merged."""
        member.move(MemberEvent.STEPPED, "training")
        if member.key.name in self.offenders:
            member.move(MemberEvent.OFFENDED, "in quarantine until one clean round")

    def leave(self, member: Member, why: str) -> None:
        """The member takes leave in order; of one that only watched nothing is left."""
        member.move(MemberEvent.LEFT, why)
        if member.watching:
            self._forget(member)

    def judge_silence(self, now: float) -> list[Member]:
        """Move silent members on; returns those whose state changed. Signs of life only ever move that moment on.

        Of those that only watched, and are gone, nothing is left.
        """
        changed: list[Member] = []
        due = self._silences.first()
        if due is None or now < due:
            return changed
        # Those whose turn comes soon are looked at along with them: most have been heard meanwhile.
        for name in self._silences.take(now + self.params.suspect_after_s / 4):
            member = self.members[name]
            due = self._silence_due(member)
            if due is None or now < due:
                self._silences.expect(name, due)
                continue
            lost = (member.state, MemberEvent.LOST) in TABLE
            event = MemberEvent.LOST if lost else MemberEvent.SILENT
            member.move(event, f"silent for {now - member.heard_at:.1f} s")
            changed.append(member)
        for member in changed:
            if member.watching and member.state is MemberState.GONE:
                self._forget(member)
        return changed

    def silence_due(self) -> float | None:
        """The next moment at which somebody's silence may have to be judged; never later than it must be."""
        return self._silences.first()

    def _silence_due(self, member: Member) -> float | None:
        if (member.state, MemberEvent.SILENT) in TABLE:
            return member.heard_at + self.params.suspect_after_s
        if (member.state, MemberEvent.LOST) in TABLE:
            return member.heard_at + self.params.gone_after_s
        return None

    def report(self, member: Member, step: int, now: float) -> None:
        """Take a member's step count."""
        before, was = (member.step, member.step_at), member.pace.value or None
        member.report(step, now)
        pace = member.pace.value or None
        if pace != was and member.key in self._counted:
            if was is not None:
                self.paces.remove(was)
            if pace is not None:
                self.paces.add(pace)
        if (member.step, member.step_at) != before:
            self.on_stepped(member)

    def answered(self, member: Member, seconds: float) -> None:
        """A contribution of a member is complete, so long after the call that it answers."""
        was = member.answer.value
        member.answer.add(seconds)
        if member.key in self._counted:
            if was is not None:
                self.answers.remove(was)
            self.answers.add(member.answer.value or 0.0)

    def offend(self, name: str) -> None:
        """Remember that a learner of this name sent what cannot be merged: its next process begins in quarantine."""
        self.offenders[name] = None
        while len(self.offenders) > MOST_OFFENDERS:
            del self.offenders[next(iter(self.offenders))]

    def counted(self) -> Collection[Member]:
        """Members that count for the quorum; those in quarantine only where K cannot be reached without them.

        Not to be changed.
        """
        return self._counted.values()

    def counts(self, member: Member) -> bool:
        """Whether a member counts for the quorum."""
        return self._counted.get(member.key) is member

    def pace_of(self, key: MemberKey) -> float | None:
        """Seconds per step of a counted member; None: not known."""
        member = self._counted.get(key)
        return member.pace.value if member else None

    def waited_for(self) -> set[MemberKey]:
        """Members that a round waits for. Not to be changed."""
        return self._live

    def quarantined(self) -> set[MemberKey]:
        """Members in quarantine that do not count. Not to be changed."""
        return self._quarantined


def _put(keys: set[MemberKey], key: MemberKey, belongs: bool) -> None:
    if belongs:
        keys.add(key)
    else:
        keys.discard(key)


def _nobody_hears(member: Member) -> None:
    pass
