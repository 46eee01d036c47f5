"""KubeRayExecutor against an API server in memory, whose operator takes a step at each look."""

import json
from pathlib import Path

import pytest
import yaml
from executor_contract import LINES, ExecutorContract
from kube_operator import Autopilot, Operator

from sp500.errors import ConfigError, Refused
from sp500.jobs.kuberay.api import RAYJOBS, KubeApi
from sp500.jobs.kuberay.executor import KubeRayExecutor, request
from sp500.jobs.manifests import rules
from sp500.jobs.manifests.rayjob import build_documents
from sp500.jobs.state import JobState
from sp500.progress import RunProgress, load

CLUSTER = Path(__file__).parents[3] / "cluster"
PROGRESS = RunProgress("epoch", 7, 25, True, 1240.0, 0.981, 1180.0, 1000.0)


class TestKubeRayKeepsTheContract(ExecutorContract):
    @pytest.fixture(autouse=True)
    def pilot(self, kube):
        return Autopilot(kube.store, LINES)

    @pytest.fixture
    def executor(self, kubeconfig):
        return KubeRayExecutor("sp500", kubeconfig=kubeconfig, pause=lambda seconds: None)

    @pytest.fixture
    def story(self, make, cluster, handle):
        """A request, which names its handle, whose command is known to the autopilot."""
        return lambda command: request(make(argv=("job.py", command), settings={"trials": 9}), cluster, handle)

    @pytest.fixture
    def succeeding(self, story):
        return story("succeed")

    @pytest.fixture
    def failing(self, story):
        return story("fail")

    @pytest.fixture
    def endless(self, story):
        return story("endless")

    @pytest.fixture
    def held(self, story, pilot):
        return story("held"), lambda: setattr(pilot, "released", True)

    @pytest.fixture
    def starts(self, pilot):
        return lambda handle: pilot.starts.get(handle, 0)


def test_request_is_the_manifest_named_as_the_handle_and_nothing_else(make, cluster):
    spec = make(settings={"trials": 9}, name="tune")
    made = request(spec, cluster, "night-1")
    assert json.loads(json.dumps(made)) == made
    rayjob, settings = made["documents"]
    assert (rayjob["kind"], rayjob["metadata"]["name"]) == ("RayJob", "night-1")
    assert (settings["kind"], settings["metadata"]["name"]) == ("ConfigMap", "night-1-settings")
    [mark] = {one["metadata"].pop("annotations")["sp500/request"] for one in made["documents"]}
    assert len(mark) == 64
    named = spec.model_copy(update={"name": "night-1"})
    assert [settings, rayjob] == json.loads(json.dumps(build_documents(named, cluster)))


def test_request_for_a_handle_that_is_no_name_breaks_a_rule(make, cluster):
    with pytest.raises(ConfigError, match=r"metadata\.name"):
        request(make(), cluster, "night-")


def test_request_fits_the_operators_crd_and_rules(requested, schema_faults):
    if schema_faults is None:
        pytest.skip("KUBERAY_CRDS names no folder with the operator's CRDs (ray.io_rayjobs.yaml ...)")
    for given in ({}, {"settings": {"a": 1}}, {"mode": "InteractiveMode"}, {"queue": "sp500"}, {"gpus": 1}):
        for one in requested(**given)["documents"]:
            assert rules.violations(one) == []
            assert one["kind"] != "RayJob" or schema_faults(one) == []


def test_rayjob_comes_first_and_owns_its_settings_and_files(kube, executor, make, cluster):
    executor.submit("night-1", request(make(settings={"trials": 9}), cluster, "night-1", b"zip"))
    posted = [asked.split("?")[0].rpartition("/")[2] for asked in kube.requests if asked.startswith("POST ")]
    assert (posted, len(kube.requests)) == (["rayjobs", "configmaps", "configmaps"], 3)
    owner = {"apiVersion": "ray.io/v1", "kind": "RayJob", "name": "night-1"}
    owner["uid"] = kube.store.get("rayjobs", "night-1")["metadata"]["uid"]
    for name in ("night-1-settings", "night-1-files"):
        assert kube.store.get("configmaps", name)["metadata"]["ownerReferences"] == [owner]


@pytest.mark.parametrize("gone", [[], ["configmaps"], ["configmaps", "rayjobs"]])
def test_submit_goes_on_where_a_killed_one_ended(kube, executor, requested, gone):
    asked = requested(settings={"trials": 9})
    executor.submit("night-1", asked)
    before = kube.store.get("rayjobs", "night-1")["metadata"]["uid"]
    for plural in gone:
        kube.store.delete(plural, "night-1" if plural == "rayjobs" else "night-1-settings")
    executor.submit("night-1", asked)
    job, settings = kube.store.get("rayjobs", "night-1"), kube.store.get("configmaps", "night-1-settings")
    assert settings["metadata"]["ownerReferences"][0]["uid"] == job["metadata"]["uid"]
    assert (job["metadata"]["uid"] == before) == ("rayjobs" not in gone)


@pytest.mark.parametrize("plural", ["rayjobs", "configmaps"])
def test_object_of_somebody_else_is_refused_by_name_and_left_alone(kube, executor, requested, plural):
    asked = requested(settings={"trials": 9})
    name = "night-1" if plural == "rayjobs" else "night-1-settings"
    theirs = kube.store.put(plural, {"metadata": {"name": name}, "data": {"theirs": "1"}})
    with pytest.raises(Refused, match=f"{name}.*another name"):
        executor.submit("night-1", asked)
    assert kube.store.get(plural, name) == theirs
    executor.stop("night-1")
    executor.delete("night-1")
    assert kube.store.get(plural, name) == theirs


def test_same_handle_with_another_request_is_refused(executor, requested):
    executor.submit("night-1", requested())
    with pytest.raises(Refused, match="another RayJob night-1"):
        executor.submit("night-1", requested(workers=3))


def test_rayjob_of_somebody_else_is_lost_to_us(kube, executor):
    kube.store.put("rayjobs", {"metadata": {"name": "night-1"}, "spec": {}, "status": {"jobStatus": "RUNNING"}})
    assert executor.status("night-1").state is JobState.LOST
    assert list(executor.logs("night-1", role=None, tail=None, follow=True)) == []


def test_rayjob_whose_settings_are_refused_is_not_left_waiting(kube, executor, requested):
    kube.store.denied.add(("create", "configmaps"))
    with pytest.raises(Refused, match="configmaps"):
        executor.submit("night-1", requested(settings={"trials": 9}))
    kube.store.collect()
    assert kube.store.objects == {}


@pytest.mark.parametrize("given", [{"handle": "other-1"}, {"handle": "night-1", "namespace": "elsewhere"}])
def test_request_for_another_name_or_namespace_is_refused(executor, requested, given):
    with pytest.raises(Refused, match=f"{given.get('namespace', 'sp500')}/{given['handle']}, not sp500/night-1"):
        executor.submit("night-1", requested(**given))


def test_deleting_takes_cluster_and_settings_along(kube, executor, requested):
    executor.submit("night-1", requested(settings={"trials": 9}))
    executor.delete("night-1")
    assert executor.status("night-1").reason.startswith("is being deleted")
    kube.store.collect()
    assert kube.store.objects == {}


def test_role_of_the_cluster_grants_all_that_is_asked_and_kueues_the_rest(kube, executor, requested):
    operator = Operator(kube.store, "night-1")
    executor.check(requested(settings={"trials": 9}, queue="sp500"))
    executor.submit("night-1", requested(settings={"trials": 9}, queue="sp500"))
    executor.submit("night-1", requested(settings={"trials": 9}, queue="sp500"))
    operator.tell(jobDeploymentStatus="Suspended")
    executor.status("night-1")
    operator.to_running()
    for step in (lambda: None, lambda: operator.tell(jobDeploymentStatus="Initializing"), lambda: operator.fail(3)):
        step()
        executor.status("night-1")
        list(executor.logs("night-1", role=None, tail=None, follow=False))
    operator.tell(jobDeploymentStatus="Running", jobStatus="RUNNING")
    executor.show_progress("night-1", PROGRESS)
    executor.stop("night-1")
    role = yaml.safe_load((CLUSTER / "base/rbac.yaml").read_text().split("---")[0])
    component = yaml.safe_load((CLUSTER / "components/kueue/kustomization.yaml").read_text())
    [patch] = [patch for patch in component["patches"] if patch.get("target", {}).get("kind") == "Role"]
    added = yaml.safe_load(patch["patch"])
    granted = {(verb, resource) for rule in role["rules"] for resource in rule["resources"] for verb in rule["verbs"]}
    assert kube.store.used - granted == {(verb, "workloads") for verb in added[0]["value"]["verbs"]}


def test_rayjob_made_anew_after_a_look_is_not_deleted_and_gets_no_progress(kube, kubeconfig, executor, requested):
    executor.submit("night-1", requested())
    api = KubeApi("sp500", kubeconfig=kubeconfig)
    api.delete(RAYJOBS, "night-1", "uid-of-the-one-that-was-seen")
    api.annotate(RAYJOBS, "night-1", "uid-of-the-one-that-was-seen", {"sp500/progress": "x"})
    api.annotate(RAYJOBS, "night-2", "uid-of-one-that-is-gone", {"sp500/progress": "x"})
    metadata = kube.store.get("rayjobs", "night-1")["metadata"]
    assert "deletionTimestamp" not in metadata
    assert "sp500/progress" not in metadata["annotations"]


def test_progress_is_an_annotation_of_the_rayjob_beside_those_that_it_has(kube, executor, requested):
    executor.submit("night-1", requested())
    before = kube.store.get("rayjobs", "night-1")["metadata"]
    mark, generation = before["annotations"]["sp500/request"], before["generation"]
    executor.show_progress("night-1", PROGRESS)
    after = kube.store.get("rayjobs", "night-1")["metadata"]
    assert load(after["annotations"].pop("sp500/progress")) == PROGRESS
    assert (after["annotations"], after["generation"]) == ({"sp500/request": mark}, generation)


def test_rayjob_of_somebody_else_gets_no_progress(kube, executor, rayjob):
    kube.store.put("rayjobs", rayjob | {"metadata": {"name": "night-1"}})
    executor.show_progress("night-1", PROGRESS)
    executor.show_progress("night-2", PROGRESS)
    assert "annotations" not in kube.store.get("rayjobs", "night-1")["metadata"]
