"""The random state of this process: what torch, Python and numpy draw next.

Rule: generators of the user's own are not seen here; they go into what is handed in as `stateful`.
"""

import random
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch


def random_state(devices: Iterable[torch.device] = ()) -> dict[str, Any]:
    """The state of the process-wide generators, and of those of these CUDA devices."""
    return {
        "torch": torch.get_rng_state(),
        "cuda": {device.index or 0: torch.cuda.get_rng_state(device) for device in devices if device.type == "cuda"},
        "python": random.getstate(),
        "numpy": np.random.get_state(legacy=False),
    }


def set_random_state(state: Any) -> None:
    """Go on drawing where `random_state` stood. Raises what these libraries raise for what is none of their states."""
    torch.set_rng_state(state["torch"])
    for index, each in state["cuda"].items():
        if index < torch.cuda.device_count():
            torch.cuda.set_rng_state(each, index)
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
