"""A relay that merges between ends that the test plays: what it withholds, what it passes on, what it lets go."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from torch import nn

from tests.node.relay_stage import CHUNK, EPOCH, LIMIT_S, Client, MakeStage, Stage
from zdiloco.core import bundling
from zdiloco.core.machine import SYNCER
from zdiloco.core.messages import Ack, Bundle, Contribution, Decline, Heartbeat, Status, StatusQuery, Unbundled
from zdiloco.core.params import SyncParams
from zdiloco.node.params import MergeParams
from zdiloco.node.premerge import Premerge, Terms
from zdiloco.tensor.layout import Layout, layout_of
from zdiloco.units import Stamp
from zdiloco.wire.bodies import encode_map
from zdiloco.wire.outbox import Outbox
from zdiloco.wire.transfer import Credit
from zdiloco.wire.vain import MOST_VAIN

pytestmark = pytest.mark.net
BUDGET = 2**16


class Learner:
    """A client that contributes, and answers the credits that it is given."""

    def __init__(self, stage: Stage, name: str, layout: Layout) -> None:
        self.stage, self.layout, self.box = stage, layout, Outbox()
        self.client: Client = stage.client(name)
        self.answered = 0

    def contribute(self, fragment: int, seq: int) -> Contribution:
        payload = torch.full((self.layout.numels[fragment],), 0.5, dtype=torch.bfloat16).view(torch.uint8)
        body = self.box.add(f"c/{fragment}/{seq}", bytes(payload.numpy()), CHUNK)
        message = Contribution(
            fragment=fragment, seq=seq, after=0, stamp=Stamp(EPOCH, 3), steps=10, tokens=100, cut_step=20, version=4,
            codec="bf16", body=body,
        )  # fmt: skip
        self.client.say(message)
        return message

    def answer(self) -> None:
        """Send what was granted since the last time."""
        credits = [message for _, message in self.client.heard_of(Credit)]
        for credit in credits[self.answered :]:
            chunks = self.box.on_credit(SYNCER, credit)
            assert isinstance(chunks, list)
            self.client.roads.send_chunks(SYNCER, chunks)
        self.answered = len(credits)


class Alone:
    """A relay with a layout, its learners, and the syncer's end."""

    def __init__(self, stage: Stage, layout: Layout, names: str) -> None:
        self.stage, self.layout = stage, layout
        self.learners = [Learner(stage, name, layout) for name in names]
        stage.listening(*(learner.client for learner in self.learners))
        self.learners[0].contribute(0, 1)
        stage.until(lambda: stage.upstream.heard_of(StatusQuery), "the question for the layout")
        asker, question = stage.upstream.heard_of(StatusQuery)[0]
        assert question.layout
        body = stage.upstream.box.add("s/1", encode_map(layout.to_obj()), CHUNK)
        stage.upstream.roads.send(asker, Status(body=body))
        stage.until(lambda: self.premerge.layout.fragment(0, 0.0) is not None, "the layout")

    @property
    def premerge(self) -> Premerge:
        assert self.stage.relay.premerge is not None
        return self.stage.relay.premerge

    def until(self, condition: Callable[[], object], what: str) -> None:
        def answered() -> object:
            for learner in self.learners:
                learner.answer()
            return condition()

        self.stage.until(answered, what)

    def ask(self, learner: Learner, message: Contribution) -> None:
        """The syncer gives credit for a contribution."""
        credit = Credit(transfer=message.body.transfer, upto=message.body.nbytes, received=0)
        self.stage.upstream.roads.send(learner.client.key, credit)

    @contextmanager
    def held_up(self) -> Iterator[threading.Event]:
        """The worker does nothing within it. The event is set when its answers to all of that are heard."""
        goes_on, heard = threading.Event(), threading.Event()
        worker, wake = self.premerge._worker, self.stage.relay.wake

        def hold_up() -> None:
            goes_on.wait(LIMIT_S)

        worker.submit(hold_up)
        try:
            yield heard
        finally:
            worker.submit(lambda: wake.post(heard.set))
            goes_on.set()

    def came(self, learner: Learner, message: Contribution) -> bool:
        """Whether all of it has come to the syncer under its learner's name."""
        chunks = self.stage.upstream.chunks
        found = {c.index for _, key, c in chunks if key == learner.client.key and c.transfer == message.body.transfer}
        return len(found) == -(-message.body.nbytes // CHUNK)


@pytest.fixture
def alone_of(stage_of: MakeStage) -> Callable[..., Alone]:
    """alone_of(names, layout) -> the scene, with a learner of each letter; of two fragments one has no room."""

    def make(names: str, layout: Layout | None = None) -> Alone:
        torch.manual_seed(0)
        if layout is None:
            layout = layout_of(nn.Sequential(nn.Linear(32, 64), nn.Linear(64, 1024)), num_fragments=2)
            assert sorted(2 * numel <= BUDGET // 4 for numel in layout.numels) == [False, True]
        terms = Terms(MergeParams(), SyncParams())
        return Alone(stage_of(premerge=True, budget_bytes=BUDGET, terms=terms), layout, names)

    return make


def small(layout: Layout) -> int:
    return min(range(2), key=lambda index: layout.numels[index])


def test_three_are_offered_as_one_and_when_refused_each_comes_by_itself(alone_of: Callable[..., Alone]) -> None:
    scene = alone_of("abc")
    upstream, fragment = scene.stage.upstream, small(scene.layout)
    said = [(learner, learner.contribute(fragment, 2)) for learner in scene.learners]
    scene.until(lambda: len(upstream.heard_of(Contribution)) == 4, "every word, unchanged")
    for learner, message in said:
        scene.ask(learner, message)
    scene.until(lambda: upstream.heard_of(Bundle), "a bundle")
    key, bundle = upstream.heard_of(Bundle)[0]
    assert [(one.name, one.seq, one.tokens, one.weight) for one in bundle.members] == [
        (name, 2, 100, 1000.0) for name in "abc"
    ]
    assert not any(scene.came(*one) for one in said)
    upstream.roads.send(key, Unbundled(fragment=fragment, number=bundle.number, reason="norm", text="too large"))
    scene.until(lambda: all(scene.came(*one) for one in said), "their own bodies")
    kept = scene.premerge.kept_bytes
    for learner, _ in said:
        upstream.roads.send(learner.client.key, Ack(fragment=fragment, held=2, merged=0))
    scene.until(lambda: scene.premerge.kept_bytes == 0, "nothing that is kept")
    assert kept == sum(message.body.nbytes for _, message in said), "until then all of it was"


def test_what_has_no_room_is_passed_on_as_if_nobody_merged(alone_of: Callable[..., Alone]) -> None:
    scene = alone_of("a")
    (learner,) = scene.learners
    message = learner.contribute(1 - small(scene.layout), 2)
    assert message.body.nbytes > BUDGET
    scene.until(lambda: len(scene.stage.upstream.heard_of(Contribution)) == 2, "the word")
    scene.ask(learner, message)
    scene.until(lambda: scene.came(learner, message), "its bytes")
    own = [credit for _, credit in learner.client.heard_of(Credit) if credit.transfer == message.body.transfer]
    assert own[0] == Credit(transfer=message.body.transfer, upto=message.body.nbytes, received=0)
    assert scene.premerge.kept_bytes == 0


def test_a_learner_that_calls_two_bodies_alike_harms_nobody(alone_of: Callable[..., Alone]) -> None:
    equal = layout_of(nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32)), num_fragments=2)
    scene = alone_of("ab", equal)
    upstream, (learner, other) = scene.stage.upstream, scene.learners
    first = learner.contribute(0, 2)
    twin = replace(first, fragment=1)
    learner.client.say(twin)
    scene.until(lambda: len(upstream.heard_of(Contribution)) == 3, "every word, unchanged")
    for message in (first, twin):
        upstream.roads.send(learner.client.key, Ack(fragment=message.fragment, held=2, merged=0))
    said = other.contribute(0, 1)
    scene.until(lambda: len(upstream.heard_of(Contribution)) == 4, "the word of the other one")
    scene.ask(other, said)
    scene.until(lambda: scene.came(other, said), "the relay goes on")


def test_a_road_on_which_no_bundle_gets_through_is_dialled_anew(alone_of: Callable[..., Alone]) -> None:
    scene = alone_of("abc")
    upstream, fragment = scene.stage.upstream, small(scene.layout)
    for learner in scene.learners:
        scene.ask(learner, learner.contribute(fragment, 2))
    scene.until(lambda: upstream.heard_of(Bundle), "a bundle")
    key, bundle = upstream.heard_of(Bundle)[0]
    again = Credit(transfer=bundle.body.transfer, upto=bundle.body.nbytes, received=0, missing=((0, 1),))
    for _ in range(MOST_VAIN + 1):
        upstream.roads.send(key, again)
    scene.until(lambda: scene.stage.relay.far.dialled_anew, "another road")


def test_what_one_syncer_takes_none_of_the_next_one_may_take(alone_of: Callable[..., Alone]) -> None:
    scene = alone_of("a")
    upstream = scene.stage.upstream
    asker, _ = upstream.heard_of(StatusQuery)[0]
    upstream.roads.send(asker, Unbundled(fragment=0, number=1, reason="off", text="this run takes none"))
    scene.until(lambda: scene.premerge.off, "the word that none are taken")
    upstream.roads.cast(Heartbeat(epoch=EPOCH._replace(counter=EPOCH.counter + 1)))
    scene.until(lambda: not scene.premerge.off, "another epoch")


def test_one_alone_comes_by_itself_from_the_relay(alone_of: Callable[..., Alone]) -> None:
    scene = alone_of("a")
    (learner,) = scene.learners
    message = learner.contribute(small(scene.layout), 2)
    scene.until(lambda: len(scene.stage.upstream.heard_of(Contribution)) == 2, "the word")
    scene.ask(learner, message)
    scene.until(lambda: scene.came(learner, message), "its bytes")
    assert scene.stage.upstream.heard_of(Bundle) == []
    assert scene.premerge.kept_bytes == message.body.nbytes, "the syncer has not said what became of it"


@pytest.mark.parametrize("nothing", [{"steps": 0}, {"tokens": 0}], ids=["no steps", "no tokens"])
def test_what_nobody_can_have_trained_is_not_merged_under_the_name_of_what_is_awaited(
    alone_of: Callable[..., Alone], nothing: dict[str, int]
) -> None:
    scene = alone_of("abc")
    upstream, fragment = scene.stage.upstream, small(scene.layout)
    said = [(learner, learner.contribute(fragment, 2)) for learner in scene.learners]
    liar, message = said[0]
    liar.client.say(replace(message, seq=3, **nothing))
    scene.stage.until(lambda: len(upstream.heard_of(Contribution)) == 5, "every word, before any bytes")
    for one in said:
        scene.ask(*one)
    liar.client.say(Decline(fragment=fragment, version=4, reason="it has done enough", eta_s=0.0))
    scene.until(lambda: all(scene.came(*one) for one in said), "the bytes of all, each by itself")
    assert upstream.heard_of(Bundle) == []


def test_a_look_at_bytes_that_are_gone_says_nothing_of_the_same_words_said_again(
    alone_of: Callable[..., Alone],
) -> None:
    scene = alone_of("a")
    (learner,), upstream = scene.learners, scene.stage.upstream
    place = (learner.client.key, small(scene.layout))

    def stage() -> bundling.Stage | None:
        entry = scene.premerge.bundling.entries.get(place)
        return entry.stage if entry else None

    def received() -> int:
        return max((credit.received for _, credit in learner.client.heard_of(Credit)), default=0)

    with scene.held_up() as heard:
        message = learner.contribute(place[1], 2)
        scene.until(lambda: received() == message.body.nbytes, "the word that its bytes are here")
        for word in (replace(message, seq=1), message):
            learner.client.say(word)
        scene.stage.until(lambda: len(upstream.heard_of(Contribution)) == 4, "every word, but no bytes")
    assert heard.wait(LIMIT_S)
    assert stage() is bundling.Stage.COMING
    learner.box.forget_peer(SYNCER)  # what it has sent was let go
    scene.until(lambda: stage() is bundling.Stage.READY, "its bytes once more")
    scene.ask(learner, message)
    scene.until(lambda: scene.came(learner, message), "its bytes from the relay")


def test_for_what_a_bundle_is_refused_is_in_the_log_once(
    alone_of: Callable[..., Alone], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "zdiloco.node.relay")
    scene = alone_of("a")
    asker, _ = scene.stage.upstream.heard_of(StatusQuery)[0]
    for number, reason in enumerate(("weight", "weight", "norm", "weight", "no word of ours"), 1):
        refusal = Unbundled(fragment=0, number=number, reason=reason, text="a weighs 1 here, and 2 in the bundle")
        scene.stage.upstream.roads.send(asker, refusal)

    def said() -> list[logging.LogRecord]:
        return [record for record in caplog.records if "is refused" in record.getMessage()]

    scene.until(lambda: len(said()) == 5, "all of them")
    assert [record.levelname for record in said()] == ["INFO", "DEBUG", "INFO", "DEBUG", "DEBUG"]
    assert "a weighs 1 here" in said()[0].getMessage()
