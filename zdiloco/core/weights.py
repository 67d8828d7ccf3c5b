"""How much a contribution counts in a merge (docs/math.md, equation 1), and which counters are believed.

Rule: counters come from a peer and enter the weight squared; what cannot be is refused, never repaired in silence.
"""

from zdiloco.core.messages import Contribution
from zdiloco.core.params import SyncParams


def weight_of(message: Contribution, params: SyncParams) -> float:
    """w = tokens² / steps, quantity times quality (paper section 3.3); or tokens; or 1 for every contribution."""
    if params.weight == "uniform":
        return 1.0
    if params.weight == "tokens":
        return float(message.tokens)
    return message.tokens * (message.tokens / message.steps)


def implausible(message: Contribution, params: SyncParams) -> str | None:
    """Say why the counters of a contribution cannot be; None: they can."""
    if message.steps < 1 or message.tokens < 1:
        return f"{message.steps} steps and {message.tokens} tokens: nothing was trained"
    if message.tokens > message.steps * params.max_step_tokens:
        return f"{message.tokens} tokens in {message.steps} steps: sync.max_step_tokens is {params.max_step_tokens}"
    if message.steps > message.cut_step:
        return f"{message.steps} steps at inner step {message.cut_step}: more than were made"
    return None
