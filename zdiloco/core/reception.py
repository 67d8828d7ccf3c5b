"""How processes come in, and how a run begins or goes on: hello and welcome, donation, recovery.

Rule: nobody sees anything of an epoch before its manifest is durable; whoever has to wait is told why.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from zdiloco.core.bounds import MAX_TEXT
from zdiloco.core.desk import FragmentDesk
from zdiloco.core.joining import HELLO_FIRST_S
from zdiloco.core.machine import (
    HandbackTaken,
    InitialTaken,
    LayoutTaken,
    Note,
    Restamp,
    Send,
    Stop,
    SyncerAction,
    Unusable,
)
from zdiloco.core.membership import Member, MemberState
from zdiloco.core.messages import Goodbye, Handback, Heartbeat, Hello, Unwelcome, Welcome
from zdiloco.core.progress import Intake
from zdiloco.core.start import Donation, KnownState, Recovery, SyncerPhase, SyncerTurn, wait
from zdiloco.units import Epoch, MemberKey, Stamp, run_name_in

if TYPE_CHECKING:
    from zdiloco.core.syncer import SyncerMachine

_P = SyncerPhase
MOST_RESTARTS = 2**20
"""An epoch so far above what the disk knows is not believed: the next one would leave no room for those that follow."""
MOST_TURNED_AWAY = 256
"""So many of those who were turned away are remembered, to name each once."""
AGAIN_AFTER_S = HELLO_FIRST_S / 2
"""Hellos of a process that are handled within so long may have been said before it died: they count as one."""
MOST_CHALLENGED = 1024
"""So many processes that want the name of a living one are remembered; the oldest are forgotten first."""


class Reception:
    """The incoming side of one syncer machine: members, not contributions."""

    def __init__(self, syncer: "SyncerMachine") -> None:
        self.syncer = syncer
        self.donation = Donation()
        self.recovery: Recovery | None = None
        self.turned_away: set[MemberKey] = set()
        self.challenged: dict[MemberKey, float] = {}
        self.disk_epoch = 0

    def start_from(self, known: KnownState, now: float) -> None:
        """A syncer starts again: what its disk holds, until the fleet has been asked for newer states."""
        self.syncer.phase, self.syncer.run_id = _P.RECOVERING, known.run_id
        self.syncer.layout_digest, self.disk_epoch = known.layout_digest, known.epoch.counter
        self.syncer.fleet.replaced = dict.fromkeys(known.replaced)
        self.know_layout(known.numels, known.shares)
        self.recovery = Recovery(
            ends_at=now + self.syncer.params.recover_wait_s,
            highest=known.epoch,
            best=list(known.stamps),
            maps=list(known.maps),
            expected={key.name for key in known.live},
            gone_after_s=self.syncer.params.gone_after_s,
        )

    @property
    def waiting(self) -> dict[MemberKey, Hello]:
        """Who waits for the first manifest of an epoch."""
        return self.recovery.waiting if self.recovery else self.donation.waiting

    def know_layout(self, numels: Sequence[int], shares: Sequence[float]) -> None:
        """The fragments are known; the budget must hold K contributions of the largest one, else the process stops."""
        self.syncer.desk.fragments = [
            FragmentDesk(index=index, numel=numel, share=share, intake=Intake())
            for index, (numel, share) in enumerate(zip(numels, shares, strict=True))
        ]
        params, largest = self.syncer.params, max(numels) * 4
        needed = largest * params.min_quorum
        self.syncer.desk.most_open = max(1, params.budget_bytes // max(needed, 1))
        if needed > params.budget_bytes:
            why = (
                f"sync.budget_bytes is {params.budget_bytes}, but K = {params.min_quorum} contributions of the largest "
                f"fragment ({largest} bytes in fp32) need {needed}; raise it or sync.num_fragments"
            )
            self.syncer.opening.append(Stop(reason=why, exit_code=2))

    def seal(self, turn: SyncerTurn, epoch: Epoch, versions: Sequence[int]) -> list[SyncerAction]:
        """A new epoch: stamp every fragment with it, and write its manifest before anybody sees it."""
        self.syncer.move(turn)
        self.syncer.epoch = epoch
        stamps = tuple(Stamp(epoch, version) for version in versions)
        for desk, stamp in zip(self.syncer.desk, stamps, strict=True):
            desk.stamp = stamp
        self.syncer.saving = True
        why = f"epoch {epoch.counter} must be durable before anything of it is seen"
        return [Restamp(stamps=stamps), self.syncer.save(why)]

    def judge_donor(self, now: float) -> list[SyncerAction]:
        """A donor that has fallen silent: the next one that waits is asked."""
        return self.donation.judge_silence(now, self.syncer.params.gone_after_s)

    def judge_recovery(self, now: float) -> list[SyncerAction]:
        """When the fleet has been asked for long enough: go on from the newest state of every fragment."""
        recovery = self.recovery
        if recovery is None:
            return []
        asks = recovery.judge_silence(now)
        if not recovery.over(now):
            return asks
        for desk, map_ in zip(self.syncer.desk, recovery.maps, strict=True):
            desk.intake = Intake(map_)
        self.syncer.count_merged()
        versions = [stamp.version for stamp in recovery.best]
        note = Note(what="recovered", why=f"the newest of disk and fleet, {len(recovery.waiting)} members heard")
        return [*asks, note, *self.seal(SyncerTurn.WAITED, recovery.next_epoch(self.syncer.ident), versions)]

    def sealed(self, now: float) -> list[SyncerAction]:
        """The epoch is durable: whoever waits is welcome."""
        self.syncer.move(SyncerTurn.SEALED)
        waiting = self.waiting
        self.donation, self.recovery = Donation(), None
        begins = f"epoch {self.syncer.epoch.counter} begins"
        actions: list[SyncerAction] = [Note(what=begins, why="its manifest is durable")]
        for key, hello in waiting.items():
            actions += self._welcome(key, hello, now)
        self.syncer.beat_at = now
        return actions + self.syncer.waiting.look()

    def lives(self, member: Member, message: Heartbeat) -> list[SyncerAction]:
        """A member says that it lives; whether it listens and why its codec has changed is for the status."""
        member.listening, member.codec_why = message.listening, message.codec_why
        return []

    def hello(self, key: MemberKey, hello: Hello, now: float) -> list[SyncerAction]:
        """A process introduces itself: welcome it, tell it to wait and why, or turn it away."""
        refusal = self._check_hello(key, hello)
        if refusal:
            return [*self._note_once(key, refusal), Send(key=key, message=refusal)]
        starting = self.syncer.phase in (_P.EMPTY, _P.RECOVERING, _P.SEALING)
        if not starting and hello.run_id and hello.epoch > self.syncer.epoch:
            return self.syncer.ending.fence(hello.epoch)
        if self.syncer.phase is _P.EMPTY:
            actions = self.donation.offer(key, hello, now)
            if key == self.donation.donor:
                return actions
            who = self.donation.donor.name if self.donation.donor else "the first learner"
            return [*actions, self._not_yet(key, f"the initial values come from {who} first")]
        if self.syncer.phase is _P.RECOVERING and self.recovery:
            asks = self.recovery.hear(key, hello)
            self.recovery.alive(key, now)
            self.recovery.accounted(key.name, now)
            return [*asks, self._not_yet(key, "this syncer recovers what the fleet holds")]
        if self.syncer.phase is _P.SEALING:
            wait(self.waiting, key, hello)
            return [self._not_yet(key, "this syncer writes its first manifest")]
        farewell = self.syncer.farewell
        return [*self._welcome(key, hello, now), *([Send(key=key, message=farewell)] if farewell else [])]

    def _note_once(self, key: MemberKey, refusal: Unwelcome) -> list[SyncerAction]:
        """Whoever is turned away is named in the log, however often it asks."""
        if key in self.turned_away:
            return []
        if len(self.turned_away) >= MOST_TURNED_AWAY:
            self.turned_away.clear()
        self.turned_away.add(key)
        return [Note(what=f"{key.name} is turned away", why=refusal.text, level="warning")]

    def _check_hello(self, key: MemberKey, hello: Hello) -> Unwelcome | None:
        if hello.epoch.counter > max(self.syncer.epoch.counter, self.disk_epoch) + MOST_RESTARTS:
            return Unwelcome(reason="run", text=f"epoch {hello.epoch.counter} cannot be", fatal=True)
        serves = self.syncer.run_id
        if hello.run_name and hello.run_name != run_name_in(serves):
            text = (
                f"your run.name is {hello.run_name!r}, this syncer serves {run_name_in(serves)!r} ({serves}): take the "
                "run.toml of that run, or net.connect and net.port of yours"
            )
            return Unwelcome(reason="run", text=text, fatal=True)
        if hello.run_id and hello.run_id != serves:
            text = (
                f"you belong to run {hello.run_id!r}, this syncer serves {serves!r}: take the run.toml of "
                "that run, or start this learner anew"
            )
            return Unwelcome(reason="run", text=text, fatal=True)
        if key in self.syncer.fleet.replaced:
            return self._replaced(key)
        judged = hello.layout_digest or not hello.watching  # who only watches need not have a model
        if self.syncer.layout_digest and judged and hello.layout_digest != self.syncer.layout_digest:
            text = (
                f"your model's layout is {hello.layout_digest}, this run's is {self.syncer.layout_digest}: the model, "
                "sync.num_fragments and learner.strategy must be the same everywhere"
            )
            return Unwelcome(reason="layout", text=text, fatal=True)
        return None

    def _must_say_it_again(self, key: MemberKey, now: float) -> bool:
        """Whether a process that wants the name of a living one has yet to show that it lives itself.

        Connections are handled in any order, so a hello may be that of a dead predecessor; only the living repeat it.
        """
        other = self.syncer.fleet.members.get(key.name)
        free = other is None or other.key == key or other.state in (MemberState.GONE, MemberState.FINISHED)
        if free or now - self.challenged.get(key, now) >= AGAIN_AFTER_S:
            self.challenged.pop(key, None)
            return False
        self.challenged.setdefault(key, now)
        while len(self.challenged) > MOST_CHALLENGED:
            del self.challenged[next(iter(self.challenged))]
        return True

    def _welcome(self, key: MemberKey, hello: Hello, now: float) -> list[SyncerAction]:
        if self._must_say_it_again(key, now):
            text = f"a process named {key.name!r} was heard a moment ago: say hello again to take its place"
            return [Send(key=key, message=Unwelcome(reason="name", text=text[:MAX_TEXT], fatal=False))]
        known = self.syncer.fleet.hear(key, now)
        member, old = self.syncer.fleet.welcome(key, hello.watching, now)
        member.region = hello.region
        actions: list[SyncerAction] = []
        if old:
            why = "two learners must not share a name; the newer process wins"
            actions.append(Note(what=f"a newer process replaces {key.name}", why=why, level="warning"))
            actions += [Send(key=old, message=self._replaced(old)), *self.syncer.intakes.break_off(old)]
            actions += self.syncer.fleet_changed(now)
        if not known:
            why = f"member {member.order} of epoch {self.syncer.epoch.counter}"
            actions.append(Note(what=f"{key.name} joins", why=why))
        actions += self.syncer.intakes.bundles.hello(key)
        welcome = Welcome(
            epoch=self.syncer.epoch,
            run_id=self.syncer.run_id,
            order=member.order,
            versions=tuple(desk.stamp.version for desk in self.syncer.desk),
            progress=self.syncer.progress,
        )
        return [*actions, Send(key=key, message=welcome)]

    def early(self, key: MemberKey, leaves: bool, now: float) -> list[SyncerAction]:
        """Something came before anybody is a member: a sign of life of the donor; anybody else shall say hello."""
        if key == self.donation.donor:
            self.donation.heard_at = now
        if self.recovery:
            self.recovery.alive(key, now)
        if self.recovery and leaves:
            self.recovery.accounted(key.name, now)
            return []
        text = "this syncer does not know you yet: say hello"
        unknown = Unwelcome(reason="unknown", text=text, fatal=False)
        return [] if key in self.waiting else [Send(key=key, message=unknown)]

    def stranger(self, key: MemberKey, message: object) -> list[SyncerAction]:
        """A message of a process that is not (or no longer) a member."""
        if isinstance(message, Goodbye):
            return []
        if key in self.syncer.fleet.replaced:
            return [Send(key=key, message=self._replaced(key))]
        why = "this syncer does not know you (any more): say hello again"
        return [Send(key=key, message=Unwelcome(reason="unknown", text=why, fatal=False))]

    def _replaced(self, key: MemberKey) -> Unwelcome:
        text = f"a newer process named {key.name!r} has joined: two learners must not share a name"
        return Unwelcome(reason="replaced", text=text, fatal=True)

    def _not_yet(self, key: MemberKey, why: str) -> Send:
        return Send(key=key, message=Unwelcome(reason="starting", text=why, fatal=False))

    def layout_taken(self, event: LayoutTaken, now: float) -> list[SyncerAction]:
        """The donor's layout is known."""
        donation = self.donation
        if event.key != donation.donor or self.syncer.phase is not _P.EMPTY:
            return []
        donation.digest, donation.numels, donation.shares = event.digest, event.numels, event.shares
        donation.heard_at = now
        return self._begin_when_complete()

    def initial_taken(self, event: InitialTaken, now: float) -> list[SyncerAction]:
        """One more fragment of the donor's values is here."""
        donation = self.donation
        if event.key != donation.donor or self.syncer.phase is not _P.EMPTY:
            return []
        donation.taken.add(event.fragment)
        donation.heard_at = now
        return self._begin_when_complete()

    def _begin_when_complete(self) -> list[SyncerAction]:
        donation = self.donation
        if not donation.complete:
            return []
        self.syncer.layout_digest = donation.digest
        self.know_layout(donation.numels, donation.shares)
        stops, self.syncer.opening = self.syncer.opening, []
        return stops + self.seal(SyncerTurn.HAS_ALL, Epoch(1, self.syncer.ident), [0] * len(donation.numels))

    def handback_taken(self, event: HandbackTaken, now: float) -> list[SyncerAction]:
        """A state of the fleet has replaced the disk's."""
        if self.recovery:
            self.recovery.taken(event.key, event.fragment, event.map_)
        return [Note(what=f"fragment {event.fragment} comes from {event.key.name}", why="newer than the disk's")]

    def unusable(self, event: Unusable, now: float, *, at_fault: bool = True) -> list[SyncerAction]:
        """A body made no sense (then its sender is `at_fault` and told so) or did not come: ask somebody else."""
        actions: list[SyncerAction] = [
            Note(what=f"body of {event.key.name} unusable", why=event.reason, level="warning")
        ]
        if isinstance(event.message, Handback) and self.recovery:
            self.recovery.lost(event.key, event.message)
            if at_fault:
                actions += self.recovery.doubt(event.key, event.message.fragment)
        elif event.key == self.donation.donor:
            if at_fault:
                text = f"what you donate cannot be used: {event.reason}"
                refusal = Unwelcome(reason="donation", text=text[:MAX_TEXT], fatal=True)
                actions.append(Send(key=event.key, message=refusal))
            self.donation.heard_at = now - self.syncer.params.gone_after_s  # the next one that waits shall donate
        return actions
