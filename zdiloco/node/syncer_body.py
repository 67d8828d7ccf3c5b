"""The values of a syncer and all work on them; every method runs on the one worker thread, in the order of the machine.

Rule: Theta and the momentum are fp32 and belong to this file. What is published is encoded once, and these bytes are
what the checkpoint, a joiner and a broadcast hold, unless that is a delta to them (`publishing.py`). No tensor of a
state is ever written to: a merge works on copies and puts them in place when they have proved finite, so a cut may be
read by the saver as long as it likes.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from zdiloco.core.machine import Merge, Save
from zdiloco.core.membership import MOST_REPLACED
from zdiloco.core.messages import Bundle, Handback, InitialOffer, LayoutOffer
from zdiloco.core.progress import Refusal, add_record
from zdiloco.errors import ConfigError, MachineError, MalformedFrame
from zdiloco.node.params import MergeParams
from zdiloco.node.proofs import same
from zdiloco.node.publishing import NO_DELTA, Issue, Published, digest_of, issue, whole
from zdiloco.rundir.archive import Cut, FragmentCut
from zdiloco.rundir.fitting import layout_of_cut
from zdiloco.tensor.blocks import blocks, is_finite, scratch_for, square_sum
from zdiloco.tensor.codecs import get_codec
from zdiloco.tensor.delta import GRIDS, on_grid
from zdiloco.tensor.layout import Fragment, Layout
from zdiloco.tensor.merge import Weighted
from zdiloco.tensor.outer import OuterParams, outer_step_
from zdiloco.tensor.partial import split_bundle
from zdiloco.tensor.robust import merge_robust
from zdiloco.tensor.screen import screen
from zdiloco.units import NO_STAMP, Epoch, FragmentId, MemberKey, Merged, Stamp
from zdiloco.wire.bodies import decode_map, split_update
from zdiloco.wire.frames import Buffer

MAX_LAYOUT_BYTES = 2**26
MAX_RECORD_BYTES = 2**23
_BUFFERS_OUTER = OuterParams(lr=1.0, momentum=0.0)


@dataclass(slots=True)
class Payload:
    """The encoded bytes of one contribution, as they came by `transfer`.

    `squares`, found by screening, are the sums of squares per tensor. `method`: of a bundle, that by which it was
    merged; its `data` are its values alone when it was screened, and `radii` what lay behind them.
    """

    data: memoryview
    transfer: str
    squares: tuple[float, ...] | None = None
    method: str = ""
    radii: tuple[float, ...] = ()


@dataclass(slots=True)
class FragmentState:
    """One fragment: theta (n_p,) fp32, buf (n_p,) fp32 or None, value as published, `map_` in sums per process.

    `norm`: that of theta as this syncer took it in, before any merge; a scale, so it is not kept up to date. `proof`:
    of what is published; empty: not made yet, or there are no keys.
    """

    fragment: Fragment
    theta: Tensor
    buf: Tensor | None
    value: Tensor
    codec: str
    stamp: Stamp
    map_: dict[MemberKey, Merged] = field(default_factory=dict)
    revision: int = 0
    proof: str = ""
    norm: float = field(init=False)

    def __post_init__(self) -> None:
        wide = scratch_for(self.theta.numel(), torch.float64)
        self.norm = math.sqrt(sum(square_sum(self.theta[a:b], wide) for a, b in blocks(0, self.theta.numel())))


class SyncerBody:
    """All fragments' state. `init`: 'first', or the path of a safetensors file whose values win over the donor's.

    `prove` makes the proof of a published state, (fragment, stamp, grid, value, map) -> text; None: there are no keys,
    and everything that is handed back is believed.
    """

    def __init__(self, params: MergeParams, init: str = "first") -> None:
        self.prove: Callable[[FragmentId, Stamp, str, Buffer, Iterable[Merged]], str] | None = None
        self._params = params
        self._init = init
        self._initial: Mapping[str, Tensor] = {}
        self._revision = 0
        self.layout: Layout | None = None
        self.states: dict[FragmentId, FragmentState] = {}

    # ---- beginnings

    def restore(self, cut: Cut) -> Layout:
        """Take the state of a checkpoint. Raises ConfigError where its layout and values do not fit each other."""
        self.layout = layout = layout_of_cut(cut)
        for fragment, part in zip(layout.fragments, cut.fragments, strict=True):
            self.states[fragment.index] = FragmentState(
                fragment=fragment,
                theta=part.theta,
                buf=part.buf,
                value=part.value,
                codec=part.codec,
                stamp=part.stamp,
                map_={entry.key: entry for entry in part.map_},
                revision=part.revision,
            )
        return layout

    def take_layout(self, message: LayoutOffer, data: memoryview) -> Layout:
        """Check a donor's layout and start over with it. Raises MalformedFrame where it makes no sense."""
        layout = Layout.from_obj(decode_map(data, MAX_LAYOUT_BYTES))
        if layout.digest != message.digest:
            raise MalformedFrame(f"the layout has digest {layout.digest}, announced was {message.digest}")
        if self._init != "first":
            self._initial = _read_initial(Path(self._init), layout)
        self.layout = layout
        self.states.clear()
        return layout

    def take_initial(self, message: InitialOffer, data: memoryview) -> None:
        """Put a donor's values (or those of `init`) into Theta.

        Raises MalformedFrame for a wrong length, and where the values, or what is published of them, are not finite;
        ConfigError where those of `init` are not.
        """
        fragment = self._fragment(message.fragment)
        if self._initial:
            theta = torch.cat([self._initial[tensor.name].reshape(-1).float() for tensor in fragment.tensors])
        else:
            theta = get_codec("fp32").decode(data, fragment.numel)
        try:
            self._set(fragment, None, theta, whole(theta, self._codec_of(fragment)))
        except MalformedFrame as error:
            if self._initial:
                raise ConfigError(f"run.init {self._init}: {error}") from error
            raise

    def take_handback(self, message: Handback, data: memoryview) -> tuple[Merged, ...]:
        """Put a state that the fleet handed back into Theta: residual 0, momentum as on disk. Returns its map.

        Raises MalformedFrame where it is on no grid, of a wrong length, not finite, or not what this syncer's key has
        published.
        """
        fragment = self._fragment(message.fragment)
        if message.codec not in GRIDS:
            raise MalformedFrame(f"no state is published in {message.codec!r}")
        value, map_ = split_update(data, message.value_bytes, MAX_RECORD_BYTES)
        if self.prove and not same(
            message.proof, self.prove(fragment.index, message.stamp, message.codec, value, map_)
        ):
            raise MalformedFrame("it is not what the key of this syncer has published under that stamp")
        theta = get_codec(message.codec).decode(value, fragment.numel)
        old = self.states.get(fragment.index)
        kept = torch.frombuffer(bytearray(value), dtype=torch.uint8)
        state = self._set(fragment, old.buf if old else None, theta, Issue(value=kept, grid=message.codec))
        state.stamp, state.map_ = message.stamp, {entry.key: entry for entry in map_}
        return map_

    def _set(self, fragment: Fragment, buf: Tensor | None, theta: Tensor, issued: Issue) -> FragmentState:
        _check_finite(fragment, theta, issued)
        state = FragmentState(
            fragment=fragment, theta=theta, buf=buf, value=issued.value, codec=issued.grid, stamp=NO_STAMP
        )
        state.revision = self._next_revision()
        self.states[fragment.index] = state
        return state

    def restamp(self, stamps: Sequence[Stamp], exact: bool = False) -> None:
        """Publish every value under these stamps; values and maps stay. `exact`: what is published is Theta itself."""
        for index, stamp in enumerate(stamps):
            state = self._state(index)
            state.stamp, state.proof = stamp, ""
            if exact:
                state.value, state.codec = state.theta.view(torch.uint8), "fp32"  # the very memory: no second copy
                state.revision = self._next_revision()
        self._initial = {}

    # ---- rounds

    def screen(self, fragment_index: FragmentId, codec: str, payload: Payload) -> tuple[str, float, float]:
        """Look at a contribution; returns the word of `Refusal` (empty: it may enter), the norm of its values and that
        of the fragment's own, as this syncer took it in; 0 and 0, which set no bound, for buffers.
        """
        fragment = self._fragment(fragment_index)
        if payload.method:
            return self._screen_bundle(fragment, codec, payload)
        found = screen(payload.data, codec=get_codec(codec), numel=fragment.numel, cuts=fragment.offsets)
        if found.reason:
            return (Refusal.NON_FINITE if found.reason == "non_finite" else Refusal.LAYOUT).value, 0.0, 0.0
        payload.squares = found.squares
        if fragment.is_buffers:  # statistics of any size are sound, and do not grow with the steps
            return "", 0.0, 0.0
        return "", found.norm, self._state(fragment_index).norm

    def _screen_bundle(self, fragment: Fragment, codec: str, payload: Payload) -> tuple[str, float, float]:
        """The same for a bundle: its norm is that of what it stands for."""
        try:
            found = split_bundle(fragment, payload.data, payload.method, codec)
        except MalformedFrame:
            return Refusal.LAYOUT.value, 0.0, 0.0
        payload.data, payload.radii = found.values, found.radii
        if fragment.is_buffers:
            return "", 0.0, 0.0
        return "", found.norm, self._state(fragment.index).norm

    def wrong_method(self, message: Bundle) -> str:
        """Say why a bundle was not merged as this syncer merges; empty: it was."""
        wanted = "avg" if self._fragment(message.fragment).is_buffers else self._params.method
        return "" if message.method == wanted else f"it was merged by {message.method!r}, here by {wanted!r}"

    def merge(self, action: Merge, payloads: Sequence[Payload]) -> Published:
        """Merge, take the outer step, encode. Afterwards Theta, momentum, value and map are those of the new stamp.

        Raises MalformedFrame, and changes nothing, where Theta or what would be published of it is not finite.
        """
        state = self._state(action.fragment)
        contributions = [
            Weighted(
                data=payload.data,
                codec=get_codec(part.codec),
                weight=part.weight,
                clip=part.clip,
                squares=payload.squares,
                radii=payload.radii,
            )
            for part, payload in zip(action.parts, payloads, strict=True)
        ]
        is_buffers = state.fragment.is_buffers
        method = "avg" if is_buffers else self._params.method
        merged = merge_robust(state.fragment, contributions, method, self._params.robust)
        outer = _BUFFERS_OUTER if is_buffers else self._params.outer
        # Contributions to buffers are -values: their mean takes Theta's place, whatever R they were made on.
        theta = torch.zeros_like(state.theta) if is_buffers else state.theta.clone()
        buf = state.buf.clone() if state.buf is not None else None
        buf = outer_step_(theta, buf, merged.gradient, outer)
        grid, delta_codec = self._codec_of(state.fragment), NO_DELTA if is_buffers else self._params.delta_codec
        issued = issue(theta, Issue(value=state.value, grid=state.codec), grid, delta_codec)
        _check_finite(state.fragment, theta, issued)
        base, state.stamp, state.map_ = state.stamp, action.stamp, add_record(state.map_, action.merged)
        state.theta, state.buf, state.value, state.codec, state.proof = theta, buf, issued.value, issued.grid, ""
        state.revision = self._next_revision()
        published = self._published(state, action.merged, full=False)
        published = replace(published, trimmed=merged.trimmed, plain=merged.plain)
        if issued.delta is None:
            return published
        return replace(published, codec=delta_codec, value=issued.delta, base=base)

    def published(self, fragment: FragmentId) -> Published:
        """The newest published state, whole, with the whole map."""
        state = self._state(fragment)
        return self._published(state, tuple(state.map_[key] for key in sorted(state.map_)), full=True)

    # ---- checkpoints

    def cut(self, run_id: str, epoch: Epoch, save: Save) -> Cut:
        """All fragments as they are now, and of the replaced incarnations the newest; nobody writes to its tensors."""
        if self.layout is None:
            raise MachineError("a checkpoint was asked for before there is a layout")
        parts = []
        for index in range(len(self.layout.fragments)):
            state = self._state(index)
            parts.append(
                FragmentCut(
                    fragment=index,
                    revision=state.revision,
                    stamp=state.stamp,
                    theta=state.theta,
                    buf=state.buf,
                    value=state.value,
                    codec=state.codec,
                    map_=tuple(state.map_[key] for key in sorted(state.map_)),
                )
            )
        shares = self.layout.shares
        merged = sum(share * sum(m.tokens for m in part.map_) for share, part in zip(shares, parts, strict=True))
        return Cut(
            run_id=run_id,
            epoch=epoch,
            layout_digest=self.layout.digest,
            layout=self.layout.to_obj(),
            fragments=tuple(parts),
            progress_tokens=merged,
            replaced=save.replaced[-MOST_REPLACED:],
            live=save.live,
        )

    # ---- small things

    def _published(self, state: FragmentState, record: tuple[Merged, ...], *, full: bool) -> Published:
        if self.prove and not state.proof:
            value, map_ = cast(Buffer, state.value.numpy()), state.map_.values()
            state.proof = self.prove(state.fragment.index, state.stamp, state.codec, value, map_)
        return Published(
            fragment=state.fragment.index,
            stamp=state.stamp,
            codec=state.codec,
            value=state.value,
            record=record,
            full=full,
            digest=digest_of(state.value),
            proof=state.proof,
        )

    def _codec_of(self, fragment: Fragment) -> str:
        return "fp32" if fragment.is_buffers else self._params.publish_codec

    def _fragment(self, index: FragmentId) -> Fragment:
        if self.layout is None or index >= len(self.layout.fragments):
            raise MalformedFrame(f"there is no fragment {index}")
        return self.layout.fragments[index]

    def _state(self, index: FragmentId) -> FragmentState:
        if index not in self.states:
            raise MachineError(f"fragment {index} has no values yet")
        return self.states[index]

    def _next_revision(self) -> int:
        self._revision += 1
        return self._revision


def _check_finite(fragment: Fragment, theta: Tensor, issued: Issue) -> None:
    """Raise MalformedFrame unless theta (n_p,) is finite, and also what receivers decode from what is published.

    A value that a delta leads to has been looked at when that was made.
    """
    if not is_finite(theta):
        raise MalformedFrame(f"the values of fragment {fragment.index} are not finite")
    if issued.grid != "fp32" and issued.delta is None and not is_finite(on_grid(issued.value, issued.grid)):
        raise MalformedFrame(f"the values of fragment {fragment.index} are too large for {issued.grid}")


def _read_initial(path: Path, layout: Layout) -> dict[str, Tensor]:
    try:
        values = safetensors.torch.load_file(path)
    except (OSError, safetensors.SafetensorError) as error:
        raise ConfigError(f"run.init {path} cannot be read: {error}") from error
    for tensor in layout.tensors:
        found = values.get(tensor.name)
        if found is None or tuple(found.shape) != tensor.shape:
            have = "is missing" if found is None else f"has shape {list(found.shape)}"
            raise ConfigError(f"run.init {path}: tensor {tensor.name!r} {have}; the model has {list(tensor.shape)}")
    return values
