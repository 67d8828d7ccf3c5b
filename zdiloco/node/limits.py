"""How much one peer may send, and all of them together; and who has broken the rules so often that it is not read.

Rule: arithmetic with `now` (monotonic seconds) as an argument. What is judged is an account: the owner of a key, or a
routing identity where there are no keys. What is over a limit is dropped before it is parsed. Whoever is sent a chunk
may answer it, and whoever is asked for bytes may send them, beside what everybody may: so one that keeps the protocol
meets no limit, however fast its link is. What is sent in answer to a word pays for nothing: else a flood of questions
would pay for itself.
"""

import logging
from collections import Counter, OrderedDict
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from zdiloco.node.params import NetParams

log = logging.getLogger(__name__)

BURST_S = 5.0
"""What may come at once: as much as in so long."""
WINDOW_S = 60.0
"""So many offences as `net.most_offences` are forgiven in this time."""
OVER_S = 1.0
"""Being over a limit is one more offence so often, and weighs OVER_SHARE of those that lead to a ban."""
OVER_SHARE = 0.1
LEAST_CHUNK = 1024
"""Bytes that a frame on the bulk road counts as at least: the smallest chunk that can be announced."""
LOUD_FRAMES = 1000
"""After so many frames that were not read a banned peer is hung up on; a learner says fewer in a ban of a minute."""
MOST_ACCOUNTS = 4096
MOST_WINDOWS = 64
"""Windows that may be under way at once, four times over: what was asked for must be taken however it comes."""
MOST_SHOWN = 100
"""Accounts whose dropped messages a status names."""


class Dropped(StrEnum):
    """Why something was dropped unread."""

    WORDS = "words"
    """More control messages than `net.peer_messages_per_s`, or than `net.messages_per_s` of all."""
    BYTES = "bytes"
    """More bytes that nobody asked for than `net.peer_unasked_bytes_per_s`, or `net.unasked_bytes_per_s` of all."""
    BANNED = "banned"
    """Whoever sent it is banned."""


class Bucket:
    """What is left of a rate: full at first, and again after `most / per_s` seconds."""

    __slots__ = ("_at", "_per_s", "level", "most")

    def __init__(self, per_s: float, most: float, now: float) -> None:
        self._per_s, self.most, self.level, self._at = per_s, most, most, now

    def fill(self, now: float) -> None:
        """Time has passed."""
        self.level = min(self.most, self.level + max(0.0, now - self._at) * self._per_s)
        self._at = max(self._at, now)

    def pay(self, amount: float) -> None:
        """So much more may come."""
        self.level = min(self.most, self.level + amount)


@dataclass(slots=True, eq=False)
class Account:
    """What one peer has left of everything, and how much of what it sent was dropped."""

    words: Bucket
    chunks: Bucket
    faults: Bucket
    dropped: Counter[str]
    over_at: float = float("-inf")
    told: bool = False


@dataclass(slots=True)
class Ban:
    """Until when nothing of an account is read, and why; `times`: bans in a row, each twice as long."""

    until: float
    why: str
    times: int
    over: bool = False
    told: bool = False
    frames: int = 0


class Limits:
    """The accounts of one process; of very many, those that were heard last. `dropped`: of all of them, by reason."""

    def __init__(self, net: NetParams, now: float) -> None:
        self._net = net
        self._accounts: OrderedDict[str, Account] = OrderedDict()
        self._bans: dict[str, Ban] = {}
        self._release_at = float("inf")
        self.dropped: Counter[str] = Counter()
        self._words = _words(net.messages_per_s, now)
        self._chunks = _chunks(net.unasked_bytes_per_s, MOST_WINDOWS * net.window_bytes, now)

    # ---- what comes

    def is_banned(self, who: str) -> bool:
        """Whether nothing of this account is read; what it has just sent is counted."""
        ban = self._bans.get(who)
        if ban is None or ban.over:
            return False
        self.dropped[Dropped.BANNED] += 1
        ban.frames += 1
        return True

    def is_loud(self, who: str) -> bool:
        """Whether a banned account has sent so much again that its connection is to be hung up: not one that only
        trains on and waits."""
        ban = self._bans.get(who)
        if ban is None or ban.frames < LOUD_FRAMES:
            return False
        ban.frames = 0
        return True

    def takes_word(self, who: str, now: float) -> bool:
        """Whether a control message of this account may be read; else it is to be dropped, and is counted."""
        account = self._of(who, now)
        return self._take(account.words, self._words, 1, now) or self._drop(who, account.words, 1, Dropped.WORDS, now)

    def takes_chunk(self, who: str, nbytes: int, now: float) -> bool:
        """Whether so many bytes on the bulk road may be read; else they are to be dropped, and are counted."""
        own, size = self._of(who, now).chunks, max(LEAST_CHUNK, nbytes)
        return self._take(own, self._chunks, size, now) or self._drop(who, own, size, Dropped.BYTES, now)

    def _take(self, own: Bucket, everybody: Bucket, amount: float, now: float) -> bool:
        """Take so much of both; False: there is not enough, and nothing is taken.

        Where less than half is left for all together, the less there is, the more must be left of one's own: so it is
        those who send much that are dropped.
        """
        own.fill(now)
        everybody.fill(now)
        left = everybody.level / everybody.most
        fair = left >= 0.5 or own.level >= (1 - left) * own.most
        if own.level < amount or not fair or everybody.level < amount:
            return False
        own.level -= amount
        everybody.level -= amount
        return True

    def _drop(self, who: str, own: Bucket, amount: float, why: Dropped, now: float) -> bool:
        """Count what is dropped. Where others have left too little that is no offence; but it is spent all the same,
        so that whoever only tries again and again has nothing left either. Returns False."""
        account = self._of(who, now)
        self.dropped[why] += 1
        account.dropped[why] += 1
        if own.level >= amount:
            own.level -= amount
            return False
        if not account.told:
            account.told = True
            log.warning("over the limit who=%s of=%s", who, why)
        if now >= account.over_at + OVER_S:
            account.over_at = now
            self.offends(who, f"more {why} than it may send", now, OVER_SHARE * self._net.most_offences)
        return False

    # ---- what may come because of us

    def was_sent(self, who: str) -> None:
        """One chunk went to this account: it may say how far it is."""
        if account := self._accounts.get(who):
            account.words.pay(1)
            self._words.pay(1)

    def was_asked(self, who: str, nbytes: int) -> None:
        """This account was asked for so many bytes, the last chunk of which may be a short one."""
        if account := self._accounts.get(who):
            account.chunks.pay(nbytes + LEAST_CHUNK)
            self._chunks.pay(nbytes + LEAST_CHUNK)

    # ---- offences

    def offends(self, who: str, why: str, now: float, weight: float = 1.0) -> bool:
        """Note that this account broke a rule. Returns whether it is banned for that, from now on."""
        faults = self._of(who, now).faults
        faults.fill(now)
        faults.level -= weight
        if faults.level > 0 or self._is_out(who):
            return False
        faults.level = faults.most
        before = self._bans.get(who)
        times = before.times + 1 if before and now < before.until + self._net.most_ban_s else 1
        lasts_s = min(self._net.most_ban_s, self._net.ban_s * 2.0 ** min(times - 1, 60))
        self._make_room()
        self._bans[who] = Ban(now + lasts_s, why, times)
        self._release_at = min(self._release_at, now + lasts_s)
        log.warning("banned who=%s for_s=%.0f times=%d why=%r", who, lasts_s, times, why)
        return True

    def to_tell(self, who: str, now: float) -> str:
        """What this account is to be told, once for each ban; empty: nothing."""
        ban = self._bans.get(who)
        if ban is None or ban.over or ban.told:
            return ""
        ban.told = True
        for_s = max(0.0, ban.until - now)
        return f"banned for {for_s:.0f} s, until then nothing is read: {ban.why} (net.most_offences)"

    def _is_out(self, who: str) -> bool:
        ban = self._bans.get(who)
        return ban is not None and not ban.over

    def _make_room(self) -> None:
        if len(self._bans) >= MOST_ACCOUNTS:
            del self._bans[min(self._bans, key=lambda who: self._bans[who].until)]

    def sweep(self, now: float) -> None:
        """Release whose time is over; costs nothing until then."""
        if now < self._release_at:
            return
        for who, ban in list(self._bans.items()):
            if not ban.over and now >= ban.until:
                ban.over = True
                self._released(who, "its time is over", now)
            if now >= ban.until + self._net.most_ban_s:  # it has behaved for long: the next ban is a first one
                del self._bans[who]
        self._set_release()

    def release_all(self, now: float) -> list[str]:
        """Read everybody again, whatever they have done; returns who was banned."""
        names = [who for who in self._bans if self._is_out(who)]
        self._bans.clear()
        self._release_at = float("inf")
        for who in names:
            self._released(who, "an operator said so", now)
        return names

    def _released(self, who: str, why: str, now: float) -> None:
        if account := self._accounts.get(who):
            account.told, account.over_at = False, now
        log.warning("banned no more who=%s why=%r", who, why)

    def _set_release(self) -> None:
        due = [ban.until + (self._net.most_ban_s if ban.over else 0.0) for ban in self._bans.values()]
        self._release_at = min(due, default=float("inf"))

    # ---- what is known

    def status(self, now: float) -> dict[str, Any]:
        """What was dropped by reason, in all and by account, and who is banned: for a status."""
        out = [(who, ban) for who, ban in self._bans.items() if not ban.over]
        busy = [(who, each.dropped) for who, each in reversed(list(self._accounts.items())) if each.dropped]
        return {
            "dropped": dict(self.dropped),
            "over": [{"name": who, **counts} for who, counts in busy[:MOST_SHOWN]],
            "banned": [
                {"name": who, "why": ban.why, "until_s": max(0.0, ban.until - now), "times": ban.times}
                for who, ban in sorted(out, key=lambda entry: entry[1].until)[:MOST_SHOWN]
            ],
        }

    def _of(self, who: str, now: float) -> Account:
        found = self._accounts.get(who)
        if found is not None:
            self._accounts.move_to_end(who)
            return found
        if len(self._accounts) >= MOST_ACCOUNTS:
            self._accounts.popitem(last=False)
        net = self._net
        self._accounts[who] = made = Account(
            words=_words(net.peer_messages_per_s, now),
            chunks=_chunks(net.peer_unasked_bytes_per_s, net.window_bytes, now),
            faults=Bucket(net.most_offences / WINDOW_S, net.most_offences, now),
            dropped=Counter(),
        )
        return made


def _words(per_s: float, now: float) -> Bucket:
    return Bucket(per_s, BURST_S * per_s, now)


def _chunks(per_s: float, window_bytes: int, now: float) -> Bucket:
    """What is under way fits into it four times: a process that starts anew knows not what was asked for before."""
    return Bucket(per_s, max(BURST_S * per_s, 4.0 * window_bytes), now)
