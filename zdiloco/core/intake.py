"""Contributions on their way in: offered, fetched, screened, held; and the memory they may take.

Rule: every contribution meets exactly one fate, and its learner is told: held (Ack), refused with a reason, or sent
back for lack of room. A byte is granted only when all of its contribution fits the budget; what is held counts, and
the oldest held one goes first, since its learner can cut again.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from zdiloco.core.bundles import Bundles
from zdiloco.core.desk import Desk, FragmentDesk
from zdiloco.core.machine import CancelFetch, Fetch, Free, Note, Part, Screen, Screened, Send, SyncerAction
from zdiloco.core.membership import CONTRIBUTING, Fleet, Member, MemberEvent, MemberState
from zdiloco.core.messages import Ack, Bundle, Contribution, Refused
from zdiloco.core.norms import Passed, absurd
from zdiloco.core.ordered import Ordered
from zdiloco.core.params import SyncParams
from zdiloco.core.progress import Held, Refusal
from zdiloco.core.weights import implausible
from zdiloco.units import ContributionId, Epoch, FragmentId, MemberKey

_TEXTS = {
    Refusal.EPOCH: "it was cut on a state of another epoch: adopt the newest one and cut again",
    Refusal.AFTER: "it does not start where your merged work ends: adopt the newest state and cut again",
    Refusal.SEQ: "a newer one of yours is here",
    Refusal.NON_FINITE: "it holds NaN or infinity: start over from the published values",
    Refusal.NORM: "its values are too large to be work: start over from the published values",
    Refusal.BUDGET: "no room (sync.budget_bytes): cut it again later",
    Refusal.CLOSED: "the run is ending, nothing more is merged",
}


@dataclass(slots=True)
class Coming:
    """A contribution that is not held yet. `fetched`: its bytes are here and it is being looked at.

    `number`: the how many-th that came. `bundle`: that whose body is awaited instead of its own.
    """

    message: Contribution
    number: int
    fetched: bool = False
    granted: bool = False
    bundle: ContributionId | None = None


class Intakes:
    """The way of every contribution from its offer to a round."""

    def __init__(self, params: SyncParams, desk: Desk, fleet: Fleet) -> None:
        self.params, self.desk, self.fleet = params, desk, fleet
        self.incoming: dict[tuple[MemberKey, FragmentId], Coming] = {}
        self.offered = 0
        self._waiting: dict[tuple[MemberKey, FragmentId], int] = {}
        self._needs = Ordered()
        self.in_merge: dict[FragmentId, list[tuple[Held, Passed]]] = {}
        self._sent_back: dict[tuple[MemberKey, FragmentId], int] = {}
        self.used_bytes = 0
        self.refused: dict[str, int] = {}
        self.remarks: dict[str, int] = {}
        self.replaced = self.late = 0
        self.bundles = Bundles(self)

    def offer(self, member: Member, message: Contribution, epoch: Epoch) -> list[SyncerAction]:
        """A contribution is offered, perhaps again: fetch it, or say what became of it."""
        key = member.key
        if member.state not in CONTRIBUTING:
            return []
        why = self._check(message)
        if why:
            return self._refuse(key, message, *why)
        desk = self.desk.fragments[message.fragment]
        merged, held = desk.intake.merged_seq(key), desk.intake.held_seq(key)
        if message.seq in (merged, held) and message.stamp.epoch == epoch:
            return [Send(key=key, message=Ack(fragment=message.fragment, held=held, merged=merged))]
        refusal = desk.intake.judge(key, message, epoch)
        if refusal:
            return self._refuse(key, message, refusal, _TEXTS[refusal])
        return self._admit(key, message)

    def _admit(self, key: MemberKey, message: Contribution) -> list[SyncerAction]:
        place = (key, message.fragment)
        under_way = self.incoming.get(place)
        actions: list[SyncerAction] = []
        if under_way and message.seq < under_way.message.seq:
            return []
        if under_way and message.seq == under_way.message.seq:
            again = under_way.granted and not under_way.fetched and under_way.bundle is None
            return [Fetch(key=key, message=under_way.message)] if again else []
        if under_way:
            self.replaced += 1
            actions += self._let_go(place)
        member = self.fleet.find(key)
        if member:
            self.desk.marked(member, message.fragment, message.cut_step)
            member.codec = message.codec if self.desk.fragments[message.fragment].share else member.codec
        self.offered += 1
        self.incoming[place] = Coming(message=message, number=self.offered)
        if not self._waiting and self.used_bytes + message.body.nbytes <= self.params.budget_bytes:
            return [*actions, self._grant(place)]
        self._wait(place, message.body.nbytes)
        return actions + self.make_room()

    def _wait(self, place: tuple[MemberKey, FragmentId], need: int) -> None:
        self._waiting[place] = need
        self._needs.add(need)
        self.desk.has_room(*place, False)

    def _wait_no_more(self, place: tuple[MemberKey, FragmentId]) -> None:
        need = self._waiting.pop(place, None)
        if need is not None:
            self._needs.remove(need)
            self.desk.has_room(*place, True)

    def _check(self, message: Contribution) -> tuple[Refusal, str] | None:
        if message.fragment >= len(self.desk.fragments):
            return Refusal.LAYOUT, f"there is no fragment {message.fragment}"
        if message.body.nbytes > 8 * self.desk.fragments[message.fragment].numel + 4096:
            return Refusal.LAYOUT, f"{message.body.nbytes} bytes are too many for fragment {message.fragment}"
        why = implausible(message, self.params)
        return (Refusal.COUNTERS, why) if why else None

    def make_room(self) -> list[SyncerAction]:
        """Grant what fits the budget, in the order of coming.

        If nothing fits and nothing that is here can ever be merged, a held contribution is sent back: first of
        fragments that no round is open for, then whoever has met that least since its last merge (the same one must
        not lose again and again), then the quarantined, then the oldest. Else room will come by itself; until then
        whoever waits for it counts as declined, so that no round waits.
        """
        if not self._waiting or (self._fits_none() and not self._stuck()):
            return []
        actions: list[SyncerAction] = []
        granted = []
        stuck = True  # until it is known that something moves: asked anew after each that was sent back
        for place, need in self._waiting.items():
            while self.used_bytes + need > self.params.budget_bytes and stuck:
                stuck = self._stuck()
                actions += self._send_back() if stuck else []
            if self.used_bytes + need <= self.params.budget_bytes:
                stuck = False
                granted.append(place)
                actions.append(self._grant(place))
            if not stuck and self._fits_none():
                break
        for place in granted:
            self._wait_no_more(place)
        return actions

    def _fits_none(self) -> bool:
        """Whether not even the smallest of those that wait has room."""
        least = self._needs.least
        return least is None or self.used_bytes + least > self.params.budget_bytes

    def _grant(self, place: tuple[MemberKey, FragmentId]) -> Fetch:
        incoming = self.incoming[place]
        incoming.granted = True
        self.used_bytes += incoming.message.body.nbytes
        return Fetch(key=place[0], message=incoming.message)

    def _take_out(self, place: tuple[MemberKey, FragmentId]) -> Coming:
        self._wait_no_more(place)
        return self.incoming.pop(place)

    def _stuck(self) -> bool:
        """Whether no held contribution can be merged before another one has room."""
        if self.in_merge or len(self._waiting) < len(self.incoming):
            return False  # a merge or a transfer is under way: room or a quorum may come of it
        held = any(desk.intake.held for desk in self.desk)
        return held and max(len(self.desk.counting(desk)) for desk in self.desk) < self.desk.quorum()

    def _send_back(self) -> list[SyncerAction]:
        held = [held for desk in self.desk for held in desk.intake.held.values()]
        oldest = min(held, key=self._place_in_queue)
        return [action for one in [*self.bundles.others(oldest), oldest] for action in self._return(one)]

    def _return(self, held: Held) -> list[SyncerAction]:
        """A held contribution goes back to its learner, which can cut again."""
        place = (held.id.key, held.id.fragment)
        self._sent_back[place] = self._sent_back.get(place, 0) + 1
        desk = self.desk.fragments[held.id.fragment]
        del desk.intake.held[held.id.key]
        self.desk.place(desk, held.id.key)
        return self._refuse(held.id.key, held.message, Refusal.BUDGET, _TEXTS[Refusal.BUDGET]) + self._free(held)

    def _place_in_queue(self, held: Held) -> tuple[bool, int, bool, float]:
        key, rnd = held.id.key, self.desk.fragments[held.id.fragment].round
        sent_back = self._sent_back.get((key, held.id.fragment), 0)
        return rnd is not None, sent_back, not self._quarantined(key), held.arrived_at

    def _quarantined(self, key: MemberKey) -> bool:
        member = self.fleet.find(key)
        return member is not None and member.state is MemberState.QUARANTINED

    def _free(self, held: Held) -> list[SyncerAction]:
        if self.bundles.of(held.id):
            return self.bundles.free(held)
        self.used_bytes -= held.message.body.nbytes
        return [Free(id=held.id)]

    def fetched(self, key: MemberKey, message: Contribution | Bundle, epoch: Epoch) -> list[SyncerAction]:
        """All bytes of a contribution are here: look at them, unless it has become void meanwhile."""
        if isinstance(message, Bundle):
            return self.bundles.fetched(key, message)
        incoming = self.incoming.get((key, message.fragment))
        if incoming is None or incoming.message.seq != message.seq or incoming.bundle is not None:
            return [CancelFetch(key=key, message=message)]
        incoming.fetched = True
        return [Screen(id=_id_of(key, message), codec=message.codec)]

    def lost(self, key: MemberKey, message: Contribution | Bundle, reason: str) -> list[SyncerAction]:
        """The transfer was given up."""
        if isinstance(message, Bundle):
            return self.bundles.lost(key, message, reason)
        incoming = self.incoming.get((key, message.fragment))
        if incoming is None or incoming.message.seq != message.seq or incoming.bundle is not None:
            return []
        self._take_out((key, message.fragment))
        self.used_bytes -= message.body.nbytes if incoming.granted else 0
        return self._refuse(key, message, Refusal.BODY, reason) + self.make_room()

    def screened(self, event: Screened, epoch: Epoch, now: float) -> list[SyncerAction]:
        """The bytes were looked at: hold the contribution, or refuse it."""
        if event.id.seq < 0:
            return self.bundles.screened(event, epoch, now)
        key, place = event.id.key, (event.id.key, event.id.fragment)
        incoming = self.incoming.get(place)
        if incoming is None or incoming.message.seq != event.id.seq:
            return [Free(id=event.id)]
        self._take_out(place)
        message, desk = incoming.message, self.desk.fragments[event.id.fragment]
        held = Held(id=event.id, message=message, arrived_at=now, norm=event.norm)
        refusal = Refusal(event.reason) if event.reason else desk.intake.judge(key, message, epoch)
        text = _TEXTS.get(refusal, "its bytes are not what they must be") if refusal else ""
        if refusal is None:
            why = absurd(event.norm, event.values, desk.numel)
            refusal, text = (Refusal.NORM, f"{_TEXTS[Refusal.NORM]} ({why})") if why else (None, "")
        if refusal:
            self.used_bytes -= message.body.nbytes
            return [*self._refuse(key, message, refusal, text), Free(id=event.id), *self.make_room()]
        return [*self.hold(held, now), *self.make_room()]

    def taken(self, key: MemberKey, message: Contribution) -> None:
        """A contribution is no longer on its way in, since it came in a bundle: its own bytes need no room."""
        self._take_out((key, message.fragment))
        self.used_bytes -= message.body.nbytes

    def hold(self, held: Held, now: float) -> list[SyncerAction]:
        """Hold one that is here and sound; its learner is told. The caller makes room when all that came are held."""
        desk = self.desk.fragments[held.id.fragment]
        late = desk.round is None or not desk.round.gathering or held.message.version < desk.round.version
        before = self.desk.arrived(held, now)
        actions: list[SyncerAction] = []
        if late:
            self.late += 1
            why = f"it answers version {held.message.version}, which is closed"
            what = f"holds {held.id.name}'s contribution to fragment {held.id.fragment} for the next round"
            actions.append(Note(what=what, why=why, level="debug"))
        if before:
            self.replaced += 1
            others = self.bundles.others(before)
            actions += [action for other in others for action in self._return(other)] + self._free(before)
        merged = desk.intake.merged_seq(held.id.key)
        ack = Ack(fragment=held.id.fragment, held=held.id.seq, merged=merged)
        return [*actions, Send(key=held.id.key, message=ack)]

    def close(self, desk: FragmentDesk, taken: list[tuple[Held, Passed]]) -> tuple[Part, ...]:
        """A round closes with these: they are in the merge until it is made, or void. Returns its parts."""
        self.in_merge[desk.index], parts = self.bundles.close(taken)
        return parts

    def merged(self, desk: FragmentDesk, trimmed: Mapping[ContributionId, float]) -> list[SyncerAction]:
        """The merge of this fragment is made: whoever is in it behaves, and its bytes are needed no more.

        `trimmed`: of whom values were left out, and what share of them.
        """
        actions: list[SyncerAction] = []
        for held, passed in self.in_merge.pop(desk.index, []):
            actions += [*self._remark(held, passed.without(trimmed.get(held.id, 0.0))), *self._free(held)]
            self._sent_back.pop((held.id.key, desk.index), None)
            member = self.fleet.find(held.id.key)
            if member is None:
                continue
            member.rounds += 1
            member.merged_tokens += desk.share * held.message.tokens
            member.staleness.add(float(desk.stamp.version - 1 - held.message.stamp.version))
            if member.state is MemberState.QUARANTINED:
                self.fleet.offenders.pop(member.key.name, None)
                member.move(MemberEvent.CLEAN, "a clean round")
        return actions + self.make_room()

    def _remark(self, held: Held, passed: Passed) -> list[SyncerAction]:
        """Tell a learner, and count, that its contribution did not enter the merge as it was."""
        remark, key = passed.remark, held.id.key
        if remark is None:
            return []
        self.remarks[remark] = self.remarks.get(remark, 0) + 1
        member = self.fleet.find(key)
        if member:
            member.remarks[remark] = member.remarks.get(remark, 0) + 1
        what = f"{key.name}'s contribution {held.id.seq} to fragment {held.id.fragment} is not merged as it is"
        ack = Ack(fragment=held.id.fragment, held=0, merged=held.id.seq, remark=remark, text=passed.why)
        return [Note(what=what, why=f"{remark}: {passed.why}"), Send(key=key, message=ack)]

    def void(self, desk: FragmentDesk) -> list[SyncerAction]:
        """The merge of this fragment has come to nothing: all that was in it is refused."""
        actions: list[SyncerAction] = []
        for held, _ in self.in_merge.pop(desk.index, []):
            text = _TEXTS[Refusal.NON_FINITE]
            actions += self._refuse(held.id.key, held.message, Refusal.NON_FINITE, text) + self._free(held)
        return actions + self.make_room()

    def break_off(self, key: MemberKey) -> list[SyncerAction]:
        """A process is gone: what it was sending will not come; what is held of it stays and is merged."""
        places = []
        for desk in self.desk:
            place = (key, desk.index)
            incoming = self.incoming.get(place)
            if incoming and not incoming.fetched:
                places.append((incoming.number, place))
            if key not in desk.intake.held:
                self._sent_back.pop(place, None)
        actions = [action for _, place in sorted(places) for action in self._let_go(place)]
        return actions + self.make_room()

    def closed(self, member: Member, message: Contribution) -> list[SyncerAction]:
        """The run is ending: say that it is merged already, or refuse it."""
        desk = self.desk.fragments[message.fragment] if message.fragment < len(self.desk.fragments) else None
        if desk and desk.intake.merged_seq(member.key) == message.seq:
            return [Send(key=member.key, message=Ack(fragment=message.fragment, held=0, merged=message.seq))]
        return self._refuse(member.key, message, Refusal.CLOSED, _TEXTS[Refusal.CLOSED])

    def _let_go(self, place: tuple[MemberKey, FragmentId]) -> list[SyncerAction]:
        incoming = self._take_out(place)
        if incoming.bundle is not None:
            self.used_bytes -= incoming.message.body.nbytes
            return self.bundles.broken(incoming.bundle, f"{place[0].name}'s contribution is void")
        if not incoming.granted:
            return []
        self.used_bytes -= incoming.message.body.nbytes
        if incoming.fetched:
            return []  # it is being looked at: `screened` frees it
        return [CancelFetch(key=place[0], message=incoming.message)]

    def _refuse(self, key: MemberKey, message: Contribution, reason: Refusal, text: str) -> list[SyncerAction]:
        self.refused[reason] = self.refused.get(reason, 0) + 1
        member = self.fleet.find(key)
        if member:
            member.refused[reason] = member.refused.get(reason, 0) + 1
            if reason in (Refusal.NON_FINITE, Refusal.NORM):
                self.fleet.offend(key.name)
                if (member.state, MemberEvent.OFFENDED) in _OFFENDING:
                    member.move(MemberEvent.OFFENDED, text)
        what = f"refuses {key.name}'s contribution {message.seq} to fragment {message.fragment}"
        note = Note(what=what, why=f"{reason}: {text}", level="debug" if reason is Refusal.AFTER else "info")
        refused = Refused(fragment=message.fragment, seq=message.seq, reason=reason, text=text)
        return [note, Send(key=key, message=refused)]


def _id_of(key: MemberKey, message: Contribution) -> ContributionId:
    return ContributionId(key.name, key.incarnation, message.fragment, message.seq)


_OFFENDING = frozenset((state, MemberEvent.OFFENDED) for state in (MemberState.LIVE, MemberState.SUSPECT))
