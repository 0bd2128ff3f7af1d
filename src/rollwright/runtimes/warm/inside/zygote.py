# mypy: ignore-errors
# Runs under the interpreter of a script, which may be older than ours: plain Python 3.10, unannotated.
"""A process that has loaded what a script needs, and forks a fresh child for every call of it: see `bottom.py`.

Runs under the script's own interpreter, apart from Rollwright, which it does not import; only the standard library is
used. Requests arrive as packets on CHANNEL, a descriptor that no child keeps: an id, the call's description, and the
descriptors of its three streams; a long description comes as a file before them. Nothing is ever read from or said on
stdout.

The script's imports are done once, and where it defines `warmup`, the script is loaded under another name and warmed.
The child then runs the script as `__main__` from its first line to its last, as a cold interpreter would, finding its
imports done. Nothing of a call stays here. How a script is loaded is in `loading.py`, taking a seat in a box in
`seating.py`, ending in `ending.py`.
"""

import sys

_AT_START = frozenset(sys.modules) - {__name__}  # What a cold interpreter has loaded before its script, too.

import _socket  # noqa: E402
import contextlib  # noqa: E402
import gc  # noqa: E402
import os  # noqa: E402
import select  # noqa: E402
import signal  # noqa: E402
import socket  # noqa: E402
import struct  # noqa: E402

import child  # noqa: E402
import ending  # noqa: E402
import forking  # noqa: E402
import loading  # noqa: E402
import paging  # noqa: E402
import seating  # noqa: E402
import watching  # noqa: E402
import worker  # noqa: E402

_HEAD = child.HEAD
_NUMBER = struct.Struct("!i")
# A warmup goes on after such a silence, or when calls have taken so much more than what is usual for a warm one.
_SILENCE_MS = 20
_USUAL_S, _LOST_S = 0.03, 0.3
# Children that wait for a call: when so few are left, others are forked in a row. Between two forks every page that is
# written to is copied, so it is cheaper to do nothing else there.
_FEW, _MANY = 1, 4
# What would be freed by each child on its way to the script or at its end, page by page.
_kept = []
# What a script left on is taken off when it has run: what comes then is not its own. It may have hidden these by then.
unprofile, untrace = sys.setprofile, sys.settrace


def _end(pid):
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


class Server:
    """Forks on request and tells the ends. A child stays unreaped until the host is done with its id.

    Children of the next calls are forked while others run, and wait for them: `spares`.
    """

    def __init__(self, channel, script):
        self.channel = channel
        self.desk = bytearray(child.PACKET)
        """Where what the host says lies, until it is done: children of later calls are to find nothing of it."""
        self.script = script
        self.poller = select.poll()
        self.poller.register(channel.fileno(), select.POLLIN)
        self.calls = {}
        self.handles = {}
        self.spares = []
        self.collapsed = False
        self.lost_s = 0.0
        self.refusal = ""
        self.starved = False
        self.filling = False

    def serve(self):
        while True:
            ready = self.poller.poll(self._patience_ms())
            for fd, _ in ready:
                if fd != self.channel.fileno():
                    self._tell_end(fd)
                elif not self._hear():
                    return
            if not ready and self._wants_spare():
                self._fork_one_more()
            elif self.script.steps is not None and (not ready or self.lost_s > _LOST_S):
                self._warm_on()

    def _patience_ms(self):
        if self._wants_spare():
            return 0
        return _SILENCE_MS if self.script.steps is not None and not self.calls else None

    def _wants_spare(self):
        """Only once there were calls, and while there are: they come in bursts."""
        if self.starved or not self.calls or not self.collapsed:
            return False
        count = len(self.spares)
        self.filling = count <= _FEW or (self.filling and count < _MANY)
        return self.filling

    def close(self):
        self._drop_spares()
        for call in list(self.calls):
            self._kill(call)

    def _hear(self):
        size, extra, _, _ = self.channel.recvmsg_into((self.desk,), child.ROOM, socket.MSG_CMSG_CLOEXEC)
        if not size:
            return False
        packet, fds = memoryview(self.desk)[:size], child.descriptors(extra)
        kind, call = _HEAD.unpack_from(packet)
        if kind == b"R":
            self._run(call, packet, fds)
        elif kind == b"W":
            self._fork_worker(call, fds)
        elif kind == b"K":
            self._kill(call)
        elif kind == b"D":
            self._reap(call)
        packet[:] = bytes(size)
        return True

    def _run(self, call, packet, fds):
        self.starved = False
        if not self.collapsed:
            # Huge pages make a fork, and the first write to a page after it, several times cheaper. They take a while
            # to make, which workers that are forked once are not worth.
            self.collapsed = True
            paging.collapse()
        try:
            self._hand_over(call, packet, fds)
        except OSError as error:
            self.send(b"F", call, str(error).encode())
            self.send(b"E", call, _NUMBER.pack(0))
        for fd in fds:
            os.close(fd)

    def _fork_ahead(self, fds=()):
        """Fork the child of a call to come. `fds` are open here, and not for it."""
        ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        try:
            pid = forking.fork()
        except OSError:
            ours.close()
            theirs.close()
            raise
        if pid == 0:
            ours.close()
            for fd in fds:
                os.close(fd)
            raise child.Forked(theirs)
        theirs.close()
        self.spares.append((pid, ours))

    def _fork_one_more(self):
        try:
            self._fork_ahead()
        except OSError:  # The next call tries again, and tells why.
            self.starved = True

    def _hand_over(self, call, packet, fds):
        """Give a call to the spare child. One that was killed meanwhile gives way to another.

        The host hears of the beginning before it can begin: what it has not heard of was not run, whoever dies when.
        """
        while True:
            forked = not self.spares
            if forked:
                self._fork_ahead(fds)
            pid, sock = self.spares.pop(0)
            self.send(b"S", call, _NUMBER.pack(pid))
            try:
                sock.sendmsg((packet,), ((_socket.SOL_SOCKET, _socket.SCM_RIGHTS, fds),))
                return self._watch(call, pid)
            except OSError:
                _end(pid)
                if forked:
                    raise
            finally:
                sock.close()

    def _watch(self, call, pid):
        handle = os.pidfd_open(pid)
        self.calls[call] = (pid, handle)
        self.handles[handle] = call
        self.poller.register(handle, select.POLLIN)

    def _drop_spares(self):
        while self.spares:
            pid, sock = self.spares.pop()
            sock.close()
            _end(pid)

    def _warm_on(self):
        """One more step of the warmup. Children that run were forked before it, and see nothing of it."""
        self._drop_spares()
        self.lost_s, known = 0.0, b""
        try:
            self.script.go_on()
            known = loading.known()
        except loading.Refused as refusal:
            self.refusal = str(refusal)
        settle(whole=self.script.steps is None)
        if self.script.steps is None and self.collapsed:
            paging.collapse()
        if known:
            self.send(b"Y", 0, known)

    def _fork_worker(self, call, fds):
        try:
            pid = forking.fork()
        except OSError as error:
            self.send(b"F", call, str(error).encode())
            self.send(b"E", call, _NUMBER.pack(0))
        else:
            if pid == 0:
                self._worker(fds)
            self._watch(call, pid)
            self.send(b"S", call, _NUMBER.pack(pid))
        finally:
            os.close(fds[0])

    def _worker(self, fds):
        """Become a worker that answers one call after the other on a channel of its own."""
        try:
            os.setsid()
            self.let_go()
            worker.serve(socket.socket(fileno=fds[0]), self.script)
        finally:
            ending.leave(0)

    def let_go(self):
        """In a child: keep nothing of this process."""
        self.channel.close()
        for handle in self.handles:
            os.close(handle)
        for _, sock in self.spares:
            sock.close()

    def _tell_end(self, handle):
        pid, _ = self.calls[self.handles[handle]]
        self.poller.unregister(handle)
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        status = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
        self.send(b"E", self.handles[handle], _NUMBER.pack(status))

    def _kill(self, call):
        # The leader first: once it is dead nothing new joins its group, and then the whole group is struck at once.
        if call in self.calls:
            for strike in (os.kill, os.killpg):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    strike(self.calls[call][0], signal.SIGKILL)

    def _reap(self, call):
        if call in self.calls:
            pid, handle = self.calls.pop(call)
            del self.handles[handle]
            os.close(handle)
            used = os.wait4(pid, 0)[2]
            self.lost_s += max(used.ru_utime + used.ru_stime - _USUAL_S, 0.0)

    def send(self, kind, call, body):
        self.channel.send(_HEAD.pack(kind, call) + body)


def settle(whole):
    """After something was loaded: put back what a fresh interpreter has, and leave nothing for children to do.

    While a warmup is not done as a `whole`, calls wait: the little garbage of the first steps stays until the last.
    """
    ending.restore_signals()
    sys.stdout.flush()
    sys.stderr.flush()
    if whole:
        gc.unfreeze()
        gc.collect()
    paging.settle(child.rehearse)


def main():
    """Serve until the channel is closed. The return is a child's, which is to run the script on the caller's frame."""
    words = sys.argv[1:]
    channel = socket.socket(fileno=int(words[0]))
    channel.set_inheritable(False)
    try:
        ending.prepare()
        child.make_room()
        seating.prepare()
        watching.prepare()
        script = loading.load(words[1], words[2], _AT_START, whole="whole" in words[3:])
        known = loading.known()
        seating.prepare_stdin()
    except loading.Refused as refusal:
        channel.send(_HEAD.pack(b"N", 0) + str(refusal).encode())
        os._exit(0)
    settle(whole=script.steps is None)
    channel.send(_HEAD.pack(b"Y", 0) + known)
    server = Server(channel, script)
    _kept.extend((server, sys._getframe(1).f_globals, sys._getframe(1).f_code))
    try:
        _serve(server)
    except child.Forked as forked:
        _kept.append(forked)
    child.live(server, _kept[-1].own)
    return script


def names():
    """Those of the script, which nobody but its module is to hold on to."""
    return vars(sys.modules["__main__"])


def _serve(server):
    try:
        server.serve()
    except child.Forked:
        raise
    except BaseException:
        server.close()
        raise
    server.close()
    os._exit(0)
