"""The manifests are what Kubernetes takes, and name the ports that the documentation names."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
MANIFESTS = sorted((ROOT / "examples" / "kubernetes").glob("*.yaml"))
NOT_OF_KUBERNETES = ("ServiceMonitor",)
"""Kinds of operators, of which no schema comes with the validator."""
KUBERNETES = "1.33"


def documents(file: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(file.read_text(encoding="utf-8")))


def of(file: str, kind: str, name: str = "") -> dict[str, Any]:
    found = documents(ROOT / "examples" / "kubernetes" / f"{file}.yaml")
    return next(one for one in found if one["kind"] == kind and name in ("", one["metadata"]["name"]))


def container(component: str) -> dict[str, Any]:
    spec: dict[str, Any] = of(component, "StatefulSet")["spec"]["template"]["spec"]
    return dict(spec["containers"][0])


def options(component: str) -> dict[str, Any]:
    """What the engine would read, in a pod of one address."""
    arguments = container(component)["args"]
    text = arguments[arguments.index("--kv-transfer-config") + 1].replace("$(POD_IP)", "10.0.0.1")
    config = json.loads(text)
    return {**config["kv_connector_extra_config"], "kv_role": config["kv_role"]}


@pytest.mark.parametrize("file", MANIFESTS, ids=lambda file: file.stem)
def test_kubernetes_takes_the_manifest(file: Path) -> None:
    for document in documents(file):
        if document["kind"] not in NOT_OF_KUBERNETES:
            kubernetes_validate.validate(document, KUBERNETES, strict=True)


def test_a_wrong_manifest_is_refused() -> None:
    wrong = of("decoder", "StatefulSet")
    wrong["spec"]["template"]["spec"]["terminationGracePeriod"] = 5
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, KUBERNETES, strict=True)


@pytest.mark.parametrize(("component", "role"), [("prefiller", "kv_producer"), ("decoder", "kv_consumer")])
def test_engine_is_given_its_role_and_address(component: str, role: str) -> None:
    given = options(component)
    assert given["kv_role"] == role
    assert given["listen_host"] == given["metrics_host"] == "10.0.0.1"
    known = (ROOT / "docs" / "options.md").read_text(encoding="utf-8")
    assert all(f"| `{name}` |" in known for name in given if name != "kv_role")


@pytest.mark.parametrize(("component", "option"), [("prefiller", "listen_port"), ("decoder", "data_port")])
def test_ports_are_open_and_documented(component: str, option: str) -> None:
    given = options(component)
    declared = {port["containerPort"] for port in container(component)["ports"]}
    opened = {
        port["port"]
        for rule in of("network-policy", "NetworkPolicy", component)["spec"]["ingress"]
        for port in rule["ports"]
    }
    assert declared == opened == {8000, given[option], given["metrics_port"]}
    page = (ROOT / "docs" / "ports.md").read_text(encoding="utf-8")
    assert f'"{option}": {given[option]}' in page
    assert f'"metrics_port": {given["metrics_port"]}' in page


@pytest.mark.parametrize("component", ["prefiller", "decoder"])
def test_pod_has_time_to_drain(component: str) -> None:
    """preStop and vLLM's own shutdown, one after the other; preStop outlasts grant_wait_seconds."""
    stop = " ".join(container(component)["lifecycle"]["preStop"]["exec"]["command"])
    slept, waited = (float(found) for found in re.findall(r"(?:sleep|--limit-seconds) (\d+)", stop))
    shutdown = next(
        float(a.partition("=")[2]) for a in container(component)["args"] if a.startswith("--shutdown-timeout=")
    )
    assert f":{options(component)['metrics_port']}" in stop
    grace = of(component, "StatefulSet")["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert grace > slept + waited + shutdown
    grant_wait = re.search(
        r"\| `grant_wait_seconds` \| seconds \| `(\d+)` \|", (ROOT / "docs" / "options.md").read_text()
    )
    assert grant_wait is not None
    assert waited >= float(grant_wait[1])


def test_secret_is_in_no_argument_and_too_short_as_it_stands() -> None:
    secret = of("secret", "Secret")
    assert len(secret["stringData"]["shared_secret"]) < 16
    for component in ("prefiller", "decoder"):
        environment = {entry["name"]: entry.get("value", "") for entry in container(component)["env"]}
        mounts = {mount["name"]: mount["mountPath"] for mount in container(component)["volumeMounts"]}
        assert environment["KV_MESSENGER_SECRET_FILE"] == f"{mounts['secret']}/shared_secret"
        assert "shared_secret" not in options(component)


def test_monitor_scrapes_the_metrics_port_under_the_name_of_the_rules() -> None:
    monitor = of("service-monitor", "ServiceMonitor")["spec"]
    for component in ("prefiller", "decoder"):
        service = of(component, "Service")
        assert monitor["endpoints"][0]["port"] in {port["name"] for port in service["spec"]["ports"]}
        assert service["metadata"]["labels"][monitor["jobLabel"]] == "kv-messenger"


COMMAND_OF_A_PAGE = re.compile(r"kv-messenger (?:state|page-key|drain|undrain) --metrics (\S+?):(\d+)")


@pytest.mark.parametrize("page", ["troubleshooting.md", "kubernetes.md", "operations.md"])
def test_documented_commands_reach_the_pages_of_the_manifests(page: str) -> None:
    """Inside a pod and through port-forward it is loopback that is dialled, and the pages listen there too."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    commands = COMMAND_OF_A_PAGE.findall(text)
    assert commands
    for component in ("prefiller", "decoder"):
        given = options(component)
        reachable = {"127.0.0.1", given["metrics_host"]}
        assert all(host in reachable and int(port) == given["metrics_port"] for host, port in commands)
    for pod, port in re.findall(r"kubectl port-forward (\S+) (\d+)", text):
        component = pod.rpartition("-")[0]
        assert int(port) in {one["containerPort"] for one in container(component)["ports"]}


def test_documented_comparison_reaches_what_the_manifests_open() -> None:
    """By the names and ports of the services, from a pod that the policies let through."""
    text = (ROOT / "docs" / "kubernetes.md").read_text(encoding="utf-8")
    (found,) = re.findall(r"kubectl exec (\S+)-\d -- kv-messenger compare http://(\S+):(\d+) http://(\S+):(\d+)`", text)
    pod, router, router_port, decoder, decoder_port = found
    assert int(router_port) in {port["port"] for port in of("router", "Service", router)["spec"]["ports"]}
    assert f"--port={decoder_port}" in container("decoder")["args"]
    policies = {
        document["metadata"]["name"] for document in documents(ROOT / "examples" / "kubernetes" / "network-policy.yaml")
    }
    assert router not in policies, "any pod reaches it"
    assert (pod, decoder) == ("decoder", "127.0.0.1"), "only the router's pods reach a decoder's API from outside"
