"""What a relay answers when it is asked about itself: what `zdiloco status --relay` shows.

Rule: builtins only, finite numbers only, bounded by the number of learners behind it.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from zdiloco.core.machine import SYNCER
from zdiloco.core.messages import Status
from zdiloco.node.about import about
from zdiloco.units import MemberKey
from zdiloco.wire.bodies import encode_map
from zdiloco.wire.outbox import Outbox

if TYPE_CHECKING:
    from zdiloco.node.relay import RelayNode
    from zdiloco.node.relay_lanes import Lane

NAME = "relay"
"""What a relay is called upstream, where it fetches for itself."""
MOST_ANSWERS = 16
"""Answers about itself that are held at once."""
FRESH_S = 0.2


class Answers:
    """What a relay says to those who ask about it: all who do at about the same time are told the same."""

    def __init__(self, relay: RelayNode, outbox: Outbox) -> None:
        self._relay, self._outbox = relay, outbox
        self._held: deque[Status] = deque()
        self._count, self._fresh_until = 0, float("-inf")

    def say(self, key: MemberKey, now: float) -> None:
        """Say how this relay is."""
        relay = self._relay
        if now >= self._fresh_until:
            if len(self._held) >= MOST_ANSWERS:
                oldest = self._held.popleft()
                self._outbox.drop(oldest.body.transfer)
                relay.region.drop_everywhere(oldest.body.transfer)
            self._count += 1
            name = f"{NAME}/{relay.key.incarnation:x}/{self._count}"
            body = self._outbox.add(name, encode_map(relay_status(relay)), relay.net.chunk_bytes)
            self._held.append(Status(body=body))
            self._fresh_until = now + FRESH_S
        relay.region.send(key, self._held[-1])


def relay_status(relay: RelayNode) -> dict[str, Any]:
    """Return the map. Bytes are counted since the relay has started, frames' headers included; a broadcast counts
    once, however many listen. *up*: towards the syncer."""
    own = relay.up.of(SYNCER)
    lanes, passed = [lane.counts for lane in relay.lanes], relay.lanes.passed
    region = list(relay.region.counts.values())
    return {
        "relay": f"{relay.params.listen}:{relay.params.port}",
        "about": about(),
        "uptime_s": relay.clock() - relay.started_at,
        "insecure": relay.net.insecure,
        "upstream": {
            "at": f"{relay.net.connect}:{relay.net.port}",
            "connected": relay.connected,
            "listening": relay.far.taken,
            "dialled_anew": relay.far.dialled_anew,
            "lost": relay.lost,
            "bytes_up": own.bytes_up + passed.bytes_up + sum(counts.bytes_up for counts in lanes),
            "bytes_down": own.bytes_down + passed.bytes_down + sum(counts.bytes_down for counts in lanes),
        },
        "region": {
            "bytes_up": relay.region_passed.bytes_down + sum(counts.bytes_down for counts in region),
            "bytes_down": relay.region_passed.bytes_up + sum(counts.bytes_up for counts in region),
            "strangers": dict(relay.region.strangers),
            "malformed": sum(sum(counts.malformed.values()) for counts in region),
            "limits": relay.region.gate.status() if relay.region.gate else {},
        },
        "cache": _cache(relay),
        "waiting_bytes": relay.waiting_bytes,
        "budget_bytes": relay.params.budget_bytes,
        "dropped": relay.dropped + passed.dropped + sum(lane.dropped for lane in relay.lanes),
        "most_learners": relay.params.most_learners,
        **({"premerge": relay.premerge.status()} if relay.premerge else {}),
        "learners": [_learner(relay, lane) for lane in relay.lanes],
    }


def _cache(relay: RelayNode) -> dict[str, Any]:
    cache, counters = relay.cache, relay.cache.counters
    return {
        "bytes": cache.nbytes,
        "most_bytes": relay.params.cache_bytes,
        "bodies": len(cache),
        "handed_out": counters.handed_out,
        "handed_out_bytes": counters.handed_out_bytes,
        "asked_again": cache.inbox.counters.asked_again,
        "evicted": counters.evicted,
        "passed_over": counters.passed,
    }


def _learner(relay: RelayNode, lane: Lane) -> dict[str, Any]:
    followed, counts = relay.lag.of(lane.key), lane.counts
    return {
        "name": lane.key.name,
        "incarnation": f"{lane.key.incarnation:016x}",
        "last_seen_s": relay.clock() - lane.heard_at,
        "lag": relay.lag.versions(lane.key),
        "pulled": followed.pulled,
        "repaired_chunks": followed.repaired_chunks,
        "repaired_bytes": followed.repaired_bytes,
        "bytes_up": counts.bytes_up,
        "bytes_down": counts.bytes_down,
        "waiting_bytes": lane.waiting_bytes,
        "dropped": lane.dropped,
        "left": lane.left,
    }
