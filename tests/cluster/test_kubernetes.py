"""config/kubernetes/: manifests that hang together, whose commands are real ones, and that ask for no privilege."""

import re
from typing import Any

import pytest
import yaml

from tests.cluster.commands import ROOT, faults
from zdiloco.config import load
from zdiloco.version import VERSION

FOLDER = ROOT / "config" / "kubernetes"
FILES = sorted(path.name for path in FOLDER.glob("*.yaml"))


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


def sets(name: str) -> list[dict[str, Any]]:
    return [each for each in documents(name) if each["kind"] == "StatefulSet"]


def pods(name: str) -> list[dict[str, Any]]:
    return [each["spec"]["template"]["spec"] for each in sets(name)]


def commands(pod: dict[str, Any]) -> list[list[str]]:
    """Every command line of zdiloco in a pod, probes too, with its name put in."""
    found = []
    for each in pod["containers"]:
        found.append([*each["command"], *each.get("args", [])])
        found += [each[probe]["exec"]["command"] for probe in each if probe.endswith("Probe")]
    return [[word.replace("$(NAME)", "zdiloco-learner-0") for word in words] for words in found]


@pytest.mark.parametrize("name", FILES)
def test_every_command_is_a_real_one(name: str) -> None:
    found = [words for pod in pods(name) for words in commands(pod)]
    assert found
    assert [fault for words in found for fault in faults(words)] == []


@pytest.mark.parametrize("name", FILES)
def test_no_privilege_is_asked_for(name: str) -> None:
    """Neither root nor a way to it, nothing of the machine, and no right in the cluster."""
    for pod in pods(name):
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] > 0
        assert pod["automountServiceAccountToken"] is False
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
        assert not any("hostPath" in volume for volume in pod["volumes"])
        for each in [*pod["initContainers"], *pod["containers"]]:
            context = each["securityContext"]
            assert (context["allowPrivilegeEscalation"], context["readOnlyRootFilesystem"]) == (False, True)
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert "privileged" not in context
            assert each["image"] == f"zdiloco:{VERSION}"


@pytest.mark.parametrize("name", FILES)
def test_what_is_mounted_and_selected_is_there(name: str) -> None:
    """Every volume that is mounted is defined and the other way round; labels are those that are selected by."""
    for each in sets(name):
        pod, labels = each["spec"]["template"]["spec"], each["spec"]["template"]["metadata"]["labels"]
        assert each["spec"]["selector"]["matchLabels"] == labels
        services = [other for other in documents(name) if other["kind"] == "Service"]
        assert [other["metadata"]["name"] for other in services] == [each["spec"]["serviceName"]]
        assert services[0]["spec"]["selector"] == labels
        have = [volume["name"] for volume in pod["volumes"]]
        have += [claim["metadata"]["name"] for claim in each["spec"]["volumeClaimTemplates"]]
        used = [mount for one in [*pod["initContainers"], *pod["containers"]] for mount in one["volumeMounts"]]
        assert {mount["name"] for mount in used} == set(have)
        assert len(have) == len(set(have))


def test_the_ports_are_the_four_of_the_settings() -> None:
    """In the service, the policy, the pod, and the question whether it is ready."""
    first = load(ROOT / "config" / "run.toml").net.port
    four = [first, first + 1, first + 2, first + 3]
    service, policy, syncer = documents("syncer.yaml")
    container = syncer["spec"]["template"]["spec"]["containers"][0]
    assert [each["port"] for each in service["spec"]["ports"]] == four
    assert [each["containerPort"] for each in container["ports"]] == four
    assert policy["spec"]["ingress"][0]["ports"] == [{"protocol": "TCP", "port": first, "endPort": first + 3}]
    assert f"127.0.0.1:{first}" in container["readinessProbe"]["exec"]["command"]
    learner = sets("learners.yaml")[0]
    allowed = policy["spec"]["ingress"][0]["from"][0]["podSelector"]["matchLabels"]
    assert allowed == learner["spec"]["template"]["metadata"]["labels"]
    assert f"--set=net.connect={service['metadata']['name']}" in pods("learners.yaml")[0]["containers"][0]["args"]


@pytest.mark.parametrize(("name", "unit"), [("syncer.yaml", "zdiloco-sync"), ("learners.yaml", "zdiloco-learner@")])
def test_leaving_takes_as_long_as_under_systemd(name: str, unit: str) -> None:
    text = (ROOT / "config" / "systemd" / f"{unit}.service").read_text()
    (seconds,) = re.findall(r"^TimeoutStopSec=(\d+)$", text, re.M)
    assert [pod["terminationGracePeriodSeconds"] for pod in pods(name)] == [int(seconds)]


def test_what_is_written_lies_on_a_disk_that_stays() -> None:
    """The run folder of both is on the claim; keys are in memory, out of files that their owner alone can read."""
    for name in FILES:
        for pod in pods(name):
            assert "--set=run.dir=/var/lib/zdiloco/run" in pod["containers"][0]["args"]
            mounts = {mount["name"]: mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
            assert mounts["state"] == "/var/lib/zdiloco"
            (keys,) = [volume for volume in pod["volumes"] if volume["name"] == "keys"]
            assert keys["emptyDir"] == {"medium": "Memory"}
            assert "umask 077" in pod["initContainers"][0]["args"][0]


def test_the_image_is_made_of_what_a_release_holds() -> None:
    """Files that the checkout has, but for the wheel, whose name is that of this version."""
    text = (FOLDER / "Containerfile").read_text()
    (copied,) = re.findall(r"^COPY (.*) /tmp/build/$", text, re.M)
    wheel, *locks = copied.split()
    assert wheel == f"dist/zdiloco-{VERSION}-py3-none-any.whl"
    assert all((ROOT / name).is_file() for name in locks)
