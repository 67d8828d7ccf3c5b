"""The door of a server: who connects is asked for its key, and who is in gets no further than its rights.

Rule: ZeroMQ asks for each connection (RFC 27, over an inner socket) and is answered by the thread that owns the sockets
of the process. A connection that was let in is not in for good: every message is judged anew by what the file says now.
No server socket is made without its domain, so that without this door nobody is let in.
"""

import datetime
import logging
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import zmq
from zmq.utils import z85

from zdiloco.errors import ConfigError
from zdiloco.node.allowed import Allowed, Entry, Right, allowed_of, beside, load_allowed
from zdiloco.node.invited import accept, load_invited, state_of
from zdiloco.node.keys import Keys, is_key
from zdiloco.node.params import NetParams

log = logging.getLogger(__name__)

DOMAIN, CAST_DOMAIN = b"zdiloco", b"zdiloco.cast"
ZAP, VERSION = "inproc://zeromq.zap.01", b"1.0"
MOST_TOLD = 1000
"""Strangers whose turning away is logged, each once a day until the list changes."""
MOST_AT_ONCE = 100
"""Handshakes that are judged before messages are looked at again."""
Today = Callable[[], datetime.date]


def utc_today() -> datetime.date:
    """The day that it is, in UTC."""
    return datetime.datetime.now(datetime.UTC).date()


class Guard:
    """The door of all server sockets of one context; made before any of them. `invited`: folder of those who were;
    None: nobody can be. `strangers`: whom it turned away, why."""

    def __init__(
        self, context: "zmq.Context[Any]", keys: Keys, place: Path, today: Today = utc_today,
        invited: Path | None = None,
    ) -> None:  # fmt: skip
        """Raises ConfigError where the file at `place` is not right."""
        self.keys, self._place, self._today, self._invited = keys, place, today, invited
        self._state, self._gone, self._expected = 0, set[str](), ""
        self._listed: dict[str, Entry] = {}
        self.allowed = self._load()
        self._unlisted = invited is not None and not place.exists()
        self.strangers: Counter[str] = Counter()
        self._told: set[tuple[str, str]] = set()
        self._day = self._told_on = today()
        self.socket = context.socket(zmq.REP)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.bind(ZAP)

    def _load(self, *, unlisted: bool = True, nobody: bool = False) -> Allowed:
        if self._invited is None:
            return load_allowed(self._place)
        self._state = state_of(self._invited)
        invited = load_invited(self._invited)
        found = load_allowed(self._place, invited, unlisted=unlisted, nobody=nobody)
        self._listed = {name: entry for name, entry in found.entries.items() if invited.get(name) != entry}
        return found

    def _look_for_invited(self) -> bool:
        """Read anew who was invited, and nothing else: a list that is being written would put everybody out. Returns
        whether that could be read."""
        assert self._invited is not None
        before, self._state = self.allowed, state_of(self._invited)
        try:
            found = beside(self._listed, load_invited(self._invited), self._place)
        except ConfigError as error:
            log.error("who was invited stays as it is why=%r", str(error))
            return False
        self._gone |= {name for name, entry in before.entries.items() if found.entries.get(name) != entry}
        self.allowed = found
        return True

    def reload(self) -> set[str]:
        """Read the files anew; returns the names whose key is no longer good. A wrong file changes nothing, and is
        logged."""
        try:
            found = self._load(unlisted=self._unlisted, nobody=self._unlisted and not self._place.exists())
        except ConfigError as error:
            log.error("who may connect stays as it is why=%r", str(error))
            return set()
        entries = self.allowed.entries.items()
        gone = {name for name, entry in entries for key in entry.keys if found.name_of(key) != name}
        gone |= found.over(self._today()) - self.allowed.over(self._day)  # a last day that is over now
        self.allowed = found
        self._told.clear()
        log.info("who may connect is read anew entries=%d gone=%s", len(found.entries), ",".join(sorted(gone)) or "-")
        return gone

    def expired(self) -> set[str]:
        """The names whose key was good when this was asked last, and is no longer. Costs nothing within a day."""
        before, self._day = self._day, self._today()
        gone, self._gone = self._gone, set()
        return gone if before == self._day else gone | (self.allowed.over(self._day) - self.allowed.over(before))

    def join(self, name: str, key: str) -> str:
        """Who was invited under this name, and has said so by the key of its invitation, is known by `key` from now on.

        Returns why not; empty: it is, durably, and the invitation is used up. Said again by `key` itself it changes
        nothing.
        """
        entry = self.allowed.entries[name]
        if key in entry.keys:
            return ""
        if self._invited and self._state != state_of(self._invited):
            if not self._look_for_invited():
                return "the syncer cannot look up its invitations now"
            if self.allowed.entries.get(name) != entry:
                return f"this invitation of {name} is void: there is another one, or it was withdrawn"
        if self._invited is None or Right.JOIN not in entry.rights:
            return f"{name} has joined already"
        if not is_key(key) or self.allowed.name_of(key):
            return "its new key is none, or somebody else's"
        try:
            entries = {**self.allowed.entries, name: accept(self._invited, name, key)}
        except OSError as error:
            log.error("%s cannot join, its key cannot be kept why=%r", name, str(error))
            return "the syncer cannot keep its key now"
        self.allowed = allowed_of(entries)
        self._told.clear()
        log.info("%s has joined by its invitation", name)
        return ""

    def serve(self) -> None:
        """Answer for those who knock; called on the thread that owns the sockets, whenever its socket is readable."""
        for _ in range(MOST_AT_ONCE):
            try:
                request = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self.socket.send_multipart(self._answer(request))

    def _answer(self, request: list[bytes]) -> list[bytes]:
        version, number, domain, address, _, mechanism, *credentials = request
        why, key = "it brings no key", ""
        if mechanism == b"CURVE" and len(credentials) == 1:
            key = z85.encode(credentials[0]).decode()
            why = self.allowed.why_not(key, self._today())
            if why and self._invited and self._state != state_of(self._invited):  # it may be invited since
                self._look_for_invited()
                why = self.allowed.why_not(key, self._today())
        if not why and domain == CAST_DOMAIN and self.allowed.only_joins(key):
            why = f"{self.allowed.name_of(key)} was invited and has not joined yet: nothing is published to it"
        if why and not (key and key == self._expected):
            self._turned_away(address.decode("ascii", "replace"), why)
        code, text = (b"400", b"not allowed") if why else (b"200", b"OK")
        return [version, number, code, text, b"" if why else key.encode(), b""]

    def owner_of(self, frame: Any) -> str:
        """Whose key this frame came by; empty: a stranger's."""
        try:
            return self.allowed.name_of(frame.get("User-Id"))
        except zmq.ZMQError:
            return ""

    def why_silent(self, frame: Any, name: str, message: object) -> str:
        """Why whoever sent this frame may not say this under that learner's name; empty: it may."""
        try:
            key = frame.get("User-Id")
        except zmq.ZMQError:
            key = ""
        today = self._today()
        if self.allowed.may_say(key, name, message, today):
            return ""
        who = self.allowed.name_of(key)
        why = self.allowed.why_not(key, today) or f"the key of {who} may not say {type(message).__name__} as {name}"
        self._turned_away(who or "a stranger", why)
        return why

    def expects(self, key: str) -> None:
        """Make nothing of it that this key is turned away: it is tried by the process itself."""
        self._expected = key

    def _turned_away(self, who: str, why: str) -> None:
        self.strangers["key"] += 1
        if self._told_on != (today := self._today()):
            self._told_on = today
            self._told.clear()
        if (who, why) not in self._told and len(self._told) < MOST_TOLD:
            self._told.add((who, why))
            log.warning("turned away who=%s why=%r", who, why)

    def close(self) -> None:
        """Let nobody in any more; before the context ends."""
        self.socket.close(0)

    def options(self, *, cast: bool = False) -> dict[int, int | bytes]:
        """What makes a socket a server behind this door; `cast`: one that publishes."""
        return {
            zmq.CURVE_SERVER: 1, zmq.CURVE_SECRETKEY: self.keys.own.secret,
            zmq.ZAP_DOMAIN: CAST_DOMAIN if cast else DOMAIN, zmq.ZAP_ENFORCE_DOMAIN: 1,
        }  # fmt: skip


def guard_of(
    context: "zmq.Context[Any]", net: NetParams, keys: Keys | None, invited: Path | None = None
) -> Guard | None:
    """The door that `net` wants; None: there are no keys. `invited`: see there. Raises ConfigError."""
    return Guard(context, keys, Path(net.keys) / net.allowed, invited=invited) if keys else None
