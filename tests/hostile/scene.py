"""A syncer and honest learners in this process, and enemies among them."""

from typing import Any

from tests.hostile.enemy import Enemy
from tests.node.conftest import merged_tokens
from tests.node.test_loopback import assert_balanced, node_of
from zdiloco.units import MemberKey

EVE = MemberKey("eve", 666)
OPEN = {
    "most_offences": 2**53, "peer_messages_per_s": 1e9, "messages_per_s": 1e9, "peer_unasked_bytes_per_s": 1e12,
    "unasked_bytes_per_s": 1e12,
}  # fmt: skip
"""Limits that nobody meets: for what must hold behind them."""


class Scene:
    """A run with honest learners; at its end the run must have gone on, and every token of theirs has one fate."""

    def __init__(self, run: Any, zctx: Any, learners: int = 1) -> None:
        self.run, self.zctx, self.port = run, zctx, run.config.net.port
        self.syncer = run.start_syncer()
        self.trainers = [run.join(name) for name in "abc"[:learners]]
        run.until(lambda: self.syncer.machine.rounds >= 4, "rounds before the attack")
        self.enemies: list[Enemy] = []
        self.honest_only = True

    def enemy(self, identity: MemberKey | bytes = EVE) -> Enemy:
        self.enemies.append(Enemy(self.zctx, self.port, identity))
        return self.enemies[-1]

    def until_malformed(self, key: MemberKey, count: int) -> None:
        """Wait until so many frames of this peer were refused, and counted."""
        self.run.until(
            lambda: sum(self.syncer.roads.of(key).malformed.values()) >= count, f"{count} malformed frames of {key}"
        )

    def goes_on(self) -> None:
        """Merged tokens grow."""
        before = sum(merged_tokens(self.syncer).values())
        rounds = self.syncer.machine.rounds
        self.run.until(lambda: self.syncer.machine.rounds > rounds + 4, "rounds that go on")
        assert sum(merged_tokens(self.syncer).values()) > before

    def end(self) -> None:
        """The run goes on; then everybody leaves, nothing of the enemies is merged, and the ledger balances."""
        self.goes_on()
        for enemy in self.enemies:
            enemy.close()
        for trainer in self.trainers:
            trainer.stop()
        self.run.stop_syncer()
        honest = {node_of(trainer).key for trainer in self.trainers}
        for state in self.syncer.body.states.values():
            assert not self.honest_only or state.map_.keys() <= honest
        assert_balanced(self.run.config.run.path, self.syncer)
        assert all(trainer.error is None for trainer in self.trainers)
