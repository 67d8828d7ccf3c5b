"""What one raw TCP connection carries from region 1 of a lab to region 0."""

import socket
import threading
import time

from tests.wan.put_up import PutUp

PORT, PIECE, SOCKET_LIMIT_S = 5900, 2**18, 30.0


def raw_mbit_s(regions: PutUp, settles_s: float, seconds: float) -> float:
    """Payload in a second, after it has settled."""
    with regions.asked(0, lambda: socket.create_server(("0.0.0.0", PORT))) as server:
        server.settimeout(SOCKET_LIMIT_S)
        far = regions.asked(1, lambda: socket.create_connection((regions.near(1), PORT), SOCKET_LIMIT_S))
        near, _ = server.accept()
    stopping = threading.Event()

    def push() -> None:
        piece = bytes(PIECE)
        while not stopping.is_set():
            far.sendall(piece)
        far.close()

    thread = threading.Thread(target=push, name="push")
    buffer = bytearray(PIECE)
    with near:
        near.settimeout(SOCKET_LIMIT_S)
        thread.start()
        began = time.monotonic()
        while time.monotonic() < began + settles_s:
            assert near.recv_into(buffer)
        began, nbytes = time.monotonic(), 0
        while time.monotonic() < began + seconds:
            nbytes += near.recv_into(buffer)
        took_s = time.monotonic() - began
        stopping.set()
        while near.recv_into(buffer):
            pass
    thread.join(SOCKET_LIMIT_S)
    return nbytes * 8e-6 / took_s


def connect_s(regions: PutUp, limit_s: float) -> float:
    """Seconds until a connection from region 1 to region 0 stands: a way there and back. Raises OSError after
    `limit_s`."""
    took: list[float | OSError] = []

    def connect() -> None:
        began = time.monotonic()
        try:
            with socket.create_connection((regions.near(1), PORT), limit_s):
                took.append(time.monotonic() - began)
        except OSError as error:
            took.append(error)

    with regions.asked(0, lambda: socket.create_server(("0.0.0.0", PORT))):
        regions.asked(1, connect)
    (answer,) = took
    if isinstance(answer, OSError):
        raise answer
    return answer
