"""What lies in cluster/, as documents: every file, every rendered tree, and the pods that the operator would make."""

import copy
import functools
import itertools
import os
import pickle
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml

Document = dict[str, Any]

CLUSTER = Path(__file__).parents[2] / "cluster"
RAYCLUSTER = CLUSTER / "raycluster.yaml"
TREES = [CLUSTER, *sorted(path.parent for path in CLUSTER.glob("overlays/*/kustomization.yaml"))]
COMPONENTS = sorted(path.parent.name for path in CLUSTER.glob("components/*/kustomization.yaml"))
# A laptop's sizes stand against those of GPUs and of claims for many nodes.
AGAINST = {("gpu", "kind"), ("kind", "shared-storage")}
PAIRS = [pair for pair in itertools.combinations(COMPONENTS, 2) if pair not in AGAINST]
# A folder in cluster/, or components that a folder elsewhere lists.
Tree = Path | tuple[str, ...]
# What others define, and whose schemas are not at hand.
THIRD_PARTY = {
    ("monitoring.coreos.com/v1", "PodMonitor"),
    ("kueue.x-k8s.io/v1beta2", "ResourceFlavor"),
    ("kueue.x-k8s.io/v1beta2", "ClusterQueue"),
    ("kueue.x-k8s.io/v1beta2", "LocalQueue"),
}


class _Once(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
    """Refuses a key that stands twice, as the API server does; PyYAML keeps the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> Any:
        keys = [self.construct_object(key) for key, _ in node.value]
        twice = {key for key in keys if keys.count(key) > 1}
        if twice:
            raise yaml.constructor.ConstructorError(None, None, f"key twice: {sorted(twice)}", node.start_mark)
        return super().construct_mapping(node, deep)


def parsed(text: str) -> list[Document]:
    return [document for document in yaml.load_all(text, _Once) if document]


@functools.cache
def _alone() -> bytes:
    return pickle.dumps(parsed(RAYCLUSTER.read_text()))


def alone() -> list[Document]:
    """The documents of cluster/raycluster.yaml."""
    return pickle.loads(_alone())


def tree_id(tree: Tree) -> str:
    return "+".join(tree) if isinstance(tree, tuple) else str(tree.relative_to(CLUSTER.parent))


def _kustomized(folder: Path) -> str:
    done = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _listed(components: tuple[str, ...], folder: Path) -> None:
    """Makes the folder an overlay of one's own: the base, with these components."""
    cluster = Path(os.path.relpath(CLUSTER, folder))
    overlay = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [str(cluster / "base")],
        "components": [str(cluster / "components" / name) for name in components],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(overlay))


@functools.cache
def _rendered(tree: Tree) -> bytes:
    """The documents, pickled: each caller gets its own, and a copy is made faster from bytes than from documents."""
    if isinstance(tree, Path):
        return pickle.dumps(parsed(_kustomized(tree)))
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made).resolve()
        _listed(tree, folder)
        return pickle.dumps(parsed(_kustomized(folder)))


def rendered(tree: Tree) -> list[Document]:
    """The documents of a tree as `kubectl apply -k` would send them."""
    if not shutil.which("kubectl"):
        pytest.skip("kubectl, which renders the overlays, is not on PATH")
    return pickle.loads(_rendered(tree))


def crds() -> Path:
    """The folder of the operator's CRDs."""
    folder = os.environ.get("KUBERAY_CRDS")
    if not folder:
        pytest.skip("KUBERAY_CRDS names no folder with the operator's CRDs (ray.io_rayclusters.yaml ...)")
    return Path(folder)


def of_kind(documents: list[Document], kind: str) -> list[Document]:
    return [document for document in documents if document["kind"] == kind]


def pods(cluster: Document) -> list[tuple[Document, int]]:
    """Each pod of a RayCluster as KubeRay 1.7 completes it, and how many of it there are at most.

    What matters for security and size: the autoscaler's container and the workers' init container.
    """
    spec = copy.deepcopy(cluster["spec"])
    head = spec["headGroupSpec"]["template"]
    if spec.get("enableInTreeAutoscaling"):
        head["spec"]["containers"].append(_autoscaler(head, spec.get("autoscalerOptions", {})))
    found = [(_pod(cluster, "head", "headgroup", head), 1)]
    for group in spec["workerGroupSpecs"]:
        template = group["template"]
        template["spec"].setdefault("initContainers", []).append(_wait_gcs_ready(template))
        found.append((_pod(cluster, "worker", group["groupName"], template), group["maxReplicas"]))
    return found


def _autoscaler(head: Document, options: Document) -> Document:
    default = {"cpu": "500m", "memory": "512Mi"}
    container = {
        "name": "autoscaler",
        "image": options.get("image", head["spec"]["containers"][0]["image"]),
        "imagePullPolicy": options.get("imagePullPolicy", "IfNotPresent"),
        "resources": options.get("resources", {"requests": default, "limits": default}),
        "volumeMounts": [*options.get("volumeMounts", []), {"name": "ray-logs", "mountPath": "/tmp/ray"}],
    }
    return container | {key: options[key] for key in ("securityContext", "env") if key in options}


def _wait_gcs_ready(template: Document) -> Document:
    ray = template["spec"]["containers"][0]
    size = {"cpu": "200m", "memory": "256Mi"}
    kept = {
        key: ray[key] for key in ("image", "imagePullPolicy", "securityContext", "volumeMounts", "env") if key in ray
    }
    return {"name": "wait-gcs-ready", "resources": {"requests": size, "limits": size}, **kept}


def _pod(cluster: Document, node_type: str, group: str, template: Document) -> Document:
    labels = {
        "app.kubernetes.io/name": "kuberay",
        "ray.io/is-ray-node": "yes",
        "ray.io/cluster": cluster["metadata"]["name"],
        "ray.io/node-type": node_type,
        "ray.io/group": group,
    }
    template["metadata"]["labels"] |= labels
    template["metadata"] |= {
        "name": f"{cluster['metadata']['name']}-{group}",
        "namespace": cluster["metadata"].get("namespace", "default"),
    }
    return {"apiVersion": "v1", "kind": "Pod", **template}
