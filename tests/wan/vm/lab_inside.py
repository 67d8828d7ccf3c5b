"""`bin/wan-lab` in the virtual machine, where the kernel has netem: links that it lays are what their profile says."""

import time
from typing import Any

from tests.wan.put_up import PutUp
from tests.wan.raw import connect_s, raw_mbit_s
from zdiloco.wanlab.namespaces import namespaces, tc

PROFILE, LINK = "one-link-200mbit-80ms", "wan"
MBIT_S, DELAY_MS = 8.0, 60.0
SETTLES_S, MEASURED_S, SHORT_S = 2.0, 3.0, 2.0


def lab() -> dict[str, Any]:
    """Put a shipped profile up, measure, change, cut and heal it, take it down; returns what was seen."""
    regions = PutUp(PROFILE)
    try:
        first_s = connect_s(regions, SHORT_S)  # ends ask for each other's addresses before the first packet
        told: dict[str, Any] = {"engine": regions.state.engine, "first_s": first_s}
        told["way_s"] = connect_s(regions, SHORT_S)
        regions.change(LINK, rate=f"{MBIT_S:g}mbit", delay=f"{DELAY_MS:g}ms")
        told |= {"changed_way_s": connect_s(regions, SHORT_S), "mbit_s": raw_mbit_s(regions, SETTLES_S, MEASURED_S)}
        (link,) = regions.state.links
        told["qdiscs"] = tc("-n", link.namespaces[1], "-s", "qdisc", "show", "dev", link.device)
        regions.partition(LINK)
        began = time.monotonic()
        try:
            connect_s(regions, SHORT_S)
        except TimeoutError:
            told["cut_s"] = time.monotonic() - began
        regions.heal()
        told["healed_way_s"] = connect_s(regions, SHORT_S)
    finally:
        regions.close()
    return {**told, "left": [each for each in namespaces() if each.startswith("wanlab.")]}
