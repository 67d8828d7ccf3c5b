"""Every parser over random inputs: any bytes, and good ones that were damaged in transit or by intent."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.target import Target, accepts
from tests.fuzz.targets import TARGETS

EXAMPLES = 60


@st.composite
def damaged(draw: st.DrawFn, seeds: list[bytes]) -> bytes:
    """A good input with some places changed, cut out, put in, or taken from another one."""
    data = bytearray(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(data)))
        how = draw(st.sampled_from(["set", "cut", "put", "copy", "end"]))
        if how == "set":
            data[at : at + 1] = draw(st.binary(min_size=1, max_size=1))
        elif how == "cut":
            del data[at : at + draw(st.integers(1, 16))]
        elif how == "put":
            data[at:at] = draw(st.binary(max_size=16))
        elif how == "copy":
            start = draw(st.integers(0, len(data)))
            data[at:at] = data[start : start + draw(st.integers(1, 64))]
        else:
            del data[at:]
    return bytes(data)


@pytest.mark.parametrize("target", TARGETS.values(), ids=lambda target: target.name)
def test_any_input_is_taken_or_refused(target: Target) -> None:
    seeds = target.seeds()

    @settings(max_examples=EXAMPLES)
    @given(st.one_of(st.binary(max_size=256), damaged(seeds)))
    def check(data: bytes) -> None:
        accepts(target, data)

    check()
