"""A syncer machine with three learners and a relay, whose words the test says, and whose bytes the test counts."""

from typing import Any

from tests.core.samples import ANN, BOB, EVE
from zdiloco.core import machine as m
from zdiloco.core import messages as w
from zdiloco.core.bundles import bundle_id
from zdiloco.core.params import SyncParams
from zdiloco.core.start import KnownState
from zdiloco.core.syncer import SyncerMachine
from zdiloco.units import ContributionId, Epoch, MemberKey, Stamp

RELAY = MemberKey("relay", 99)
PARAMS = SyncParams(sync_period=8, min_quorum=2, report_every_s=0.5, grace="off", budget_bytes=2**20)
NBYTES, BUNDLE_BYTES = 1000, 1500


class Syncer:
    """A syncer with ann, bob and eve; `said` is everything that it has asked for since the last look."""

    def __init__(self, params: SyncParams = PARAMS) -> None:
        known = KnownState(
            run_id="run", epoch=Epoch(1, 500), layout_digest="layout", numels=(500,), shares=(1.0,),
            stamps=(Stamp(Epoch(1, 500), 0),), maps=((),), replaced=(), live=(),
        )  # fmt: skip
        self.now = 0.0
        self.machine = SyncerMachine(params, run_id="run", ident=501, now=0.0, known=known)
        self.machine.intakes.bundles.allowed = True
        self.said: list[Any] = []
        self.tell(m.TimerDue())
        self.now = 100.0  # nobody hands anything back
        self.tell(m.TimerDue())
        self.tell(m.Saved(stamps=tuple(desk.stamp for desk in self.machine.desk)))
        for key in (ANN, BOB, EVE):
            self.joins(key)
        for key in (ANN, BOB, EVE):
            self.hear(key, w.Report(step=20, trained_tokens=200, unmerged_tokens=200.0, dropped_tokens=0.0))
        assert self.machine.desk.fragments[0].round is not None

    def joins(self, key: MemberKey) -> None:
        hello = w.Hello(name=key.name, incarnation=key.incarnation, run_id="run", layout_digest="layout")
        self.hear(key, hello)
        self.hear(key, w.Report(step=1, trained_tokens=10, unmerged_tokens=10.0, dropped_tokens=0.0))

    def tell(self, event: Any) -> list[Any]:
        self.now += 0.001
        actions = self.machine.handle(event, self.now)
        self.said += actions
        return actions

    def hear(self, key: MemberKey, message: Any) -> list[Any]:
        return self.tell(m.Received(key=key, message=message))

    def offer(self, key: MemberKey, **other: Any) -> w.Contribution:
        """A contribution is offered, and has room."""
        body = w.Body(transfer=f"c/0/{other.get('seq', 1)}", nbytes=NBYTES, chunk_bytes=1 << 20, digest=5)
        fields: dict[str, Any] = {
            "fragment": 0, "seq": 1, "after": 0, "stamp": Stamp(self.machine.epoch, 0), "steps": 10, "tokens": 100,
            "cut_step": 20, "version": 1, "codec": "bf16", "body": body,
        }  # fmt: skip
        message = w.Contribution(**{**fields, **other})
        actions = self.hear(key, message)
        assert m.Fetch(key=key, message=message) in actions
        return message

    def bundle(self, *keys: MemberKey, number: int = 1, **other: Any) -> w.Bundle:
        body = w.Body(transfer=f"b/{number}", nbytes=BUNDLE_BYTES, chunk_bytes=1 << 16, digest=7)
        members = tuple(w.Bundled(key.name, key.incarnation, 1, 0, 10, 100, 1.0, 1000.0) for key in keys)
        fields = {"fragment": 0, "number": number, "method": "rda", "codec": "fp32", "members": members, "body": body}
        return w.Bundle(**{**fields, **other})

    def taken(self, *keys: MemberKey) -> w.Bundle:
        """A bundle of what was offered, whose body is awaited."""
        bundle = self.bundle(*keys)
        actions = self.hear(RELAY, bundle)
        assert m.Fetch(key=RELAY, message=bundle) in actions
        assert {action.key for action in actions if isinstance(action, m.CancelFetch)} == set(keys)
        return bundle

    def here(self, bundle: w.Bundle, norm: float = 1.0, reason: str = "") -> list[Any]:
        """The body of a bundle comes, and is looked at."""
        actions = self.tell(m.Fetched(key=RELAY, message=bundle))
        assert m.Screen(id=bundle_id(RELAY, bundle), codec="fp32") in actions
        return self.tell(m.Screened(id=bundle_id(RELAY, bundle), reason=reason, norm=norm, values=1.0))

    def alone(self, key: MemberKey, message: w.Contribution, norm: float = 1.0) -> list[Any]:
        """The own body of a contribution comes, and is looked at."""
        self.tell(m.Fetched(key=key, message=message))
        id_ = ContributionId(key.name, key.incarnation, 0, message.seq)
        return self.tell(m.Screened(id=id_, reason="", norm=norm, values=1.0))

    def refused(self) -> list[str]:
        """For what reasons bundles were refused."""
        words = [action.message for action in self.said if isinstance(action, m.Send)]
        return [word.reason for word in words if isinstance(word, w.Unbundled)]

    def awaited(self) -> dict[MemberKey, int]:
        """By sender, the bodies that are awaited now."""
        found: dict[MemberKey, int] = {}
        for action in self.said:
            if isinstance(action, m.Fetch | m.CancelFetch):
                found[action.key] = isinstance(action, m.Fetch)
            elif isinstance(action, m.Free) and action.id.seq < 0:
                found[action.id.key] = False
        return {key: count for key, count in found.items() if count}

    def audit(self) -> None:
        """Every byte that counts is one that is awaited, held or merged."""
        audit(self.machine)


def audit(machine: SyncerMachine) -> None:
    """Every byte that counts is one that is awaited, held or merged, and every bundle has its members."""
    intakes = machine.intakes
    bundles = intakes.bundles
    own = [incoming.message.body.nbytes for incoming in intakes.incoming.values() if incoming.granted]
    inside = [held for desk in machine.desk for held in desk.intake.held.values()]
    inside += [held for taken in intakes.in_merge.values() for held, _ in taken]
    own += [held.message.body.nbytes for held in inside if not bundles.of(held.id)]
    shared = [coming.message.body.nbytes for coming in bundles.coming.values()]
    shared += [whole.message.body.nbytes for whole in bundles.whole.values()]
    assert intakes.used_bytes == sum(own) + sum(shared)
    left = {id_ for whole in bundles.whole.values() for id_ in whole.left}
    assert left == {held.id for held in inside if bundles.of(held.id)}
    awaited = {incoming.bundle for incoming in intakes.incoming.values() if incoming.bundle is not None}
    assert awaited == set(bundles.coming)


def acks(actions: list[Any]) -> dict[str, int]:
    """By learner, the seq that is said to be held."""
    words = [(action.key.name, action.message) for action in actions if isinstance(action, m.Send)]
    return {name: word.held for name, word in words if isinstance(word, w.Ack) and word.held}


def merges(actions: list[Any]) -> list[m.Merge]:
    return [action for action in actions if isinstance(action, m.Merge)]
