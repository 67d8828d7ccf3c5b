"""The layout says the same on every side, in every process, and believes nothing that a peer sends."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from zdiloco.errors import ConfigError, MalformedFrame
from zdiloco.tensor.layout import Fragment, Layout, TensorKind, TensorSpec, first_difference, layout_of


class Net(nn.Module):
    """Embedding tied to its head, BatchNorm, a scalar, a frozen layer, and more buffers than travel."""

    def __init__(self, backwards: bool = False) -> None:
        super().__init__()
        parts = {
            "wte": nn.Embedding(7, 4),
            "body": nn.Linear(4, 5),
            "norm": nn.BatchNorm1d(5),
            "frozen": nn.Linear(5, 5).requires_grad_(False),
            "lm_head": nn.Linear(4, 7, bias=False),
        }
        for name in reversed(parts) if backwards else parts:
            self.add_module(name, parts[name])
        self.lm_head.weight = self.wte.weight
        self.gain = nn.Parameter(torch.tensor(2.0))
        self.register_buffer("cache", torch.zeros(9), persistent=False)
        self.register_buffer("mask", torch.ones(3, dtype=torch.bool))


# Changes whenever the meaning of a layout does; then FORMAT must change too.
NET_DIGEST = "18d91d65174673ef0a4a032cb03f45aa"


def test_every_trainable_travels_once_and_nothing_else():
    layout = layout_of(Net(), num_fragments=3)
    names = [tensor.name for tensor in layout.tensors]
    assert sorted(names) == sorted(
        ["body.bias", "body.weight", "gain", "lm_head.weight", "norm.bias", "norm.weight",
         "norm.running_mean", "norm.running_var"]
    )  # fmt: skip
    assert layout.ties == (("lm_head.weight", "wte.weight"),)
    kinds = {tensor.name: tensor.kind for tensor in layout.tensors}
    assert kinds["lm_head.weight"] is TensorKind.EMBEDDING
    assert kinds["body.weight"] is TensorKind.MATRIX
    assert kinds["gain"] is kinds["norm.weight"] is TensorKind.VECTOR
    assert kinds["norm.running_var"] is TensorKind.BUFFER


def test_float_buffers_are_one_last_fragment_without_a_share():
    layout = layout_of(Net(), num_fragments=3)
    assert [fragment.is_buffers for fragment in layout.fragments] == [False, False, False, True]
    assert layout.numels == tuple(fragment.numel for fragment in layout.fragments)
    assert layout.shares[-1] == 0.0
    assert sum(layout.shares) == pytest.approx(1.0)
    assert layout.shares[0] == layout.numels[0] / sum(layout.numels[:-1])


def test_a_model_without_float_buffers_has_no_fragment_for_them():
    assert len(layout_of(nn.Linear(2, 2), num_fragments=2).fragments) == 2


def test_offsets_are_where_each_tensor_starts():
    tensors = tuple(
        TensorSpec(name=name, shape=shape, dtype="float32", kind=TensorKind.MATRIX)
        for name, shape in (("a", (2, 3)), ("b", ()), ("c", (0, 4)), ("d", (4,)))
    )
    fragment = Fragment(index=0, tensors=tensors)
    assert fragment.offsets == (0, 6, 7, 7)
    assert fragment.numel == 11


def test_the_order_of_registration_does_not_matter():
    assert layout_of(Net(), num_fragments=3).to_obj() == layout_of(Net(backwards=True), num_fragments=3).to_obj()


def test_the_digest_is_the_same_in_every_process_and_version():
    assert layout_of(Net(), num_fragments=3).digest == NET_DIGEST


@pytest.mark.parametrize("strategy", ["balanced", "strided", "layer"])
def test_obj_round_trip(strategy):
    layout = layout_of(Net(), num_fragments=2, strategy=strategy)
    back = Layout.from_obj(layout.to_obj())
    assert back == layout
    assert back.digest == layout.digest
    assert first_difference(layout, back) == ""


def _break(obj, path, value):
    *way, last = path
    for key in way:
        obj = obj[key]
    obj[last] = value


@pytest.mark.parametrize(
    ("path", "value", "place"),
    [
        (("format",), 2, "format"), (("format",), True, "format"), (("strategy",), "odd", "strategy"),
        (("strategy",), ["layer"], "strategy"), (("fragments",), {}, "fragments"), (("fragments",), [], "nothing"),
        (("fragments", 1), [], "fragment 1"), (("fragments", 0, 0), ["w"], "fragment 0, tensor 0"),
        (("fragments", 0, 0, 0), "gain", "twice"), (("fragments", 0, 0, 0), b"w", "fragment 0, tensor 0"),
        (("fragments", 0, 0, 1), [-1], "fragment 0, tensor 0"), (("fragments", 0, 0, 1), "ab", "fragment 0, tensor 0"),
        (("fragments", 0, 0, 1), [2**40, 2**40], "elements"), (("fragments", 0, 0, 1), [True], "whole number"),
        (("fragments", 0, 0, 1), [2**40], "elements"), (("fragments", 0, 0, 2), "int8", "dtype"),
        (("fragments", 0, 0, 2), ["float32"], "dtype"), (("fragments", 0, 0, 3), "vektor", "fragment 0, tensor 0"),
        (("fragments", 0, 0, 3), {}, "fragment 0, tensor 0"), (("fragments", 0, 0, 3), "buffer", "buffers"),
        (("ties",), None, "ties"), (("ties", 0), ["lm_head.weight"], "tie"), (("ties", 0), ["no", "wte.weight"], "tie"),
        (("ties", 0), ["lm_head.weight", 5], "tie 0"), (("ties", 0), ["lm_head.weight", "gain"], "twice"),
    ],
)  # fmt: skip
def test_from_obj_names_the_broken_place(path, value, place):
    obj = copy.deepcopy(layout_of(Net(), num_fragments=2).to_obj())
    _break(obj, path, value)
    with pytest.raises(MalformedFrame, match=place):
        Layout.from_obj(obj)


JSONLIKE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=12,
)
PLACES = [("format",), ("strategy",), ("fragments",), ("fragments", 0), ("fragments", 0, 0), ("ties",), ("ties", 0)]
PLACES += [("fragments", 0, 0, at) for at in range(4)]


@given(st.sampled_from(PLACES), JSONLIKE)
def test_from_obj_refuses_or_understands_whatever_stands_there(path, value):
    obj = copy.deepcopy(layout_of(Net(), num_fragments=2).to_obj())
    _break(obj, path, value)
    try:
        layout = Layout.from_obj(obj)
    except MalformedFrame:
        return
    assert Layout.from_obj(layout.to_obj()) == layout


@pytest.mark.parametrize("obj", [None, [], {}, {"format": 1}, "layout", 3])
def test_from_obj_refuses_what_is_no_layout(obj):
    with pytest.raises(MalformedFrame, match="exactly"):
        Layout.from_obj(obj)


def test_the_first_difference_is_named():
    net, other = Net(), Net()
    other.body = nn.Linear(4, 6)
    here = layout_of(net, num_fragments=2)
    assert "'body.bias' float32 [5]" in first_difference(here, layout_of(other, num_fragments=2))
    other = Net()
    other.extra = nn.Linear(1, 1)
    assert "'extra.bias'" in first_difference(here, layout_of(other, num_fragments=2))
    assert "only in the first" in first_difference(layout_of(other, num_fragments=2), here)
    other = Net()
    other.register_parameter("other", other.wte.weight)
    assert "tied" in first_difference(here, layout_of(other, num_fragments=2))
    assert "3 fragments, the second 4" in first_difference(here, layout_of(Net(), num_fragments=3))
    assert "holds" in first_difference(here, layout_of(Net(), num_fragments=2, strategy="layer"))


def test_layouts_that_differ_in_one_thing_have_different_digests():
    plain = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    tied = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    tied[1].weight = tied[0].weight
    models = (plain, tied, nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 4)), copy.deepcopy(plain).bfloat16())
    digests = {layout_of(model, num_fragments=p).digest for model in models for p in (1, 2)}
    assert len(digests) == 8


def test_a_model_that_cannot_be_cut_is_refused():
    with pytest.raises(ConfigError, match="only 2 trainable tensors"):
        layout_of(nn.Linear(2, 2), num_fragments=3)
    with pytest.raises(ConfigError, match="no trainable parameter"):
        layout_of(nn.Linear(2, 2).requires_grad_(False), num_fragments=1)
    with pytest.raises(ConfigError, match="nothing to train"):
        layout_of(nn.ParameterList([torch.empty(0)]), num_fragments=1)
