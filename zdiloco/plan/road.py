"""What TCP carries on the link of a region, and what its windows leave of that.

Rule: a road carries what the link has beside the headers of its packets, and at most a window of `net.window_bytes` in
each round trip. Where packets vanish, congestion controls that take a loss for a full link (reno, cubic) carry no more
than their published formulas say, for each connection; one that paces by what arrives (bbr) loses what is lost.
"""

import math

from zdiloco.plan.params import BY_RATE, Region, Settings

SEGMENT_BYTES, PACKET_BYTES = 1448, 1500
"""Of a packet that fills an Ethernet frame: what TCP carries in it, and the whole of it."""
PAYLOAD = SEGMENT_BYTES / PACKET_BYTES
RENO = 1.22
"""Reno has so many segments under way on average, over the square root of the loss (Mathis et al. 1997)."""
CUBIC = 1.054
"""Cubic has so many, times (round trip in s ÷ loss) to the power of 3/4; as many as Reno at least (RFC 9438)."""


def carried_bytes_s(region: Region) -> float:
    """What its link carries of bodies, each way."""
    return region.link_bytes_s * PAYLOAD


def road_bytes_s(region: Region, settings: Settings, copies: int) -> float:
    """What so many learners of a region bring up together: no more than the link, their windows, and loss allow."""
    alone, link = math.inf, carried_bytes_s(region)
    if region.rtt_s > 0:
        alone = settings.net.window_bytes / region.rtt_s
        if region.loss > 0 and region.congestion not in BY_RATE:
            alone = min(alone, _lossy_bytes_s(region) * settings.net.stripes)
    return min(link * (1 - region.loss), copies * alone)


def _lossy_bytes_s(region: Region) -> float:
    """What one connection carries on average whose congestion control halves, or nearly so, at each loss."""
    segments = RENO / math.sqrt(region.loss)
    if region.congestion == "cubic":
        segments = max(segments, CUBIC * (region.rtt_s / region.loss) ** 0.75)
    return segments * SEGMENT_BYTES / region.rtt_s
