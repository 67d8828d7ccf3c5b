"""Bundles at the syncer: bodies of a region's contributions that a relay has merged before they crossed the far link.

Rule: a bundle is whole or nothing. It is taken only for contributions that were offered, have room, and are what it
says; from then on its body is awaited instead of theirs. When it is here they are all held, each with its own ack, as
if their own bodies had come. Whatever is against it, before or after, ends it whole: their own bodies are awaited
again, or, where they were held, they are sent back. So nothing is counted twice, and nothing is lost.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from zdiloco.core.machine import CancelFetch, Fetch, Free, Note, Part, Screen, Screened, Send, SyncerAction
from zdiloco.core.messages import Bundle, Bundled, Contribution, Unbundled
from zdiloco.core.norms import Passed, Remark, absurd
from zdiloco.core.progress import Held
from zdiloco.core.weights import weight_of
from zdiloco.units import ContributionId, Epoch, MemberKey

if TYPE_CHECKING:
    from zdiloco.core.intake import Intakes

LONGER = 1.01
"""A bundle stands for no more than so many times the largest norm in it: what rounding may do, and no weight can."""
NEAR = 1e-9
"""Relative difference up to which two weights are the same."""


class Unbundling(StrEnum):
    """Why a bundle is not taken, or not kept."""

    OFF = "off"
    """This run takes none (relay.premerge)."""
    MEMBER = "member"
    """One in it is not what is awaited: not offered, without room, here already, or with other counters."""
    WEIGHT = "weight"
    """One in it was weighed otherwise than here: the relay has other settings."""
    NORM = "norm"
    """One in it would be scaled down or refused by its norm, which can be done to it alone only."""
    BUDGET = "budget"
    """There is no room for it beside what it stands for."""
    BODY = "body"
    """Its bytes did not come through, or are not what they must be."""
    BROKEN = "broken"
    """One in it has become void before it was whole; or its number or its name is still that of another one."""


@dataclass(slots=True)
class Coming:
    """A bundle whose body is awaited, or being looked at (`fetched`)."""

    key: MemberKey
    message: Bundle
    fetched: bool = False


@dataclass(slots=True)
class Whole:
    """A bundle that is here. `left`: those in it that are held or being merged."""

    message: Bundle
    left: set[ContributionId] = field(default_factory=set)


class Bundles:
    """All bundles of one syncer. `allowed`: whether this run takes any."""

    def __init__(self, intakes: "Intakes") -> None:
        self.intakes = intakes
        self.allowed = False
        self.coming: dict[ContributionId, Coming] = {}
        self.whole: dict[ContributionId, Whole] = {}
        self._of: dict[ContributionId, ContributionId] = {}
        self._looked_at: set[ContributionId] = set()
        self.counts = {"taken": 0, "members": 0}
        self.refused: dict[str, int] = {}

    def status(self) -> dict[str, Any]:
        """What `status` shows: bundles that were held, the contributions in them, and refusals by their reason."""
        return {**self.counts, "refused": {str(reason): count for reason, count in self.refused.items()}}

    # ---- offered

    def offer(self, key: MemberKey, message: Bundle, now: float, *, running: bool) -> list[SyncerAction]:
        """A relay offers a bundle, perhaps again: await its body, or say why not."""
        id_ = bundle_id(key, message)
        if id_ in self.whole:
            return []
        if known := self.coming.get(id_):
            return [Fetch(key=key, message=known.message)] if known.message == message and not known.fetched else []
        why = self._against(key, message, now, running)
        if why:
            return self._refuse(key, message, *why)
        cancels = []
        for member in message.members:
            incoming = self.intakes.incoming[member.key, message.fragment]
            incoming.bundle = id_
            cancels.append(CancelFetch(key=member.key, message=incoming.message))
        self.intakes.used_bytes += message.body.nbytes
        self.coming[id_] = Coming(key, message)
        return [*cancels, Fetch(key=key, message=message)]

    def _against(self, key: MemberKey, message: Bundle, now: float, running: bool) -> tuple[Unbundling, str] | None:
        intakes = self.intakes
        if not self.allowed:
            return Unbundling.OFF, "this run takes no bundles (relay.premerge is false where its syncer runs)"
        if bundle_id(key, message) in self._looked_at:
            return Unbundling.BROKEN, "the last one of this number has ended, and its bytes are still looked at"
        if self._in_use(key, message.body.transfer):
            return Unbundling.BROKEN, f"another one of this relay has the transfer name {message.body.transfer!r}"
        if not running or message.fragment >= len(intakes.desk.fragments) or intakes.fleet.find(key) is not None:
            return Unbundling.MEMBER, "there is no such fragment, or nothing is merged now, or a learner says so"
        for member in message.members:
            if against := self._against_one(member, message):
                return against
        need = message.body.nbytes
        if need > 8 * intakes.desk.fragments[message.fragment].numel + 4096:
            return Unbundling.BODY, f"{need} bytes are too many for fragment {message.fragment}"
        if intakes.used_bytes + need > intakes.params.budget_bytes:
            return Unbundling.BUDGET, f"no room for {need} bytes beside what they stand for (sync.budget_bytes)"
        return self._clipped(message, now)

    def _in_use(self, key: MemberKey, transfer: str) -> bool:
        """Whether a bundle of this relay that is awaited or here has this name: with one of them both would go."""
        known = [(id_.key, coming.message) for id_, coming in self.coming.items()]
        known += [(id_.key, whole.message) for id_, whole in self.whole.items()]
        return any(other == key and message.body.transfer == transfer for other, message in known)

    def _against_one(self, member: Bundled, message: Bundle) -> tuple[Unbundling, str] | None:
        desk = self.intakes.desk.fragments[message.fragment]
        incoming = self.intakes.incoming.get((member.key, message.fragment))
        if incoming is None or not incoming.granted or incoming.fetched or incoming.bundle is not None:
            return Unbundling.MEMBER, f"no bytes are awaited of {member.name}"
        said = incoming.message
        if (member.seq, member.after, member.steps, member.tokens) != (said.seq, said.after, said.steps, said.tokens):
            return Unbundling.MEMBER, f"{member.name} has said something else of its contribution"
        if member.key in desk.intake.held:
            return Unbundling.MEMBER, f"an older contribution of {member.name} is held"
        weight = weight_of(said, self.intakes.params)
        if abs(member.weight - weight) > NEAR * weight:
            return Unbundling.WEIGHT, f"{member.name} weighs {weight:.6g} here, and {member.weight:.6g} in the bundle"
        if (member.norm > 0) != (desk.share > 0):
            return Unbundling.NORM, f"the norm of {member.name} is {member.norm:.3g}"
        return None

    def _clipped(self, message: Bundle, now: float) -> tuple[Unbundling, str] | None:
        """Whether one in it would be scaled down if the round closed now; only its own bytes allow that."""
        desk = self.intakes.desk.fragments[message.fragment]
        inside = [held for _, held in self._members(message, now)]
        living = {member.key.name for member in self.intakes.fleet.counted()}
        taken = [*desk.intake.held.values(), *inside]
        passed = desk.norms.would(taken, desk.stamp.version + 1, self.intakes.params.clip, living)
        for held, found in zip(taken, passed, strict=True):
            if found.remark and held in inside:
                return Unbundling.NORM, f"{held.id.name}: {found.why}"
        return None

    def _members(self, message: Bundle, now: float) -> list[tuple[Contribution, Held]]:
        """What was offered of each in it, and how it is held when it is here."""
        found = []
        for member in message.members:
            said = self.intakes.incoming[member.key, message.fragment].message
            id_ = ContributionId(member.name, member.incarnation, message.fragment, member.seq)
            found.append((said, Held(id=id_, message=said, arrived_at=now, norm=member.norm)))
        return found

    # ---- here, or not

    def fetched(self, key: MemberKey, message: Bundle) -> list[SyncerAction]:
        """All bytes of a bundle are here: look at them, unless it has ended meanwhile."""
        coming = self.coming.get(bundle_id(key, message))
        if coming is None or coming.message != message:
            return [CancelFetch(key=key, message=message)]
        coming.fetched = True
        return [Screen(id=bundle_id(key, message), codec=message.codec)]

    def lost(self, key: MemberKey, message: Bundle, reason: str) -> list[SyncerAction]:
        """Its body was given up, or cannot be one."""
        return self._end(bundle_id(key, message), Unbundling.BODY, reason)

    def hello(self, key: MemberKey) -> list[SyncerAction]:
        """A member says hello again: what it is reached by was away, perhaps the relay itself with all its bundles. Its
        own bodies are awaited, which are kept wherever it is."""
        inside = [one.bundle for place, one in self.intakes.incoming.items() if place[0] == key and one.bundle]
        ids = [id_ for id_ in inside if not self.coming[id_].fetched]
        return [action for id_ in ids for action in self.broken(id_, f"{key.name} has said hello again")]

    def broken(self, id_: ContributionId, why: str) -> list[SyncerAction]:
        """One in it has become void while it was awaited."""
        return self._end(id_, Unbundling.BROKEN, why)

    def _end(self, id_: ContributionId, reason: Unbundling, text: str) -> list[SyncerAction]:
        """It is awaited no more: the bodies of those in it are, again."""
        coming = self.coming.pop(id_, None)
        if coming is None:
            return []
        message = coming.message
        self.intakes.used_bytes -= message.body.nbytes
        actions = self._refuse(coming.key, message, reason, text)
        if coming.fetched:
            self._looked_at.add(id_)  # `screened` frees it
        else:
            actions.append(CancelFetch(key=coming.key, message=message))
        for member in message.members:
            incoming = self.intakes.incoming.get((member.key, message.fragment))
            if incoming is not None and incoming.bundle == id_:
                incoming.bundle = None
                actions.append(Fetch(key=member.key, message=incoming.message))
        return actions

    def screened(self, event: Screened, epoch: Epoch, now: float) -> list[SyncerAction]:
        """Its bytes were looked at: all in it are held, or none."""
        coming = self.coming.get(event.id)
        if coming is None:
            self._looked_at.discard(event.id)
            return [Free(id=event.id)]
        why = self._unsound(coming.message, event, epoch)
        if why:
            ended = self._end(event.id, *why)
            self._looked_at.discard(event.id)
            return [*ended, Free(id=event.id)]
        del self.coming[event.id]
        self.counts["taken"] += 1
        self.counts["members"] += len(coming.message.members)
        members = self._members(coming.message, now)
        self.whole[event.id] = Whole(coming.message, {held.id for _, held in members})
        self._of.update((held.id, event.id) for _, held in members)
        for said, held in members:  # all of their room first, since nothing of it is needed
            self.intakes.taken(held.id.key, said)
        holds = [action for _, held in members for action in self.intakes.hold(held, now)]
        return holds + self.intakes.make_room()

    def _unsound(self, message: Bundle, event: Screened, epoch: Epoch) -> tuple[Unbundling, str] | None:
        if event.reason:
            return Unbundling.BODY, "its bytes are not what they must be"
        desk = self.intakes.desk.fragments[message.fragment]
        if event.norm > LONGER * max(member.norm for member in message.members):
            return Unbundling.BODY, f"what it stands for has norm {event.norm:.3g}, more than any in it"
        for member in message.members:
            said = self.intakes.incoming[member.key, message.fragment].message
            if refusal := desk.intake.judge(member.key, said, epoch):
                return Unbundling.BROKEN, f"{member.name}: {refusal}"
            if why := absurd(member.norm, event.values, desk.numel):
                return Unbundling.NORM, f"{member.name}: {why}"
        return None

    # ---- held, and merged

    def of(self, id_: ContributionId) -> ContributionId | None:
        """The bundle that a held contribution came in; None: it came by itself."""
        return self._of.get(id_)

    def others(self, held: Held) -> list[Held]:
        """Who is held in the same bundle: when one of them goes before the merge, so do they all."""
        whole = self.whole.get(self._of.get(held.id, held.id))
        inside = self.intakes.desk.fragments[held.id.fragment].intake.held
        left = sorted(whole.left - {held.id}) if whole else []
        return [inside[id_.key] for id_ in left if id_.key in inside and inside[id_.key].id == id_]

    def free(self, held: Held) -> list[SyncerAction]:
        """One that came in a bundle is needed no more: with the last of them its bytes go."""
        id_ = self._of.pop(held.id)
        whole = self.whole[id_]
        whole.left.discard(held.id)
        if whole.left:
            return []
        del self.whole[id_]
        self.intakes.used_bytes -= whole.message.body.nbytes
        return [Free(id=id_)]

    def close(self, taken: Sequence[tuple[Held, Passed]]) -> tuple[list[tuple[Held, Passed]], tuple[Part, ...]]:
        """What a round takes, all in a bundle alike; and the parts of its merge, a bundle being one of them."""
        least: dict[ContributionId, float] = {}
        for held, passed in taken:
            if id_ := self._of.get(held.id):
                least[id_] = min(passed.clip, least.get(id_, passed.clip))
        evened, parts = [], dict[ContributionId, Part]()
        for held, passed in taken:
            id_ = self._of.get(held.id, held.id)
            if passed.clip > least.get(id_, passed.clip):
                passed = replace(passed, clip=least[id_], remark=Remark.CLIPPED, why="it was merged with one that is")
            codec = self.whole[id_].message.codec if id_ in self.whole else held.message.codec
            before = parts[id_].weight if id_ in parts else 0.0
            weight = before + weight_of(held.message, self.intakes.params) * passed.clip
            parts[id_] = Part(id=id_, codec=codec, weight=weight, clip=passed.clip)
            evened.append((held, passed))
        return evened, tuple(parts.values())

    def _refuse(self, key: MemberKey, message: Bundle, reason: Unbundling, text: str) -> list[SyncerAction]:
        self.refused[reason] = self.refused.get(reason, 0) + 1
        word = Unbundled(fragment=message.fragment, number=message.number, reason=reason, text=text)
        what = f"takes no bundle of {len(message.members)} contributions to fragment {message.fragment}"
        level = "info" if self.refused[reason] == 1 else "debug"  # once each: anybody may offer bundles without end
        return [Note(what=what, why=f"{reason}: {text}", level=level), Send(key=key, message=word)]


def bundle_id(key: MemberKey, message: Bundle) -> ContributionId:
    """The handle of a bundle's bytes; no contribution has a seq below 1."""
    return ContributionId(key.name, key.incarnation, message.fragment, -message.number)
