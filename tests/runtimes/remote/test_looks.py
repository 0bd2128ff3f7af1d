"""A look into a remote box misses nothing: whatever a user left after a reset is told, and nothing else is."""

import pytest

from rollwright.runtimes import make_runtime, runtime_config
from rollwright.runtimes.asking import sh
from rollwright.runtimes.remote import beyond
from rollwright.runtimes.state import BoxState, differences

PLACES = [
    "",
    "/dev",
    "/dev/shm",
    "/etc/cron.d",
    "/mnt",
    "/opt",
    "/root",
    "/run",
    "/srv",
    "/tmp",
    "/usr/bin",
    "/var/tmp",
]
"""Whose files are the box's, in memory and on its disk."""

FILES = {
    "mkdir /opt/empty": "/opt/empty",
    "touch /srv/.hidden": "/srv/.hidden",
    "ln -s / /srv/out": "/srv/out",
    "mkfifo /srv/pipe": "/srv/pipe",
    "chmod 777 /media": "/media",
    "chown 7 /etc/hosts": "/etc/hosts",
    "rm /etc/passwd": "/etc/passwd (gone)",
    "echo x > $HOME/../left": "/left",
    "echo x > $HOME/../control/.left": "/control/.left",
}
"""What is done to files, and the name that is told."""

OTHERS = {
    "a file of the same size and time": """
        stamp=$(stat -c %Y /etc/group); tr r R < /etc/group > "$HOME/x"; cat "$HOME/x" > /etc/group
        touch -d "@$stamp" /etc/group""",
    "a mount": "mount -t tmpfs tmpfs /mnt",
    "a file in a mount": "echo x > /mnt/left",
    "a mount that cannot be written": "mount -o remount,ro /dev/shm",
    "a changed tool of ours": 'echo "# mine" >> "$HOME/../control/box.sh"',
    "a script that we did not bring": 'mkdir "$HOME/../scripts" && touch "$HOME/../scripts/left"',
    "shared memory": """python3 -c 'import ctypes; assert ctypes.CDLL(None).shmget(77, 4096, 0o1600) >= 0'""",
}
"""By what is left: how."""

NOTHING = """
echo x > /tmp/x && rm /tmp/x && mkdir -p deep/er "$HOME/.cache" && touch deep/er/file && ls / > "$TMPDIR/list"
python3 -c 'import json' && setsid sleep 1000 > /dev/null 2>&1 < /dev/null &
"""


@pytest.fixture(params=["prime", "modal"])
def config(request, cache):
    """Of boxes that are cleaned in their place, as they are by default."""
    request.getfixturevalue(f"{request.param}_vendor")
    return runtime_config(request.param, {"reset": "clean"} if request.param == "prime" else {})


@pytest.fixture
async def box(config):
    async with make_runtime(config) as runtime:
        yield runtime


async def left_by(box, script):
    """What is told of a user who did this, after the reset."""
    fresh = await box.inspect()
    assert (await box.run(["sh", "-ec", script])).ok, script
    await box.reset()
    return "; ".join(differences(fresh, await box.inspect()))


async def test_a_change_of_files_anywhere_is_told_by_name(box):
    found = await left_by(box, "\n".join(f"echo x > {place}/left" for place in PLACES))
    assert [f", {place}/left" in found for place in PLACES] == [True] * len(PLACES), found
    found = await left_by(box, "\n".join(FILES))
    assert [name in found for name in FILES.values()] == [True] * len(FILES), found


async def test_whatever_else_is_left_is_told(box):
    for what, script in OTHERS.items():
        assert await left_by(box, script), what


async def test_who_leaves_nothing_gets_the_box_used_again(box):
    fresh = await box.inspect()
    for _ in range(2):
        await sh(box, NOTHING)
        await box.reset()
        assert differences(fresh, await box.inspect()) == []


async def test_a_script_that_we_brought_is_no_change_until_somebody_changes_it(box, tmp_path):
    script = tmp_path / "score.py"
    script.write_text("print('scored')\n")
    fresh = await box.inspect()
    for _ in range(2):
        assert (await box.run_script(script)).stdout == b"scored\n"
        await box.reset()
        assert differences(fresh, await box.inspect()) == []
    found = await left_by(box, 'echo "print(1)" >> "$(find "$HOME/../scripts" -name score.py)"')
    assert "/scripts is new" in found


def test_two_boxes_of_one_image_differ_only_in_what_was_left():
    one = BoxState(processes=("agent 1", "sshd"), ports=("tcp 22",), environment={"HOSTNAME": "one", "A": "a"})
    two = BoxState(processes=("agent 2", "sshd"), ports=("tcp 22",), environment={"HOSTNAME": "two", "A": "a"})
    assert beyond(one, one) == beyond(two, two) == BoxState()
    used = BoxState(processes=("agent 2", "evil", "evil"), ports=("tcp 22", "tcp 80"), environment={"A": "b"})
    assert sorted(differences(BoxState(), beyond(two, used))) == [
        "ports: tcp 80 is new",
        "processes: evil is new",
        "processes: evil is new",
        "processes: sshd, gone is new",
        "variable A is new",
        "variable HOSTNAME is new",
    ]
