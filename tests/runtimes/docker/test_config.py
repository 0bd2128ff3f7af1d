"""Settings and addresses: what is wrong is told before an engine is asked."""

import pytest

from rollwright.runtimes import make_runtime, runtime_config
from rollwright.runtimes.docker import DockerConfig
from rollwright.runtimes.docker.api import Address, address_of
from rollwright.runtimes.docker.spec import Binds, base_environment, container_spec
from rollwright.wire import UsageError


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"memory_mb": 1}, "memory_mb"),
        ({"cpus": 0}, "cpus"),
        ({"pids": 0}, "pids"),
        ({"start_timeout_s": float("nan")}, "start_timeout_s"),
        ({"image": ""}, "image"),
        ({"workdir": "relative"}, "workdir"),
        ({"workdir": "/tmp"}, "workdir"),
        ({"network": "some"}, "network"),
        ({"allow_hosts": ["a.example"]}, "allow_hosts"),
        ({"network": "allow", "allow_hosts": ["http://a.example"]}, "host:port"),
        ({"network_name": "mine"}, "network_name"),
        ({"imgae": "x"}, "image"),
    ],
)
def test_wrong_settings_are_refused(settings, words):
    with pytest.raises(UsageError, match=words):
        runtime_config("docker", settings)


def test_a_config_makes_a_box_of_its_kind():
    config = runtime_config(
        "docker", {"image": "a", "network": "allow", "allow_hosts": ["a.example", "*.b.example:8443"]}
    )
    assert make_runtime(config).name.startswith("docker-")


def test_addresses_are_read(monkeypatch):
    assert address_of("/a.sock") == address_of("unix:///a.sock") == Address(path="/a.sock")
    assert address_of("tcp://h:2375") == Address(host="h", port=2375)
    monkeypatch.setenv("DOCKER_HOST", "unix:///run/user/1/podman.sock")
    assert str(address_of()) == "unix:///run/user/1/podman.sock"
    for wrong in ("ssh://h", "h:1", "tcp://h", "unix://a"):
        with pytest.raises(UsageError, match="not understood"):
            address_of(wrong)


def test_only_listed_variables_go_in(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setenv("WANTED", "yes")
    given = base_environment(DockerConfig(allow_env=("WANTED",)))
    assert given["WANTED"] == "yes"
    assert "PATH" not in given
    assert "sk-secret" not in repr(container_spec(DockerConfig(), "n", "t", Binds())) + repr(given)
