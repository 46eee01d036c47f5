"""Rules that no schema holds. Each returns what breaks it, in words; empty is well."""

import re
from collections.abc import Iterator
from typing import Any

Document = dict[str, Any]

# Pod Security "restricted".
VOLUMES = {
    "name", "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret",
}  # fmt: skip
SECRET_NAME = re.compile(r"(TOKEN|PASSWORD|PASSWD|SECRET|CREDENTIAL|ACCESS_KEY|API_KEY|PRIVATE_KEY)")
UNITS = {"m": 1e-3, "": 1, "k": 1e3, "M": 1e6, "G": 1e9, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


def containers(pod: Document) -> list[Document]:
    """All containers, those of the start included."""
    spec = pod["spec"]
    return [*spec["containers"], *spec.get("initContainers", []), *spec.get("ephemeralContainers", [])]


def unrestricted(pod: Document) -> list[str]:
    """Breaches of the Pod Security Standard "restricted"."""
    spec = pod["spec"]
    faults = [f"{key} is set" for key in ("hostNetwork", "hostPID", "hostIPC") if spec.get(key)]
    faults += [
        f"volume {volume['name']} is a {kind}" for volume in spec.get("volumes", []) for kind in volume.keys() - VOLUMES
    ]
    faults += [f"pod: {fault}" for fault in _context_faults(spec.get("securityContext", {}))]
    for container in containers(pod):
        faults += [f"{container['name']}: {fault}" for fault in _container_faults(container, spec)]
    return faults


def _container_faults(container: Document, spec: Document) -> Iterator[str]:
    own, shared = container.get("securityContext", {}), spec.get("securityContext", {})
    capabilities = own.get("capabilities", {})
    if own.get("privileged"):
        yield "privileged"
    if own.get("allowPrivilegeEscalation") is not False:
        yield "allowPrivilegeEscalation is not false"
    if "ALL" not in capabilities.get("drop", []):
        yield "capabilities not dropped: ALL"
    if set(capabilities.get("add", [])) - {"NET_BIND_SERVICE"}:
        yield f"capabilities added: {capabilities['add']}"
    if own.get("runAsNonRoot", shared.get("runAsNonRoot")) is not True:
        yield "runAsNonRoot is not true"
    if (own.get("seccompProfile") or shared.get("seccompProfile") or {}).get("type") not in {
        "RuntimeDefault",
        "Localhost",
    }:
        yield "no seccompProfile"
    if own.get("procMount", "Default") != "Default":
        yield f"procMount is {own['procMount']}"
    if any(port.get("hostPort") for port in container.get("ports", [])):
        yield "a hostPort"
    yield from _context_faults(own)


def _context_faults(context: Document) -> Iterator[str]:
    if context.get("runAsUser") == 0:
        yield "runAsUser is 0"
    if context.get("seccompProfile", {}).get("type") == "Unconfined":
        yield "seccompProfile is Unconfined"
    if context.get("sysctls"):
        yield "sysctls are set"


def floating(pod: Document) -> list[str]:
    """Images whose content may change under their name."""
    images = {container["name"]: container["image"] for container in containers(pod)}
    return [
        f"{name}: image {image} has no fixed tag"
        for name, image in images.items()
        if not re.fullmatch(r"[^@]+(@sha256:[0-9a-f]{64}|:(?!latest$)\w[\w.-]*)", image)
    ]


def unequal_memory(pod: Document) -> list[str]:
    """Containers whose memory request and limit differ, or that have none."""
    faults = []
    for container in containers(pod):
        sizes = container.get("resources", {})
        asked, limit = (sizes.get(key, {}).get("memory") for key in ("requests", "limits"))
        if asked is None or asked != limit:
            faults.append(f"{container['name']}: memory request {asked}, limit {limit}")
    return faults


def token_holders(pod: Document) -> list[str]:
    """Containers that can read a service account's token."""
    spec = pod["spec"]
    if spec.get("automountServiceAccountToken") is not False:
        return [container["name"] for container in containers(pod)]
    tokens = {
        volume["name"]
        for volume in spec.get("volumes", [])
        if any("serviceAccountToken" in source for source in volume.get("projected", {}).get("sources", []))
    }
    return [
        container["name"]
        for container in containers(pod)
        if any(mount["name"] in tokens for mount in container.get("volumeMounts", []))
    ]


def secret_values(document: Any, path: str = "") -> list[str]:
    """Secrets written out: a Secret's data, or a literal value under a name that says secret."""
    if isinstance(document, list):
        return [fault for index, part in enumerate(document) for fault in secret_values(part, f"{path}[{index}]")]
    if not isinstance(document, dict):
        return []
    faults = []
    if document.get("kind") == "Secret" and (document.get("data") or document.get("stringData")):
        faults.append(f"{path} Secret with data")
    if SECRET_NAME.search(str(document.get("name", "")).upper()) and document.get("value"):
        faults.append(f"{path}.{document['name']} has a literal value")
    return faults + [fault for key, part in document.items() for fault in secret_values(part, f"{path}.{key}")]


def wildcards(role: Document) -> list[str]:
    """Rules of a Role that name everything, secrets without their names, or verbs that hand out rights."""
    faults = []
    for index, rule in enumerate(role["rules"]):
        faults += [f"rule {index}: {key} *" for key in ("apiGroups", "resources", "verbs") if "*" in rule.get(key, [])]
        if "secrets" in rule["resources"] and (not rule.get("resourceNames") or set(rule["verbs"]) != {"get"}):
            faults.append(f"rule {index}: secrets beyond get by name")
        if {"escalate", "bind", "impersonate"} & set(rule["verbs"]):
            faults.append(f"rule {index}: hands out rights")
        if {"pods", "pods/exec"} & set(rule["resources"]) and {"create", "patch", "update"} & set(rule["verbs"]):
            faults.append(f"rule {index}: makes or enters pods")
    return faults


def amount(quantity: str | float) -> float:
    """A quantity of Kubernetes as a number: 500m is 0.5, 1Ki is 1024."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([a-zA-Z]*)", str(quantity))
    assert found, f"no quantity: {quantity}"
    return float(found[1]) * UNITS[found[2]]


def demand(pods: list[tuple[Document, int]]) -> dict[str, float]:
    """What so many of these pods count against a quota, by its names: requests.cpu, limits.memory, ..., pods."""
    total: dict[str, float] = {"pods": 0}
    for pod, count in pods:
        total["pods"] += count
        for side in ("requests", "limits"):
            for resource, value in _pod_size(pod, side).items():
                name = f"{side}.{resource}"
                total[name] = total.get(name, 0) + count * value
    return total


def _pod_size(pod: Document, side: str) -> dict[str, float]:
    """The larger of all containers together and of the largest init container."""

    def size(container: Document, resource: str) -> float:
        return amount(container["resources"].get(side, {}).get(resource, 0))

    names = {name for container in containers(pod) for name in container["resources"].get(side, {})}
    return {
        name: max(
            sum(size(one, name) for one in pod["spec"]["containers"]),
            *(size(one, name) for one in pod["spec"].get("initContainers", [])),
            0,
        )
        for name in names
    }
