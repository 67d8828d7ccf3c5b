"""A server of control words that is behind: `behind.py PORT`. It looks at nothing for longer than a heartbeat takes,
then takes in all that has come, and ends with code 0."""

import sys
import threading

import zmq

from zdiloco.node.params import NetParams
from zdiloco.node.sockets import Road, serving


def main(port: str) -> int:
    with zmq.Context() as context:
        made = serving(context, Road.CONTROL, NetParams(port=int(port)))
        print("serves", flush=True)
        sys.stdin.readline()  # the peer has hung up
        threading.Event().wait(2.5)  # a beat of libzmq would be due every 2 s
        heard = 0
        while made.poll(500):
            made.recv_multipart()
            heard += 1
        print(heard, flush=True)
        made.close(0)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
