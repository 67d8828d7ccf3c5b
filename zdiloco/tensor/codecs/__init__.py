"""The codecs by name; one file each behind the protocol of `protocol.py`."""

import difflib

from zdiloco.errors import ConfigError
from zdiloco.tensor.codecs.bf16 import BF16
from zdiloco.tensor.codecs.four_bit import FourBitCodec
from zdiloco.tensor.codecs.fp32 import FP32
from zdiloco.tensor.codecs.int8 import Int8Codec
from zdiloco.tensor.codecs.protocol import Codec, Encoded, Payload

__all__ = ["NAMES", "Codec", "Encoded", "Payload", "get_codec"]

_CODECS: dict[str, Codec] = {codec.name: codec for codec in (FP32, BF16, Int8Codec(), FourBitCodec())}
NAMES = tuple(_CODECS)


def get_codec(name: str) -> Codec:
    """Return the codec called `name`. Raises: ConfigError naming the nearest known one."""
    if name in _CODECS:
        return _CODECS[name]
    near = difflib.get_close_matches(name, NAMES, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ConfigError(f"codec {name!r} is unknown; known are {', '.join(NAMES)}{hint}")
