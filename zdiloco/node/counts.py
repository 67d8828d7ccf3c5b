"""What passed between this process and one peer."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class Counts:
    """What passed to and from one peer, all roads together, without broadcasts' copies per listener."""

    frames_up: int = 0
    bytes_up: int = 0
    frames_down: int = 0
    bytes_down: int = 0
    dropped: int = 0
    malformed: Counter[str] = field(default_factory=Counter)
