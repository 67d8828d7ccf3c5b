"""A server with keys knocks at its own doors before it serves: by a key of the moment, which nobody can have allowed.

Rule: one door that opens ends the process. What keeps strangers out is an option of each socket and a name that must
fit (ZAP); a mistake there would let everybody in, and nothing else would show it.
"""

import time
from collections.abc import Iterable
from typing import Any

import zmq
from zmq.utils.monitor import parse_monitor_message

from zdiloco.errors import MachineError
from zdiloco.node.guard import Guard

ANSWER_S = 20.0
"""Far more than one's own machine needs for a handshake, however busy."""
VERDICTS = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
)  # a connection that is cut half-way is tried again
EVERYWHERE = {"tcp://0.0.0.0:": "tcp://127.0.0.1:", "tcp://[::]:": "tcp://[::1]:"}


def knock(guard: Guard, served: Iterable[Any]) -> None:
    """Try to get in at each of these server sockets, on the thread that owns them. Raises MachineError where one lets
    us in, or does not say no within ANSWER_S."""
    with zmq.Context() as context:  # of its own: within one context nobody is asked for a key
        pair, server = zmq.curve_keypair(), zmq.curve_public(guard.keys.own.secret)
        guard.expects(pair[0].decode())
        for each in served:
            place = each.getsockopt_string(zmq.LAST_ENDPOINT)
            for anywhere, here in EVERYWHERE.items():
                place = place.replace(anywhere, here)
            kind = zmq.DEALER if each.type == zmq.ROUTER else zmq.SUB
            verdict = _verdict(context, guard, place, kind, (*pair, server))
            if verdict != zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                what = "lets in" if verdict else f"does not say within {ANSWER_S:g} s that it turns away"
                raise MachineError(f"{place} {what} a key that nobody has allowed, so this process does not serve")
        guard.expects("")


def _verdict(context: Any, guard: Guard, place: str, kind: int, keys: tuple[bytes, bytes, bytes]) -> int | None:
    """What becomes of a handshake there by a socket of this kind; None: nothing. The guard answers meanwhile, as it
    will."""
    with context.socket(kind) as knocker:
        knocker.setsockopt(zmq.LINGER, 0)
        knocker.curve_publickey, knocker.curve_secretkey, knocker.curve_serverkey = keys
        told = knocker.get_monitor_socket(VERDICTS)
        told.setsockopt(zmq.LINGER, 0)
        try:
            knocker.connect(place)
            return _event(guard, told)
        finally:
            knocker.disable_monitor()
            told.close(0)


def _event(guard: Guard, told: Any) -> int | None:
    ends = time.monotonic() + ANSWER_S
    while time.monotonic() < ends:
        guard.serve()
        if told.poll(5):
            return int(parse_monitor_message(told.recv_multipart())["event"])
    return None
