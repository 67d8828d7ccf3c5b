"""Binds the names of a layout to the live tensors of a model: copies fragments out, adds to them, overwrites them.

All in place and without gradients. The caller decides when: `gather` and `add_` are the only work that the training
thread pays for a snapshot and an adoption.
"""

import torch
from torch import Tensor, nn

from zdiloco.errors import ConfigError, MachineError
from zdiloco.tensor.inventory import Owner, inventory
from zdiloco.tensor.layout import Fragment, Layout
from zdiloco.tensor.trainable import Trainable


class Binding:
    """The tensors of `model`, fragment by fragment, as flat fp32 vectors on the CPU.

    It looks each tensor up where it lives, so `model.to(device)` after binding is fine. Raises: ConfigError naming the
    first tensor in which model and layout differ.
    """

    def __init__(self, model: nn.Module, layout: Layout) -> None:
        self.layout = layout
        self.trainable = Trainable(model)
        owners = _matching_owners(model, layout)
        self._owners = [[owners[tensor.name] for tensor in fragment.tensors] for fragment in layout.fragments]
        self._sizes = [[tensor.numel for tensor in fragment.tensors] for fragment in layout.fragments]

    def live(self, fragment_index: int) -> list[Tensor]:
        """The tensors of fragment p as they live in the model now, in the order of the layout; no copies."""
        return [owner.tensor() for owner in self._owners[fragment_index]]

    @torch.no_grad()
    def gather(self, fragment_index: int, out: Tensor | None = None) -> Tensor:
        """Copy fragment p out of the model and return it: (n_p,) fp32, cpu; into `out` where one is given."""
        fragment = self.layout.fragments[fragment_index]
        if out is None:
            out = torch.empty(fragment.numel, dtype=torch.float32)
        for owner, part in self._pairs(fragment, out):
            tensor = owner.tensor()
            part.view(tensor.shape).copy_(tensor)
        return out

    @torch.no_grad()
    def add_(self, fragment_index: int, delta: Tensor) -> None:
        """Add `delta` (n_p,) fp32 to fragment p in place; low-precision tensors are summed in fp32, then rounded."""
        for owner, part in self._pairs(self.layout.fragments[fragment_index], delta):
            tensor = owner.tensor()
            tensor.add_(part.view(tensor.shape).to(tensor.device))

    @torch.no_grad()
    def load_(self, fragment_index: int, values: Tensor) -> None:
        """Overwrite fragment p with `values` (n_p,) fp32 in place, rounded to the dtype of each tensor."""
        for owner, part in self._pairs(self.layout.fragments[fragment_index], values):
            tensor = owner.tensor()
            tensor.copy_(part.view(tensor.shape))

    def _pairs(self, fragment: Fragment, flat: Tensor) -> "zip[tuple[Owner, Tensor]]":
        if flat.shape != (fragment.numel,) or flat.dtype is not torch.float32 or flat.device.type != "cpu":
            raise MachineError(
                f"fragment {fragment.index} wants ({fragment.numel},) float32 on the cpu, "
                f"got {tuple(flat.shape)} {flat.dtype} on {flat.device}"
            )
        return zip(self._owners[fragment.index], flat.split_with_sizes(self._sizes[fragment.index]), strict=True)


def _matching_owners(model: nn.Module, layout: Layout) -> dict[str, Owner]:
    found = inventory(model)
    have = {spec.name: spec for spec in found.specs}
    want = {spec.name: spec for spec in layout.tensors}
    for name in sorted(have.keys() | want.keys()):
        if name not in have:
            raise ConfigError(f"the layout has tensor {want[name]}, but the model has no such trainable tensor")
        if name not in want:
            raise ConfigError(f"the model has tensor {have[name]}, but the layout has not")
        if have[name] != want[name]:
            raise ConfigError(f"tensor {have[name]} of the model is {want[name]} in the layout")
    for tie in sorted(set(found.ties) ^ set(layout.ties)):
        side = "model" if tie in found.ties else "layout"
        raise ConfigError(f"the weights {' = '.join(tie)} are tied in the {side} only")
    return found.owners
