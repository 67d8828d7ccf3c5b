"""A deliberately dumb second version of the progress protocol of one fragment, to check the machines against.

Work is a set of ids (a whole number with a bit per id). It knows nothing of rounds, time, budgets or transfers: it is
told what reached whom, and says what must have come of it. Written for being obviously right, not for being fast.
"""

from dataclasses import dataclass, field

from zdiloco.sim.work import joined, without

Key = tuple[str, int]


@dataclass(frozen=True)
class Published:
    """A state as a model syncer publishes it: stamp, all ids in it, and per process the newest merged seq."""

    stamp: tuple
    merged: int
    last: dict[Key, int]


@dataclass
class ModelSyncer:
    """Takes a contribution only if it starts where that process's merged work ends."""

    epoch: tuple
    version: int
    merged: int = 0
    last: dict[Key, int] = field(default_factory=dict)
    held: dict[Key, tuple[int, int]] = field(default_factory=dict)

    def offer(self, key: Key, epoch: tuple, seq: int, after: int, ids: int) -> str:
        """Returns what becomes of it: 'held', 'same' (held already), 'merged' (it is in), or why it is refused."""
        if epoch == self.epoch and seq == self.last.get(key, 0):
            return "merged"
        if epoch != self.epoch:
            return "epoch"
        if after != self.last.get(key, 0):
            return "after"
        held = self.held.get(key, (0, 0))[0]
        if seq <= after or seq < held:
            return "seq"
        if seq == held:
            return "same"
        self.held[key] = (seq, ids)
        return "held"

    def close(self) -> Published:
        """Everything held is merged: a new version."""
        for key, (seq, ids) in self.held.items():
            self.merged = joined(self.merged, ids, "model: merged twice")
            self.last[key] = seq
        self.held.clear()
        self.version += 1
        return self.published()

    def published(self) -> Published:
        return Published((self.epoch, self.version), self.merged, dict(self.last))


@dataclass
class ModelLearner:
    """Keeps what it sent until its fate is known, and what was merged until that is stable."""

    key: Key
    seen: Published
    seq: int = 0
    after: int = 0
    unmerged: int = 0
    sent: dict[int, int] = field(default_factory=dict)
    kept: dict[int, tuple[tuple, int]] = field(default_factory=dict)
    dropped: int = 0

    def cut(self) -> tuple[int, int, int]:
        """A contribution of all unmerged work: (seq, after, ids)."""
        self.seq += 1
        self.sent[self.seq] = self.unmerged
        return self.seq, self.after, self.unmerged

    def adopt(self, state: Published) -> str:
        """Follow a newer state. Returns what it meant for the own work."""
        if state.stamp <= self.seen.stamp:
            return "old"
        mine, fate = state.last.get(self.key, 0), "carried"
        if mine > self.after and mine not in self.sent:
            fate = "given_up"
            self.dropped |= self.unmerged & ~state.merged
            self.unmerged = 0
        elif mine > self.after:
            fate = "merged"
            self.unmerged = without(self.unmerged, self.sent[mine], "model: subtracts what is not there")
            self.kept[mine] = (state.stamp, self.sent[mine])
        elif mine < self.after:
            fate = "rolled_back"
            for seq in [seq for seq in self.kept if seq > mine]:
                self.unmerged = joined(self.unmerged, self.kept.pop(seq)[1], "model: takes back what it holds")
        if mine != self.after or state.stamp[0] != self.seen.stamp[0]:
            self.after, self.sent = mine, {}
        self.seen = state
        return fate

    def drop(self) -> None:
        """Give up what is unmerged; what is under way must never be subtracted."""
        self.dropped |= self.unmerged
        self.unmerged = 0
        self.sent = dict.fromkeys(self.sent, 0)

    def stable(self, epoch: tuple, version: int) -> None:
        """That state is durable."""
        if epoch == self.seen.stamp[0]:
            fresh = {}
            for seq, (at, ids) in self.kept.items():
                if at > (epoch, version) and at[0] == epoch:
                    fresh[seq] = (at, ids)
            self.kept = fresh
