"""What a syncer answers to a status query: the machine's view of the run, and the node's of its process.

Rule: builtins only, finite numbers only, bounded by the number of members and fragments.
"""

from __future__ import annotations

from typing import Any, Protocol

from zdiloco.core.status import status
from zdiloco.core.syncer import SyncerMachine
from zdiloco.node.about import about
from zdiloco.node.clock import Clock
from zdiloco.node.params import Settings
from zdiloco.node.roads import Roads
from zdiloco.node.syncer_acts import SyncerActs
from zdiloco.node.transfers import Transfers


class StatusSource(Protocol):
    """What of a node the status is made of."""

    settings: Settings
    clock: Clock
    started_at: float
    roads: Roads
    transfers: Transfers
    machine: SyncerMachine
    acts: SyncerActs


def status_of(node: StatusSource) -> dict[str, Any]:
    """Return the map that `zdiloco status --json` prints: the machine's keys, and `node` beside them."""
    return {**status(node.machine, node.clock()), "node": process_status(node)}


def process_status(node: StatusSource) -> dict[str, Any]:
    """Return what the node counts itself: memory, transfers, and per peer what passed and what did not parse."""
    inbox, outbox, pulls = node.transfers.inbox, node.transfers.outbox, node.acts.states.pulls
    return {
        "about": about(),
        "uptime_s": node.clock() - node.started_at,
        "insecure": node.settings.net.insecure,
        "run_dir": str(node.settings.run.path),
        "budget_bytes": inbox.params.budget_bytes,
        "reserved_bytes": inbox.reserved_bytes,
        "offered_bytes": outbox.held_bytes,
        "pulls": {"moving": pulls.moving(node.clock()), "waiting": pulls.waiting},
        "resent_bytes": outbox.counters.resent_bytes,
        "asked_again": inbox.counters.asked_again,
        "given_up": inbox.counters.given_up,
        "strangers": dict(node.roads.strangers),
        "limits": node.roads.gate.status() if node.roads.gate else {},
        "peers": {_shown(key): _counts(counts) for key, counts in node.roads.counts.items()},
    }


def _shown(key: Any) -> str:
    return f"{key.name}:{key.incarnation:016x}" if key.incarnation else "broadcast"


def _counts(counts: Any) -> dict[str, Any]:
    return {
        "bytes_up": counts.bytes_up,
        "bytes_down": counts.bytes_down,
        "frames_up": counts.frames_up,
        "frames_down": counts.frames_down,
        "dropped": counts.dropped,
        "malformed": dict(counts.malformed),
    }
