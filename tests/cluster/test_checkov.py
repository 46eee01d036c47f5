"""checkov on the pods of every tree, what stands beside them, and the Dockerfile: only the known exceptions."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from manifests import TREES, alone, of_kind, pods, rendered

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "Dockerfile"
PRIVILEGED = "privileged"
TOOL = ROOT / ".venv-checkov" / "bin" / "checkov"
EXCEPTIONS = yaml.safe_load((Path(__file__).parent / "checkov.yaml").read_text())

pytestmark = pytest.mark.skipif(not TOOL.exists(), reason="checkov is not installed (scripts/checkov does it)")


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """What one run of the tool says of all files, by framework."""
    folder = tmp_path_factory.mktemp("checked")
    written(folder, "alone", [one | {"metadata": one["metadata"] | {"namespace": "sp500"}} for one in alone()])
    for tree in TREES:
        written(folder, tree.name, rendered(tree))
    [cluster] = of_kind(alone(), "RayCluster")
    cluster["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0]["securityContext"] = {"privileged": True}
    cluster["metadata"]["namespace"] = "sp500"
    written(folder, PRIVILEGED, [cluster])
    if DOCKERFILE.exists():
        shutil.copy(DOCKERFILE, folder)
    options = ["--skip-download", "--compact", "--quiet", "-o", "json"]
    command = [TOOL, "--framework", "kubernetes", "dockerfile", *options, "-d", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    answer = json.loads(done.stdout)
    by_framework = {one["check_type"]: one for one in (answer if isinstance(answer, list) else [answer])}
    assert all(one["summary"]["parsing_errors"] == 0 for one in by_framework.values()), done.stderr
    return by_framework


def failed(report, *, privileged=False):
    """Failed checks with what they fail on, of the privileged pod or of all else."""
    return {
        (one["check_id"], one["resource"])
        for one in report["results"]["failed_checks"]
        if (Path(one["file_path"]).stem == PRIVILEGED) == privileged
    }


def written(folder, name, documents):
    """The documents in a file, each RayCluster replaced by its pods: checkov knows no RayCluster."""
    [cluster] = of_kind(documents, "RayCluster")
    known = [pod for pod, _ in pods(cluster)] + [one for one in documents if one is not cluster]
    (folder / f"{name}.yaml").write_text(yaml.safe_dump_all(known))


def test_manifest_alone_and_every_tree_fail_only_the_checks_with_a_reason(reports):
    report = reports["kubernetes"]
    assert {check for check, _ in failed(report)} == EXCEPTIONS["kubernetes"].keys(), sorted(failed(report))
    assert report["summary"]["passed"] > 1000


def test_pod_that_is_privileged_is_found(reports):
    assert ("CKV_K8S_16", "Pod.sp500.sp500-headgroup") in failed(reports["kubernetes"], privileged=True)


@pytest.mark.skipif(not DOCKERFILE.exists(), reason="no Dockerfile")
def test_dockerfile_fails_only_the_checks_with_a_reason(reports):
    report = reports["dockerfile"]
    assert {check for check, _ in failed(report)} == EXCEPTIONS["dockerfile"].keys(), sorted(failed(report))
    assert report["summary"]["passed"] > 0


def test_every_exception_has_a_reason():
    assert all(len(reason) > 20 for checks in EXCEPTIONS.values() for reason in checks.values())
