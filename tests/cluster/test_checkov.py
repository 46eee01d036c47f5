"""checkov on the pods of every tree, what stands beside them, and the Dockerfile: only the known exceptions."""

import json
import subprocess
from pathlib import Path

import pytest
import yaml
from manifests import TREES, alone, of_kind, pods, rendered

ROOT = Path(__file__).parents[2]
TOOL = ROOT / ".venv-checkov" / "bin" / "checkov"
EXCEPTIONS = yaml.safe_load((Path(__file__).parent / "checkov.yaml").read_text())

pytestmark = pytest.mark.skipif(not TOOL.exists(), reason="checkov is not installed (scripts/checkov does it)")


def findings(path, framework):
    """Failed checks with what they fail on, and how many passed."""
    command = [TOOL, "--framework", framework, "--skip-download", "--compact", "--quiet", "-o", "json"]
    done = subprocess.run(
        [*command, "-d" if path.is_dir() else "-f", str(path)], capture_output=True, text=True, check=False
    )
    report = json.loads(done.stdout)
    assert report["summary"]["parsing_errors"] == 0, done.stderr
    failed = {(one["check_id"], one["resource"]) for one in report["results"]["failed_checks"]}
    return failed, report["summary"]["passed"]


def written(folder, name, documents):
    """The documents in a file, each RayCluster replaced by its pods: checkov knows no RayCluster."""
    [cluster] = of_kind(documents, "RayCluster")
    known = [pod for pod, _ in pods(cluster)] + [one for one in documents if one is not cluster]
    (folder / f"{name}.yaml").write_text(yaml.safe_dump_all(known))


def test_manifest_alone_and_every_tree_fail_only_the_checks_with_a_reason(tmp_path):
    written(tmp_path, "alone", [one | {"metadata": one["metadata"] | {"namespace": "sp500"}} for one in alone()])
    for tree in TREES:
        written(tmp_path, tree.name, rendered(tree))
    failed, passed = findings(tmp_path, "kubernetes")
    assert {check for check, _ in failed} == EXCEPTIONS["kubernetes"].keys(), sorted(failed)
    assert passed > 1000


def test_pod_that_is_privileged_is_found(tmp_path):
    [cluster] = of_kind(alone(), "RayCluster")
    cluster["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0]["securityContext"] = {"privileged": True}
    cluster["metadata"]["namespace"] = "sp500"
    written(tmp_path, "privileged", [cluster])
    failed, _ = findings(tmp_path, "kubernetes")
    assert ("CKV_K8S_16", "Pod.sp500.sp500-headgroup") in failed


@pytest.mark.skipif(not (ROOT / "Dockerfile").exists(), reason="no Dockerfile")
def test_dockerfile_fails_only_the_checks_with_a_reason():
    failed, passed = findings(ROOT / "Dockerfile", "dockerfile")
    assert {check for check, _ in failed} == EXCEPTIONS["dockerfile"].keys(), sorted(failed)
    assert passed > 0


def test_every_exception_has_a_reason():
    assert all(len(reason) > 20 for checks in EXCEPTIONS.values() for reason in checks.values())
