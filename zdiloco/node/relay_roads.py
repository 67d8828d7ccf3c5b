"""The sockets of a relay, but for its lanes: four that it binds for its region, four of its own upstream.

Rule: they are those of a syncer on one side and of a learner on the other, options and all.
"""

import resource

from zdiloco.errors import ConfigError
from zdiloco.node.dialler import Dialler
from zdiloco.node.params import NetParams, RelayParams
from zdiloco.node.roads import Roads
from zdiloco.node.sockets import Context, Road, bulk_hwm, serving
from zdiloco.units import MemberKey
from zdiloco.wire.transfer import Credit

PER_LEARNER = 8
"""Descriptors for one learner: its four connections, the two of its lane, a mailbox for each socket of that."""
PER_STRIPE = 3
OWN = 64


def region_roads(context: Context, net: NetParams) -> Roads:
    """Bind the four roads of the region, of which the bulk broadcast tells whether anybody takes it. Raises ConfigError
    where that may not or cannot be."""
    marks = {Road.BULK: bulk_hwm(net.window_bytes, net.chunk_bytes)}
    tells = Road.BULK_CAST
    sockets = {road: serving(context, road, net, marks.get(road, 0), tells=road is tells) for road in Road}
    return Roads(sockets, server=True, most_stripes=net.stripes)


def lane_roads(context: Context, net: NetParams, key: MemberKey) -> Roads:
    """Dial control and bulk upstream under the identity of a learner, in as many stripes as it would itself."""
    roads = Roads({}, server=False)
    Dialler(roads, context, net).dial_lane(key)
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
