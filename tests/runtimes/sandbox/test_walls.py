"""What programs in a sandbox cannot see, write, reach or use up."""

import asyncio
import json
import os
import secrets
import sys
from pathlib import Path

import pytest

from rollwright.runtimes import Ending
from rollwright.runtimes.asking import FETCH, served
from rollwright.runtimes.local import landlock
from rollwright.runtimes.local.census import MARK
from rollwright.runtimes.sandbox.layout import order, shown
from rollwright.runtimes.testing import raises, sh
from rollwright.wire import RuntimeFault, RuntimeLost, UsageError

PYTHON = os.path.realpath(sys.executable)
"""The interpreter itself, which every box shows; a virtual environment around it is not shown."""


async def test_the_root_cannot_be_written(make):
    async with make() as box:
        for place in ("/", "/usr", "/etc", "/usr/local/bin", "/dev", "/run", "/var", "/home", sys.base_prefix):
            assert await sh(box, f"touch {place}/poison 2>/dev/null && echo written") == "", place


async def test_homes_and_secrets_of_the_host_are_not_there(make, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("for no box")
    async with make() as box:
        assert await sh(box, f"cat {secret} /etc/shadow 2>/dev/null; ls /etc/ssh 2>/dev/null") == ""
        assert await sh(box, "ls -A /home") == "box\n"
        await raises(RuntimeFault, box.read(str(secret)))


async def test_what_is_visible_is_read_only(make, tmp_path):
    (tmp_path / "shown").mkdir()
    (tmp_path / "shown" / "file").write_text("for all")
    async with make(visible=(str(tmp_path / "shown"),)) as box:
        for _ in range(2):
            assert await sh(box, f"cat {tmp_path}/shown/file") == "for all"
            assert await sh(box, f"echo x 2>/dev/null > {tmp_path}/shown/file; ls {tmp_path}") == "shown\n"
            await box.reset()
    assert (tmp_path / "shown" / "file").read_text() == "for all"


async def test_what_would_cover_the_box_is_not_shown(make):
    for wrong in ("/", "/home", "/no/such/place"):
        await raises(UsageError, make(visible=(wrong,)).start())


async def test_other_processes_are_not_seen(make):
    async with make() as box:
        names = (await sh(box, "ls /proc | grep '^[0-9]*$'; cat /proc/*/cmdline | tr '\\0' ' '")).split()
        assert names[0] == "1"
        assert sum(name.isdigit() for name in names) < 10
        assert str(os.getpid()) not in names


async def test_programs_have_no_privileges(make):
    async with make() as box:
        status = await sh(box, "cat /proc/self/status")
    lines = dict(line.split(":\t") for line in status.splitlines() if ":\t" in line)
    assert {int(lines[f"Cap{kind}"], 16) for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {0}
    assert (lines["NoNewPrivs"], lines["Seccomp"]) == ("1", "2")


async def test_landlock_stands_behind_the_mounts(make, monkeypatch):
    if not landlock.available():
        pytest.skip("this kernel has no landlock")
    monkeypatch.setattr("rollwright.runtimes.sandbox.program.WRITABLE", ("/workspace", "/dev"))
    async with make() as box:
        assert await sh(box, 'touch here && echo yes; touch "$HOME/there" 2>/dev/null || echo no') == "yes\nno\n"


_CALLS = """
import ctypes, sys
libc = ctypes.CDLL(None, use_errno=True)
mount = (b"x", b"/tmp", b"tmpfs", 0, 0)
for name, arguments in (("unshare", (0x10000000,)), ("ptrace", (0, 0, 0, 0)), ("mount", mount)):
    print(name, getattr(libc, name)(*arguments), ctypes.get_errno())
"""


_VIEW = """
stat -c "%A %u %g %N" / /* /dev/* /home/* /run/* /var/*
id -u; id -g; hostname; cat /proc/1/status | grep -e ^CapPrm -e ^CapEff -e ^NoNew -e ^Seccomp: -e ^Sig
cat /proc/self/status | grep -e ^Cap -e ^NoNew -e ^Seccomp: -e ^Sig
for place in / /dev /proc/sys/kernel/hostname /etc /usr /run /proc/sysrq-trigger; do test -w $place && echo $place; done
for file in /etc/shadow /dev/null /dev/full; do head -c 3 $file | wc -c; done
"""


def made_by_bwrap(box):
    parent = int(Path(f"/proc/{box._box.pid}/stat").read_text().rpartition(")")[2].split()[1])
    return b"bwrap" in Path(f"/proc/{parent}/cmdline").read_bytes()


async def test_a_box_made_by_bwrap_is_the_same_box(make, monkeypatch):
    seen, views = [], []
    for direct in (True, False):
        monkeypatch.setattr("rollwright.runtimes.sandbox.layout.DIRECT", direct)
        async with make() as box:
            fresh = await box.inspect()
            assert made_by_bwrap(box) is not direct
            # Modes of directories that only lead to something shown are the host's where bwrap made them.
            led = {"'/" + path.split("/")[1] + "'" for path in shown(box.config)}
            view = (await box.run(["sh", "-c", _VIEW])).text.splitlines()
            views.append([line for line in view if not led & set(line.split())])
            await sh(box, "sleep 1000 & touch left $HOME/left")
            await box.reset()
            assert await box.inspect() == fresh
        kept = {(line.split()[0], line.split()[2]) for line in fresh.mounts if not line.startswith(("/dev ", "/proc/"))}
        seen.append((fresh.files, fresh.processes, fresh.ports, fresh.environment, kept))
    assert len(views[0]) > 40
    assert views[0] == views[1]
    assert seen[0] == seen[1]


async def test_a_refusal_of_the_kernel_leads_to_bwrap(make, monkeypatch):
    def refused(config, groups):
        told = json.loads(order(config, groups))
        told["root"]["hostname"] = "h" * 65
        return json.dumps(told).encode()

    monkeypatch.setattr("rollwright.runtimes.sandbox.box.order", refused)
    async with make() as box:
        assert made_by_bwrap(box)
        assert await sh(box, "hostname") == "box\n"


_MACHINE = """
import os, stat
tried = []
for place, _, names in os.walk("/proc"):
    if not any(part.isdigit() or "self" in part for part in place.split("/")):
        tried += [f"{place}/{name}" for name in names if os.access(f"{place}/{name}", os.W_OK)]
for path in ("/proc", "/proc/meminfo", "/dev/full", "/dev/pts", "/dev/pts/ptmx", "/proc/1", "/proc/self/comm"):
    try:
        os.chmod(path, stat.S_IMODE(os.stat(path).st_mode))
    except OSError:
        continue
    tried.append(path)
for name in ("mem", "oom_score_adj", "autogroup", "timerslack_ns", "coredump_filter"):
    if os.path.exists(f"/proc/1/{name}") and os.access(f"/proc/1/{name}", os.W_OK):
        tried.append(name)
here, there = os.openpty()
os.write(there, b"a terminal")
print(tried, os.read(here, 20), open("/dev/stdout", "w").write(""), open("/dev/null", "w").write("x"))
"""


@pytest.mark.parametrize("direct", [True, False])
async def test_nothing_of_the_machine_can_be_changed_through_proc_and_dev(make, monkeypatch, direct):
    """Where the owner is root, no mode of a file keeps programs of the box from it."""
    monkeypatch.setattr("rollwright.runtimes.sandbox.layout.DIRECT", direct)
    async with make() as box:
        result = await box.run([PYTHON, "-c", _MACHINE])
    assert (result.text, result.stderr) == ("[] b'a terminal' 0 1\n", b"")


async def test_refused_calls_are_refused(make):
    async with make() as box:
        result = await box.run([PYTHON, "-c", _CALLS])
    assert result.text.splitlines() == ["unshare -1 1", "ptrace -1 1", "mount -1 1"]


async def test_a_box_without_a_network_reaches_what_is_forwarded_and_nothing_else(make):
    async with served("hello") as port, make() as box:
        url = f"http://127.0.0.1:{port}"
        assert await sh(box, FETCH.replace("URL", url) + " 2>/dev/null || true") == ""
        assert (await sh(box, "tail -n +3 /proc/net/dev | cut -d: -f1")).split() == ["lo"]
        forwarded = await box.forward(port)
        assert await sh(box, FETCH.replace("URL", forwarded)) == "hello"
        assert await box.forward(port) == forwarded
        await box.reset()
        assert await sh(box, FETCH.replace("URL", forwarded) + " 2>/dev/null || true") == "", "a relay outlived a reset"


_SERVER = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b"from inside" * 20000)
    def log_message(self, *words): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
print("ready", flush=True)
server.serve_forever()
"""


@pytest.mark.parametrize("network", ["none", "full"])
async def test_a_server_in_the_box_is_reached_from_outside(make, network):
    port = 8123 if network == "none" else _free_port()
    async with (
        make(network=network) as box,
        await box.open_process([PYTHON, "-c", _SERVER, str(port)]) as server,
    ):
        assert await server.read(6) == b"ready\n"
        host, number = (await box.expose(port)).removeprefix("http://").split(":")
        for _ in range(3):
            reader, writer = await asyncio.open_connection(host, int(number))
            writer.write(b"GET / HTTP/1.0\r\n\r\n")
            answer = await reader.read()
            writer.close()
            await writer.wait_closed()
            assert answer.endswith(b"from inside" * 20000)


async def test_links_lead_nowhere_but_into_the_box(make, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("outside")
    async with make() as box:
        await sh(box, f"ln -s {secret} out; ln -s /etc/passwd in; ln -s ../../../../.. up; ln -s /proc/1/root magic")
        await raises(RuntimeFault, box.read("out"))
        assert await box.read("in") == Path("/etc/passwd").read_bytes()
        for path in (f"up{secret}", f"magic{secret}", "/proc/1/root/etc/passwd"):
            await raises(RuntimeFault, box.read(path))
        await raises(RuntimeFault, box.write("up/usr/poison", b"x"))
        await box.write(f"up{tmp_path}/made", b"inside")  # The /tmp of the box, not of the host.
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "journal") == ["secret"]


async def test_the_environment_is_exactly_the_allow_list(make, monkeypatch):
    for name in list(os.environ):
        if name not in ("PATH", "HOME"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("OPENAI_API_KEY", secrets.token_hex(8))
    monkeypatch.setenv("WANTED", "yes")
    async with make(allow_env=("WANTED",)) as box:
        seen = (await box.run(["env", "-0"], env={"GIVEN": "1"})).text.rstrip("\0").split("\0")
        everything = await sh(box, "cat /proc/*/environ | tr '\\0' '\\n'")
    assert {line.split("=")[0] for line in seen} == {"PATH", "WANTED", "GIVEN", "HOME", "TMPDIR", "PWD", MARK}
    assert "OPENAI_API_KEY" not in everything


async def test_words_that_are_no_unicode(make):
    """Names of files may be such; a lone surrogate is not even that."""
    async with make() as box:
        result = await box.run(["printf", "%s%s", "caf\udce9", "é"], env={"X": "\udcff"}, cwd="/")
        assert (result.stdout, result.stderr) == (b"caf\xe9\xc3\xa9", b"")
        for wrong in ({"argv": ["echo", "\ud800"]}, {"argv": ["true"], "env": {"X": "\ud800"}}):
            with pytest.raises(RuntimeFault, match="could not start a program in '/workspace'"):
                await box.run(**wrong)
        await raises(RuntimeFault, box.open_process(["echo", "\ud800"]))
        for act in (box.read("\ud800"), box.write("\ud800", b"x")):
            await raises(RuntimeFault, act)
        assert await sh(box, "echo on") == "on\n"


async def test_a_template_is_shown_changed_and_shown_again(make, tmp_path):
    template = tmp_path / "template"
    (template / "deep").mkdir(parents=True)
    (template / "file").write_text("as it was")
    (template / "deep" / "other").write_text("too")
    async with make(workspace_from=str(template)) as box:
        fresh = await box.inspect()
        for _ in range(2):
            assert await sh(box, "cat file deep/other") == "as it wastoo"
            await sh(box, "echo changed > file; rm -r deep; mkdir deep; touch deep/new new; chmod 500 .")
            assert await box.read("file") == b"changed\n"
            assert await box.inspect() != fresh
            await box.reset()
            assert await box.inspect() == fresh
        assert await sh(box, "find . | sort") == ".\n./deep\n./deep/other\n./file\n"
    assert (template / "file").read_text() == "as it was"
    assert [path.name for path in (template / "deep").iterdir()] == ["other"]


async def test_memory_of_the_whole_box_is_bounded(make):
    async with make(memory_mb=64) as box:
        if "memory" not in box._box.groups.controllers:
            pytest.skip("no control group can be had here; each process is bounded for itself")
        result = await box.run([PYTHON, "-c", "x = b'x' * (256 << 20)"])
        assert (result.ending, result.exit_code) == (Ending.SIGNALLED, 137)
        assert await sh(box, "echo on") == "on\n"


async def test_a_process_is_bounded_where_no_group_can_be_had(make, monkeypatch):
    monkeypatch.setattr("rollwright.runtimes.sandbox.cgroups._parents", dict)
    async with make(memory_mb=64) as box:
        result = await box.run([PYTHON, "-c", "x = b'x' * (256 << 20)"])
    assert b"MemoryError" in result.stderr


async def test_a_fork_bomb_is_bounded_and_reset_away(make):
    async with make(pids=40) as box:
        if "pids" not in box._box.groups.controllers:
            pytest.skip("no control group can be had here")
        fresh = await box.inspect()
        await box.run(["sh", "-c", "bomb() { bomb | bomb & }; bomb 2>/dev/null; sleep 1000"], timeout_s=0.3)
        await box.reset()
        assert await box.inspect() == fresh
        assert await sh(box, "echo on") == "on\n"


async def test_orphans_are_buried(make):
    async with make() as box:
        await sh(box, "for i in 1 2 3 4 5; do (setsid sh -c 'exit 0' &) ; done")
        seen = await sh(box, "sleep 0.1; cat /proc/[0-9]*/stat")
    assert ") Z " not in seen


async def test_a_box_that_loses_its_first_process_is_lost(make):
    async with make() as box:
        async with await box.open_process(["sh", "-c", "echo ready; sleep 1000"]) as process:
            assert await process.read(6) == b"ready\n"
            os.kill(box._box.pid, 9)
            await raises(RuntimeLost, process.wait(timeout_s=30))
        assert not await box.alive()
        await raises(RuntimeLost, box.run(["true"]))


def _free_port():
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]
