"""Manifests that keep every rule, how to change one field of them, and an API server that takes them."""

import copy
import importlib.util
import json
import os
import secrets
import sys
from pathlib import Path

import pytest
import yaml
from kube_server import KubeServer
from kube_store import KubeStore

from sp500.jobs.kuberay.executor import KubeRayExecutor, request
from sp500.jobs.local import executor as local
from sp500.jobs.manifests.rayjob import build_rayjob
from sp500.jobs.spec import JobSpec

HERE = Path(__file__).parent

pytest.register_assert_rewrite("executor_contract")


@pytest.fixture(scope="session")
def cluster_file():
    """A RayCluster with an autoscaler, a token and restricted pods, beside a claim."""
    return HERE / "raycluster.yaml"


@pytest.fixture
def cluster(cluster_file):
    """The RayCluster alone."""
    return next(one for one in yaml.safe_load_all(cluster_file.read_text()) if one["kind"] == "RayCluster")


@pytest.fixture
def make():
    """Makes a job of the fewest fields and those given."""
    return lambda **given: JobSpec(**{"argv": ("python", "experiments/tune.py"), **given})


@pytest.fixture
def rayjob(cluster, make):
    """A RayJob of the fewest fields."""
    return build_rayjob(make(), cluster)


@pytest.fixture
def rayservice(cluster):
    """A RayService on the same cluster."""
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayService",
        "metadata": {"name": "forecasts"},
        "spec": {"rayClusterConfig": copy.deepcopy(cluster["spec"])},
    }


@pytest.fixture
def changed():
    """Sets fields by path, a/b/0 (a number for a place in a list) in a copy; ... takes one away."""

    def change(document, changes):
        document = json.loads(json.dumps(document))  # YAML's anchors would change in several places
        for path, value in changes.items():
            *parents, last = path.split("/")
            at = document
            for key in parents:
                at = at[int(key)] if isinstance(at, list) else at.setdefault(key, {})
            key = int(last) if isinstance(at, list) else last
            if value is ...:
                del at[key]
            elif isinstance(at, list) and key == len(at):
                at.append(copy.deepcopy(value))
            else:
                at[key] = copy.deepcopy(value)
        return document

    return change


@pytest.fixture(scope="session")
def schema_faults():
    """What the operator's CRD refuses in a RayJob; None without the CRDs."""
    folder = os.environ.get("KUBERAY_CRDS")
    if not folder:
        return None
    spec = importlib.util.spec_from_file_location("crd_schema", HERE.parent / "cluster" / "crd_schema.py")
    crd_schema = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(crd_schema)
    schema = crd_schema.of_crd(Path(folder) / "ray.io_rayjobs.yaml")
    return lambda rayjob: crd_schema.faults(rayjob, schema)


@pytest.fixture
def kube():
    """An API server; `kube.store` has what it keeps."""
    with KubeServer(KubeStore()) as server:
        yield server


@pytest.fixture
def kubeconfig(kube, tmp_path):
    """Path of the kubeconfig for it."""
    return kube.write_kubeconfig(tmp_path / "kubeconfig")


@pytest.fixture
def executor(kubeconfig):
    """The executor over it, which never sleeps."""
    return KubeRayExecutor("sp500", kubeconfig=kubeconfig, pause=lambda seconds: None)


@pytest.fixture
def requested(make, cluster):
    """Makes the request of a job under a handle."""
    return lambda handle="night-1", **given: request(make(**given), cluster, handle)


@pytest.fixture
def ask(tmp_path):
    """Makes a request to this machine for a Python program; every start of it appends a line to `starts`."""

    def make(program, **changes):
        script = tmp_path / f"program-{secrets.token_hex(4)}.py"
        script.write_text(f"open({str(tmp_path / 'starts')!r}, 'a').write('start\\n')\n{program}\n")
        spec = JobSpec(argv=("python", str(script)), name="job")
        environment = {"PATH": "/usr/bin:/bin"}
        return local.request(spec, cwd=tmp_path, environment=environment, python=sys.executable) | changes

    return make


@pytest.fixture
def started(tmp_path):
    """How often programs of `ask` were started."""
    return lambda: len((tmp_path / "starts").read_text().splitlines()) if (tmp_path / "starts").exists() else 0


@pytest.fixture
def here(tmp_path):
    """The executor of this machine; what a test leaves running is stopped at its end."""
    executor = local.LocalExecutor(tmp_path / "jobs")
    yield executor
    for folder in (tmp_path / "jobs").glob("*"):
        executor.delete(folder.name)
