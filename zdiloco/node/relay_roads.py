"""The sockets of a relay, but for its lanes: four that it binds for its region, four of its own upstream.

Rule: they are those of a syncer on one side and of a learner on the other, options and all.
"""

import resource
from functools import partial

import zmq

from zdiloco.errors import ConfigError
from zdiloco.node.clock import Clock
from zdiloco.node.dialler import Dialler
from zdiloco.node.entrance import Entrance
from zdiloco.node.gate import Gate
from zdiloco.node.guard import Guard
from zdiloco.node.params import NetParams, RelayParams
from zdiloco.node.roads import Roads
from zdiloco.node.sockets import Context, Road, Socket, bound_again, bulk_hwm, serving
from zdiloco.units import MemberKey
from zdiloco.wire.transfer import Credit

PER_LEARNER = 8
"""Descriptors for one learner: its four connections, the two of its lane, a mailbox for each socket of that."""
PER_STRIPE = 3
OWN = 64


def region_roads(context: Context, net: NetParams, gate: Gate, guard: Guard | None = None) -> Roads:
    """Bind the four roads of the region, of which the bulk broadcast tells whether anybody takes it. Raises ConfigError
    where that may not or cannot be."""
    roads = Roads({}, server=True, most_stripes=net.stripes, guard=guard, gate=gate)
    roads.sockets.update((road, _bound(context, road, net, roads)) for road in Road)
    return roads


def _bound(context: Context, road: Road, net: NetParams, roads: Roads) -> Socket:
    mark = bulk_hwm(net.window_bytes, net.chunk_bytes) if road is Road.BULK else 0
    made = roads.gate.connections if roads.gate else None
    return serving(context, road, net, mark, tells=road is Road.BULK_CAST, guard=roads.guard, connections=made)


def region_again(context: Context, net: NetParams, roads: Roads, clock: Clock) -> None:
    """Bind them all anew: whoever is connected has to come back."""
    for road, old in list(roads.sockets.items()):
        roads.sockets[road] = bound_again(old, partial(_bound, context, road, net, roads), clock)


def lane_roads(context: Context, entrance: Entrance, key: MemberKey) -> Roads:
    """Dial control and bulk upstream under the identity of a learner, in as many stripes as it would itself."""
    roads = Roads({}, server=False)
    try:
        Dialler(roads, context, entrance).dial_lane(key)
    except zmq.ZMQError:
        roads.close(0)
        raise
    return roads


def credited(roads: Roads, key: MemberKey, credit: Credit) -> None:
    """A receiver tells how far it is: where nothing that it was granted is missing, the stripes have carried it."""
    if not credit.missing and credit.received >= max(1, credit.upto):
        roads.stripes_of(key).arrived(credit.transfer)


def most_sockets(net: NetParams, params: RelayParams) -> int:
    """How many sockets a relay may need: for its learners, a newer process of one of them, and its own upstream."""
    return (1 + net.stripes) * (params.most_learners + 2) + OWN


def open_descriptors(net: NetParams, params: RelayParams) -> None:
    """Make room for the descriptors of so many learners. Raises ConfigError where the system allows fewer."""
    wanted = OWN + (PER_LEARNER + PER_STRIPE * net.stripes) * (params.most_learners + 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        if hard != resource.RLIM_INFINITY and hard < wanted:
            raise ConfigError(
                f"relay.most_learners is {params.most_learners}: that takes {wanted} descriptors, and this process may "
                f"have {hard} (ulimit -Hn)"
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
