"""How a process is let in where it dials: by its keys; and why not, as the library tells of each handshake on the
control road.

Rule: what cannot get better by itself is said once, and ends the attempts: a key that is not allowed, or another kind
of handshake, at once, for the library does not dial again either. A handshake that fails again and again before one has
ever succeeded may also be a tunnel whose other end is not there yet, so then whoever listens is asked what it is. One
that is cut off by an outage, or by a syncer that returns, is no verdict; but the
syncer that returns may have another key, so its public one is then read anew.
"""

import secrets
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import zmq
from zmq.utils.monitor import parse_monitor_message

from zdiloco.errors import ConfigError
from zdiloco.node.keys import Keys, keys_of, load_public
from zdiloco.node.params import NetParams

IN_A_ROW = 5
"""Failures before the first success, 250 to 500 ms apart, after which it is asked who listens there."""
GREETING = b"\xff" + bytes(8) + b"\x7f\x03"
"""What a ZeroMQ peer says first (ZMTP 3): signature and version. The other one then tells its mechanism, 20 bytes; told
ours, it would hang up where they differ."""
MECHANISM, GREETING_BYTES, ASK_S = slice(12, 32), 64, 1.0
EVENTS = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)


class Entrance:
    """That of one process to whom it dials. `keys`: what encrypts its sockets; None: nothing. `follows`: it is noted
    whether it is let in, and whoever made this calls `forget` before its control socket is closed. `token`: is part of
    the routing identity of its sockets, so that nobody else can name them."""

    def __init__(self, net: NetParams, keys: Keys | None, *, follows: bool = False) -> None:
        self.net, self.keys, self._follows = net, keys, follows
        self.token = secrets.token_hex(8)
        self._watched: Any = None
        self._told: Any = None
        self._succeeded, self._failed = False, 0
        self._refused = self._other_kind = False

    def options(self) -> dict[int, int | bytes]:
        """What each of its sockets is to be set to before it is connected."""
        if self.keys is None:
            return {}
        return {
            zmq.CURVE_PUBLICKEY: self.keys.own.public, zmq.CURVE_SECRETKEY: self.keys.own.secret,
            zmq.CURVE_SERVERKEY: self.keys.server,
        }  # fmt: skip

    def look_at(self, made: Any, *, control: bool) -> None:
        """A socket is about to be connected: follow that of the control road, and the one before no more."""
        if not (control and self._follows):
            return
        self.forget()
        self._watched, self._told = made, made.get_monitor_socket(EVENTS)
        self._told.setsockopt(zmq.LINGER, 0)

    def forget(self) -> None:
        """Follow nothing; before the socket is closed, for its monitor has a name that another one may get."""
        if self._told is not None:
            self._watched.disable_monitor()
            self._told.close(0)
            self._watched = self._told = None

    def renewed(self) -> bool:
        """Whether whoever is dialled has got another key, by the file of its public one: after handshakes have failed
        again and again, though one had succeeded before. Then all sockets are to be dialled anew."""
        self._hear()
        if self.keys is None or not self._succeeded or self._failed < IN_A_ROW:
            return False
        self._failed = 0
        try:
            server = load_public(Path(self.net.keys), self.net.server_key)
        except ConfigError:  # it is being replaced
            return False
        changed, self.keys = server != self.keys.server, replace(self.keys, server=server)
        return changed

    def why_refused(self) -> str:
        """Why it is in vain to go on, and what to do; empty: it is not. To be asked now and then."""
        self._hear()
        where = f"{self.net.connect}:{self.net.port}"
        if self._refused:
            return (
                f"{where} does not let this key in: it is not in its net.allowed, has expired, or was taken out; "
                "its log says which"
            )
        if not self._other_kind and (self._succeeded or self._failed < IN_A_ROW):
            return ""
        if not self._other_kind and not mechanism_of(self.net):
            self._failed = 0
            return ""
        if not self.net.keys:
            return f"{where} wants keys, and net.keys is not set (or it is no zdiloco)"
        return (
            f"{where} does not answer to the key {self.net.server_key}.key in {self.net.keys} (net.server_key): it "
            "has another one, or works without keys"
        )

    def _hear(self) -> None:
        """Take in what the library has told of handshakes."""
        while self._told is not None:
            try:
                event = parse_monitor_message(self._told.recv_multipart(zmq.NOBLOCK))["event"]
            except zmq.Again:
                return
            self._refused |= event == zmq.EVENT_HANDSHAKE_FAILED_AUTH
            self._other_kind |= event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
            self._succeeded |= event == zmq.EVENT_HANDSHAKE_SUCCEEDED
            self._failed = 0 if event == zmq.EVENT_HANDSHAKE_SUCCEEDED else self._failed + 1


def mechanism_of(net: NetParams) -> str:
    """By which kind of handshake whoever listens lets people in ("NULL", "CURVE"), as it says itself; empty: no ZeroMQ
    peer answers within ASK_S, as where a tunnel has nobody at its other end."""
    told = b""
    try:
        with socket.create_connection((net.connect, net.port), ASK_S) as peer:
            peer.settimeout(ASK_S)
            peer.sendall(GREETING)
            while len(told) < GREETING_BYTES and (more := peer.recv(GREETING_BYTES - len(told))):
                told += more
    except OSError:
        return ""
    return told[MECHANISM].rstrip(b"\0").decode("ascii", "replace") if told[:1] == b"\xff" else ""


def entrance_of(net: NetParams, name: str) -> Entrance:
    """That of the process of this name, which is followed; `name` empty: of whoever has the only secret key there is.
    Raises ConfigError where `net.keys` names keys that are not there."""
    return Entrance(net, keys_of(net, name), follows=True)
