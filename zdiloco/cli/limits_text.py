"""What a syncer or relay did not read, as lines for people; nothing where it read everything.

Rule: older ones do not tell, and then there is nothing to show.
"""

from collections.abc import Mapping
from typing import Any

MOST_LINES = 10
"""Those that are banned, and those that are over a limit, each so many at most."""


def limits_lines(limits: Mapping[str, Any] | None) -> list[str]:
    """Return a line for each that is banned or over a limit, and one where connections are hung up."""
    if not limits:
        return []
    lines = [
        f"BANNED: {each['name']} for {each['until_s']:,.0f} s more, time {each['times']:,}: {each['why']}"
        for each in limits["banned"][:MOST_LINES]
    ]
    for each in limits["over"][:MOST_LINES]:
        parts = [f"{count:,} {what}" for what, count in each.items() if what != "name"]
        lines.append(f"over the limit: {each['name']}, dropped {', '.join(parts)}")
    there = limits["connections"]
    if there and there["hung_up"]:
        lines.append(f"connections: {there['there']:,} of {there['most']:,}, hung up {there['hung_up']:,}")
    return lines
