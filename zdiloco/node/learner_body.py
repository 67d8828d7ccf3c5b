"""The values of a learner and all work on them: snapshot, encode, prepare, adopt (docs/math.md, adoption).

Rule: methods named `now_*` run on the training thread, at a boundary, and cost one copy or one in-place add, which on a
CUDA device are only enqueued (`tensor/device.py`); `later_*` run on the worker thread. The reference R of a fragment is
a tensor on the host that is replaced at adoption and never written to, so a job that holds the old one stays right.

Signs: a contribution encodes the outer gradient -u = R - values, so the work that its bytes stand for is û = -decode.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.optim import Adagrad, Optimizer

from zdiloco.core.machine import Prepare
from zdiloco.errors import MachineError
from zdiloco.node.incoming import IncomingUpdate
from zdiloco.tensor.binding import Binding
from zdiloco.tensor.codecs import get_codec
from zdiloco.tensor.device import Copied, CpuRoad, Staged, road_for
from zdiloco.tensor.inner import InnerState
from zdiloco.tensor.inventory import inventory
from zdiloco.tensor.layout import Layout, TensorKind, layout_of
from zdiloco.units import FragmentId, Stamp

DEFAULT_FRAGMENTS = 24


def layout_for(model: nn.Module, num_fragments: int, strategy: str) -> Layout:
    """Cut a model into fragments; 0: 24, or one per trainable tensor if there are fewer."""
    if num_fragments == 0:
        tensors = sum(spec.kind is not TensorKind.BUFFER for spec in inventory(model).specs)
        num_fragments = max(1, min(DEFAULT_FRAGMENTS, tensors))
    return layout_of(model, num_fragments=num_fragments, strategy=strategy)


def forget_inner(optimizer: Optimizer) -> None:
    """Empty the inner optimizer's state in all parameter groups, as before its first step; rates and groups stay."""
    optimizer.state.clear()
    if isinstance(optimizer, Adagrad):  # the only one of torch's that makes its state when it is made, and needs it
        every = [(parameter, group) for group in optimizer.param_groups for parameter in group["params"]]
        for parameter, group in every:
            start = torch.full_like(parameter, group["initial_accumulator_value"])
            optimizer.state[parameter] = {"step": torch.tensor(0.0), "sum": start}


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """A prepared adoption. With keep = 1: values += `shift`. Else values <- theta + keep * (values - R + shift).

    `shift` is None with `reset`: values <- theta, which is then also in `whole`.
    """

    stamp: Stamp
    codec: str
    proof: str
    theta: Tensor
    shift: Staged | None
    whole: Staged | None
    keep: float


@dataclass(slots=True)
class FragmentValues:
    """One fragment: R, its codec and proof, kept encoded bytes by seq (codec, (n,) u8), what is here and prepared."""

    reference: Tensor | None = None
    codec: str = "fp32"
    proof: str = ""
    kept: dict[int, tuple[str, Tensor]] = field(default_factory=dict)
    incoming: dict[Stamp, IncomingUpdate] = field(default_factory=dict)
    change: Change | None = None


class LearnerBody:
    """All fragments of one learner. `codec`: of contributions; buffers always travel as fp32 and are overwritten."""

    def __init__(self, binding: Binding, codec: str, road: CpuRoad | None = None) -> None:
        self._binding = binding
        self._road = road or road_for(binding)
        self.layout: Layout = binding.layout
        self._codec = codec
        self.fragments = [FragmentValues() for _ in self.layout.fragments]

    def codec_of(self, fragment: FragmentId, codec: str = "") -> str:
        """The codec of a contribution to a fragment that is to be in `codec` (empty: as the settings say)."""
        return "fp32" if self.layout.fragments[fragment].is_buffers else codec or self._codec

    def inner_of(self, optimizer: Optimizer) -> InnerState:
        """The state of this model's inner optimizer, by fragment."""
        return InnerState(optimizer, self._binding, self._road)

    # ---- on the training thread, at a boundary

    def now_look(self) -> None:
        """Raise ConfigError naming a parameter whose `requires_grad` has changed since the start."""
        self._binding.trainable.look()

    def now_snapshot(self, fragment: FragmentId) -> tuple[Copied, Tensor]:
        """Copy the fragment's values; returns the copy and the R that they have departed from."""
        reference = self._reference(fragment)
        return self._road.now_copy(fragment), reference

    def now_adopt(self, fragment: FragmentId, stamp: Stamp) -> list[Tensor]:
        """Change the values in place as prepared; afterwards R is Theta'. Returns vectors that nobody needs."""
        values = self.fragments[fragment]
        change = values.change
        if change is None or change.stamp != stamp:
            raise MachineError(f"fragment {fragment}: {stamp} is to be adopted, but is not prepared")
        unused = [] if values.reference is None else [values.reference]
        if change.whole is not None:
            self._road.now_load(change.whole)
        elif change.shift is not None and change.keep == 1.0:
            unused += self._road.now_add(change.shift)
        elif change.shift is not None:
            unused += self._blend(fragment, change, change.shift)
        values.reference, values.codec, values.proof, values.change = change.theta, change.codec, change.proof, None
        values.incoming.pop(stamp, None)
        return unused

    def _blend(self, fragment: FragmentId, change: Change, shift: Staged) -> list[Tensor]:
        """For study, and on the host: the training thread waits for a device."""
        assert shift.host is not None
        mine = self._binding.gather(fragment, self._road.vector(fragment))
        mine.sub_(self._reference(fragment)).add_(shift.host).mul_(change.keep).add_(change.theta)
        self._binding.load_(fragment, mine)
        return [shift.host, mine]

    def now_drop(self, fragment: FragmentId) -> None:
        """Values <- R; where there is no R yet, there is nothing to go back to. Rare: it waits for a device."""
        reference = self.fragments[fragment].reference
        self._replace_change(fragment, None)
        if reference is not None:
            self._road.now_load(Staged(fragment, reference))

    # ---- on the worker thread

    def later_encode(
        self, fragment: FragmentId, seq: int, copied: Copied, reference: Tensor, codec: str = ""
    ) -> Tensor:  # fmt: skip
        """Encode R - values, keep the bytes under `seq`, and return them, (n,) u8. `copied` is used up.

        Of buffers encode -values: statistics are no work that could be added to what others did since R.
        """
        codec, host = self.codec_of(fragment, codec), self._road.later_host(copied)
        if self.layout.fragments[fragment].is_buffers:
            torch.neg(host, out=host)
        else:
            torch.sub(reference, host, out=host)
        encoded = get_codec(codec).encode(host)
        self.fragments[fragment].kept[seq] = (codec, encoded)
        self.give_back(fragment, [host])
        return encoded

    def later_prepare(self, action: Prepare, incoming: IncomingUpdate, reference: Tensor | None) -> str:
        """Decode the update if that was not done yet, and work the change out that leads to it from `reference`.

        Returns why it does not fit, and has prepared nothing; empty: it does. R is that of the last adoption still.
        """
        fragment = self.layout.fragments[action.fragment]
        wrong = incoming.work_out(reference, self.fragments[action.fragment].codec, fragment.numel)
        if wrong or incoming.theta is None:
            return wrong
        first = reference is None  # values of every fragment come at once: none waits for its boundary on a device
        if first:
            self._road.later_reserve()
        shift = whole = None
        if action.reset or fragment.is_buffers or reference is None:
            whole = self._road.later_stage(action.fragment, incoming.theta, direct=first)
        else:
            shift = self._later_shift(action, incoming.theta, reference)
        self._replace_change(
            action.fragment,
            Change(
                stamp=action.stamp,
                codec=incoming.grid,
                proof=incoming.proof,
                theta=incoming.theta,
                shift=shift,
                whole=whole,
                keep=action.keep,
            ),
        )
        return ""

    def _later_shift(self, action: Prepare, theta: Tensor, reference: Tensor) -> Staged:
        shift = self._road.vector(action.fragment)
        if action.keep == 1.0:
            torch.sub(theta, reference, out=shift)
        else:
            shift.zero_()
        self._settle(action, shift)
        staged = self._road.later_stage(action.fragment, shift, direct=action.keep != 1.0)
        if staged.host is None:
            self.give_back(action.fragment, [shift])
        return staged

    def _replace_change(self, fragment: FragmentId, change: Change | None) -> None:
        """The machine lets nobody adopt while this is under way."""
        values = self.fragments[fragment]
        before, values.change = values.change, change
        for staged in (before.shift, before.whole) if before else ():
            if staged is not None:
                self._road.release(staged)

    def _settle(self, action: Prepare, shift: Tensor) -> None:
        """shift - û(subtract) + Σ û(restore), with û = -decode of the kept bytes."""
        kept = self.fragments[action.fragment].kept
        signs = [(action.subtract, 1.0)] if action.subtract else []
        for seq, sign in [*signs, *((seq, -1.0) for seq in action.restore)]:
            if seq not in kept:
                raise MachineError(f"fragment {action.fragment}: the bytes of contribution {seq} are not kept any more")
            codec, encoded = kept[seq]
            scratch = get_codec(codec).decode(encoded, shift.numel(), self._road.vector(action.fragment))
            shift.add_(scratch, alpha=sign)
            self.give_back(action.fragment, [scratch])

    def later_forget(self, fragment: FragmentId, seqs: Sequence[int]) -> None:
        """Let kept bytes go."""
        for seq in seqs:
            self.fragments[fragment].kept.pop(seq, None)

    def later_values(self, fragment: FragmentId) -> Tensor:
        """The model's own values, fp32, as (4 n_p,) u8: for a donor, whose model stands still."""
        self._road.later_settle()
        return get_codec("fp32").encode(self._binding.gather(fragment))

    def later_reference(self, codec: str, reference: Tensor) -> Tensor:
        """R as it was published: encoding what came from these bytes gives them back."""
        return get_codec(codec).encode(reference)

    def give_back(self, fragment: FragmentId, tensors: Sequence[Tensor]) -> None:
        """Vectors (n_p,) fp32 that nobody reads any more may be used again."""
        self._road.give_back(fragment, tensors)

    def _reference(self, fragment: FragmentId) -> Tensor:
        reference = self.fragments[fragment].reference
        if reference is None:
            raise MachineError(f"fragment {fragment} has adopted nothing yet")
        return reference
