"""A job's manifests: what the job asks for is in them, all else is the cluster's, and no rule breaks."""

import base64
import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sp500.errors import ConfigError
from sp500.jobs import deadline
from sp500.jobs.manifests import manifest, rules
from sp500.jobs.manifests.rayjob import build_documents, build_rayjob
from sp500.jobs.spec import JobSpec

HERE = Path(__file__).parent
CLUSTER = HERE.parents[1] / "cluster" / "raycluster.yaml"


@pytest.fixture(scope="module")
def cluster_file():
    """The one that jobs are rendered from."""
    return CLUSTER


def containers(rayjob):
    """Ray's containers of head and workers."""
    cluster = rayjob["spec"]["rayClusterSpec"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    return [group["template"]["spec"]["containers"][0] for group in groups]


def variables(container):
    return {entry["name"]: entry.get("value") for entry in container["env"]}


def test_rendering_changes_nothing_in_the_clusters_document(cluster, make):
    before = json.dumps(cluster)
    build_documents(make(gpus=1, image="a:1", env={"A": "1"}, settings={"a": 1}), cluster)
    assert json.dumps(cluster) == before


def test_what_the_job_does_not_speak_of_is_as_in_the_clusters_document(cluster, rayjob):
    for role in ("headGroupSpec", "workerGroupSpecs"):
        ours, theirs = rayjob["spec"]["rayClusterSpec"][role], cluster["spec"][role]
        ours, theirs = (one[0] if isinstance(one, list) else one for one in (ours, theirs))
        for key in ("securityContext", "restartPolicy"):
            assert ours["template"]["spec"][key] == theirs["template"]["spec"][key]
        both = [one["template"]["spec"]["volumes"] for one in (ours, theirs)]
        assert both[0] == [volume for volume in both[1] if "projected" not in volume]
        for key in ("image", "volumeMounts", "securityContext"):
            both = [one["template"]["spec"]["containers"][0][key] for one in (ours, theirs)]
            assert both[0] == both[1]


def test_object_store_has_the_clusters_share_of_the_jobs_memory_and_no_less_than_ray_takes(cluster, make, changed):
    def store(document, memory):
        (group,) = build_rayjob(make(memory=memory), document)["spec"]["rayClusterSpec"]["workerGroupSpecs"]
        return int(group["rayStartParams"]["object-store-memory"])

    path = "spec/workerGroupSpecs/0/rayStartParams/object-store-memory"
    assert store(changed(cluster, {path: str(640 * 2**20)}), "12GiB") == 3 * 2**30
    assert store(changed(cluster, {path: ...}), "10GiB") == 3 * 2**30
    assert store(cluster, "256MiB") == 75 * 2**20


def test_workers_start_together_with_equal_requests_and_limits(cluster, make):
    job = build_rayjob(make(workers=3, cpus=4, memory="12GiB", gpus=2), cluster)
    (group,) = job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    resources = group["template"]["spec"]["containers"][0]["resources"]
    assert {group[key] for key in ("replicas", "minReplicas", "maxReplicas")} == {3}
    assert resources["requests"]["memory"] == resources["limits"]["memory"] == "12Gi"
    assert resources["requests"]["cpu"] == resources["limits"]["cpu"] == "4"
    assert resources["requests"]["nvidia.com/gpu"] == resources["limits"]["nvidia.com/gpu"] == "2"


@pytest.mark.parametrize("mode", ["K8sJobMode", "InteractiveMode"])
def test_dollars_of_the_command_are_escaped_where_kubernetes_reads_them(cluster, make, mode):
    argv = ("python", "a.py", "--note", "$$ $(HOME)")
    entrypoint = build_rayjob(make(argv=argv, mode=mode), cluster)["spec"]["entrypoint"]
    assert entrypoint == f"python a.py --note '{'$$$$ $$(HOME)' if mode == 'K8sJobMode' else '$$ $(HOME)'}'"


def test_environment_reaches_head_and_workers_as_it_was_given(cluster, make):
    job = build_rayjob(make(env={"COST": "$(rm -rf) $$", "SP500_RUNS_DIR": "/else"}), cluster)
    for container in containers(job):
        given_to = variables(container)
        # Kubernetes turns $$ into $ and leaves the rest.
        assert given_to["COST"].replace("$$", "$") == "$(rm -rf) $$"
        assert "$(" not in given_to["COST"].replace("$$", "")
        assert given_to["SP500_RUNS_DIR"] == "/else"
        assert len(given_to) == len(container["env"])


def test_secrets_are_in_the_manifests_by_reference_alone(cluster, make):
    job = build_rayjob(make(secrets={"HF_TOKEN": "hugging-face/token"}), cluster)
    reference = {"secretKeyRef": {"name": "hugging-face", "key": "token"}}
    for container in containers(job):
        assert {"name": "HF_TOKEN", "valueFrom": reference} in container["env"]
    assert "secretKeyRef" not in json.dumps(job["spec"]["submitterPodTemplate"])


def test_image_is_changed_where_ray_runs_and_nowhere_else(cluster, make, changed):
    more = {"spec/headGroupSpec/template/spec/containers/1": {"name": "logs", "image": "fluent-bit:3.1"}}
    job = build_rayjob(make(image="reg/sp500:2"), changed(cluster, more))
    head = job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"]
    submitter = job["spec"]["submitterPodTemplate"]["spec"]["containers"]
    assert [one["image"] for one in head + submitter + containers(job)[1:]] == [
        "reg/sp500:2",
        "fluent-bit:3.1",
        "reg/sp500:2",
        "reg/sp500:2",
    ]


def test_settings_are_a_read_only_file_on_the_head_and_under_config(cluster, make):
    config_map, job = build_documents(make(settings={"train": {"epochs": 3}}, namespace="a"), cluster)
    pod = job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]
    (volume,) = [one for one in pod["volumes"] if one.get("configMap")]
    (mount,) = [one for one in pod["containers"][0]["volumeMounts"] if one["name"] == volume["name"]]
    assert volume["configMap"]["name"] == config_map["metadata"]["name"]
    assert config_map["metadata"]["namespace"] == job["metadata"]["namespace"] == "a"
    assert mount["readOnly"] is True
    ((file, text),) = config_map["data"].items()
    assert shlex.split(job["spec"]["entrypoint"])[-2:] == ["--config", f"{mount['mountPath']}/{file}"]
    assert yaml.safe_load(text) == {"train": {"epochs": 3}}


def test_archive_of_files_is_mounted_in_all_pods_where_the_runtime_environment_finds_it(cluster, make):
    config_map, _, job = build_documents(make(settings={"a": 1}), cluster, b"\xff\0")
    groups = [job["spec"]["rayClusterSpec"]["headGroupSpec"], *job["spec"]["rayClusterSpec"]["workerGroupSpecs"]]
    for pod in (group["template"]["spec"] for group in groups):
        [volume] = [one for one in pod["volumes"] if one.get("configMap", {}).get("name") == "tune-files"]
        [mount] = [one for one in pod["containers"][0]["volumeMounts"] if one["name"] == volume["name"]]
        assert mount["readOnly"] is True
    assert config_map["metadata"]["name"] == "tune-files"
    ((file, content),) = config_map["binaryData"].items()
    assert base64.b64decode(content) == b"\xff\0"
    assert yaml.safe_load(job["spec"]["runtimeEnvYAML"]) == {"working_dir": f"file://{mount['mountPath']}/{file}"}


@pytest.mark.parametrize(("given", "placed"), [(None, "ours"), ("mine", "mine")])
def test_job_lies_in_its_own_namespace_or_in_the_clusters(cluster, make, changed, given, placed):
    there = changed(cluster, {"metadata/namespace": "ours"})
    rendered = build_documents(make(namespace=given, settings={"a": 1}), there)
    assert [one["metadata"]["namespace"] for one in rendered] == [placed, placed]


@pytest.mark.parametrize(("given", "seconds"), [({"keep_succeeded": 60}, 60), ({}, 0)])
def test_queued_job_carries_its_queue_and_ends_by_shutdown(cluster, make, given, seconds):
    job = build_rayjob(make(queue="research", **given), cluster)
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "research"
    assert (job["spec"]["shutdownAfterJobFinishes"], job["spec"]["ttlSecondsAfterFinished"]) == (True, seconds)
    assert "deletionStrategy" not in job["spec"]


@pytest.mark.parametrize("mode", ["K8sJobMode", "InteractiveMode"])
def test_deadline_is_held_by_the_entrypoint_with_the_operators_as_a_backstop(cluster, make, mode):
    spec = build_rayjob(make(argv=("python", "a.py", "two words"), deadline=70, mode=mode), cluster)["spec"]
    assert spec["entrypoint"] == "python -m sp500.jobs.deadline 70 1 python a.py 'two words'"
    assert spec["activeDeadlineSeconds"] == 70 + 60
    assert spec["preRunningDeadlineSeconds"] == 69
    assert deadline.GRACE_SECONDS < 60
    if mode == "K8sJobMode":
        assert spec["submitterPodTemplate"]["spec"]["activeDeadlineSeconds"] == 70 + 60


def test_job_without_a_deadline_has_none_anywhere(cluster, make):
    text = json.dumps(build_rayjob(make(), cluster))
    assert "activeDeadlineSeconds" not in text
    assert "sp500.jobs.deadline" not in text


@pytest.mark.parametrize(("gpus", "kept"), [(0, "workers"), (1, "gpus")])
def test_of_several_groups_the_one_that_suits_the_job_is_kept(cluster, make, changed, gpus, kept):
    group = json.loads(json.dumps(cluster["spec"]["workerGroupSpecs"][0])) | {"groupName": "gpus"}
    group["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] = "1"
    job = build_rayjob(make(gpus=gpus), changed(cluster, {"spec/workerGroupSpecs/1": group}))
    assert [one["groupName"] for one in job["spec"]["rayClusterSpec"]["workerGroupSpecs"]] == [kept]


@pytest.mark.parametrize(("own", "scale"), [(None, 8), ("1", 8), ("4", 2), ("8", 1), ("16", 0.5)])
def test_cpus_memory_and_store_grow_with_the_gpus_of_a_worker(cluster, make, changed, own, scale):
    gpus = {"nvidia.com/gpu": own} if own else {}
    resources = {"limits": {"cpu": "4", "memory": "16Gi", **gpus}, "requests": {"cpu": "4", "memory": "16Gi", **gpus}}
    given = changed(cluster, {"spec/workerGroupSpecs/0/template/spec/containers/0/resources": resources})
    (group,) = build_rayjob(make(gpus=8, workers=64), given)["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    found = group["template"]["spec"]["containers"][0]["resources"]
    assert found["limits"] == found["requests"]
    assert [manifest.quantity(found["limits"][name]) for name in ("cpu", "memory", "nvidia.com/gpu")] == [
        4 * scale, 16 * 2**30 * scale, 8
    ]  # fmt: skip
    assert int(group["rayStartParams"]["object-store-memory"]) == 512 * 2**20 * scale


@pytest.mark.parametrize(
    ("given", "network", "interface"),
    [({}, False, "eth0"), ({"env": {"NCCL_SOCKET_IFNAME": "net1"}}, False, "net1"), ({}, True, None)],
)
def test_workers_on_gpus_know_the_pods_interface_unless_they_are_told_another(
    cluster, make, changed, given, network, interface
):
    document = changed(cluster, {"spec/workerGroupSpecs/0/template/spec/hostNetwork": network})
    found = variables(containers(build_rayjob(make(gpus=8, workers=64, **given), document))[1])
    assert (found.get("NCCL_SOCKET_IFNAME"), found["NCCL_DEBUG"]) == (interface, "WARN")
    assert found["SP500_WORLD_SIZE"] == "512"


def test_gpus_of_the_clusters_document_are_not_taken_by_a_job_without(cluster, make, changed):
    limits = {"memory": "3Gi", "nvidia.com/gpu": "1"}
    with_gpu = changed(cluster, {"spec/workerGroupSpecs/0/template/spec/containers/0/resources/limits": limits})
    assert "nvidia.com/gpu" not in json.dumps(build_rayjob(make(), with_gpu))


def test_what_the_cluster_says_of_its_own_resources_gives_way_to_the_jobs(cluster, make, changed):
    own = {"spec/workerGroupSpecs/0/rayStartParams/num-cpus": "8", "spec/workerGroupSpecs/0/priority": 3}
    (group,) = build_rayjob(make(), changed(cluster, own))["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    assert "num-cpus" not in group["rayStartParams"]
    assert "priority" not in group
    own = {"spec/workerGroupSpecs/0/resources": {"CPU": "8", "disk": "1"}}
    (group,) = build_rayjob(make(), changed(cluster, own))["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    assert group["resources"] == {"disk": "1"}


def test_cluster_without_workers_is_refused(cluster, make, changed):
    with pytest.raises(ConfigError, match="workerGroupSpecs"):
        build_rayjob(make(), changed(cluster, {"spec/workerGroupSpecs": []}))


WORD = st.text(st.characters(codec="utf-8", categories=["L", "N", "P", "S", "Zs"]).filter(str.isprintable), max_size=12)
PLAIN = WORD.filter(lambda word: "://" not in word)  # an address may hold a password, which is refused


@given(st.lists(PLAIN, min_size=1, max_size=4))
@settings(max_examples=15)
def test_words_of_the_command_arrive_through_both_shells(words):
    """The submitter's shell reads the entrypoint, Ray quotes what it read, and the driver's shell reads that."""
    show = (sys.executable, "-c", "import json, sys; print(json.dumps(sys.argv[1:]))")
    quoted = shlex.join(JobSpec(argv=(*show, *words)).command("unused"))
    again = "import shlex, sys; print(shlex.join(sys.argv[1:]))"
    python = shlex.quote(sys.executable)
    second = subprocess.run(
        ["bash", "-c", f"{python} -c {shlex.quote(again)} {quoted}"], capture_output=True, check=True
    )
    seen = subprocess.run(["sh", "-c", second.stdout.decode()], capture_output=True, check=True)
    assert json.loads(seen.stdout) == words


NAME = st.from_regex(r"[a-z]([-a-z0-9]{0,20}[a-z0-9])?", fullmatch=True)
VARIABLE = st.from_regex(r"[A-W][A-W0-9]{0,10}", fullmatch=True)
SMALL = st.integers(1, 10_000)


@st.composite
def jobs(draw):
    """Fields of a valid job."""
    interactive, queued = draw(st.booleans()), draw(st.booleans())
    start = draw(st.integers(1, 5000))
    more = {} if interactive else {"retries": draw(st.integers(0, 9))}
    more |= {"queue": draw(NAME)} if queued else {"keep_failed": draw(st.integers(0, 9999))}
    return dict(
        argv=["python", *draw(st.lists(PLAIN, max_size=3))],
        name=draw(st.just("") | NAME),
        workers=draw(SMALL),
        cpus=draw(st.none() | SMALL),
        gpus=draw(st.integers(0, 16)),
        memory=draw(st.none() | st.sampled_from(["256MiB", "3GiB", "1.5GiB", "700MiB"])),
        env=draw(st.dictionaries(VARIABLE.map(lambda name: f"E_{name}_X"), PLAIN)),
        secrets=draw(st.dictionaries(VARIABLE.map(lambda name: f"S_{name}"), st.just("store/key"))),
        settings=draw(st.dictionaries(NAME, st.integers() | WORD, max_size=2)),
        start_deadline=start,
        deadline=draw(st.none() | st.integers(start + 1, 9999)),
        mode="InteractiveMode" if interactive else "K8sJobMode",
        image=draw(st.none() | st.just("registry.example.com:5000/sp500:2.60.0")),
        keep_succeeded=draw(st.none() | st.integers(0, 9999)),
        namespace=draw(st.none() | NAME),
        service_account=draw(st.none() | NAME),
        pull_secrets=draw(st.lists(NAME, max_size=2)),
        node_labels=draw(st.dictionaries(NAME, NAME, max_size=2)),
        tolerations=draw(st.lists(NAME.map(lambda name: f"{name}:NoExecute"), max_size=2)),
        **more,
    )


@given(jobs())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_any_job_renders_to_manifests_that_break_no_rule(cluster, fields):
    job = JobSpec(**fields)
    rendered = build_documents(job, cluster)
    assert [str(one) for each in rendered for one in rules.violations(each)] == []
    assert list(yaml.safe_load_all(manifest.text(rendered))) == rendered
    entrypoint = rendered[-1]["spec"]["entrypoint"]
    read = entrypoint.replace("$$", "$") if job.mode == "K8sJobMode" else entrypoint  # as Kubernetes does
    before = 5 if job.deadline else 0
    assert shlex.split(read)[before : before + len(job.argv)] == list(job.argv)
    for container in containers(rendered[-1]):
        by_reference = {entry["name"] for entry in container["env"] if set(entry) == {"name", "valueFrom"}}
        assert by_reference == set(job.secrets)
