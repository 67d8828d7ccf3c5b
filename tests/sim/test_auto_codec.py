"""`learner.codec = "auto"` in a virtual world: each learner finds the codec of its link through the real transfers."""

import pytest

from zdiloco.core.params import SyncParams
from zdiloco.core.status import status
from zdiloco.sim.links import Link
from zdiloco.sim.world import World

LINKS = {"fast": (2e7, "bf16"), "middling": (1.2e5, "int8"), "slow": (4e4, "4bit")}
"""Bytes per second up, and what suits them: a period of 0.6 s has three contributions of 10,000 bytes in bf16."""


@pytest.mark.slow
def test_each_learner_finds_the_codec_of_its_link() -> None:
    world = World(SyncParams(sync_period=12, beat_every_s=0.5, suspect_after_s=1.5, gone_after_s=3.0), 3, chunked=True)
    for name, (up_bytes_s, _) in LINKS.items():
        world.join(name, 0.05, Link(latency_s=0.04, up_bytes_s=up_bytes_s), codec="auto")
    world.run(25.0)
    assert world.site is not None
    shown = {each["name"]: each["codec"] for each in status(world.site.machine, world.now)["learners"]}
    assert shown == {name: codec for name, (_, codec) in LINKS.items()}
    world.audit()
