"""How large a model is, and how it is cut: from a number of parameters, a model's config.json, or a preset."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zdiloco.errors import ConfigError
from zdiloco.tensor.codecs import get_codec
from zdiloco.tensor.partial import RADIUS_BYTES
from zdiloco.tensor.partition import partition

USUAL_FRAGMENTS = 24
"""P where sync.num_fragments is 0."""
MOST_PARAMETERS = 10**14
MAX_BYTES = 2**20
MOST_TENSORS = 100_000
_NEEDED = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")


@dataclass(frozen=True, kw_only=True, slots=True)
class Model:
    """`numels`: values of each fragment; `tensors`: how many tensors there are in all."""

    numels: tuple[int, ...]
    tensors: int

    @property
    def parameters(self) -> int:
        """N."""
        return sum(self.numels)

    def encoded(self, codec: str) -> int:
        """Bytes of all fragments once, in a codec."""
        return sum(map(get_codec(codec).encoded_bytes, self.numels))

    def largest(self, codec: str) -> int:
        """Bytes of the largest fragment, in a codec."""
        return get_codec(codec).encoded_bytes(max(self.numels))

    def bundles(self, codec: str) -> int:
        """Bytes of a bundle of each fragment."""
        return self.encoded(codec) + RADIUS_BYTES * self.tensors


def of_parameters(parameters: float, fragments: int) -> Model:
    """So many parameters, in tensors small enough to be dealt out evenly. Raises: ConfigError."""
    if not 1 <= parameters <= MOST_PARAMETERS:
        raise ConfigError(f"the model has {parameters:g} parameters; allowed is 1 to {MOST_PARAMETERS:g}")
    count = min(fragments or USUAL_FRAGMENTS, int(parameters))
    numels = tuple((int(parameters) + index) // count for index in range(count))
    return Model(numels=numels, tensors=12 * count)


def of_sizes(sizes: Mapping[str, int], fragments: int, strategy: str) -> Model:
    """These tensors, dealt out as a run does it. Raises: ConfigError."""
    dealt = partition(sizes, fragments or min(USUAL_FRAGMENTS, len(sizes)), strategy)
    return Model(numels=tuple(sum(sizes[name] for name in names) for names in dealt), tensors=len(sizes))


def sizes_of(path: Path) -> dict[str, int]:
    """Name -> elements of each tensor of a decoder, from its config.json (as transformers write it). Raises:
    ConfigError."""
    found = _read(path)
    width, layers, heads, inner, words = (_whole(path, found, key) for key in _NEEDED)
    head = _whole(path, found, "head_dim", width // heads or 1)
    shared = _whole(path, found, "num_key_value_heads", heads) * head
    experts = _whole(path, found, "num_local_experts", 1)
    if layers * experts > MOST_TENSORS:
        raise ConfigError(f"{path}: {layers} layers of {experts} experts; allowed are {MOST_TENSORS} together")
    sizes = {"embed": words * width, "norm": width}
    if not found.get("tie_word_embeddings", False):
        sizes["head"] = words * width
    for layer in range(layers):
        place = f"layers.{layer}"
        sizes |= {f"{place}.q": width * heads * head, f"{place}.o": width * heads * head}
        sizes |= {f"{place}.k": width * shared, f"{place}.v": width * shared}
        sizes |= {f"{place}.norm1": width, f"{place}.norm2": width}
        sizes |= {f"{place}.router": width * experts} if experts > 1 else {}
        for expert in range(experts):
            sizes |= {f"{place}.{expert}.{part}": width * inner for part in ("gate", "up", "down")}
    return sizes


def _read(path: Path) -> Mapping[str, Any]:
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(MAX_BYTES))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: is not JSON; give the config.json of a model") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{path}: holds no map; give the config.json of a model")
    return found


def _whole(path: Path, found: Mapping[str, Any], key: str, default: int | None = None) -> int:
    value = found.get(key)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 10**7:
        raise ConfigError(f"{path}: {key} is {str(value)[:40]}; allowed is a whole number, 1 to 10000000")
    return value
