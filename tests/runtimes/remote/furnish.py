"""Makes the disk of a machine and becomes its first program: the part of machine.py that runs inside of fresh
namespaces. A program of its own that imports little, because hundreds of machines are made."""

import _socket  # The module around it takes longer to import than all of this to run.
import ctypes
import fcntl
import os
import stat
import struct
import sys

READ_ONLY, REMOUNT, BIND, DETACH = 1, 32, 4096, 2
LAYERS, ROOT = "/mnt/layers", "/mnt/root"
DIRECTORIES = ["etc/cron.d", "home", "media", "mnt", "old", "opt", "proc", "root", "run", "srv", "sys", "usr/local/bin"]
DIRECTORIES += ["dev/shm", "etc/alternatives", "var/spool/cron/crontabs", "var/tmp", "tmp"]
SETTINGS = ["passwd", "group", "hosts", "nsswitch.conf", "ld.so.cache"]
PROGRAMS = ["bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr/bin", "usr/sbin"]
PROGRAMS += ["usr/lib", "usr/lib32", "usr/lib64", "usr/libexec"]
DEVICES = {"null": 3, "zero": 5, "full": 7, "random": 8, "urandom": 9}
_libc = ctypes.CDLL(None, use_errno=True)


def checked(answer):
    if answer:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def mount(source, target, kind="", flags=0, data=""):
    checked(_libc.mount(source.encode(), target.encode(), kind.encode(), flags, data.encode()))


def show(place, target):
    """What this machine has at `place`, read-only."""
    mount(place, target, flags=BIND)
    mount(place, target, flags=BIND | REMOUNT | READ_ONLY)


def lay_over(place, target):
    """What this machine has at `place`, with a layer above it that takes what is written."""
    up, work = f"{LAYERS}{place}/up", f"{LAYERS}{place}/work"
    os.makedirs(up)
    os.makedirs(work)
    mount("overlay", target, "overlay", data=f"lowerdir={place},upperdir={up},workdir={work}")


def bring_programs():
    for place in PROGRAMS:
        if os.path.islink(f"/{place}"):
            os.symlink(os.readlink(f"/{place}"), place)
        elif os.path.isdir(f"/{place}"):
            os.makedirs(place, exist_ok=True)
            (lay_over if place.endswith("bin") else show)(f"/{place}", place)
    if os.path.isdir("/etc/alternatives"):
        show("/etc/alternatives", "etc/alternatives")


def bring_python(prefix, python, uv):
    """Each may be empty: where Python is among the programs, and where there is no uv."""
    if prefix:
        os.makedirs(f".{prefix}")
        show(prefix, f".{prefix}")
        os.symlink(python, "usr/local/bin/python3")
    if uv:
        os.close(os.open("usr/local/bin/uv", os.O_CREAT, 0o755))
        show(uv, "usr/local/bin/uv")


def write_settings():
    for name in SETTINGS:
        if os.path.exists(f"/etc/{name}"):
            with open(f"/etc/{name}", "rb") as given, open(f"etc/{name}", "wb") as own:
                own.write(given.read())


def make_disk(prefix, python, uv):
    mount("tmpfs", "/mnt", "tmpfs")
    os.mkdir(ROOT)
    mount("tmpfs", ROOT, "tmpfs", data="mode=755")
    os.chdir(ROOT)
    os.mkdir("dev")
    mount("tmpfs", "dev", "tmpfs", data="mode=755")
    for place in DIRECTORIES:
        os.makedirs(place)
    os.chmod("tmp", 0o1777)
    os.chmod("var/tmp", 0o1777)
    mount("tmpfs", "dev/shm", "tmpfs", data="mode=1777")
    mount("proc", "proc", "proc")
    for name, minor in DEVICES.items():
        os.mknod(f"dev/{name}", stat.S_IFCHR, os.makedev(1, minor))
        os.chmod(f"dev/{name}", 0o666)
    os.symlink("/proc/self/fd", "dev/fd")
    write_settings()
    bring_programs()
    bring_python(prefix, python, uv)


def move_in():
    checked(_libc.pivot_root(b".", b"old"))
    os.chroot(".")
    os.chdir("/")
    checked(_libc.umount2(b"/old", DETACH))
    os.rmdir("/old")


def loopback_up():
    sock = _socket.socket(_socket.AF_INET, _socket.SOCK_DGRAM)
    fcntl.ioctl(sock.fileno(), 0x8914, struct.pack("16sH14s", b"lo", 0x1 | 0x40, b""))
    sock.close()


if __name__ == "__main__":
    os.umask(0o022)
    make_disk(*sys.argv[1:4])
    loopback_up()
    move_in()
    os.write(1, b"up\n")
    os.execvp(sys.argv[4], sys.argv[4:])
