"""The manifests are what they say: they parse, their parts fit, and each command in them is one that the CLI takes."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from rollwright.cli import ctl, join
from rollwright.cli.resolve import resolve
from rollwright.cli.serve import ServeSettings
from rollwright.wire import UsageError

DEPLOY = Path(__file__).parents[2] / "deploy"
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
BATCHES = sorted((DEPLOY / "slurm").glob("*.sbatch"))
PARSERS = {
    "serve": lambda argv: resolve(ServeSettings, argv).settings,
    "join": join.parsed,
    "ctl": ctl.parsed,
}


def objects():
    return {
        (one["kind"], one["metadata"]["name"]): one
        for file in MANIFESTS
        for one in yaml.safe_load_all(file.read_text())
    }


def containers():
    return [one for thing in objects().values() if thing["kind"] == "Deployment" for one in pod(thing)["containers"]]


def pod(deployment):
    return deployment["spec"]["template"]["spec"]


def kubernetes_commands():
    for container in containers():
        yield container["command"]
        for probe in ("readinessProbe", "livenessProbe"):
            if probe in container:
                yield container[probe]["exec"]["command"]


def slurm_commands():
    for file in BATCHES:
        for line in file.read_text().splitlines():
            found = re.match(r"#?\s*(rollwright [a-z].*?)(\s+&|\s+#.*)?$", line)
            if found:
                yield shlex.split(found[1])


COMMANDS = [*kubernetes_commands(), *slurm_commands()]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: "-".join(command[1:3]))
def test_every_command_is_one_that_the_cli_takes(command):
    program, verb, *rest = command
    assert program == "rollwright"
    assert PARSERS[verb](rest)


def test_a_flag_that_the_cli_does_not_know_is_found():
    with pytest.raises(UsageError, match="--patiense-s is not a setting of join"):
        PARSERS["join"](["tcp://broker:7000", "--patiense-s=3"])


def test_all_verbs_are_there():
    assert {command[1] for command in COMMANDS} == {"serve", "join", "ctl"}


def test_the_parts_of_the_kubernetes_manifests_fit():
    found = objects()
    broker, workers = found["Deployment", "rollwright-broker"], found["Deployment", "rollwright-workers"]
    service = found["Service", "rollwright-broker"]
    assert service["spec"]["selector"] == broker["spec"]["template"]["metadata"]["labels"]
    for deployment in (broker, workers):
        assert deployment["spec"]["selector"]["matchLabels"] == deployment["spec"]["template"]["metadata"]["labels"]
        mounts = {mount["name"] for one in pod(deployment)["containers"] for mount in one["volumeMounts"]}
        assert mounts == {volume["name"] for volume in pod(deployment)["volumes"]}
        assert all("memory" in one["resources"]["limits"] for one in pod(deployment)["containers"])
    ports = [port["port"] for port in service["spec"]["ports"]]
    policy = found["NetworkPolicy", "rollwright-broker"]
    assert ports == [port["port"] for port in policy["spec"]["ingress"][0]["ports"]]
    serve = resolve(ServeSettings, pod(broker)["containers"][0]["command"][2:]).settings
    assert serve.address == f"tcp://0.0.0.0:{ports[0]}"
    assert (serve.advertise, serve.workers) == (service["metadata"]["name"], 0)
    server, _ = join.parsed(pod(workers)["containers"][0]["command"][2:])
    assert server == f"tcp://{service['metadata']['name']}:{ports[0]}"
    assert ports == list(range(ports[0], ports[0] + 3))


def test_workers_have_the_keys_of_a_peer_only_and_the_time_to_drain():
    workers = pod(objects()["Deployment", "rollwright-workers"])
    secrets = {volume["secret"]["secretName"] for volume in workers["volumes"] if "secret" in volume}
    assert secrets == {"rollwright-peer"}
    assert workers["terminationGracePeriodSeconds"] >= 600


@pytest.mark.parametrize("file", BATCHES, ids=lambda file: file.stem)
def test_batch_scripts_are_bash(file):
    checked = subprocess.run(["bash", "-n", str(file)], capture_output=True, text=True, check=False, timeout=60)
    assert (checked.returncode, checked.stderr) == (0, "")
    assert file.read_text().startswith("#!/usr/bin/env bash\n")
