"""What is published as a delta leads everybody to the reference that the syncer keeps whole, and nowhere else."""

from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from zdiloco.core.machine import Merge, Part, Prepare, Save
from zdiloco.core.messages import Body, Handback, InitialOffer, LayoutOffer
from zdiloco.errors import MalformedFrame
from zdiloco.node.incoming import IncomingUpdate
from zdiloco.node.learner_body import LearnerBody, layout_for
from zdiloco.node.params import MergeParams
from zdiloco.node.publishing import Published, digest_of
from zdiloco.node.sizes import wrong_size
from zdiloco.node.syncer_body import Payload, SyncerBody
from zdiloco.tensor.binding import Binding
from zdiloco.tensor.codecs import get_codec
from zdiloco.tensor.delta import GRIDS, on_grid
from zdiloco.units import ContributionId, Epoch, Merged, Stamp
from zdiloco.wire.bodies import encode_map, join_update, split_update

BODY = Body(transfer="t", nbytes=1, chunk_bytes=1024, digest=1)
EPOCH = Epoch(1, 1)
VALUES, BUFFERS = 0, 1
"""The fragments of the model: 800 parameters, then the statistics."""


def view(tensor: Tensor) -> memoryview:
    return memoryview(cast(Any, tensor.numpy()))


def model_of() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(24, 32, bias=False), nn.BatchNorm1d(16))


class Place:
    """A syncer's body, and that of a learner which adopts all that is published."""

    def __init__(self, delta_codec: str, publish_codec: str = "bf16") -> None:
        self.params = MergeParams(delta_codec=delta_codec, publish_codec=publish_codec)
        self.model = model_of()
        layout = layout_for(self.model, 1, "balanced")
        self.learner = LearnerBody(Binding(self.model, layout), "fp32")
        self.syncer = SyncerBody(self.params)
        self.syncer.take_layout(LayoutOffer(digest=layout.digest, body=BODY), memoryview(encode_map(layout.to_obj())))
        for index in (VALUES, BUFFERS):
            offer = InitialOffer(fragment=index, body=BODY)
            self.syncer.take_initial(offer, view(self.learner.later_values(index)))
        self.syncer.restamp([Stamp(EPOCH, 0)] * 2)
        for index in (VALUES, BUFFERS):
            assert self.adopt(self.syncer.published(index)) == ""

    def merge(self, moved: Tensor | float, fragment: int = VALUES) -> Published:
        """One contribution that moves the values by so much is merged."""
        state = self.syncer.states[fragment]
        numel, version = state.theta.numel(), state.stamp.version + 1
        gradient = torch.zeros(numel) - torch.as_tensor(moved, dtype=torch.float32)
        part = Part(id=ContributionId("a", 1, fragment, version), codec="fp32", weight=1.0)
        merged = (Merged("a", 1, version, 1, 10),)
        stamp = state.stamp._replace(version=version)
        action = Merge(fragment=fragment, stamp=stamp, parts=(part,), merged=merged)
        payload = Payload(view(get_codec("fp32").encode(gradient)), "t")
        assert self.syncer.screen(fragment, "fp32", payload)[0] == ""
        return self.syncer.merge(action, [payload])

    def adopt(self, published: Published) -> str:
        """The learner takes it in. Returns why it does not."""
        incoming = IncomingUpdate("u", published.codec, view(published.value), published.digest, published.base)
        prepare = Prepare(
            fragment=published.fragment, stamp=published.stamp, subtract=0, restore=(), serial=1, reset=True
        )  # fmt: skip
        wrong = self.learner.later_prepare(prepare, incoming, self.learner.fragments[published.fragment].reference)
        if not wrong:
            self.learner.now_adopt(published.fragment, published.stamp)
        return wrong

    def held(self, fragment: int = VALUES) -> Tensor:
        """R of the learner, as it would hand it back."""
        values = self.learner.fragments[fragment]
        assert values.reference is not None
        return self.learner.later_reference(values.codec, values.reference)

    def work(self, seed: int) -> Tensor:
        return 1e-3 * torch.randn(800, generator=torch.Generator().manual_seed(seed))


def place_with_800(delta_codec: str, publish_codec: str = "bf16") -> Place:
    place = Place(delta_codec, publish_codec)
    assert place.syncer.states[VALUES].theta.numel() == 800
    return place


@pytest.mark.parametrize("codec", ["int8", "4bit"])
@pytest.mark.parametrize("grid", GRIDS)
def test_a_learner_that_follows_deltas_holds_the_published_bytes(codec: str, grid: str) -> None:
    place = place_with_800(codec, grid)
    for seed in range(12):
        before = place.syncer.states[VALUES].stamp
        published = place.merge(place.work(seed))
        state = place.syncer.states[VALUES]
        assert (published.codec, published.base, published.full) == (codec, before, False)
        assert published.value.numel() == get_codec(codec).encoded_bytes(800)
        assert published.digest == digest_of(state.value)
        assert place.adopt(published) == ""
        assert torch.equal(place.held(), state.value)
        own = torch.cat([p.detach().flatten() for p in place.model.parameters()])
        assert torch.equal(own.sort().values, on_grid(state.value, grid).float().sort().values)
    whole = place.syncer.published(VALUES)
    assert (whole.codec, whole.base, whole.full) == (grid, None, True)
    assert torch.equal(whole.value, place.held())


def test_buffers_go_out_whole() -> None:
    place = place_with_800("4bit")
    published = place.merge(-0.5, BUFFERS)
    assert (published.codec, published.base) == ("fp32", None)
    assert place.adopt(published) == ""
    assert torch.equal(place.held(BUFFERS), place.syncer.states[BUFFERS].value)


def test_whoever_holds_another_reference_adopts_nothing() -> None:
    place = place_with_800("int8")
    published = place.merge(place.work(1))
    reference = place.learner.fragments[VALUES].reference
    assert reference is not None
    sound = reference.clone()
    reference[7] = torch.nextafter(reference[7], torch.tensor(9.0)) * 1.01  # memory goes bad
    values = next(place.model.parameters()).detach().clone()
    assert "its value has digest" in place.adopt(published)
    assert place.learner.fragments[VALUES].change is None
    assert torch.equal(next(place.model.parameters()).detach(), values)
    assert place.adopt(place.syncer.published(VALUES)) == "", "the whole one heals it"
    assert torch.equal(place.held(), place.syncer.states[VALUES].value)
    assert not torch.equal(sound, place.learner.fragments[VALUES].reference)


def test_a_whole_value_with_another_digest_is_not_adopted_either() -> None:
    place = place_with_800("none")
    published = place.merge(place.work(1))
    assert (published.codec, published.base) == ("bf16", None)
    spoilt = published.value.clone()
    spoilt[5] ^= 1
    incoming = IncomingUpdate("u", "bf16", view(spoilt), published.digest)
    assert "announced was" in incoming.work_out(None, "fp32", 800)
    assert incoming.theta is None


def test_a_delta_before_anything_is_adopted_does_not_fit() -> None:
    place = place_with_800("int8")
    published = place.merge(place.work(1))
    incoming = IncomingUpdate("u", published.codec, view(published.value), published.digest, published.base)
    assert "nothing is adopted yet" in incoming.work_out(None, "fp32", 800)


def test_a_difference_beyond_fp32_goes_out_whole() -> None:
    place = place_with_800("4bit", "fp32")
    for moved in (-3e38, 2.9e38, 2.9e38):  # from -3e38 to 2.8e38 in two steps; the second reference is still finite
        published = place.merge(moved)
        assert place.adopt(published) == ""
    state = place.syncer.states[VALUES]
    state.value = get_codec("fp32").encode(torch.full((800,), -3e38))
    published = place.merge(0.0)
    assert (published.base, published.codec) == (None, "fp32")
    assert bool(torch.isfinite(on_grid(place.syncer.states[VALUES].value, "fp32")).all())
    assert place.adopt(published) == ""


def test_after_the_exact_values_of_an_end_the_next_one_is_whole() -> None:
    """A run that goes on after its end: what was published last is on no grid but fp32."""
    place = place_with_800("4bit")
    place.merge(place.work(1))
    place.syncer.restamp([Stamp(EPOCH, 2)] * 2, True)
    exact = place.syncer.published(VALUES)
    assert torch.equal(on_grid(exact.value, "fp32"), place.syncer.states[VALUES].theta)
    assert place.adopt(exact) == ""
    after = place.merge(place.work(2))
    assert (after.codec, after.base) == ("bf16", None)
    assert place.adopt(after) == ""
    assert place.merge(place.work(3)).base == after.stamp


def test_a_syncer_that_goes_on_from_its_checkpoint_publishes_the_same_bits() -> None:
    place = place_with_800("4bit")
    for seed in range(3):
        assert place.adopt(place.merge(place.work(seed))) == ""
    other = SyncerBody(place.params)
    other.restore(place.syncer.cut("r", EPOCH, Save(why="")))
    rest = place.syncer.states[VALUES].theta - on_grid(place.syncer.states[VALUES].value, "bf16").float()
    assert float(rest.abs().max()) > 0, "what deltas have rounded off is in Theta"
    first = place.merge(place.work(9))
    place.syncer = other
    second = place.merge(place.work(9))
    assert torch.equal(first.value, second.value)
    assert (first.digest, first.base) == (second.digest, second.base)
    assert place.adopt(second) == ""


@pytest.mark.parametrize("codec", ["int8", "4bit"])
def test_no_state_is_handed_back_as_a_delta(codec: str) -> None:
    place = place_with_800("4bit")
    value = get_codec(codec).encode(torch.zeros(800))
    data = memoryview(join_update(view(value), ()))
    body = Body(transfer="t", nbytes=data.nbytes, chunk_bytes=1024, digest=1)
    message = Handback(
        fragment=VALUES, stamp=Stamp(EPOCH, 3), codec=codec, value_bytes=value.numel(), body=body
    )  # fmt: skip
    assert "no state is published in" in wrong_size(message, place.syncer.layout)
    with pytest.raises(MalformedFrame, match="no state is published in"):
        place.syncer.take_handback(message, data)
    assert place.syncer.states[VALUES].stamp == Stamp(EPOCH, 0)


def test_a_state_that_was_reached_by_deltas_is_handed_back_exactly() -> None:
    place = place_with_800("4bit")
    for seed in range(3):
        assert place.adopt(place.merge(place.work(seed))) == ""
    published = place.syncer.states[VALUES].value.clone()
    data = memoryview(join_update(view(place.held()), ()))
    message = Handback(
        fragment=VALUES, stamp=Stamp(EPOCH, 3), codec="bf16", value_bytes=published.numel(), body=BODY
    )  # fmt: skip
    assert split_update(data, published.numel(), 2**20)[0] == view(published)
    place.syncer.take_handback(message, data)
    state = place.syncer.states[VALUES]
    assert torch.equal(state.value, published)
    assert torch.equal(state.theta, on_grid(published, "bf16").float()), "residual 0"
    place.syncer.restamp([Stamp(Epoch(2, 1), 3), Stamp(Epoch(2, 1), 0)])
    assert place.adopt(place.syncer.published(VALUES)) == ""
    after = place.merge(place.work(9))
    assert after.base == Stamp(Epoch(2, 1), 3)
    assert place.adopt(after) == ""
    assert torch.equal(place.held(), place.syncer.states[VALUES].value)
