"""The values of a syncer: nothing that is not finite, as Theta or as published, ever becomes a state."""

from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from zdiloco.core.machine import Merge, Part, Save
from zdiloco.core.membership import MOST_REPLACED
from zdiloco.core.messages import Body, Handback, InitialOffer, LayoutOffer
from zdiloco.errors import ConfigError, MalformedFrame
from zdiloco.node.params import MergeParams
from zdiloco.node.syncer_body import Payload, SyncerBody
from zdiloco.tensor.codecs import get_codec
from zdiloco.tensor.layout import layout_of
from zdiloco.units import ContributionId, Epoch, MemberKey, Merged, Stamp
from zdiloco.wire.bodies import encode_map, join_update

BODY = Body(transfer="t", nbytes=1, chunk_bytes=1024, digest=1)
HUGE = 3.4e38
"""Finite in fp32, and infinite in bf16."""


def encoded(codec: str, values: Tensor) -> memoryview:
    return memoryview(cast(Any, get_codec(codec).encode(values).numpy()))


def make(*, momentum: float = 0.0, publish_codec: str = "bf16", init: str = "first") -> SyncerBody:
    """A body with the layout of one layer, and no values yet."""
    body = SyncerBody(MergeParams(outer_momentum=momentum, publish_codec=publish_codec), init)
    layout = layout_of(nn.Linear(4, 4), num_fragments=1, strategy="balanced")
    body.take_layout(LayoutOffer(digest=layout.digest, body=BODY), memoryview(encode_map(layout.to_obj())))
    return body


def with_values(value: float = 1.0, **options: Any) -> SyncerBody:
    body = make(**options)
    body.take_initial(InitialOffer(fragment=0, body=BODY), encoded("fp32", torch.full((20,), value)))
    body.restamp([Stamp(Epoch(1, 1), 0)])
    return body


def merge(body: SyncerBody, gradient: float, version: int = 1) -> None:
    part = Part(id=ContributionId("a", 1, 0, version), codec="fp32", weight=1.0)
    merged = (Merged("a", 1, version, 1, 10),)
    action = Merge(fragment=0, stamp=Stamp(Epoch(1, 1), version), parts=(part,), merged=merged)
    payload = Payload(encoded("fp32", torch.full((20,), gradient)), "t")
    assert body.screen(0, "fp32", payload)[0] == "", "every contribution here is finite itself"
    body.merge(action, [payload])


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_merge_leaves_the_tensors_of_a_cut_alone(momentum: float) -> None:
    body = with_values(momentum=momentum)
    merge(body, 0.5)
    cut = body.cut("r", Epoch(1, 1), Save(why=""))
    part = cut.fragments[0]
    before = [tensor.clone() for tensor in (part.theta, part.value, part.buf) if tensor is not None]
    merge(body, 0.25, version=2)
    after = [tensor for tensor in (part.theta, part.value, part.buf) if tensor is not None]
    assert all(torch.equal(x, y) for x, y in zip(before, after, strict=True))
    assert not torch.equal(body.states[0].theta, part.theta)
    assert body.states[0].stamp.version == 2


@pytest.mark.parametrize(
    ("start", "gradient", "codec", "why"),
    [
        (-3e38, 3e38, "fp32", "not finite"),
        (-3e38, 3e38, "bf16", "not finite"),
        (1.0, -HUGE, "bf16", "too large for bf16"),
    ],
)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_merge_that_is_not_finite_changes_nothing(
    start: float, gradient: float, codec: str, why: str, momentum: float
) -> None:
    body = with_values(start, momentum=0.0 if why.startswith("too") else momentum, publish_codec=codec)
    state = body.states[0]
    theta, value, before = state.theta, state.value, (state.buf, state.stamp, state.revision)
    copies = theta.clone(), value.clone()
    with pytest.raises(MalformedFrame, match=why):
        merge(body, gradient)
    assert body.states[0] is state
    assert (state.theta is theta, state.value is value) == (True, True)
    assert torch.equal(theta, copies[0])
    assert torch.equal(value, copies[1])
    assert (state.buf, state.stamp, state.revision, state.map_) == (*before, {})
    merge(body, 0.0)
    assert state.stamp.version == 1


@pytest.mark.parametrize("value", [HUGE, float("inf"), float("nan")])
def test_initial_values_are_judged_as_published(value: float) -> None:
    body, offer = make(), InitialOffer(fragment=0, body=BODY)
    values = torch.ones(20)
    values[7] = value
    with pytest.raises(MalformedFrame, match=r"not finite|too large for bf16"):
        body.take_initial(offer, encoded("fp32", values))
    assert body.states == {}
    if value == HUGE:
        body = make(publish_codec="fp32")
        body.take_initial(offer, encoded("fp32", values))
        assert torch.equal(body.states[0].theta, values)


def test_initial_values_of_a_file_are_the_users() -> None:
    body = make()
    body._init = "some.safetensors"
    body._initial = {"weight": torch.full((4, 4), HUGE), "bias": torch.zeros(4)}
    with pytest.raises(ConfigError, match=r"run.init some.safetensors: .* too large for bf16"):
        body.take_initial(InitialOffer(fragment=0, body=BODY), encoded("fp32", torch.zeros(20)))


def test_a_state_that_is_handed_back_must_be_finite() -> None:
    body = with_values()
    value = encoded("bf16", torch.full((20,), HUGE))
    message = Handback(fragment=0, stamp=Stamp(Epoch(1, 1), 9), codec="bf16", value_bytes=value.nbytes, body=BODY)
    with pytest.raises(MalformedFrame, match="not finite"):
        body.take_handback(message, memoryview(join_update(value, ())))
    assert body.states[0].stamp.version == 0


def test_a_cut_names_the_newest_of_the_replaced() -> None:
    keys = tuple(MemberKey("a", number) for number in range(1, MOST_REPLACED + 4))
    assert with_values().cut("r", Epoch(1, 1), Save(why="", replaced=keys)).replaced == keys[3:]


@pytest.mark.parametrize(("robust", "left"), [("none", 0.0), ("clip", 0.0), ("trim", 1.0)])
def test_what_stands_apart_is_left_out_where_the_run_asks_for_it(robust: str, left: float) -> None:
    body = SyncerBody(MergeParams(robust=robust))
    layout = layout_of(nn.Linear(40, 40, bias=False), num_fragments=1, strategy="balanced")
    body.take_layout(LayoutOffer(digest=layout.digest, body=BODY), memoryview(encode_map(layout.to_obj())))
    body.take_initial(InitialOffer(fragment=0, body=BODY), encoded("fp32", torch.zeros(1600)))
    body.restamp([Stamp(Epoch(1, 1), 0)])
    values = torch.randn(1600, generator=torch.Generator().manual_seed(1))
    parts, payloads = [], []
    for name, factor in (("a", 1.0), ("b", 1.0), ("bad", -3.0), ("c", 1.0)):
        payloads.append(Payload(encoded("bf16", factor * values), "t"))
        assert body.screen(0, "bf16", payloads[-1])[0] == ""
        parts.append(Part(id=ContributionId(name, 1, 0, 1), codec="bf16", weight=1.0))
    published = body.merge(Merge(fragment=0, stamp=Stamp(Epoch(1, 1), 1), parts=tuple(parts), merged=()), payloads)
    assert published.trimmed == (0.0, 0.0, left, 0.0)
    assert published.plain == ""
    length = float(body.states[0].theta.norm() / values.norm())
    assert length == pytest.approx(1.5 if robust == "none" else 1.0, rel=0.01)
    few = Merge(fragment=0, stamp=Stamp(Epoch(1, 1), 2), parts=tuple(parts[:2]), merged=())
    assert bool(body.merge(few, payloads[:2]).plain) == (robust != "none")
