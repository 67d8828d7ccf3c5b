"""How long bodies are in a virtual world: a fragment has NUMEL values, and messages name the codec."""

import math

NUMEL = 5_000
"""Values of a fragment: three contributions in fp32 fit the smallest budget."""
NBYTES = 4 * NUMEL
"""Bytes of its values as they are, in fp32; so they travel where nothing else is said."""
BYTES = {
    "fp32": NBYTES,
    "bf16": 2 * NUMEL,
    "int8": NUMEL + 4 * math.ceil(NUMEL / 256),
    "4bit": math.ceil(NUMEL / 2) + 2 * math.ceil(NUMEL / 64),
}
"""Bytes of its values by codec (docs/math.md, section 5)."""
DELTA_CODECS = ("none", "int8", "4bit")
"""What `merge.delta_codec` may be."""
