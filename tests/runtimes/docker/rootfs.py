"""A small root file system made of what this machine has: busybox, and the interpreter that runs the tests."""

import io
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

_NOT_NEEDED = {
    "test",
    "tests",
    "idlelib",
    "tkinter",
    "turtledemo",
    "ensurepip",
    "lib2to3",
    "site-packages",
    "pydoc_data",
}
# Looking up names crashes where the C library was linked in and its plugins are missing. A busybox shell would run the
# applet whether it is linked or not, so the shell is another one.
_LEFT_OUT = {"busybox", "wget", "sh"}


def image_tar(busybox, shell):
    """The tar of an image with a shell, the usual small tools and python3."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for directory in ("bin", "etc", "tmp", "usr/bin", "usr/lib", "var/tmp", "opt", "root"):
            entry = tarfile.TarInfo(directory)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
        tar.add(busybox, "bin/busybox")
        tar.add(os.path.realpath(shell), "bin/sh")
        for applet in subprocess.check_output([busybox, "--list"], text=True).split():
            if applet not in _LEFT_OUT:
                _link(tar, f"bin/{applet}", "busybox")
        _text(tar, "etc/passwd", "root:x:0:0:root:/root:/bin/sh\nagent:x:1000:1000:agent:/home/agent:/bin/sh\n")
        _text(tar, "etc/group", "root:x:0:\nagent:x:1000:\n")
        _add_python(tar, [busybox, shell])
    return out.getvalue()


def _add_python(tar, programs):
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    real = Path(os.path.realpath(sys.executable))
    stdlib = Path(sysconfig.get_paths()["stdlib"])
    tar.add(real, f"usr/bin/{version}")
    _link(tar, "usr/bin/python3", version)
    tar.add(stdlib, f"usr/lib/{version}", filter=_needed)
    modules = [str(path) for path in (stdlib / "lib-dynload").glob("*.so")]
    for library in sorted(_libraries([*programs, str(real), *modules])):
        tar.add(os.path.realpath(library), library.lstrip("/"))


def _needed(entry):
    name = os.path.basename(entry.name)
    unwanted = name in _NOT_NEEDED or name.startswith("config-") or ".opt-" in name or name.endswith(".a")
    return None if unwanted else entry


def _libraries(programs):
    told = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=False).stdout
    found = set(re.findall(r"(/\S+) \(0x", told))
    # Parts of the C library that older programs name one by one, and that are empty today.
    folders = {os.path.dirname(path) for path in found if os.path.basename(path).startswith("libc.so")}
    parts = {f"{folder}/{name}" for folder in folders for name in ("libpthread.so.0", "libdl.so.2", "librt.so.1")}
    return found | {path for path in parts if os.path.exists(path)}


def _link(tar, name, target):
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = tarfile.SYMTYPE, target
    tar.addfile(entry)


def _text(tar, name, text):
    entry = tarfile.TarInfo(name)
    entry.size = len(text)
    tar.addfile(entry, io.BytesIO(text.encode()))
