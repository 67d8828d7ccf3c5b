"""What a relay keeps of contributions: found by place and by name, answered once, and gone from both at once."""

import pytest

from tests.core.samples import ANN, BOB, contribution
from zdiloco.core.machine import SYNCER
from zdiloco.core.messages import Contribution
from zdiloco.wire.flow import InboxParams
from zdiloco.wire.inbox import Expected, Inbox
from zdiloco.wire.kept import KeptBodies
from zdiloco.wire.outbox import Outbox
from zdiloco.wire.transfer import Credit

NBYTES, CHUNK = 3000, 1024


class Scene:
    """A relay's inbox with room for two bodies, and the outbox of a learner."""

    def __init__(self) -> None:
        self.inbox = Inbox(InboxParams(budget_bytes=2 * NBYTES))
        self.kept, self.box = KeptBodies(self.inbox), Outbox()

    def offered(self, fragment: int, transfer: str = "") -> Contribution:
        transfer = transfer or f"c/{fragment}"
        body = self.box.body(transfer) or self.box.add(transfer, bytes([fragment]) * NBYTES, CHUNK)
        return contribution(fragment=fragment, body=body)

    def send(self, message: Contribution) -> None:
        credit = Credit(transfer=message.body.transfer, upto=NBYTES, received=0)
        chunks = self.box.on_credit(SYNCER, credit)
        assert isinstance(chunks, list)
        for chunk in chunks:
            self.inbox.on_chunk(ANN, chunk.header, chunk.view, 0.0)


def test_a_body_is_answered_once_for_each_credit_and_from_when_it_is_here() -> None:
    scene = Scene()
    message, place = scene.offered(1), (ANN, 1)
    assert scene.kept.let_in(ANN, message, 0.0) is Expected.WAITING
    scene.kept[place].credit = Credit(transfer="c/1", upto=NBYTES, received=0)
    assert scene.kept.answer(place) == []
    scene.send(message)
    body, data = scene.kept.arrived(place)
    assert (body.message, bytes(data)) == (message, bytes([1]) * NBYTES)
    assert b"".join(chunk.view for chunk in scene.kept.answer(place)) == data
    assert scene.kept.answer(place) == []


@pytest.mark.parametrize("whole", [False, True])
def test_a_body_that_is_dropped_is_gone_with_its_name_and_its_memory(whole: bool) -> None:
    scene = Scene()
    message, place = scene.offered(1), (ANN, 1)
    scene.kept.let_in(ANN, message, 0.0)
    assert (scene.kept.place(ANN, "c/1"), scene.kept.place(BOB, "c/1")) == (place, None)
    if whole:
        scene.send(message)
        scene.kept.arrived(place)
    scene.kept.drop(place)
    scene.kept.drop(place)
    assert (scene.kept.get(place), scene.kept.place(ANN, "c/1"), scene.inbox.reserved_bytes) == (None, None, 0)
    assert scene.kept.let_in(ANN, scene.offered(2, "c/1"), 0.0) is Expected.WAITING


def test_nothing_is_kept_of_what_has_no_room_or_another_ones_name() -> None:
    scene = Scene()
    scene.kept.let_in(ANN, scene.offered(1), 0.0)
    assert scene.kept.let_in(ANN, scene.offered(2, "c/1"), 0.0) is None
    assert scene.kept.place(ANN, "c/1") == (ANN, 1)
    scene.kept.let_in(ANN, scene.offered(3), 0.0)
    assert scene.kept.let_in(ANN, scene.offered(4), 0.0) is None
    assert [scene.kept.get((ANN, fragment)) is not None for fragment in (1, 2, 3, 4)] == [True, False, True, False]
    assert scene.inbox.reserved_bytes == 2 * NBYTES
