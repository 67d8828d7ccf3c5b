"""What a model holds that may travel: trainable parameters and persistent floating-point buffers, tied ones once.

The only file that looks into a module for kinds and ties. It finds owners (module, attribute) rather than tensors, so
that a tensor replaced by `model.to(device)` is still found at its place.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from zdiloco.errors import ConfigError
from zdiloco.tensor.spec import DTYPES, TensorKind, TensorSpec

_HEADS = frozenset({"head", "lm_head", "wte", "wpe"})


@dataclass(frozen=True, slots=True)
class Owner:
    """Where a tensor lives; `tensor()` is the one that lives there now."""

    module: nn.Module
    attribute: str

    def tensor(self) -> Tensor:
        """Return the live tensor, not a copy."""
        found: Tensor = getattr(self.module, self.attribute)
        return found


@dataclass(frozen=True, kw_only=True, slots=True)
class Inventory:
    """Specs in the order of their names, the owner of each name, and the groups of tied names, travelling one first."""

    specs: tuple[TensorSpec, ...]
    owners: dict[str, Owner]
    ties: tuple[tuple[str, ...], ...]


def inventory(model: nn.Module) -> Inventory:
    """List what of `model` travels. Raises: ConfigError naming a tensor that cannot."""
    owners = dict(_owners(model))
    groups: dict[object, list[str]] = {}
    for name in sorted(owners):
        groups.setdefault(_identity(owners[name].tensor(), name), []).append(name)
    specs = tuple(_spec(names, owners) for names in groups.values())
    _refuse_overlaps(specs, owners)
    ties = tuple(sorted(tuple(names) for names in groups.values() if len(names) > 1))
    return Inventory(
        specs=tuple(sorted(specs, key=lambda spec: spec.name)),
        owners={spec.name: owners[spec.name] for spec in specs},
        ties=ties,
    )


def _owners(model: nn.Module) -> Iterator[tuple[str, Owner]]:
    """Every name, aliases too, of a trainable parameter or of a floating-point buffer that a checkpoint holds."""
    persistent = model.state_dict(keep_vars=True).keys()
    for path, module in model.named_modules(remove_duplicate=False):
        prefix = f"{path}." if path else ""
        for attribute, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            if parameter.requires_grad:
                yield prefix + attribute, Owner(module, attribute)
        for attribute, buffer in module.named_buffers(recurse=False, remove_duplicate=False):
            if prefix + attribute in persistent and buffer.is_floating_point():
                yield prefix + attribute, Owner(module, attribute)


def _identity(tensor: Tensor, name: str) -> object:
    """What is equal for two names exactly when writing to one also writes to all of the other."""
    if isinstance(tensor, UninitializedParameter):
        raise ConfigError(f"parameter {name!r} has no shape yet: run one forward pass before attaching the model")
    if tensor.layout is not torch.strided or tensor.device.type == "meta":
        raise ConfigError(f"tensor {name!r} is {tensor.layout} on {tensor.device}: only dense tensors with data travel")
    if not tensor.numel():
        return id(tensor)
    return tensor.device, tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype


def _spec(names: list[str], owners: dict[str, Owner]) -> TensorSpec:
    tensor = owners[names[0]].tensor()
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in DTYPES:
        raise ConfigError(f"tensor {names[0]!r} has dtype {dtype}, which cannot travel; known are {', '.join(DTYPES)}")
    return TensorSpec(name=names[0], shape=tuple(tensor.shape), dtype=dtype, kind=_kind(names, owners))


def _kind(names: list[str], owners: dict[str, Owner]) -> TensorKind:
    """Embeddings and the output head by module type or by name, tied ones if any of their names says so."""
    tensor = owners[names[0]].tensor()
    if not isinstance(tensor, nn.Parameter):
        return TensorKind.BUFFER
    for name in names:
        if isinstance(owners[name].module, nn.Embedding | nn.EmbeddingBag):
            return TensorKind.EMBEDDING
        if any(part in _HEADS or part.startswith("embed") for part in name.lower().split(".")[-2:]):
            return TensorKind.EMBEDDING
    return TensorKind.MATRIX if tensor.dim() >= 2 else TensorKind.VECTOR


def _refuse_overlaps(specs: tuple[TensorSpec, ...], owners: dict[str, Owner]) -> None:
    """Two travelling tensors that share some of their memory would be merged into each other."""
    ranges = []
    for spec in specs:
        tensor = owners[spec.name].tensor()
        if tensor.numel():
            last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
            start = tensor.data_ptr()
            if last + 1 >= tensor.numel():
                ranges.append((str(tensor.device), start, start + (last + 1) * tensor.element_size(), spec.name))
            else:
                raise ConfigError(f"tensor {spec.name!r} overlaps itself (an expanded view): make it contiguous")
    ranges.sort()
    for (device, _, end, name), (next_device, start, _, next_name) in itertools.pairwise(ranges):
        if device == next_device and start < end:
            raise ConfigError(f"tensors {name!r} and {next_name!r} share part of their memory: untie or clone them")
