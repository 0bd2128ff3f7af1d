# mypy: ignore-errors
# Runs under the interpreter of a script, which may be older than ours: plain Python 3.10, unannotated.
"""How a forked child takes its seat in a box: streams, session, environment, directory, limits, namespaces.

Everything here runs between the fork and the first line of the script. What cannot be done raises, and the script is
then not run by this child at all. System calls that Python does not offer go through ctypes, loaded before the fork.
"""

import ctypes
import io
import os
import posix
import resource
import signal
import struct
import sys
import time

import ending
import forking

_libc = ctypes.CDLL(None, use_errno=True)
# Looked up before the fork: to look a function up costs a child more than to call it.
_prctl, _syscall, _capget, _capset = (getattr(_libc, name, None) for name in ("prctl", "syscall", "capget", "capset"))
_MARK = b"ROLLWRIGHT_BOX="
_FILES = sys.getfilesystemencoding()
_mark = [0, 0]
_variables = {}
_zygote = []
_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 1, 22, 24, 38
_FILTER = 2
_NAMESPACES = {"user": 0x10000000, "ipc": 0x08000000, "uts": 0x04000000, "net": 0x40000000, "pid": 0x20000000}
_NAMESPACES["mnt"] = 0x00020000
_LANDLOCK = (444, 445, 446)
_WRITE_FILE, _TRUNCATE = 1 << 1, 1 << 14
_ENTRIES = sum(1 << bit for bit in range(4, 14))
_CAPABILITIES_3 = 0x20080522
_header = ctypes.create_string_buffer(struct.pack("=Ii", _CAPABILITIES_3, 0))
_held = (ctypes.c_uint32 * 6)()
_nothing = []
_DESCRIPTORS = 1 << 16
_LIMITED = ("RLIMIT_NOFILE", "RLIMIT_CORE")


def prepare():
    """What is the same for all seats, and the place of the box's mark in the memory that /proc shows as this process's
    environment."""
    ending.note_signals()
    _zygote.append(os.getpid())
    _variables.update(os.environ)
    with open("/proc/self/environ", "rb") as file:
        environ = file.read()
    with open("/proc/self/stat", "rb") as file:
        start = int(file.read().rpartition(b")")[2].split()[47])
    at = (b"\0" + environ).find(b"\0" + _MARK)
    if at >= 0:
        value = environ[at + len(_MARK) :].partition(b"\0")[0]
        _mark[:] = [start + at + len(_MARK), len(value)]


def take(seat, streams, ruleset=-1):
    """Become a program of the box that `seat` describes, with these three descriptors as its streams."""
    _connect(streams)
    os.setsid()
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != _zygote[0]:
        raise ProcessLookupError("the zygote is gone")
    _furnish(seat)
    if ruleset >= 0:
        _restrict(ruleset)
    elif seat["writable"]:
        _restrict(_ruleset(seat["writable"]))
    if seat["seccomp"]:
        _filter_calls(bytes.fromhex(seat["seccomp"]))
    _open_stdin(seat["silent"])
    ending.reseed()


def own():
    """The zygote's own seat."""
    place, room = _mark
    seat = {"mark": ctypes.string_at(place, room).decode(), "cwd": os.getcwd(), "env": _variables, "limits": {}}
    return {**seat, "cgroups": [], "join_pid": 0, "uid": -1, "gid": -1, "drop_capabilities": []}


def rehearse(seat, streams):
    """Take a seat that one has, as far as nothing is changed by that."""
    _connect(streams)
    _furnish(seat)
    for name in _LIMITED:
        _limit(name, *resource.getrlimit(getattr(resource, name)))


def _connect(streams):
    for number, fd in enumerate(streams):
        os.dup2(fd, number)
        os.close(fd)


def _furnish(seat):
    _wear(seat["mark"].encode())
    for path in seat["cgroups"]:
        with open(path, "w") as file:
            file.write("0")
    if seat["join_pid"]:
        _join(seat["join_pid"], seat["namespaces"])
    os.chdir(seat["cwd"])
    if seat["gid"] >= 0:
        os.setgroups([])
        os.setgid(seat["gid"])
    if seat["uid"] >= 0:
        os.setuid(seat["uid"])
    _set_environment(seat["env"])
    for name, value in seat["limits"].items():
        _limit("RLIMIT_" + name, value, value)
    _drop(seat["drop_capabilities"])


def _limit(name, soft, hard):
    resource.setrlimit(getattr(resource, name), (soft, hard))


def _wear(mark):
    """Write the mark where a census looks for it. Whatever this process forks wears it too."""
    place, room = _mark
    if len(mark) > room:
        raise ValueError("no room for the box's mark")
    ctypes.memmove(place, mark.ljust(room, b"-"), room)


def _set_environment(env):
    """Only what differs is touched: each page that a child writes to is a page to copy."""
    now = _variables
    for name in now.keys() - env.keys():
        del os.environ[name]
    for name, value in env.items():
        if now.get(name) != value:
            # As os.environ does it, without the many small functions that it does it with.
            key, word = name.encode(_FILES, "surrogateescape"), value.encode(_FILES, "surrogateescape")
            os.putenv(key, word)
            os.environ._data[key] = word
    posix.environ.clear()
    posix.environ.update(os.environ._data)
    if env.get("TZ") != now.get("TZ"):
        time.tzset()


def _open_stdin(silent):
    """A reader of its own: whether stdin can be seeked was found out once, for another file."""
    sys.stdin = sys.__stdin__ = _nothing[0] if silent else _reader()


def prepare_stdin():
    """Make the reader of a child that has nothing to read, as most have: all of them can share what it is made of."""
    kept, null = os.dup(0), os.open(os.devnull, os.O_RDONLY)
    try:
        os.dup2(null, 0)
        # The old one is kept, or its end would be a child's work.
        _nothing.extend((_reader(), sys.stdin))
    finally:
        os.dup2(kept, 0)
        os.close(kept)
        os.close(null)


def _reader():
    old = sys.stdin
    raw = io.FileIO(0, "rb", closefd=False)
    raw.name = "<stdin>"
    made = io.TextIOWrapper(io.BufferedReader(raw), encoding=old.encoding, errors=old.errors, newline="\n")
    made.mode = "r"
    return made


def _join(pid, names):
    """Enter the namespaces of `pid`; a new pid namespace begins with the next fork, so the script runs one below."""
    handle = os.pidfd_open(pid)
    flags = 0
    for name in names:
        flags |= _NAMESPACES[name]
    try:
        _check(_libc.setns(handle, flags))
    finally:
        os.close(handle)
    if "pid" in names:
        _fork_below()


def _fork_below():
    """The child goes on; this process only carries its status out of the namespace."""
    pid = forking.fork()
    if pid == 0:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        os.setsid()
        return
    try:
        os.closerange(0, _DESCRIPTORS)
        _, status = os.waitpid(pid, 0)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        ending.leave(os.waitstatus_to_exitcode(status))
    finally:  # The script has run: nothing else may be said of it.
        os._exit(1)


def _drop(capabilities):
    """Give up capabilities for good: no program that is started from here on has them either.

    Whoever enters a user namespace has all of them in there, also as an ordinary user.
    """
    for number in capabilities:
        _prctl(_PR_CAPBSET_DROP, number, 0, 0, 0)  # Refused to who has none to hand on, which is as good.
    if capabilities:
        kept = [0xFFFFFFFF, 0xFFFFFFFF]
        for number in capabilities:
            kept[number // 32] &= ~(1 << number % 32)
        _check(_capget(_header, _held))
        for word in range(6):
            _held[word] &= kept[word // 3]
        _check(_capset(_header, _held))


def _ruleset(writable):
    """Landlock: files may be written below these paths and nowhere else; -1 where the kernel has no such rules."""
    create, add, _ = _LANDLOCK
    version = _syscall(create, None, ctypes.c_size_t(0), 1)
    if version < 2:
        return -1
    handled = _WRITE_FILE | _ENTRIES | (_TRUNCATE if version >= 3 else 0)
    rules = _check(_syscall(create, struct.pack("=Q", handled), ctypes.c_size_t(8), 0))
    for path in writable:
        try:
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        allowed = handled if os.path.isdir(path) else handled & (_WRITE_FILE | _TRUNCATE)
        try:
            _check(_syscall(add, rules, 1, struct.pack("=Qi", allowed, fd), 0))
        finally:
            os.close(fd)
    return rules


def _restrict(rules):
    if rules >= 0:
        _check(_prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        _check(_syscall(_LANDLOCK[2], rules, 0))
        os.close(rules)


def _filter_calls(code):
    """The box's filter of system calls, also for whatever is started from here on. Eight bytes are one instruction."""
    _check(_prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    held = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("=H6xQ", len(code) // 8, ctypes.addressof(held))
    _check(_prctl(_PR_SET_SECCOMP, _FILTER, program, 0, 0))


def _check(answer):
    if answer < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return answer
