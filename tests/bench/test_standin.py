"""The stand-in loop and the process around it."""

import json
import os

from zdiloco.bench.loop import LAYERS, Loop
from zdiloco.bench.standin import StandIn


def test_a_step_is_as_long_as_it_should_be_and_moves_one_layer() -> None:
    loop = Loop(LAYERS * 16, step_s=0.004)
    loop.compute(0.001)
    before = [parameter.detach().clone() for parameter in loop.model.parameters()]
    called = []
    record = loop.steps(3, lambda: called.append(1))
    assert len(called) == len(record.pauses) == len(record.at) == 3
    assert record.ended - record.began >= 3 * 0.004
    moved = [bool((old != new).any()) for old, new in zip(before, loop.model.parameters(), strict=True)]
    assert moved == [True] * 3 + [False] * (LAYERS - 3)
    assert sum(parameter.numel() for parameter in loop.model.parameters()) == LAYERS * 16


def test_it_obeys_until_its_input_ends() -> None:
    reading, writing = os.pipe()
    answers: list[str] = []
    os.write(writing, b"compute accelerator\nbare 2\nbegin\nend\ndetach\n")
    os.close(writing)
    try:
        StandIn("run.toml", "a", Loop(LAYERS, step_s=0.001), reading, answers.append).obey()
    finally:
        os.close(reading)
    said = [json.loads(answer) for answer in answers]
    assert [answer for answer in said if not answer] == [{}, {}, {}]
    assert len(said[1]["pauses"]) == 2
    assert said[3]["pauses"] == []
