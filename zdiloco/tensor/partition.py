"""How named sizes are dealt out to P fragments: pure functions, the same answer whatever order the names come in.

Every strategy returns P non-empty lists of names, each sorted. docs/math.md, section 9; paper, section on
fragmentation: balanced tensor fragments cost nothing in quality and have the lowest peak.
"""

import heapq
import itertools
import re
from collections.abc import Mapping

from zdiloco.errors import ConfigError

STRATEGIES = ("balanced", "strided", "layer")
_NUMBER = re.compile(r"(\d+)")


def partition(sizes: Mapping[str, int], num_fragments: int, strategy: str) -> list[list[str]]:
    """Deal the names of `sizes` (name -> elements) out to `num_fragments` lists.

    Raises: ConfigError for an unknown strategy, and where a fragment would be empty.
    """
    if strategy not in STRATEGIES:
        raise ConfigError(f"fragment strategy {strategy!r} is unknown; choose one of {', '.join(STRATEGIES)}")
    if num_fragments < 1:
        raise ConfigError(f"sync.num_fragments is {num_fragments}; it must be at least 1")
    if num_fragments > len(sizes):
        raise ConfigError(
            f"sync.num_fragments is {num_fragments}, but the model has only {len(sizes)} trainable tensors"
        )
    if strategy == "balanced":
        return _balanced(sizes, num_fragments)
    groups = _layers(sizes)
    if num_fragments > len(groups):
        raise ConfigError(
            f"sync.num_fragments is {num_fragments}, but strategy {strategy!r} keeps layers whole and finds only "
            f"{len(groups)}; lower num_fragments or use 'balanced'"
        )
    return _strided(groups, num_fragments) if strategy == "strided" else _contiguous(groups, sizes, num_fragments)


def _balanced(sizes: Mapping[str, int], num_fragments: int) -> list[list[str]]:
    """Longest processing time first: by size descending, into the lightest fragment (22)."""
    # The count stands between load and index so that tensors without elements do not leave a fragment empty.
    lightest = [(0, 0, index) for index in range(num_fragments)]
    dealt: list[list[str]] = [[] for _ in range(num_fragments)]
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        load, count, index = lightest[0]
        dealt[index].append(name)
        heapq.heapreplace(lightest, (load + sizes[name], count + 1, index))
    return [sorted(names) for names in dealt]


def _strided(groups: list[list[str]], num_fragments: int) -> list[list[str]]:
    """Layer i goes to fragment i mod P (Streaming DiLoCo, 2501.18512)."""
    return [sorted(itertools.chain(*groups[index::num_fragments])) for index in range(num_fragments)]


def _contiguous(groups: list[list[str]], sizes: Mapping[str, int], num_fragments: int) -> list[list[str]]:
    """Runs of neighbouring layers, each cut where its share of all elements is reached."""
    total = sum(sizes.values())
    dealt: list[list[str]] = [[]]
    done = 0
    for index, group in enumerate(groups):
        groups_left, fragments_left = len(groups) - index, num_fragments - len(dealt)
        full = done * num_fragments >= total * len(dealt)
        if dealt[-1] and fragments_left and (full or groups_left == fragments_left):
            dealt.append([])
        dealt[-1] += group
        done += sum(sizes[name] for name in group)
    return [sorted(names) for names in dealt]


def _layers(sizes: Mapping[str, int]) -> list[list[str]]:
    """Names by layer: what stands before and with the first number, else the owning module; in natural order."""
    groups: dict[str, list[str]] = {}
    for name in sorted(sizes):
        parts = name.split(".")
        numbered = next((at + 1 for at, part in enumerate(parts) if part.isdecimal()), None)
        groups.setdefault(".".join(parts[: numbered or len(parts) - 1]), []).append(name)
    return [groups[key] for key in sorted(groups, key=_natural)]


def _natural(key: str) -> list[tuple[int, int, str]]:
    """Sort key by which 'h.2' comes before 'h.10'."""
    parts = _NUMBER.split(key)
    return [(1, int(part), "") if at % 2 else (0, 0, part) for at, part in enumerate(parts)]
