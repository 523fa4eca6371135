"""Every pod of the manifests passes Kubernetes' Pod Security standard "restricted", and runs under its limits."""

from __future__ import annotations

import copy
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
DOCKERFILE = EXAMPLES / "kubernetes" / "Dockerfile"
SECCOMP_TYPES = ("RuntimeDefault", "Localhost")
VOLUME_KINDS = {
    *("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret")
}
HOST_NAMESPACES = ("hostNetwork", "hostPID", "hostIPC")


def pods() -> Iterator[tuple[str, dict[str, Any]]]:
    """(name, specification) of each pod in any manifest below examples."""
    for file in sorted(EXAMPLES.rglob("*.yaml")):
        for document in yaml.safe_load_all(file.read_text(encoding="utf-8")):
            template = document["spec"].get("template") if isinstance(document.get("spec"), dict) else None
            if document["kind"] == "Pod" or template:
                yield f"{file.stem} {document['kind']}", (template or document)["spec"]


PODS = dict(pods())


def containers(pod: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for kind in ("initContainers", "containers", "ephemeralContainers"):
        yield from pod.get(kind, ())


def breaches(pod: dict[str, Any]) -> Iterator[str]:
    """What the profile "restricted" of Kubernetes 1.33 refuses, by its own list of controls."""
    for namespace in HOST_NAMESPACES:
        if pod.get(namespace):
            yield f"{namespace} is true"
    for volume in pod.get("volumes", ()):
        if not set(volume) - {"name"} <= VOLUME_KINDS:
            yield f"volume {volume['name']} is of a kind that is not allowed"
    of_pod = pod.get("securityContext", {})
    if of_pod.get("sysctls"):
        yield "sysctls are set"
    for container in containers(pod):
        for breach in breaches_of(container, of_pod):
            yield f"container {container['name']}: {breach}"


def breaches_of(container: dict[str, Any], of_pod: dict[str, Any]) -> Iterator[str]:
    own = container.get("securityContext", {})
    both = of_pod | own
    capabilities = own.get("capabilities", {})
    if own.get("privileged"):
        yield "privileged"
    if own.get("allowPrivilegeEscalation") is not False:
        yield "allowPrivilegeEscalation is not false"
    if "ALL" not in capabilities.get("drop", ()):
        yield "capabilities.drop has no ALL"
    if set(capabilities.get("add", ())) - {"NET_BIND_SERVICE"}:
        yield "capabilities are added"
    if both.get("seccompProfile", {}).get("type") not in SECCOMP_TYPES:
        yield "seccompProfile is not RuntimeDefault"
    if both.get("runAsNonRoot") is not True:
        yield "runAsNonRoot is not true"
    if both.get("runAsUser", 1) == 0:
        yield "runAsUser is 0"
    if own.get("procMount", "Default") != "Default":
        yield "procMount is set"
    if any("hostPort" in port and port["hostPort"] for port in container.get("ports", ())):
        yield "a hostPort is set"


def test_there_are_pods_to_look_at() -> None:
    assert {"decoder StatefulSet", "prefiller StatefulSet", "router Deployment"} <= set(PODS)


@pytest.mark.parametrize("name", PODS)
def test_pod_is_restricted(name: str) -> None:
    assert list(breaches(PODS[name])) == []


def spoil(change: Callable[[dict[str, Any], dict[str, Any]], object]) -> dict[str, Any]:
    pod = copy.deepcopy(PODS["decoder StatefulSet"])
    change(pod, pod["containers"][0])
    return pod


@pytest.mark.parametrize(
    "change",
    [
        lambda pod, _: pod.update(hostNetwork=True),
        lambda pod, _: pod["volumes"].append({"name": "host", "hostPath": {"path": "/"}}),
        lambda pod, _: pod["securityContext"].pop("runAsNonRoot"),
        lambda pod, _: pod["securityContext"].pop("seccompProfile"),
        lambda _, container: container["securityContext"].pop("allowPrivilegeEscalation"),
        lambda _, container: container["securityContext"].pop("capabilities"),
        lambda _, container: container["securityContext"].update(runAsUser=0),
        lambda _, container: container["securityContext"]["capabilities"].update(add=["SYS_PTRACE"]),
        lambda pod, container: pod.update(initContainers=[{"name": "first", "image": container["image"]}]),
    ],
)
def test_a_spoilt_pod_is_found(change: Callable[[dict[str, Any], dict[str, Any]], object]) -> None:
    assert list(breaches(spoil(change)))


@pytest.mark.parametrize("name", PODS)
def test_a_user_without_passwd_entry_has_a_name_and_a_home(name: str) -> None:
    for container in containers(PODS[name]):
        environment = {entry["name"]: entry.get("value", "") for entry in container.get("env", ())}
        assert environment.get("HOME")
        assert environment.get("USER")


@pytest.mark.parametrize("component", ["prefiller", "decoder"])
def test_a_draining_pod_keeps_its_name(component: str) -> None:
    text = (EXAMPLES / "kubernetes" / f"{component}.yaml").read_text(encoding="utf-8")
    service = next(one for one in yaml.safe_load_all(text) if one["kind"] == "Service")
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True


@pytest.mark.parametrize("others", [(), ("aarch64",), ("aarch64", "riscv64")])
def test_image_takes_the_wheel_of_its_machine(others: tuple[str, ...], tmp_path: Path) -> None:
    """``make wheels`` leaves several beside each other, of which pip refuses all but one."""
    machine = subprocess.run(["uname", "-m"], capture_output=True, text=True, check=True).stdout.strip()
    for one in {machine, *others}:
        (tmp_path / f"kv_connector-1.0-py3-none-manylinux_2_28_{one}.whl").touch()
    installs = re.search(r"pip install --no-cache-dir (.+?) &&", DOCKERFILE.read_text(encoding="utf-8"))
    assert installs is not None
    asked = installs[1].replace("/tmp/wheel", str(tmp_path))
    named = subprocess.run(["sh", "-c", f"echo {asked}"], capture_output=True, text=True, check=True).stdout.split()
    assert [Path(name).name for name in named] == [f"kv_connector-1.0-py3-none-manylinux_2_28_{machine}.whl"]
