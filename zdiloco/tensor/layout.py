"""The layout: which tensors travel, in which fragment, and in which order inside its flat vector.

A layout is a value that all parties must share; `digest` says in 32 hex characters whether they do. The first learner
offers it, the syncer holds it without any model code. Fragments 0..P-1 hold parameters; floating-point buffers, where
a model has any, form one extra last fragment.
"""

import itertools
import json
from dataclasses import dataclass, field

import xxhash
from torch import nn

from zdiloco.errors import ConfigError, MalformedFrame
from zdiloco.tensor.inventory import inventory
from zdiloco.tensor.partition import STRATEGIES, partition
from zdiloco.tensor.spec import MAX_NAME_CHARS, MAX_NUMEL, TensorKind, TensorSpec
from zdiloco.units import MAX_FRAGMENTS

__all__ = ["Fragment", "Layout", "TensorKind", "TensorSpec", "first_difference", "layout_of"]

FORMAT = 1
MAX_TENSORS = 262_144


@dataclass(frozen=True, kw_only=True, slots=True)
class Fragment:
    """One fragment: its tensors lie one after the other, row-major, in a flat vector of `numel` elements.

    `offsets[i]` is where tensor i starts, in elements. Raises: ConfigError where it is empty or mixes buffers and
    parameters.
    """

    index: int
    tensors: tuple[TensorSpec, ...]
    numel: int = field(init=False, repr=False, compare=False)
    offsets: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.tensors:
            raise ConfigError(f"fragment {self.index} holds no tensor")
        if len({tensor.kind is TensorKind.BUFFER for tensor in self.tensors}) > 1:
            raise ConfigError(f"fragment {self.index} mixes buffers and parameters")
        ends = tuple(itertools.accumulate(tensor.numel for tensor in self.tensors))
        object.__setattr__(self, "numel", ends[-1])
        object.__setattr__(self, "offsets", (0, *ends[:-1]))

    @property
    def is_buffers(self) -> bool:
        """Whether this is the fragment of buffers: the plain average of a round's values, overwritten at adoption."""
        return self.tensors[0].kind is TensorKind.BUFFER


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """All fragments of a run, and the names that are tied to one travelling tensor (that name first).

    `digest` covers names, order, shapes, dtypes, kinds and ties, and so what the flat vectors mean; the strategy that
    found the partition is not part of it. `shares[p]` is the part of all parameter elements in fragment p, 0.0 for
    buffers; the shares sum to 1. Raises: ConfigError naming what is inconsistent.
    """

    fragments: tuple[Fragment, ...]
    ties: tuple[tuple[str, ...], ...]
    strategy: str
    digest: str = field(init=False, compare=False)
    numels: tuple[int, ...] = field(init=False, repr=False, compare=False)
    shares: tuple[float, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check(self)
        numels = tuple(fragment.numel for fragment in self.fragments)
        trained = sum(fragment.numel for fragment in self.fragments if not fragment.is_buffers)
        if not trained:
            raise ConfigError("the layout holds no parameter element: there is nothing to train")
        shares = tuple(0.0 if fragment.is_buffers else fragment.numel / trained for fragment in self.fragments)
        object.__setattr__(self, "numels", numels)
        object.__setattr__(self, "shares", shares)
        # ASCII JSON without spaces is the same text in every process and Python version.
        text = json.dumps([FORMAT, _fragments_obj(self), _ties_obj(self)], separators=(",", ":"))
        object.__setattr__(self, "digest", xxhash.xxh3_128_hexdigest(text.encode("ascii")))

    @property
    def tensors(self) -> tuple[TensorSpec, ...]:
        """Every travelling tensor, in the order of the fragments."""
        return tuple(tensor for fragment in self.fragments for tensor in fragment.tensors)

    def to_obj(self) -> dict[str, object]:
        """Return the layout as dicts, lists, strings and whole numbers; `from_obj` takes it back."""
        return {
            "format": FORMAT,
            "strategy": self.strategy,
            "fragments": _fragments_obj(self),
            "ties": _ties_obj(self),
        }

    @classmethod
    def from_obj(cls, obj: object) -> "Layout":
        """Return the layout that `to_obj` wrote, trusting nothing in it.

        Raises: MalformedFrame naming the place, for a wrong type, a broken bound or an inconsistency.
        """
        if not isinstance(obj, dict) or set(obj) != {"format", "strategy", "fragments", "ties"}:
            raise MalformedFrame("layout: expected a map with exactly format, strategy, fragments and ties")
        if type(obj["format"]) is not int or obj["format"] != FORMAT:
            raise MalformedFrame(f"layout: format {str(obj['format'])[:20]} is unknown, this side reads {FORMAT}")
        rows = _list(obj["fragments"], "fragments", MAX_FRAGMENTS)
        tensors_left = MAX_TENSORS
        fragments = []
        for index, row in enumerate(rows):
            fragments.append(_fragment(row, index, tensors_left))
            tensors_left -= len(fragments[-1].tensors)
        ties = tuple(_names(tie, f"tie {at}") for at, tie in enumerate(_list(obj["ties"], "ties", MAX_TENSORS)))
        try:
            return cls(fragments=tuple(fragments), ties=ties, strategy=obj["strategy"])
        except ConfigError as error:
            raise MalformedFrame(f"layout: {error}") from error


def layout_of(model: nn.Module, *, num_fragments: int, strategy: str = "balanced") -> Layout:
    """Return the layout of a model: every trainable tensor once, tied ones once, frozen ones never.

    Persistent floating-point buffers form one extra last fragment; integer buffers, and buffers that a checkpoint
    would not hold either, stay local. The answer depends on names, shapes, dtypes and ties only, not on the order in
    which modules were registered. Raises: ConfigError for more fragments than tensors, or a tensor that cannot travel.
    """
    found = inventory(model)
    by_name = {tensor.name: tensor for tensor in found.specs}
    sizes = {tensor.name: tensor.numel for tensor in found.specs if tensor.kind is not TensorKind.BUFFER}
    if not sizes:
        raise ConfigError("the model has no trainable parameter: nothing could be synchronised")
    dealt = partition(sizes, num_fragments, strategy)
    if len(sizes) < len(by_name):
        dealt.append(sorted(by_name.keys() - sizes.keys()))
    fragments = tuple(
        Fragment(index=index, tensors=tuple(by_name[name] for name in names)) for index, names in enumerate(dealt)
    )
    return Layout(fragments=fragments, ties=found.ties, strategy=strategy)


def first_difference(a: Layout, b: Layout, first: str = "the first layout", second: str = "the second") -> str:
    """Say in words where two layouts (so called) first differ, by name; an empty text where they mean the same."""
    ours, theirs = ({tensor.name: tensor for tensor in layout.tensors} for layout in (a, b))
    for name in sorted(ours.keys() | theirs.keys()):
        if name not in theirs:
            return f"tensor {ours[name]} is only in {first}"
        if name not in ours:
            return f"tensor {theirs[name]} is only in {second}"
        if ours[name] != theirs[name]:
            return f"tensor {ours[name]} in {first} is {theirs[name]} in {second}"
    for tie in sorted(set(a.ties) ^ set(b.ties)):
        return f"tied weights {' = '.join(tie)} are only in {first if tie in a.ties else second}"
    if len(a.fragments) != len(b.fragments):
        counts = f"{first} has {len(a.fragments)} fragments, {second} {len(b.fragments)}"
        of_a, of_b = ({t.name: f.index for f in layout.fragments for t in f.tensors} for layout in (a, b))
        moved = next((name for name in sorted(of_a) if of_a[name] != of_b[name]), None)
        return counts + (f"; tensor {moved!r} is in {of_a[moved]} and {of_b[moved]}" if moved else "")
    for here, there in zip(a.fragments, b.fragments, strict=True):
        for one, other in itertools.zip_longest(here.tensors, there.tensors):
            if one != other:
                said = [repr(tensor.name) if tensor else "nothing" for tensor in (one, other)]
                return f"fragment {here.index} holds {said[0]} in {first} where {second} holds {said[1]}"
    return ""


def _check(layout: Layout) -> None:
    if not layout.fragments:
        raise ConfigError("the layout has no fragments: there is nothing to train")
    if layout.strategy not in STRATEGIES:
        raise ConfigError(f"fragment strategy {str(layout.strategy)[:40]!r} is not one of {', '.join(STRATEGIES)}")
    if [fragment.index for fragment in layout.fragments] != list(range(len(layout.fragments))):
        raise ConfigError("fragments are not numbered 0, 1, 2, ...")
    if any(fragment.is_buffers for fragment in layout.fragments[:-1]):
        raise ConfigError("the fragment of buffers must be the last one, and the only one")
    names = [tensor.name for tensor in layout.tensors]
    aliases = [name for tie in layout.ties for name in tie[1:]]
    seen: set[str] = set()
    for name in names + aliases:
        if name in seen:
            raise ConfigError(f"tensor name {name!r} stands in the layout twice")
        seen.add(name)
    travelling = set(names)
    for tie in layout.ties:
        if len(tie) < 2 or tie[0] not in travelling:
            raise ConfigError(f"tie {tie[:2]!r} must name a travelling tensor and at least one alias")
    if sum(tensor.numel for tensor in layout.tensors) > MAX_NUMEL:
        raise ConfigError(f"the layout has more than {MAX_NUMEL} elements")


def _fragments_obj(layout: Layout) -> list[object]:
    return [[[t.name, list(t.shape), t.dtype, str(t.kind)] for t in f.tensors] for f in layout.fragments]


def _ties_obj(layout: Layout) -> list[object]:
    return [list(tie) for tie in layout.ties]


def _list(obj: object, place: str, limit: int) -> list[object]:
    if not isinstance(obj, list | tuple) or len(obj) > limit:
        raise MalformedFrame(f"layout: {place} must be a list of at most {limit} items")
    return list(obj)


def _names(obj: object, place: str) -> tuple[str, ...]:
    names = _list(obj, place, MAX_TENSORS)
    for name in names:
        if type(name) is not str or not 0 < len(name) <= MAX_NAME_CHARS:
            raise MalformedFrame(f"layout: {place} must hold names of 1 to {MAX_NAME_CHARS} characters")
    return tuple(str(name) for name in names)


def _fragment(row: object, index: int, tensors_left: int) -> Fragment:
    items = _list(row, f"fragment {index}", tensors_left)
    tensors = tuple(_tensor(item, f"fragment {index}, tensor {at}") for at, item in enumerate(items))
    try:
        return Fragment(index=index, tensors=tensors)
    except ConfigError as error:
        raise MalformedFrame(f"layout: {error}") from error


def _tensor(item: object, place: str) -> TensorSpec:
    if not isinstance(item, list | tuple) or len(item) != 4:
        raise MalformedFrame(f"layout: {place} must be [name, shape, dtype, kind]")
    name, shape, dtype, kind = item
    if not isinstance(shape, list | tuple):
        raise MalformedFrame(f"layout: {place}: the shape must be a list")
    try:
        return TensorSpec(name=name, shape=tuple(shape), dtype=dtype, kind=TensorKind(kind))
    except (ConfigError, ValueError, TypeError) as error:
        raise MalformedFrame(f"layout: {place}: {error}") from error
