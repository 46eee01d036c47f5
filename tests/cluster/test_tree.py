"""What the trees promise beyond their schemas: security by rule, and fields that have to agree with each other."""

import itertools

import pod_rules
import pytest
from manifests import PAIRS, TREES, alone, of_kind, pods, rendered, tree_id

from sp500.jobs.manifests.rayjob import build_rayjob
from sp500.jobs.spec import JobSpec

EACH_TREE = pytest.mark.parametrize("tree", [*TREES, *PAIRS], ids=tree_id)
SP500 = {"app.kubernetes.io/part-of": "sp500"}


def overlay(name):
    return rendered(next(tree for tree in TREES if tree.name == name))


def raycluster(documents):
    [found] = of_kind(documents, "RayCluster")
    return found


def found(document, key):
    """Every value under a key, at any depth."""
    if isinstance(document, list):
        return [value for part in document for value in found(part, key)]
    if not isinstance(document, dict):
        return []
    here = [document[key]] if key in document else []
    return here + found(list(document.values()), key)


def pods_of(documents):
    return [pod for pod, _ in pods(raycluster(documents))]


def test_manifest_alone_refers_to_nothing_that_is_not_in_it():
    documents = alone()
    claims = {one["metadata"]["name"] for one in of_kind(documents, "PersistentVolumeClaim")}
    elsewhere = {"serviceAccountName", "imagePullSecrets", "priorityClassName", "nodeSelector"}
    assert all("namespace" not in one["metadata"] for one in documents)
    for pod in pods_of(documents):
        assert pod["spec"].keys().isdisjoint(elsewhere)
        assert set(found(pod, "claimName")) == claims
        assert [found(pod, key) for key in ("secretKeyRef", "secret", "configMapKeyRef")] == [[], [], []]
        # Kubernetes puts this ConfigMap into every namespace.
        assert {one["name"] for one in found(pod, "configMap")} <= {"kube-root-ca.crt"}


@pytest.mark.parametrize("tree", [None, *TREES, *PAIRS], ids=lambda tree: tree_id(tree) if tree else "alone")
@pytest.mark.parametrize("rule", [pod_rules.unrestricted, pod_rules.floating, pod_rules.unequal_memory])
def test_pods_keep_the_rule(tree, rule):
    documents = rendered(tree) if tree else alone()
    assert [fault for pod in pods_of(documents) for fault in rule(pod)] == []


@EACH_TREE
def test_tree_holds_no_secret(tree):
    documents = rendered(tree)
    assert of_kind(documents, "Secret") == []
    assert pod_rules.secret_values(documents) == []


@EACH_TREE
def test_roles_name_what_they_allow(tree):
    roles = of_kind(rendered(tree), "Role")
    assert roles
    assert of_kind(rendered(tree), "ClusterRole") == []
    assert [fault for role in roles for fault in pod_rules.wildcards(role)] == []


@EACH_TREE
def test_account_of_jobs_may_write_progress_on_rayjobs_and_on_nothing_of_the_operators(tree):
    (jobs,) = (role for role in of_kind(rendered(tree), "Role") if role["metadata"]["name"] == "sp500-jobs")
    written = {
        (resource, verb)
        for rule in jobs["rules"]
        if rule["apiGroups"] == ["ray.io"]
        for resource in rule["resources"]
        for verb in {*rule["verbs"]} - {"get", "list", "watch"}
    }
    assert written == {("rayjobs", "create"), ("rayjobs", "patch"), ("rayjobs", "delete")}


@EACH_TREE
def test_only_the_autoscaler_holds_a_token(tree):
    cluster = raycluster(rendered(tree))
    held = {pod["metadata"]["labels"]["ray.io/node-type"]: pod_rules.token_holders(pod) for pod in pods_of([cluster])}
    assert held == {"head": ["autoscaler"] if cluster["spec"]["enableInTreeAutoscaling"] else [], "worker": []}


@EACH_TREE
def test_namespace_enforces_restricted_and_holds_everything_namespaced(tree):
    documents = rendered(tree)
    [namespace] = of_kind(documents, "Namespace")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    wide = {"Namespace", "ResourceFlavor", "ClusterQueue"}
    assert {one["metadata"].get("namespace") for one in documents if one["kind"] not in wide} == {"sp500"}
    assert not [one["kind"] for one in documents if one["kind"] in wide and "namespace" in one["metadata"]]


@EACH_TREE
def test_everything_is_labelled_as_ours(tree):
    for one in rendered(tree):
        labels = one["metadata"]["labels"]
        assert labels.items() >= SP500.items()
        assert labels["app.kubernetes.io/name"]


@EACH_TREE
def test_quota_has_room_for_two_clusters_at_their_full_size_or_one_with_gpus(tree):
    documents = rendered(tree)
    [quota] = of_kind(documents, "ResourceQuota")
    hard = {name: pod_rules.amount(value) for name, value in quota["spec"]["hard"].items()}
    wanted = pod_rules.demand(pods(raycluster(documents)))
    gpu = "requests.nvidia.com/gpu"
    assert wanted.get(gpu, 0) <= hard.get(gpu, 0)
    for name in ("requests.cpu", "limits.cpu", "requests.memory", "limits.memory", "pods"):
        assert (1 if gpu in wanted else 2) * wanted[name] <= hard[name], name
    claims = of_kind(documents, "PersistentVolumeClaim")
    storage = sum(pod_rules.amount(one["spec"]["resources"]["requests"]["storage"]) for one in claims)
    assert storage <= hard["requests.storage"]


def test_first_worker_fits_a_laptop_of_two_cpus_and_eight_gib():
    size = pod_rules.demand([(pod, 1) for pod in pods_of(alone())])
    # kind's own pods ask for 950m and 290Mi, the operator for 100m and 512Mi.
    assert size["requests.cpu"] + 1.05 <= 2
    assert size["requests.memory"] + 0.8 * 2**30 <= 8 * 2**30


@EACH_TREE
def test_disruption_budget_leaves_no_head_to_spare(tree):
    documents = rendered(tree)
    [budget] = of_kind(documents, "PodDisruptionBudget")
    [quota] = of_kind(documents, "ResourceQuota")
    assert budget["spec"]["minAvailable"] >= int(quota["spec"]["hard"]["count/rayclusters.ray.io"])
    assert budget["spec"]["selector"]["matchLabels"].items() <= pods_of(documents)[0]["metadata"]["labels"].items()


@EACH_TREE
def test_raycluster_says_what_the_operator_would_guess(tree):
    cluster = raycluster(rendered(tree))
    spec, head = cluster["spec"], cluster["spec"]["headGroupSpec"]
    images = {pod["spec"]["containers"][0]["image"] for pod in pods_of([cluster])}
    assert {image.rpartition(":")[2].partition("-")[0] for image in images} == {spec["rayVersion"]}
    assert spec["authOptions"] == {"mode": "token"}
    assert spec["upgradeStrategy"] == {"type": "Recreate"}
    assert head["rayStartParams"]["num-cpus"] == "0"
    if spec["enableInTreeAutoscaling"]:
        assert spec["autoscalerOptions"]["version"] == "v2"
        assert spec["autoscalerOptions"]["idleTimeoutSeconds"] > 60
    for group in spec["workerGroupSpecs"]:
        assert 0 <= group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
    for group in (head, *spec["workerGroupSpecs"]):
        pod = group["template"]["spec"]
        [ray] = pod["containers"]
        store = int(group["rayStartParams"]["object-store-memory"])
        assert store <= 0.3 * pod_rules.amount(ray["resources"]["limits"]["memory"])
        assert pod.get("restartPolicy") in (None, "Never")
        assert {"readinessProbe", "livenessProbe"} <= ray.keys()
        mounts = {mount["mountPath"]: mount.get("readOnly", False) for mount in ray["volumeMounts"]}
        assert mounts == {"/runs": False, "/data": True, "/tmp/ray": False}
    ports = head["template"]["spec"]["containers"][0]["ports"]
    assert ("dashboard", 8265) in [(port["name"], port["containerPort"]) for port in ports]


def selected(selector, labels):
    """Does a label selector choose these labels?"""
    expressions = selector.get("matchExpressions", [])
    assert all(one["operator"] == "In" for one in expressions)
    exact = selector.get("matchLabels", {}).items() <= labels.items()
    return exact and all(labels.get(one["key"]) in one["values"] for one in expressions)


def open_ports(documents, target, source, namespace, direction="Ingress"):
    """Ports by which `source` (labels) in `namespace` may reach `target`, or None for all of them.

    With "Egress", `target` is the pod whose way out is asked for and `source` is where to.
    """
    ports = set()
    for policy in of_kind(documents, "NetworkPolicy"):
        spec = policy["spec"]
        if direction not in spec["policyTypes"] or not selected(spec["podSelector"], target):
            continue
        for rule in spec.get(direction.lower(), []):
            for peer in rule["from" if direction == "Ingress" else "to"]:
                spaces = peer.get("namespaceSelector", {"matchLabels": {"kubernetes.io/metadata.name": "sp500"}})
                here = selected(spaces, {"kubernetes.io/metadata.name": namespace})
                if "ipBlock" not in peer and here and selected(peer.get("podSelector", {}), source):
                    if "ports" not in rule:
                        return None
                    ports |= {port["port"] for port in rule["ports"]}
    return ports


def ways_out(documents, pod):
    """Address blocks and ports that a pod may reach outside the cluster's pods."""
    return {
        (peer["ipBlock"]["cidr"], port["port"])
        for policy in of_kind(documents, "NetworkPolicy")
        if selected(policy["spec"]["podSelector"], pod)
        for rule in policy["spec"].get("egress", [])
        for peer in rule["to"]
        if "ipBlock" in peer
        for port in rule["ports"]
    }


@EACH_TREE
def test_network_is_closed_to_every_pod_that_no_rule_names(tree):
    closed = {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    assert closed in [policy["spec"] for policy in of_kind(rendered(tree), "NetworkPolicy")]


@EACH_TREE
def test_network_lets_in_only_whom_it_names(tree):
    documents = rendered(tree)
    head, worker = (pod["metadata"]["labels"] for pod in pods_of(documents))
    component = {"app.kubernetes.io/component": "kuberay-operator"}
    operator = component | {"app.kubernetes.io/name": "kuberay-operator"}  # of the Helm chart
    kustomized = component | {"app.kubernetes.io/name": "kuberay"}
    prometheus = {"app.kubernetes.io/name": "prometheus"}
    submitter = SP500 | {"app.kubernetes.io/name": "submitter"}
    extra = {44217, 44227} if "monitoring" in tree_id(tree) else set()
    assert open_ports(documents, head, worker, "sp500") is None
    assert open_ports(documents, worker, head, "sp500") is None
    for namespace in ("ray-system", "default"):
        assert open_ports(documents, head, operator, namespace) == {8265, 52365}
        assert open_ports(documents, head, kustomized, namespace) == {8265, 52365}
    assert open_ports(documents, head, submitter, "sp500") == {8265}
    assert open_ports(documents, head, prometheus, "monitoring") == {8080} | extra
    assert open_ports(documents, worker, SP500 | {"app.kubernetes.io/name": "forecast-client"}, "sp500") == {8000}
    for stranger, namespace in (
        ({}, "sp500"),
        (SP500, "sp500"),
        (operator, "elsewhere"),
        (kustomized, "elsewhere"),
        (head, "default"),
        (submitter, "elsewhere"),
        (prometheus, "sp500"),
        (worker, "elsewhere"),
    ):
        assert open_ports(documents, head, stranger, namespace) == set()
        assert open_ports(documents, worker, stranger, namespace) == set()


@EACH_TREE
def test_network_lets_out_only_to_ray_names_and_the_api_server(tree):
    documents = rendered(tree)
    head, worker = (pod["metadata"]["labels"] for pod in pods_of(documents))
    submitter = SP500 | {"app.kubernetes.io/name": "submitter"}
    dns = {"k8s-app": "kube-dns"}
    for pod in (head, worker, submitter, {}):
        assert open_ports(documents, pod, dns, "kube-system", "Egress") == {53}
        assert open_ports(documents, pod, {}, "default", "Egress") == set()
    assert open_ports(documents, worker, head, "sp500", "Egress") is None
    assert open_ports(documents, submitter, head, "sp500", "Egress") == {8265}
    assert open_ports(documents, submitter, worker, "sp500", "Egress") == set()
    node_dns = "169.254.20.10/32"
    assert ways_out(documents, worker) == ways_out(documents, submitter) == {(node_dns, 53)}
    private = {"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10"}
    api_server = set() if "kueue" in tree_id(tree) else {*itertools.product(private, (443, 6443))}
    assert ways_out(documents, head) == {(node_dns, 53), *api_server}
    head_of_a_job = {**head, "ray.io/cluster": "tune-x7k2p"}
    assert ways_out(documents, head_of_a_job) == {(node_dns, 53)}


@EACH_TREE
def test_every_pod_has_a_limit_of_disk_that_holds_its_volumes_and_the_quota_counts_it(tree):
    documents = rendered(tree)
    for pod in pods_of(documents):
        limits = [one["resources"]["limits"].get("ephemeral-storage") for one in pod["spec"]["containers"]]
        volumes = [one["emptyDir"]["sizeLimit"] for one in pod["spec"]["volumes"] if "emptyDir" in one]
        assert all(limits)
        assert sum(map(pod_rules.amount, limits)) > sum(map(pod_rules.amount, volumes)) > 0
    [quota], [limit_range] = of_kind(documents, "ResourceQuota"), of_kind(documents, "LimitRange")
    assert {"requests.ephemeral-storage", "limits.ephemeral-storage"} <= quota["spec"]["hard"].keys()
    [container] = limit_range["spec"]["limits"]
    assert "ephemeral-storage" in container["default"].keys() & container["defaultRequest"].keys()


def test_shared_storage_is_read_write_many_and_its_workers_have_the_cpus_that_ray_counts():
    documents = overlay("shared-storage")
    claims = of_kind(documents, "PersistentVolumeClaim")
    assert [claim["spec"]["accessModes"] for claim in claims] == [["ReadWriteMany"]] * 2
    resources = pods_of(documents)[1]["spec"]["containers"][0]["resources"]
    assert resources["requests"]["cpu"] == resources["limits"]["cpu"]


def test_gpu_workers_hold_one_gpu_each_and_tell_nccl_its_interface():
    worker = pods_of(overlay("gpu"))[1]["spec"]
    [ray] = worker["containers"]
    environment = {one["name"]: one["value"] for one in ray["env"]}
    assert ray["resources"]["limits"]["nvidia.com/gpu"] == ray["resources"]["requests"]["nvidia.com/gpu"] == "1"
    nccl = {"NCCL_DEBUG": "WARN", "NCCL_SOCKET_IFNAME": "eth0", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}
    assert environment.items() >= (nccl | {"SP500_RUNS_DIR": "/runs"}).items()
    assert {one["key"] for one in worker["tolerations"]} == {"nvidia.com/gpu"}


def test_spot_moves_workers_alone_and_marks_them_by_the_way_that_ray_accepts():
    head, worker = pods_of(overlay("spot"))
    [group] = raycluster(overlay("spot"))["spec"]["workerGroupSpecs"]
    assert not head["spec"].keys() & {"tolerations", "affinity"}
    assert len(worker["spec"]["tolerations"]) == 3
    assert {"name": "RAY_NODE_MARKET_TYPE", "value": "spot"} in worker["spec"]["containers"][0]["env"]
    # `ray start --labels` refuses Ray's own prefix.
    assert not any(key.startswith("ray.io/") for key in group.get("labels", {}))


@pytest.mark.parametrize("name", ["kueue", "gpu-kueue"])
def test_queue_admits_a_fixed_size_that_its_budget_and_the_quota_hold(name):
    documents = overlay(name)
    cluster = raycluster(documents)
    [queue], [local] = of_kind(documents, "ClusterQueue"), of_kind(documents, "LocalQueue")
    [flavor], [quota] = of_kind(documents, "ResourceFlavor"), of_kind(documents, "ResourceQuota")
    assert cluster["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == local["metadata"]["name"]
    assert local["spec"]["clusterQueue"] == queue["metadata"]["name"]
    assert cluster["spec"]["enableInTreeAutoscaling"] is False
    [group] = queue["spec"]["resourceGroups"]
    [offered] = group["flavors"]
    assert offered["name"] == flavor["metadata"]["name"]
    assert [one["name"] for one in offered["resources"]] == group["coveredResources"]
    budget = {one["name"]: pod_rules.amount(one["nominalQuota"]) for one in offered["resources"]}
    wanted = pod_rules.demand(pods(cluster))
    hard = {name: pod_rules.amount(value) for name, value in quota["spec"]["hard"].items()}
    for resource, room in budget.items():
        assert wanted.get(f"requests.{resource}", 0) <= room <= hard.get(f"requests.{resource}", 0)


@pytest.mark.parametrize("tree", [tree for tree in [*TREES, *PAIRS] if "kueue" in tree_id(tree)], ids=tree_id)
def test_queue_covers_every_resource_that_pods_of_cluster_and_job_request(tree):
    # Kueue refuses for ever a pod that requests a resource which no group of its queue covers.
    documents = rendered(tree)
    cluster = raycluster(documents)
    [queue], [limits] = of_kind(documents, "ClusterQueue"), of_kind(documents, "LimitRange")
    covered = {name for group in queue["spec"]["resourceGroups"] for name in group["coveredResources"]}
    job = build_rayjob(JobSpec(argv=("python", "x.py"), queue="sp500"), cluster)
    requests = [*found(cluster, "requests"), *found(job, "requests")]
    [defaults] = limits["spec"]["limits"]
    asked = {name for request in [*requests, defaults["defaultRequest"]] for name in request}
    assert {"cpu", "memory", "ephemeral-storage"} <= asked <= covered


def test_queue_for_gpus_starts_every_worker_that_its_budget_pays_for():
    [group] = raycluster(overlay("gpu-kueue"))["spec"]["workerGroupSpecs"]
    assert group["replicas"] == group["maxReplicas"] == 4


def test_monitor_reads_ports_that_the_head_declares():
    documents = overlay("monitoring")
    [monitor] = of_kind(documents, "PodMonitor")
    head, worker = pods_of(documents)
    ports = {one["name"] for one in head["spec"]["containers"][0]["ports"]}
    assert {one["port"] for one in monitor["spec"]["podMetricsEndpoints"]} <= ports
    for pod in (head, worker):
        assert monitor["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
