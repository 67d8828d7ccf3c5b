"""What is under way follows the link, and chunks fit it: at any rate and distance, with control beside the bulk."""

import heapq
import itertools
import random
import statistics
from collections import deque
from collections.abc import Callable

import pytest

from zdiloco.wire.flow import InboxParams
from zdiloco.wire.frames import CHUNK_BYTES
from zdiloco.wire.inbox import Inbox
from zdiloco.wire.meter import LinkMeter
from zdiloco.wire.outbox import ChunkOut, Outbox
from zdiloco.wire.pace import FIRST_CHUNK, LEAST_CHUNK, Pace, chunk_for
from zdiloco.wire.transfer import Credit

PARAMS = InboxParams(budget_bytes=2**32)
GIVE_UP_S = PARAMS.give_up_s
SEGMENT = 1448


class Bottleneck:
    """One sender and one receiver, and a link on which whatever goes up shares one queue, first come first served.

    `pings`: seconds that each small word needs there and back, sent every 0.1 s beside the bulk, on another connection.
    """

    def __init__(self, bytes_s: float, delay_s: float) -> None:
        self.bytes_s, self.delay_s = bytes_s, delay_s
        self.inbox, self.outbox, self.meter = Inbox(PARAMS), Outbox(), LinkMeter()
        self.now = self.free_at = self.busy_s = 0.0
        self.pings: list[float] = []
        self._events: list[tuple[float, int, object]] = []
        self._ticket = itertools.count()

    def push(self, sizes: list[int], *, gentle: bool = False) -> float:
        """Send bodies one after the other, each cut as the link is known by then; return the seconds that it took."""
        began, self.busy_s = self.now, 0.0
        for number, size in enumerate(sizes):
            name = f"{began}/{number}"
            chunk = chunk_for(self.meter.bytes_s, CHUNK_BYTES)
            assert chunk / self.bytes_s < max(GIVE_UP_S / 3, 0.05)
            self.meter.offered(name, size, self.now)
            self.inbox.expect("peer", self.outbox.add(name, bytes(size), chunk), self.now, gentle=gentle)
            self._run(name)
            self.outbox.drop(name)
        return self.now - began

    def _post(self, at: float, what: object) -> None:
        heapq.heappush(self._events, (at, next(self._ticket), what))

    def _run(self, name: str) -> None:
        self._say()
        self._post(self.now, "ping")
        while not (self.inbox.knows("peer", name) and self._done(name)):
            self.now, _, what = heapq.heappop(self._events)
            if isinstance(what, Credit):
                self._credit(what)
            elif isinstance(what, ChunkOut):
                self.inbox.on_chunk("peer", what.header, what.view, self.now)
            elif what == "ping":
                self.pings.append(max(self.free_at, self.now) - self.now + 2 * self.delay_s)
                self._post(self.now + 0.1, "ping")
            self._say()
        self._events = [event for event in self._events if event[2] != "ping"]
        heapq.heapify(self._events)
        self.inbox.release("peer", name)

    def _done(self, name: str) -> bool:
        body = self.outbox.body(name)
        assert body is not None
        if not any(entry == name for entry in self._under_way()):
            last = Credit(transfer=name, upto=body.nbytes, received=body.nbytes)
            self.meter.credited(last, self.now + self.delay_s)
            return True
        return False

    def _under_way(self) -> list[str]:
        return [name for (_, name), entry in self.inbox._entries.items() if not entry.done]

    def _credit(self, credit: Credit) -> None:
        body = self.outbox.body(credit.transfer)
        if body is None:
            return
        self.meter.credited(credit, self.now)
        answer = self.outbox.on_credit("peer", credit)
        assert isinstance(answer, list)
        for chunk in answer:
            began = max(self.free_at, self.now)
            self.free_at = began + chunk.view.nbytes / self.bytes_s
            self.busy_s += chunk.view.nbytes / self.bytes_s
            self._post(self._here_at(chunk, began), chunk)

    def _here_at(self, chunk: ChunkOut, began: float) -> float:
        """When a chunk arrives that begins to leave at this moment."""
        return self.free_at + self.delay_s

    def _say(self) -> None:
        for _, word in self.inbox.turn(self.now).to_send:
            self._post(self.now + self.delay_s, word)
        due = self.inbox.deadline()
        if due is not None:
            self._post(max(due, self.now), "look")


class Lossy(Bottleneck):
    """Chunks go over stripes in turn. A segment that is lost comes one way there and back later, and whatever is behind
    it on its stripe waits for it, as with TCP whose window follows the rate and not the losses."""

    def __init__(self, bytes_s: float, delay_s: float, loss: float, stripes: int, seed: int) -> None:
        super().__init__(bytes_s, delay_s)
        self._loss, self._random = loss, random.Random(seed)
        self._stripes = deque([0.0] * stripes)

    def _here_at(self, chunk: ChunkOut, began: float) -> float:
        here = self._stripes.popleft()
        for nbytes in range(SEGMENT, chunk.view.nbytes + SEGMENT, SEGMENT):
            at = began + nbytes / self.bytes_s + self.delay_s
            while self._random.random() < self._loss:
                at += 2 * self.delay_s
            here = max(here, at)
        self._stripes.append(here)
        return here


def p99(values: list[float]) -> float:
    return sorted(values)[int(len(values) * 0.99)]


def test_control_never_waits_long_behind_a_push_at_50_mbit_and_80_ms(say: Callable[[str], None]) -> None:
    """The link is kept full, and p99 of the words that share its queue takes at most 250 ms, from the first on."""
    link = Bottleneck(50e6 / 8, 0.04)
    took_s = link.push([4 * 2**20] * 8)
    share = link.busy_s / took_s
    say(f"50 Mbit/s, 80 ms: control p99 {p99(link.pings) * 1e3:.0f} ms, most {max(link.pings) * 1e3:.0f} ms; "
        f"the link carried bulk {share:.0%} of the time")  # fmt: skip
    assert p99(link.pings) <= 0.25
    assert share >= 0.8


def test_behind_gentle_bodies_words_wait_less_and_the_link_is_kept_busy(say: Callable[[str], None]) -> None:
    most_s, shares = [], []
    for gentle in (False, True):
        link = Bottleneck(50e6 / 8, 0.04)
        link.push([4 * 2**20] * 4)
        link.pings.clear()
        took_s = link.push([4 * 2**20] * 4, gentle=gentle)
        most_s.append(max(link.pings))
        shares.append(link.busy_s / took_s)
    waits = [f"{most * 1e3:.0f} ms, {share:.0%} busy" for most, share in zip(most_s, shares, strict=True)]
    say(f"a word beside bulk at 50 Mbit/s and 80 ms takes at most: {waits[0]}; gentle: {waits[1]}")
    assert most_s[1] <= most_s[0] - 0.03
    assert shares[1] >= 0.8


@pytest.mark.parametrize(
    ("mbit_s", "delay_s", "mib"),
    [(0.1, 0.05, 0.25), (2, 0.04, 2), (10, 0.1, 8), (200, 0.04, 32), (1000, 0.0002, 16)],
)
def test_links_of_any_rate_are_kept_full_and_nothing_is_sent_twice(mbit_s: float, delay_s: float, mib: float) -> None:
    link = Bottleneck(mbit_s * 125e3, delay_s)
    size = int(mib * 2**20 / 8)
    link.push([size])  # the link is not known yet
    took_s = link.push([size] * 7)
    assert link.outbox.counters.resent_bytes <= FIRST_CHUNK
    assert link.inbox.counters.given_up == 0
    alone_s = 7 * (size / link.bytes_s + 2 * delay_s)  # one after the other, each with a way there and back
    assert took_s <= 1.25 * alone_s + 0.01


@pytest.mark.parametrize(("loss", "stripes", "least"), [(0.001, 1, 0.88), (0.01, 4, 0.7)])
def test_losses_do_not_make_the_window_small(
    say: Callable[[str], None], loss: float, stripes: int, least: float
) -> None:
    """200 Mbit/s and 80 ms, bodies of 32 MB: what the link carries once it is known, the mean of eight seeds."""
    shares = []
    for seed in range(8):
        link = Lossy(200e6 / 8, 0.04, loss, stripes, seed)
        link.push([2**25])
        shares.append(2**25 / link.bytes_s / link.push([2**25]))
    mean = statistics.mean(shares)
    say(f"200 Mbit/s, 80 ms, loss {loss:.1%}, {stripes} stripe(s): {mean:.0%}, {min(shares):.0%} at least")
    assert mean >= least


def test_nothing_of_a_body_is_remembered_when_it_is_over() -> None:
    """Also where its last chunk came before it was granted."""
    inbox, box = Inbox(PARAMS), Outbox()
    inbox.expect("peer", box.add("a", bytes(2**20), 2**16), 0.0)
    for chunk in reversed(box.broadcast("a")):
        inbox.on_chunk("peer", chunk.header, chunk.view, 0.1)
    assert inbox.release("peer", "a")
    assert vars(inbox._streams["peer", False].pace)["_probes"] == vars(Pace())["_probes"]


def test_what_is_disturbed_again_and_again_is_not_forgotten() -> None:
    """A link that was known does not become one of which nothing is known, on which more may be under way."""
    pace = Pace()
    pace.granted("a", 0, 1000, 0, 0.0)
    pace.came("a", 0, 1000, 1.0)
    assert pace.bytes_s == 1000.0
    for now in range(2, 20):
        pace.granted("a", now, 1000, 0, float(now))
        pace.disturbed()
    assert pace.bytes_s == 1000.0


def test_a_link_that_gets_slow_is_given_less_within_some_credits() -> None:
    link = Bottleneck(100e6 / 8, 0.04)
    link.push([2**22] * 4)
    link.bytes_s /= 50
    link.push([2**21, 2**18, 2**18, 2**18])
    link.pings.clear()
    link.push([2**18] * 8)
    assert p99(link.pings) <= 0.5


@pytest.mark.parametrize(
    ("bytes_s", "chunk"), [(1e9, 2**20), (25e6, 2**18), (6.25e6, 2**16), (1e4, LEAST_CHUNK), (0.0, FIRST_CHUNK)]
)
def test_chunks_fit_the_link_of_their_sender(bytes_s: float, chunk: int) -> None:
    assert chunk_for(bytes_s, 2**20) == chunk
    assert chunk_for(bytes_s, 1000) == 1000
