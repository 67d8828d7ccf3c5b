"""What a relay says of itself, as text for people: its upstream, its cache, the learners behind it.

Rule: only what the relay said; an unknown figure is a dash.
"""

from collections.abc import Mapping
from typing import Any

from zdiloco.cli.columns import table
from zdiloco.cli.limits_text import limits_lines
from zdiloco.errors import MalformedFrame


def relay_text(answer: Mapping[str, Any]) -> str:
    """Return the lines, without an end of line at the end. Raises MalformedFrame for what no relay answers."""
    try:
        lines = [*_head(answer), "", *_learners(answer)]
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise MalformedFrame(f"the answer is not the status of a relay of this version ({error!r})") from error
    return "\n".join("".join(c if c.isprintable() else "?" for c in line).rstrip() for line in lines)


def _head(answer: Mapping[str, Any]) -> list[str]:
    up, region, cache = answer["upstream"], answer["region"], answer["cache"]
    state = "connected" if up["connected"] else "NOT CONNECTED"
    state += "" if up["listening"] else " (nobody here takes the broadcast)"
    lines = [
        f"relay {answer['relay']}, upstream {up['at']} {state}, lost {up['lost']:,} times in "
        f"{answer['uptime_s']:,.0f} s, roads dialled anew {up['dialled_anew']:,}",
        f"upstream {_bytes(up['bytes_up'])} up, {_bytes(up['bytes_down'])} down; "
        f"region {_bytes(region['bytes_up'])} up, {_bytes(region['bytes_down'])} down",
        f"cache {cache['bodies']:,} bodies, {_bytes(cache['bytes'])} of {_bytes(cache['most_bytes'])}; handed out "
        f"{_bytes(cache['handed_out_bytes'])}, evicted {cache['evicted']:,}, passed over {cache['passed_over']:,}",
        f"waiting {_bytes(answer['waiting_bytes'])} of {_bytes(answer['budget_bytes'])}, dropped "
        f"{answer['dropped']:,}, malformed {region['malformed']:,}",
    ]
    if "premerge" in answer:
        own = answer["premerge"]
        lines.append(
            f"premerge {'REFUSED by the syncer' if own['off'] else own['codec']}: {own['bundled']:,} contributions in "
            f"{own['bundles']:,} bundles, {own['refused']:,} of them refused; forwarded {own['forwarded']:,}, passed "
            f"over {own['passed_over']:,}; kept {_bytes(own['kept_bytes'])}"
        )
    lines += limits_lines(region.get("limits"))
    if answer["insecure"]:
        lines.append("INSECURE: this relay may listen without keys beyond loopback; anybody may join")
    return lines


def _learners(answer: Mapping[str, Any]) -> list[str]:
    rows = [("learner", "last seen", "lag", "pulled", "repaired", "up", "down", "waiting", "dropped", "state")]
    for each in answer["learners"]:
        rows.append(
            (
                each["name"],
                f"{each['last_seen_s']:.1f} s ago",
                "-" if each["lag"] is None else f"{each['lag']:,}",
                f"{each['pulled']:,}",
                _bytes(each["repaired_bytes"]),
                _bytes(each["bytes_up"]),
                _bytes(each["bytes_down"]),
                _bytes(each["waiting_bytes"]),
                f"{each['dropped']:,}",
                "left" if each["left"] else "here",
            )
        )
    return table(rows)


def _bytes(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            break
        count /= 1000
    return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
