"""What an API server and KubeRay 1.7 do with a RayCluster, as far as a deploy sees it.

Repeated from real ones: a claim's class cannot be changed; a changed spec is a new generation; with upgradeStrategy
Recreate the operator deletes all pods when the hash of the spec is not the one on the head's pod, and not at once; it
writes its status only if something besides observedGeneration differs.
"""

import hashlib
import json
from copy import deepcopy

# As kubectl 1.36 prints it for a claim of another class.
REFUSED_CLAIM = """Error from server (Invalid): error when applying patch:
{patch}
to:
Resource: "/v1, Resource=persistentvolumeclaims", GroupVersionKind: "/v1, Kind=PersistentVolumeClaim"
Name: "{name}", Namespace: "lab"
for: "STDIN": error when patching "STDIN": PersistentVolumeClaim "{name}" is invalid: spec: Forbidden: \
spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims
@@ -1,6 +1,6 @@
 {{
- "StorageClassName": "standard",
+ "StorageClassName": "fast",
  "VolumeMode": "Filesystem",
"""
HASH = "ray.io/upgrade-strategy-recreate-hash"


def refusal(old, new):
    """Why the API server refuses a change; empty if it does not."""
    if new["kind"] != "PersistentVolumeClaim" or not old:
        return ""
    if old.get("spec") == new.get("spec"):
        return ""
    name = new["metadata"]["name"]
    patch = json.dumps({"spec": new.get("spec")})
    return REFUSED_CLAIM.format(name=name, patch=patch)


def stored(old, new):
    """The object after an apply."""
    result = deepcopy(new)
    if new["kind"] == "RayCluster":
        generation = old.get("metadata", {}).get("generation", 0) + (old.get("spec") != new.get("spec"))
        result["metadata"]["generation"] = generation
        result["status"] = deepcopy(old.get("status", {}))
    return result


def spec_hash(spec):
    muted = deepcopy(spec)
    muted.pop("upgradeStrategy", None)
    for group in muted.get("workerGroupSpecs", []):
        for name in ("replicas", "minReplicas", "maxReplicas"):
            group.pop(name, None)
    return hashlib.sha256(json.dumps(muted, sort_keys=True).encode()).hexdigest()[:12]


def reconcile(cluster, pods, state):
    """One turn of the operator: (cluster, pods). `state` keeps a counter for uids and how long it is asleep."""
    if state.get("asleep", 0) > 0:
        state["asleep"] -= 1
        return cluster, pods
    spec = cluster["spec"]
    heads = [pod for pod in pods if pod["metadata"]["labels"]["ray.io/node-type"] == "head"]
    recreates = spec.get("upgradeStrategy", {}).get("type") == "Recreate"
    if heads and recreates and heads[0]["metadata"]["annotations"][HASH] != spec_hash(spec):
        pods = []
    elif not heads:
        count = sum(group.get("replicas", 0) for group in spec.get("workerGroupSpecs", []))
        pods = [_pod(kind, cluster, state) for kind in ("head", *["worker"] * count)]
    else:
        for pod in pods:
            pod["status"] = {"conditions": [{"type": "Ready", "status": "True"}]}
    return {**cluster, "status": _status(cluster, pods)}, pods


def _pod(kind, cluster, state):
    state["uid"] = state.get("uid", 0) + 1
    labels = {"ray.io/cluster": cluster["metadata"]["name"], "ray.io/node-type": kind}
    metadata = {"name": f"sp500-{kind}-{state['uid']}", "uid": str(state["uid"]), "labels": labels}
    annotations = {HASH: spec_hash(cluster["spec"])}
    return {"metadata": {**metadata, "annotations": annotations}, "status": {"conditions": []}}


def _status(cluster, pods):
    ready = [pod["metadata"]["labels"]["ray.io/node-type"] for pod in pods if pod["status"]["conditions"]]
    old = cluster.get("status", {})
    new = {
        "readyWorkerReplicas": ready.count("worker"),
        "minWorkerReplicas": sum(group.get("minReplicas", 0) for group in cluster["spec"].get("workerGroupSpecs", [])),
        "conditions": [{"type": "HeadPodReady", "status": "True" if "head" in ready else "False"}],
        "observedGeneration": cluster["metadata"]["generation"],
    }
    # utils.InconsistentRayClusterStatus: observedGeneration does not count.
    same = all(old.get(key) == value for key, value in new.items() if key != "observedGeneration")
    return old if same else new
