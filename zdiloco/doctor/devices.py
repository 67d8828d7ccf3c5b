"""What the system says of a connection: the largest packet of its path, and the device through which it leaves.

Rule: whatever cannot be asked here is None or empty; nothing is raised.
"""

import fcntl
import socket
import struct

IP_MTU, IPV6_MTU = 14, 24
SIOCGIFADDR = 0x8915


def path_mtu(sock: socket.socket) -> int | None:
    """Bytes of the largest packet that this connection may send, as far as the system knows."""
    ipv6 = sock.family == socket.AF_INET6
    level, option = (socket.IPPROTO_IPV6, IPV6_MTU) if ipv6 else (socket.IPPROTO_IP, IP_MTU)
    try:
        return sock.getsockopt(level, option)
    except OSError:
        return None


def device_of(sock: socket.socket) -> str:
    """The device with our address on this connection; empty: not known, as it is for IPv6."""
    if sock.family != socket.AF_INET:
        return ""
    ours = sock.getsockname()[0]
    for _, name in socket.if_nameindex():
        try:
            told = fcntl.ioctl(sock.fileno(), SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
        except OSError:
            continue
        if socket.inet_ntoa(told[20:24]) == ours:
            return name
    return ""
