"""Every ZeroMQ socket and option of the house, in one table, each with its reason.

Rule: sockets are made here, with all their options, before they are bound or connected; nobody else sets an option.
High-water marks count messages per peer, never bytes: the byte bound is the credit of the transfers, marks are only a
backstop. The identity of a learner's sockets is its name and random incarnation, so no pipe of a dead process is
mistaken for that of its successor; and a random token that nobody is told, so that nobody else can take its pipe over.
Further bulk connections of the same process, its stripes, end in `/1` to `/3`.
"""

import re
import secrets
import threading
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import NamedTuple, TypeAlias

import zmq

from zdiloco.errors import ConfigError
from zdiloco.knobs import NAME
from zdiloco.node.clock import Clock
from zdiloco.node.connections import Connections
from zdiloco.node.entrance import Entrance
from zdiloco.node.guard import Guard
from zdiloco.node.params import LOOPBACK, NetParams
from zdiloco.units import MemberKey
from zdiloco.wire.pace import CAST_CHUNK

Socket: TypeAlias = "zmq.Socket[bytes]"
Context: TypeAlias = "zmq.Context[zmq.Socket[bytes]]"

MIN_LIBZMQ = (4, 3, 5)
_FIRST_CAME, _LAST_WENT = b"\x01", b"\x00"
_IDENT = re.compile("([0-9a-f]{16})(?:[.]([0-9a-f]{16}))?(?:/([1-3]))?")
MAX_CHUNK_FRAME = 2**23 + 2**16
"""Largest chunk that the wire knows, and room for its header: a larger frame ends the connection."""
MAX_CONTROL_FRAME = 2**16
CONTROL_HWM = 1000
BULK_HWM = 256
"""Chunks to one peer; the window of a transfer (8 MiB of 1 MiB chunks) times the transfers under way stays below."""
STRIPE_BYTES = 2**21
"""What waits to be sent on one of several stripes: so little that one that is held up is soon passed over."""
REBIND_S = 10.0
MOST_TOLD = 1000
"""Words about subscriptions that are taken in at once."""
MOST_HWM = 2**20
"""Chunks: however large a fragment is said to be, a mark is no larger."""


class Road(StrEnum):
    """One of the four roads between learners and syncer; its place is its port's distance from `net.port`."""

    CONTROL = "control"
    BULK = "bulk"
    CONTROL_CAST = "control_cast"
    BULK_CAST = "bulk_cast"


_PORT = {Road.CONTROL: 0, Road.BULK: 1, Road.CONTROL_CAST: 2, Road.BULK_CAST: 3}

EVERY: Mapping[int, int] = {
    zmq.LINGER: 0,  # a dead peer must not hold the exit up; leaving drains by its own deadline
    zmq.TCP_KEEPALIVE: 1,  # a peer that vanished without a word frees its pipe and descriptor
    zmq.TCP_KEEPALIVE_IDLE: 10,
    zmq.TCP_KEEPALIVE_INTVL: 5,
    zmq.TCP_KEEPALIVE_CNT: 3,
    zmq.BACKLOG: 4_096,  # the whole fleet dials within half a second of a syncer's return; 100 would turn it away
}
ROUTER: Mapping[int, int] = {
    zmq.ROUTER_MANDATORY: 1,  # unknown or full peers are an error to us, not silence
    zmq.ROUTER_HANDOVER: 1,  # a reconnecting process takes its own stale pipe over
}
DEALER: Mapping[int, int] = {zmq.IMMEDIATE: 1}  # without a connection nothing is queued into nowhere
DIALLING: Mapping[int, int] = {
    zmq.RECONNECT_IVL: 250,  # and up to as much again, drawn anew each time: a syncer that returns hears the fleet soon
    zmq.RECONNECT_IVL_MAX: 0,  # with a maximum the wait doubles, and nothing is drawn: all dial in step, and late
    zmq.CONNECT_TIMEOUT: 5_000,  # a black hole is given up and dialled again
}
CONTROL: Mapping[int, int] = {
    zmq.MAXMSGSIZE: MAX_CONTROL_FRAME,
    zmq.SNDHWM: CONTROL_HWM,
    zmq.RCVHWM: CONTROL_HWM,
}
BEATING: Mapping[int, int] = {  # of who dials control roads; a server beats to nobody: in libzmq 4.3.5 a beat to a peer
    zmq.HEARTBEAT_IVL: 2_000,  # that has hung up while more of its words waited than RCVHWM ends the process (#4364)
    zmq.HEARTBEAT_TIMEOUT: 6_000,  # frames are small here, so a late pong means a dead link
    zmq.HEARTBEAT_TTL: 6_000,  # and to the server a beat that does not come
}
BULK: Mapping[int, int] = {  # no ZMTP heartbeat: a large chunk on a slow link would look like a dead peer
    zmq.MAXMSGSIZE: MAX_CHUNK_FRAME,
    zmq.SNDHWM: BULK_HWM,
    zmq.RCVHWM: BULK_HWM,
}
_ROAD = {Road.CONTROL: CONTROL, Road.CONTROL_CAST: CONTROL, Road.BULK: BULK, Road.BULK_CAST: BULK}


def check_library() -> None:
    """Raise ConfigError where libzmq is older than what the options here were measured with."""
    if zmq.zmq_version_info() < MIN_LIBZMQ:
        wanted = ".".join(map(str, MIN_LIBZMQ))
        raise ConfigError(f"libzmq is {zmq.zmq_version()}; at least {wanted} is needed: pip install -U pyzmq")


def new_incarnation() -> int:
    """A random id for a process, above 0."""
    return secrets.randbits(63) + 1


def identity_of(key: MemberKey, stripe: int = 0, token: str = "") -> bytes:
    """The routing identity of this process, on one of its stripes."""
    return f"{key.name}:{key.incarnation:016x}{token and f'.{token}'}{f'/{stripe}' if stripe else ''}".encode()


class Address(NamedTuple):
    """What a routing identity says."""

    key: MemberKey
    stripe: int
    token: str


def address_of(identity: bytes) -> Address | None:
    """What this routing identity says; None where no process of ours would choose it."""
    name, _, ident = identity.decode("utf-8", "replace").rpartition(":")
    found = _IDENT.fullmatch(ident)
    if not NAME.fullmatch(name) or not found:
        return None
    address = Address(MemberKey(name, int(found[1], 16)), int(found[3] or 0), found[2] or "")
    return address if address.key.incarnation > 0 and identity_of(*address) == identity else None


def cast_hwm(largest_bytes: int, chunk_bytes: int) -> int:
    """High-water mark of the bulk broadcast: a burst must hold the chunks of two updates of the largest fragment."""
    return min(MOST_HWM, max(BULK_HWM, 2 * (largest_bytes // min(chunk_bytes, CAST_CHUNK) + 2)))


def bulk_hwm(window_bytes: int, chunk_bytes: int) -> int:
    """High-water mark of chunks from and to one peer: two windows, which is all that a peer that asks for ever more and
    reads nothing, or sends what nobody granted, can have us keep."""
    return min(BULK_HWM, 2 * (window_bytes // chunk_bytes) + 2)


def stripe_marks(road: Road, params: NetParams) -> Mapping[int, int]:
    """The send mark of a bulk road with several stripes, in chunks; nothing where there is one."""
    if road is not Road.BULK or params.stripes == 1:
        return {}
    return {zmq.SNDHWM: min(BULK_HWM, max(2, STRIPE_BYTES // params.chunk_bytes))}


SUBSCRIPTIONS: Mapping[int, int] = {zmq.MAXMSGSIZE: 1024}  # of what listeners say: a prefix costs 50 times its size


def handshake(params: NetParams) -> Mapping[int, int]:
    """Strangers that connect and do not shake hands are cut off, however little by little they speak."""
    return {zmq.HANDSHAKE_IVL: round(1000 * params.handshake_s)}


def serving(
    context: Context, road: Road, params: NetParams, hwm: int = 0, *, tells: bool = False, guard: Guard | None = None,
    connections: Connections | None = None,
) -> Socket:  # fmt: skip
    """Make and bind the syncer's end of a road. `hwm`: replaces both marks of the table when above zero; `tells`: a
    broadcast says, by what is received on it, whether anybody subscribes (`subscribed`); `guard`: who lets people in;
    `connections`: who counts them.

    Raises ConfigError where the address is not loopback and there is neither a guard nor `net.insecure`, or it is taken
    or not ours.
    """
    if params.listen not in LOOPBACK and not params.insecure and guard is None:
        raise ConfigError(f"net.listen is {params.listen!r}: without keys only loopback is bound (or net.insecure)")
    cast = road in (Road.CONTROL_CAST, Road.BULK_CAST)
    socket = context.socket((zmq.XPUB if tells else zmq.PUB) if cast else zmq.ROUTER)
    marks: Mapping[int, int] = {zmq.SNDHWM: hwm, zmq.RCVHWM: hwm} if hwm else {}
    told = SUBSCRIPTIONS if cast else {}
    _set(socket, EVERY, handshake(params), _ROAD[road], {} if cast else ROUTER, marks, stripe_marks(road, params), told)
    _set(socket, guard.options(cast=cast) if guard else {})
    try:
        if connections:
            connections.follow(socket)
    except zmq.ZMQError:
        socket.close(0)
        raise
    return _bound(socket, _endpoint(params.listen, params.port, road))


def dialling(
    context: Context, road: Road, params: NetParams, identity: bytes, hwm: int = 0, entrance: Entrance | None = None
) -> Socket:  # fmt: skip
    """Make and connect a learner's end of a road, under a routing identity (`identity_of`). `hwm`: replaces the receive
    mark of the table when above zero; `entrance`: how it is let in."""
    cast = road in (Road.CONTROL_CAST, Road.BULK_CAST)
    socket = context.socket(zmq.SUB if cast else zmq.DEALER)
    mark: Mapping[int, int] = {zmq.RCVHWM: hwm} if hwm else {}
    _set(socket, EVERY, handshake(params), _ROAD[road], DIALLING, {} if cast else DEALER)
    _set(socket, mark, stripe_marks(road, params))
    _set(socket, BEATING if road in (Road.CONTROL, Road.CONTROL_CAST) else {})
    if entrance is not None:
        _set(socket, entrance.options())
        entrance.look_at(socket, control=road is Road.CONTROL)
    if cast:
        socket.setsockopt(zmq.SUBSCRIBE, b"")
    else:
        socket.setsockopt(zmq.IDENTITY, identity)
    try:
        socket.connect(_endpoint(params.connect, params.port, road))
    except zmq.ZMQError as error:
        socket.close(0)
        raise ConfigError(f"net.connect is {params.connect!r}: {error.strerror}") from error
    return socket


def bound_again(old: Socket, make: Callable[[], Socket], clock: Clock) -> Socket:
    """Close a socket that is bound, and return what `make` binds in its place. The library frees an address a moment
    after it was let go: that is waited for, with an end. Raises ConfigError."""
    old.unbind(old.getsockopt_string(zmq.LAST_ENDPOINT))
    old.close(0)
    ends = clock() + REBIND_S
    while True:
        try:
            return make()
        except (ConfigError, zmq.ZMQError):  # nor may there be a descriptor for it at this moment
            if clock() > ends:
                raise
            threading.Event().wait(0.005)


def widen(socket: Socket, hwm: int) -> None:
    """Raise both marks of a live socket to `hwm` at least; libzmq moves those of its connections, too."""
    for option in (zmq.SNDHWM, zmq.RCVHWM):
        if int(socket.getsockopt(option)) < hwm:
            socket.setsockopt(option, hwm)


def subscribed(socket: Socket, before: bool) -> bool:
    """Whether anybody subscribes to a broadcast of ours that `tells`; `before`: what was known. Takes in what it has
    told since; strangers may say what they like there."""
    known = before
    for _ in range(MOST_TOLD):
        try:
            told = socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            break
        known = {_FIRST_CAME: True, _LAST_WENT: False}.get(told[0], known) if len(told) == 1 else known
    return known


def is_connected(socket: Socket) -> bool:
    """Whether a DEALER of ours has a connection that takes something: with IMMEDIATE it has no pipe before."""
    return bool(int(socket.getsockopt(zmq.EVENTS)) & zmq.POLLOUT)


def _endpoint(host: str, port: int, road: Road) -> str:
    shown = f"[{host}]" if ":" in host else host
    return f"tcp://{shown}:{port + _PORT[road]}"


def _set(socket: Socket, *tables: Mapping[int, int] | Mapping[int, int | bytes]) -> None:
    for table in tables:
        for option, value in table.items():
            socket.setsockopt(option, value)


def _bound(socket: Socket, endpoint: str) -> Socket:
    if "[" in endpoint:
        socket.setsockopt(zmq.IPV6, 1)
    try:
        socket.bind(endpoint)
    except zmq.ZMQError as error:
        socket.close(0)
        if error.errno == zmq.EADDRINUSE:
            raise ConfigError(f"{endpoint} is taken by another process: stop it, or choose another net.port") from error
        raise ConfigError(f"{endpoint} cannot be bound ({error.strerror}): set net.listen and net.port") from error
    return socket
