"""The shelf: the newest stays, the replaced stays while it is fetched."""

from zdiloco.node.shelf import Shelf
from zdiloco.units import MemberKey
from zdiloco.wire.outbox import Outbox
from zdiloco.wire.transfer import Credit

KEY = MemberKey("a", 1)


def make() -> tuple[Shelf, Outbox]:
    outbox = Outbox()
    return Shelf(outbox), outbox


def put(shelf: Shelf, name: str, now: float, idle_s: float = 4.0) -> None:
    shelf.put(("update", 0), name, b"x" * 100, now, chunk_bytes=1024, idle_s=idle_s)


def test_the_newest_stays_whatever_time_passes() -> None:
    shelf, outbox = make()
    put(shelf, "u/1", 0.0)
    shelf.sweep(1e6)
    assert "u/1" in outbox
    assert shelf.body("u/1") is not None


def test_the_replaced_goes_when_idle() -> None:
    shelf, outbox = make()
    put(shelf, "u/1", 0.0)
    put(shelf, "u/2", 1.0)
    assert "u/1" in outbox
    shelf.sweep(4.1)
    assert "u/1" not in outbox
    assert "u/2" in outbox


def test_who_fetches_keeps_it_alive() -> None:
    shelf, outbox = make()
    put(shelf, "u/1", 0.0)
    put(shelf, "u/2", 1.0)
    for now in (3.0, 6.0, 9.0):
        shelf.used(KEY, Credit(transfer="u/1", upto=10, received=0), now)
        shelf.sweep(now)
        assert "u/1" in outbox
    shelf.sweep(13.1)
    assert "u/1" not in outbox


def test_a_retired_slot_goes_when_idle_and_a_name_may_come_back() -> None:
    shelf, outbox = make()
    put(shelf, "u/1", 0.0)
    shelf.retire(("update", 0))
    put(shelf, "u/1", 1.0)
    assert "u/1" in outbox
    shelf.retire(("update", 0))
    shelf.sweep(6.0)
    assert outbox.held_bytes == 0
    assert shelf.body("u/1") is None
    shelf.used(KEY, Credit(transfer="u/1", upto=10, received=0), 7.0)
    shelf.drop("u/1")
