"""The shelf: the newest stays, the replaced stays while it is fetched."""

from zdiloco.node.shelf import MOST_REPLACED, Shelf
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


def test_who_asks_for_everything_for_ever_does_not_make_it_grow() -> None:
    """A peer gives credit for every state there ever was, again and again: those asked for last stay, and no more."""
    dropped: list[str] = []
    outbox = Outbox()
    shelf = Shelf(outbox, dropped.append)
    for number in range(100):
        put(shelf, f"u/{number}", float(number))
        for old in range(number + 1):
            shelf.used(KEY, Credit(transfer=f"u/{old}", upto=10, received=0), number + old / 1000)
        shelf.sweep(float(number))
        assert outbox.held_bytes <= 100 * (1 + MOST_REPLACED)
    assert dropped == [f"u/{number}" for number in range(99 - MOST_REPLACED)], "its chunks that wait go, too"
    assert "u/99" in outbox
