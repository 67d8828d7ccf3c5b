"""A process that floods a syncer with one frame, again and again: KEYS OWNER PORT words|chunks|garbage."""

import sys
from pathlib import Path

import zmq

from zdiloco.core.messages import Heartbeat
from zdiloco.node.keys import load_pair, load_public
from zdiloco.node.sockets import identity_of
from zdiloco.units import NO_EPOCH, MemberKey
from zdiloco.wire.encoding import encode
from zdiloco.wire.transfer import Chunk

FRAMES = {
    "words": (0, [encode(Heartbeat(epoch=NO_EPOCH))]),
    "chunks": (1, [encode(Chunk(transfer="c/1", index=0, checksum=0)), bytes(2**16)]),
    "garbage": (0, [b"\xff" * 100]),
}


def main() -> None:
    """Flood until killed."""
    folder, owner, port, what = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]
    own, (road, frames) = load_pair(folder, owner), FRAMES[what]
    made = zmq.Context().socket(zmq.DEALER)
    made.curve_publickey, made.curve_secretkey = own.public, own.secret
    made.curve_serverkey = load_public(folder, "syncer")
    made.setsockopt(zmq.IDENTITY, identity_of(MemberKey(owner, 666)))
    made.connect(f"tcp://127.0.0.1:{port + road}")
    while True:
        made.send_multipart(frames)


if __name__ == "__main__":
    main()
