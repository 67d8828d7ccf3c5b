"""What a living syncer or relay tells a doctor about itself: its version, and its wall clock.

Rule: what it answers is not believed: what is missing or of another type counts as not told.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from zdiloco.doctor.versions import Versions
from zdiloco.errors import ConfigError, LinkError, PeerError
from zdiloco.node.params import NetParams
from zdiloco.node.query import Query

MOST_WALL = 1e12


@dataclass(frozen=True, kw_only=True, slots=True)
class About:
    """`wall`: seconds since 1970 when it answered; `refused`: how it was refused, by whichever side. None: not told."""

    versions: Versions | None = None
    wall: float | None = None
    refused: str = ""


def ask(net: NetParams, timeout_s: float) -> About:
    """Ask whoever serves there for its status, and take from it what it says about itself."""
    try:
        with Query(net) as query:
            return about_of(query.ask(timeout_s, relay=True))  # whoever is dialled, not who is behind it
    except ConfigError as error:
        return About(refused=str(error))
    except (LinkError, PeerError):
        return About()


def about_of(answer: Mapping[str, Any]) -> About:
    """What a status says of its process."""
    node = answer.get("node", answer)
    told = node.get("about") if isinstance(node, Mapping) else None
    if not isinstance(told, Mapping):
        return About()
    version, protocol, libzmq = (told.get(key) for key in ("version", "protocol", "libzmq"))
    wall: Any = told.get("wall")
    versions = None
    if type(version) is str and type(protocol) is int and type(libzmq) is str:
        versions = Versions(version=version[:64], protocol=protocol, libzmq=libzmq[:64])
    timed = type(wall) in (int, float) and 0 <= wall <= MOST_WALL
    return About(versions=versions, wall=float(wall) if timed else None)
