"""Whoever missed updates, or comes late, holds exactly the published bytes: every adoption is compared, bit for bit."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from zdiloco.core.messages import Beat
from zdiloco.node.learner import LearnerNode
from zdiloco.node.learner_body import LearnerBody
from zdiloco.node.publishing import Published
from zdiloco.node.reading import Arrival
from zdiloco.node.sockets import Road
from zdiloco.node.syncer_body import SyncerBody
from zdiloco.units import Stamp

pytestmark = pytest.mark.net
MakeRun = Callable[..., Any]


class Witness:
    """Sees every value that a syncer publishes, and every reference R that a learner has after an adoption."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.published: dict[tuple[int, Stamp], bytes] = {}
        self.adopted: dict[int, list[tuple[int, Stamp, bytes]]] = {}
        self._lock = threading.Lock()
        merge, restamp, adopt = SyncerBody.merge, SyncerBody.restamp, LearnerBody.now_adopt

        def merged(body: SyncerBody, *arguments: Any) -> Published:
            published = merge(body, *arguments)
            state = body.states[published.fragment]  # what is broadcast may be a delta that leads there
            self.published[published.fragment, published.stamp] = state.value.numpy().tobytes()
            return published

        def restamped(body: SyncerBody, *arguments: Any) -> None:
            restamp(body, *arguments)
            for index, state in body.states.items():
                self.published[index, state.stamp] = state.value.numpy().tobytes()

        def adopted(body: LearnerBody, fragment: int, stamp: Stamp) -> Any:
            unused = adopt(body, fragment, stamp)
            values = body.fragments[fragment]
            assert values.reference is not None
            held = body.later_reference(values.codec, values.reference).numpy().tobytes()
            with self._lock:
                self.adopted.setdefault(id(body), []).append((fragment, stamp, held))
            return unused

        patch.setattr(SyncerBody, "merge", merged)
        patch.setattr(SyncerBody, "restamp", restamped)
        patch.setattr(LearnerBody, "now_adopt", adopted)

    def assert_equal(self, node: LearnerNode) -> None:
        """Every adoption of this learner gave it the bytes of that very stamp."""
        seen = self.adopted[id(node._body)]
        assert {fragment for fragment, _, _ in seen} == set(range(len(node.layout.fragments)))
        for fragment, stamp, held in seen:
            assert held == self.published[fragment, stamp], (fragment, stamp)

    def gaps(self, node: LearnerNode) -> int:
        """Versions that this learner has never held between the first and the last that it adopted."""
        versions: dict[int, list[int]] = {}
        for fragment, stamp, _ in self.adopted[id(node._body)]:
            versions.setdefault(fragment, []).append(stamp.version)
        return sum(held[-1] - held[0] + 1 - len(held) for held in versions.values())


@pytest.fixture
def witness(monkeypatch: pytest.MonkeyPatch) -> Witness:
    return Witness(monkeypatch)


class Ear:
    """What a learner hears of broadcasts: everything, or, while `shut`, nothing but `still`."""

    def __init__(self, node: LearnerNode, still: tuple[type, ...]) -> None:
        self.shut = threading.Event()
        self.missed = 0
        self._receive, self._still = node._roads.receive, still
        node._roads.receive = self._hear

    def _hear(self, road: Road, most: int) -> Iterator[Arrival | None]:
        for arrival in self._receive(road, most):
            if road in (Road.CONTROL_CAST, Road.BULK_CAST) and self._misses(arrival):
                self.missed += 1
                yield None
            else:
                yield arrival

    def _misses(self, arrival: Arrival | None) -> bool:
        return self.shut.is_set() and arrival is not None and not isinstance(arrival.message, self._still)


def versions(run: Any) -> list[int]:
    return [desk.stamp.version for desk in run.syncer.machine.desk]


def wait_for_versions(run: Any, more: int) -> None:
    before = versions(run)
    run.until(lambda: all(b >= a + more for a, b in zip(before, versions(run), strict=True)), f"{more} more versions")


@pytest.mark.parametrize(
    ("still", "delta_codec"), [((), "none"), ((Beat,), "4bit")], ids=["deaf", "hears beats only, deltas"]
)
def test_a_learner_that_missed_updates_holds_the_published_bytes(
    run_of: MakeRun, witness: Witness, still: tuple[type, ...], delta_codec: str
) -> None:
    # `park_after_s`: so long is an answer waited for of one who cannot hear the call
    run = run_of(sync={"park_after_s": 0.5}, merge={"delta_codec": delta_codec})
    run.start_syncer()
    good, poor = run.join("good"), run.join("poor", pace_s=0.004)
    run.until(lambda: good.joined.is_set() and poor.joined.is_set(), "both joins")
    wait_for_versions(run, 3)
    ear = Ear(poor.node, still)
    ear.shut.set()
    wait_for_versions(run, 8)
    if still:
        run.until(lambda: poor.node.machine.counts.get("repaired", 0) > 0, "a repair by what beats tell")
    held = len(witness.adopted[id(poor.node._body)])
    ear.shut.clear()
    wait_for_versions(run, 4)
    run.until(lambda: len(witness.adopted[id(poor.node._body)]) >= held + 6, "adoptions after that")
    counts = poor.node.machine.counts
    for trainer in (good, poor):
        trainer.stop()
    assert ear.missed > 16
    assert counts.get("repaired", 0) + counts.get("gap", 0) > 0
    assert counts["pulled"] > len(versions(run))  # more than what it took to join
    assert witness.gaps(poor.node) > 0
    for trainer in (good, poor):
        witness.assert_equal(trainer.node)


def test_a_late_joiner_holds_the_published_bytes(run_of: MakeRun, witness: Witness) -> None:
    run = run_of(merge={"delta_codec": "int8"})
    run.start_syncer()
    early = run.join("early")
    run.until(early.joined.is_set, "the first join")
    wait_for_versions(run, 5)
    late = run.join("late")
    run.until(late.joined.is_set, "the late join")
    first: dict[int, Stamp] = {}
    for fragment, stamp, _ in witness.adopted[id(late.node._body)]:
        first.setdefault(fragment, stamp)
    assert len(first) == len(versions(run))
    assert min(stamp.version for stamp in first.values()) >= 5
    wait_for_versions(run, 5)
    for trainer in (early, late):
        trainer.stop()
        witness.assert_equal(trainer.node)
