"""A network of this process alone: only loopback, so that whatever Ray binds can be reached by nobody else."""

import ctypes
import fcntl
import os
import socket
import struct

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1


def enter() -> None:
    """Leave the machine's network for good. OSError where the kernel refuses."""
    libc = ctypes.CDLL(None, use_errno=True)
    kinds = CLONE_NEWNET if os.getuid() == 0 else CLONE_NEWUSER | CLONE_NEWNET
    if libc.unshare(kinds):
        raise OSError(ctypes.get_errno(), "no network of our own")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        name = struct.pack("16sh14x", b"lo", 0)
        flags = struct.unpack("16xh14x", fcntl.ioctl(handle, SIOCGIFFLAGS, name))[0]
        fcntl.ioctl(handle, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | IFF_UP))


def interfaces() -> list[str]:
    return [name for _, name in socket.if_nameindex()]
