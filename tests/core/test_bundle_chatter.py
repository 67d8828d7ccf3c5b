"""A syncer that is told anything, and offered bundles of it: whatever it takes stays accounted for."""

from collections.abc import Callable
from typing import Any

from tests.core.bundle_syncer import RELAY, audit
from tests.core.chatter import P, SyncerChatter
from zdiloco.core import machine as m
from zdiloco.core import messages as w
from zdiloco.core.weights import weight_of


class BundleChatter(SyncerChatter):
    """A syncer among learners that say anything, and a relay that bundles what is awaited of them, or nearly."""

    def begin(self) -> None:
        super().begin()
        self.machine.intakes.bundles.allowed = True
        self.number = 0

    def event(self) -> Any:
        bundle = self.bundle() if self.rng.random() < 0.4 else None
        return super().event() if bundle is None else m.Received(key=RELAY, message=bundle)

    def answer(self, action: Any) -> Any:
        """Most bodies of contributions take their time."""
        late = isinstance(action, m.Fetch) and isinstance(action.message, w.Contribution) and self.rng.random() < 0.9
        return None if late else super().answer(action)

    def bundle(self) -> w.Bundle | None:
        fragment, intakes = self.rng.randrange(P), self.machine.intakes
        offered = [(key, one.message) for (key, place), one in intakes.incoming.items() if place == fragment]
        members = tuple(
            w.Bundled(
                *key, said.seq, said.after, said.steps, said.tokens + (self.rng.random() < 0.02), self.some(1.0, 1.5),
                weight_of(said, intakes.params),
            )
            for key, said in offered if self.rng.random() < 0.9
        )  # fmt: skip
        if not members:
            return None
        self.number += self.rng.random() < 0.9  # now and then the number of another one is said again
        body = w.Body(transfer=f"b/{self.now}", nbytes=self.some(500, 9000), chunk_bytes=1 << 16, digest=0)
        return w.Bundle(
            fragment=fragment, number=max(1, self.number), method="rda", codec="fp32", members=members, body=body
        )


def test_among_all_that_is_said_bytes_and_members_stay_accounted_for(say: Callable[[str], None]) -> None:
    taken, refused = 0, dict[str, int]()
    for seed in range(20):
        chatter = BundleChatter(seed)
        for turn in range(300):
            chatter.turn()
            bundles = chatter.machine.intakes.bundles
            try:
                audit(chatter.machine)
            except AssertionError as fault:
                raise AssertionError(f"seed {seed}, turn {turn}") from fault
        taken += bundles.counts["taken"]
        for reason, count in bundles.refused.items():
            refused[reason] = refused.get(reason, 0) + count
    say(f"{taken} bundles held, refused {refused}")
    assert taken > 10
    assert {"member", "body"} <= set(refused)
