"""What a process says of itself to whoever asks how it is: what is installed, and its wall clock."""

import time
from typing import Any

import zmq

from zdiloco.version import VERSION
from zdiloco.wire.frames import PROTOCOL


def about() -> dict[str, Any]:
    """Versions, and seconds since 1970, by which `zdiloco doctor` compares two machines; nothing else reads them."""
    return {"version": VERSION, "protocol": PROTOCOL, "libzmq": zmq.zmq_version(), "wall": time.time()}
