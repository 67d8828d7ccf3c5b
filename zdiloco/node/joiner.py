"""Joins a run by an invitation: makes a pair of its own, has the syncer take its public half, and learns the settings.

Rule: the pair is on the disk before it is shown to anybody, and whatever is cut off half-way is done by saying the same
line again on the same machine: who has joined already is told the settings again, by its own key.
"""

from pathlib import Path
from typing import Any

import zmq

from zdiloco.core.machine import SYNCER
from zdiloco.core.messages import Unwelcome
from zdiloco.errors import ConfigError, LinkError
from zdiloco.node.clock import Clock, monotonic
from zdiloco.node.dialler import Dialler
from zdiloco.node.entrance import Entrance
from zdiloco.node.invitation import Invitation
from zdiloco.node.invited import SERVER
from zdiloco.node.keys import SECRET, Keys, Pair, load_pair, make_pair, save_public
from zdiloco.node.loop import Loop
from zdiloco.node.params import NetParams
from zdiloco.node.roads import Roads
from zdiloco.node.sockets import check_library, new_incarnation
from zdiloco.node.wake import Wake
from zdiloco.units import MemberKey
from zdiloco.wire.invitations import Join, Joined

ASK_AGAIN_S = 1.0
NOT_IN = "does not let this key in"
"""What an entrance says where the key is what is wrong."""


class Joiner:
    """One attempt with one key. `ask` may be called once. `why`: it does not let us in, in its own words."""

    def __init__(self, invitation: Invitation, pair: Pair, clock: Clock = monotonic) -> None:
        check_library()
        self._net = NetParams(connect=invitation.host, port=invitation.port, server_key=SERVER, keys="joining")
        self._clock = clock
        self._wake = Wake()
        self._context: zmq.Context[Any] = zmq.Context()
        self._roads = Roads({}, server=False)
        entrance = Entrance(self._net, Keys(pair, invitation.server.encode()), follows=True)
        self._dialler = Dialler(self._roads, self._context, entrance)
        self._loop = Loop(self._roads, self._wake, clock)
        self._key = MemberKey(invitation.name, new_incarnation())
        self._question = Join(key="")
        self._answer: Joined | Unwelcome | None = None
        self.why = ""
        self._asked_at = float("-inf")
        self._ends = float("inf")

    def ask(self, key: bytes, timeout_s: float) -> Joined | None:
        """Have the syncer take this public key; None: it does not let us in by the key that we dial with.

        Raises LinkError where nobody answers within `timeout_s`, ConfigError where the syncer says why not.
        """
        self._question, self._ends = Join(key=key.decode()), self._clock() + timeout_s
        try:
            self._dialler.dial_lane(self._key)
            while self._answer is None and self._clock() < self._ends:
                self._loop.step(self)
                self._roads.check_version()
                if why := self._dialler.why_refused():
                    self.why = why
                    return None
        finally:
            self.close()
        if self._answer is None:
            place = f"{self._net.connect}:{self._net.port}"
            raise LinkError(f"no syncer answers at {place} within {timeout_s:g} s: does it run, can it be reached?")
        if isinstance(self._answer, Unwelcome):
            raise ConfigError(f"the syncer does not take this machine: {self._answer.text}")
        return self._answer

    def close(self) -> None:
        """Hang up; `ask` does so at its end."""
        self._context.destroy(0)  # with every socket of it
        self._wake.close()

    # ---- what the loop brings

    def on_message(self, key: MemberKey, message: Any, now: float) -> None:
        """A control message came in."""
        said_no = isinstance(message, Unwelcome) and message.fatal
        if isinstance(message, Joined) or (said_no and self._answer is None):  # asked twice, it may be told both
            self._answer = message

    def on_chunk(self, key: MemberKey, chunk: Any, payload: memoryview, now: float) -> None:
        """Nobody sends any."""

    def on_time(self, now: float) -> None:
        """Ask, and ask again."""
        if now >= self._asked_at + ASK_AGAIN_S:
            self._asked_at = now
            self._roads.send(SYNCER, self._question)

    def deadline(self) -> float | None:
        """When to look again at the latest."""
        return min(self._ends, self._asked_at + ASK_AGAIN_S)


def join(invitation: Invitation, keys: Path, timeout_s: float) -> Joined:
    """Join, with a pair of our own in the folder `keys`, made unless it is there, and the syncer's key beside it.

    Raises ConfigError where the invitation is no good any more and has not been used by this machine; LinkError where
    nobody answers.
    """
    if not (keys / f"{invitation.name}{SECRET}").exists():
        make_pair(keys, invitation.name)
    own = load_pair(keys, invitation.name)
    save_public(keys, SERVER, invitation.server)
    for pair in (invitation.pair, own):
        joiner = Joiner(invitation, pair)
        answer = joiner.ask(own.public, timeout_s)
        if answer:
            return answer
        if NOT_IN not in joiner.why:  # it has another key by now, or none
            raise ConfigError(f"{joiner.why}; the invitation may be an old one")
    raise ConfigError(
        f"{invitation.host}:{invitation.port} does not take this invitation of {invitation.name}: it was used "
        "elsewhere, has expired or was withdrawn; ask for another one (zdiloco invite)"
    )
