"""cluster/rayservice.yaml, and the RayServices that are rendered from the trees."""

import copy

import core_schema
import crd_schema
import pod_rules
import pytest
import yaml
from manifests import CLUSTER, TREES, Document, alone, crds, of_kind, parsed, pods, rendered, tree_id

from sp500.errors import ConfigError
from sp500.jobs.manifests import rules
from sp500.jobs.manifests.rayservice import build_rayservice

FILE = CLUSTER / "rayservice.yaml"
EACH_TREE = pytest.mark.parametrize("tree", [None, *TREES], ids=lambda tree: tree_id(tree) if tree else "alone")


def documents() -> list[Document]:
    return parsed(FILE.read_text())


def raycluster(tree=None) -> Document:
    [found] = of_kind(rendered(tree) if tree else alone(), "RayCluster")
    return found


def service_pods(service: Document) -> list[Document]:
    """The pods of its cluster, as the operator completes them."""
    spec = service["spec"]["rayClusterConfig"]
    return [pod for pod, _ in pods({"metadata": service["metadata"], "spec": spec})]


def configured(service: Document) -> Document:
    """The RayService with its serveConfigV2 as data."""
    made = copy.deepcopy(service)
    made["spec"]["serveConfigV2"] = yaml.safe_load(made["spec"]["serveConfigV2"])
    return made


def test_file_at_hand_is_what_is_rendered_from_the_raycluster():
    assert FILE.is_symlink()
    [service] = of_kind(documents(), "RayService")
    assert configured(service) == configured(build_rayservice(raycluster()))


def test_its_claims_are_those_of_the_raycluster():
    kind = "PersistentVolumeClaim"
    assert of_kind(documents(), kind) == of_kind(alone(), kind)


@pytest.mark.parametrize("release", ["1.31", "1.36"])
def test_core_documents_fit_their_schemas(release):
    for document in documents():
        if document["kind"] != "RayService":
            core_schema.validate(document, release)
    [service] = of_kind(documents(), "RayService")
    for pod in service_pods(service):
        core_schema.validate(pod, release)


@EACH_TREE
def test_rendered_service_fits_its_crd_and_breaks_no_rule(tree):
    service = build_rayservice(raycluster(tree))
    assert crd_schema.faults(service, crd_schema.of_crd(crds() / "ray.io_rayservices.yaml")) == []
    assert rules.violations(service) == []


@EACH_TREE
@pytest.mark.parametrize("rule", [pod_rules.unrestricted, pod_rules.floating, pod_rules.unequal_memory])
def test_pods_keep_the_rules(tree, rule):
    service = build_rayservice(raycluster(tree))
    assert [fault for pod in service_pods(service) for fault in rule(pod)] == []


def test_only_workers_hold_the_key_and_start_without_it():
    [service] = of_kind(documents(), "RayService")
    head, worker = service_pods(service)
    assert [one for one in head["spec"]["volumes"] if "secret" in one] == []
    [volume] = [one for one in worker["spec"]["volumes"] if "secret" in one]
    assert volume["secret"] == {"secretName": "sp500-serve", "optional": True}
    config = yaml.safe_load(service["spec"]["serveConfigV2"])
    [application] = config["applications"]
    assert application["args"]["key_file"] == "/etc/sp500/serve/key"
    assert config["http_options"]["port"] == 8000


def test_worker_is_ready_when_its_proxy_has_a_replica():
    [service] = of_kind(documents(), "RayService")
    _, worker = service_pods(service)
    probe = worker["spec"]["containers"][0]["readinessProbe"]
    assert probe["httpGet"] == {"path": "/-/healthz", "port": 8000}
    assert service["spec"]["excludeHeadPodFromServeSvc"] is True


def test_policies_choose_its_pods_and_let_clients_reach_one_port():
    [policy, to_server] = of_kind(documents(), "NetworkPolicy")
    [service] = of_kind(documents(), "RayService")
    wanted = policy["spec"]["podSelector"]["matchLabels"].items()
    assert all(wanted <= pod["metadata"]["labels"].items() for pod in service_pods(service))
    head, worker = (pod["metadata"]["labels"].items() for pod in service_pods(service))
    only_head = to_server["spec"]["podSelector"]["matchLabels"].items()
    assert (only_head <= head, only_head <= worker) == (True, False)
    others = [
        rule for rule in policy["spec"]["ingress"] if rule["from"] != [{"podSelector": policy["spec"]["podSelector"]}]
    ]
    assert [[port["port"] for port in rule["ports"]] for rule in others] == [[8000], [8265, 52365], [8080]]


def test_tree_of_the_server_is_the_file_in_the_namespace():
    found = {(one["kind"], one["metadata"]["name"]): one for one in rendered(CLUSTER / "serve")}
    assert {one["metadata"].pop("namespace") for one in found.values()} == {"sp500"}
    assert found == {(one["kind"], one["metadata"]["name"]): one for one in documents()}


def test_image_model_and_namespace_are_as_asked():
    service = configured(build_rayservice(raycluster(), model="other", image="registry/mine:1", namespace="here"))
    spec = service["spec"]["rayClusterConfig"]
    images = {
        group["template"]["spec"]["containers"][0]["image"]
        for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"])
    }
    assert (images, service["metadata"]["namespace"]) == ({"registry/mine:1"}, "here")
    assert service["spec"]["serveConfigV2"]["applications"][0]["args"]["name"] == "other"


def test_image_by_digest_has_no_suffix_and_has_to_be_named():
    cluster = raycluster()
    for group in (cluster["spec"]["headGroupSpec"], *cluster["spec"]["workerGroupSpecs"]):
        group["template"]["spec"]["containers"][0]["image"] = "registry/sp500@sha256:" + "0" * 64
    with pytest.raises(ConfigError, match="set --image"):
        build_rayservice(cluster)
    assert build_rayservice(cluster, image="registry/sp500:serve")["kind"] == "RayService"


def test_replicas_on_gpu_workers_get_one_each():
    gpu = next(tree for tree in TREES if tree.name == "gpu")
    [deployment] = configured(build_rayservice(raycluster(gpu)))["spec"]["serveConfigV2"]["applications"][0][
        "deployments"
    ]
    assert deployment["ray_actor_options"] == {"num_cpus": 4, "num_gpus": 1}  # all that its worker has
