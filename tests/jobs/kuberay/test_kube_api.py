"""The API server that refuses, hurries nobody, breaks off, or is not there."""

from pathlib import Path

import pytest
import yaml

from sp500.errors import Refused, ResourcesError, Unreachable
from sp500.jobs.kuberay.api import CONFIG_MAPS, EVENTS, KubeApi
from sp500.jobs.kuberay.executor import KubeRayExecutor
from sp500.jobs.state import JobState

CREATE = "^POST .*/rayjobs"
READ = "^GET .*/rayjobs/night-1"


@pytest.fixture
def pauses():
    """Seconds that were waited between tries."""
    return []


@pytest.fixture
def executor(kubeconfig, pauses):
    return KubeRayExecutor("sp500", kubeconfig=kubeconfig, pause=pauses.append, timeout=0.2)


@pytest.fixture
def api(kubeconfig, pauses):
    return KubeApi("sp500", kubeconfig=kubeconfig, pause=pauses.append)


@pytest.mark.parametrize(
    "how", [{"code": 500}, {"code": 503}, {"code": 429}, {"act": "drop"}, {"act": "cut"}, {"act": "slow"}]
)
@pytest.mark.parametrize("pattern", [CREATE, READ])
def test_fault_that_passes_is_ridden_out(kube, executor, requested, pattern, how):
    kube.fail(pattern, times=2, **how)
    executor.submit("night-1", requested())
    assert executor.status("night-1").state is JobState.PENDING
    assert len([one for one in kube.store.objects if one[0] == "rayjobs"]) == 1


def test_creation_whose_answer_was_lost_counts_as_made(kube, executor, requested):
    kube.fail("^POST", times=1, act="lose")
    executor.submit("night-1", requested(settings={"trials": 9}))
    assert len(kube.store.objects) == 2
    assert len([asked for asked in kube.requests if asked.startswith("POST /apis")]) == 2


@pytest.mark.parametrize(
    ("how", "words"),
    [({"code": 503}, "answers 503"), ({"act": "drop"}, "does not answer"), ({"act": "slow"}, "does not answer")],
)
def test_fault_that_stays_is_unreachable_after_a_few_tries(kube, executor, pauses, how, words):
    kube.fail(READ, times=99, **how)
    with pytest.raises(Unreachable, match=rf"http://127.0.0.1:\d+ {words}"):
        executor.status("night-1")
    assert 1 < len(kube.requests) <= 6
    assert sum(pauses) <= 15


def test_webhook_that_is_down_is_named_and_the_api_server_is_not_blamed(kube, executor, requested):
    cause = 'failed calling webhook "mrayjob.kb.io": no endpoints available for service "kueue-webhook-service"'
    kube.fail(CREATE, times=99, code=500, message=f"Internal error occurred: {cause}")
    with pytest.raises(Unreachable) as error:
        executor.submit("night-1", requested())
    assert "does not answer" not in str(error.value)
    assert cause in str(error.value)


def test_server_that_is_not_there_is_unreachable(kube, executor, requested):
    kube.shutdown()
    kube.server_close()
    for ask in (
        lambda: executor.submit("night-1", requested()),
        lambda: executor.status("night-1"),
        lambda: executor.stop("night-1"),
        lambda: executor.delete("night-1"),
        lambda: list(executor.logs("night-1", role=None, tail=None, follow=False)),
        executor.reachable,
    ):
        with pytest.raises(Unreachable, match="kubectl version"):
            ask()


def test_retry_after_is_kept(kube, executor, pauses):
    kube.fail(READ, code=429, headers=(("Retry-After", "7"),))
    assert executor.status("night-1").state is JobState.LOST
    assert pauses == [7.0]


def test_retry_after_that_is_too_long_is_not_waited_for(kube, executor, pauses):
    kube.fail(READ, code=429, message="too many requests", headers=(("Retry-After", "600"),))
    with pytest.raises(Unreachable, match="too many requests"):
        executor.status("night-1")
    assert pauses == []


@pytest.mark.parametrize("code", [400, 403, 404, 413, 422])
def test_no_to_a_rayjob_is_refused_in_the_servers_words(kube, executor, requested, code):
    kube.fail(CREATE, code=code, message="spec.entrypoint: too strange")
    with pytest.raises(Refused, match=f"answers {code} to POST .*: spec.entrypoint: too strange"):
        executor.submit("night-1", requested())
    assert len(kube.requests) == 1


def test_missing_right_is_named_with_who_grants_it(kube, executor, requested):
    kube.store.denied.add(("create", "rayjobs"))
    with pytest.raises(Refused, match=r'cannot create resource "rayjobs".*cluster/base/rbac.yaml'):
        executor.submit("night-1", requested())
    kube.store.denied.add(("get", "rayjobs"))
    with pytest.raises(Unreachable, match=r'cannot get resource "rayjobs".*cluster/base/rbac.yaml'):
        executor.status("night-1")


def test_quota_for_objects_is_refused_without_talk_of_rights(kube, executor, requested):
    kube.fail(CREATE, code=403, message='rayjobs "night-1" is forbidden: exceeded quota: sp500, used: count=9')
    with pytest.raises(Refused, match="exceeded quota") as refused:
        executor.submit("night-1", requested())
    assert "rbac" not in str(refused.value)


def test_cluster_without_the_operator_takes_no_job_and_loses_none(kube, executor, requested):
    executor.reachable()
    kube.store.served.remove("rayjobs")
    for ask, error in (
        (executor.reachable, Refused),
        (lambda: executor.submit("night-1", requested()), Refused),
        (lambda: executor.status("night-1"), Unreachable),
    ):
        with pytest.raises(error, match="no KubeRay operator"):
            ask()


def test_expired_login_is_the_users_to_mend(kube, executor, requested):
    kube.store.token = "another"
    for ask in (
        lambda: executor.submit("night-1", requested()),
        lambda: executor.status("night-1"),
        executor.reachable,
    ):
        with pytest.raises(Unreachable, match="log in again"):
            ask()


def test_reachable_asks_once(kube, kubeconfig, pauses):
    kube.fail("^GET /apis", times=9, code=503)
    with pytest.raises(Unreachable):
        KubeRayExecutor("sp500", kubeconfig=kubeconfig, pause=pauses.append).reachable()
    assert (len(kube.requests), pauses) == (1, [])


def test_claims_that_may_not_be_read_are_taken_to_be_there(kube, executor, requested):
    kube.store.claims.clear()
    kube.store.denied.add(("get", "persistentvolumeclaims"))
    executor.check(requested())


@pytest.mark.parametrize(
    ("mode", "workers", "warned"),
    [("ReadWriteOnce", 64, True), ("ReadWriteOnce", 1, False), ("ReadWriteMany", 64, False)],
)
def test_claims_that_one_node_mounts_are_named_where_a_job_has_several_workers(
    kube, executor, requested, caplog, mode, workers, warned
):
    kube.store.claim_mode = mode
    executor.check(requested(workers=workers))
    assert ("wait for sp500-data and sp500-runs" in caplog.text) == warned


@pytest.mark.parametrize(
    ("text", "context", "said"),
    [
        (None, None, "no kubeconfig at {0}"),
        ("{", None, "{0}"),
        ("contexts: []", "elsewhere", "kubectl config get-contexts"),
    ],
)
def test_kubeconfig_of_no_use_is_named(tmp_path, text, context, said):
    path = tmp_path / "config"
    if text:
        path.write_text(text)
    with pytest.raises(Unreachable) as raised:
        KubeRayExecutor("sp500", context, str(path)).reachable()
    assert said.format(path) in str(raised.value)


def test_context_chooses_the_cluster(kube, kubeconfig, tmp_path):
    config = yaml.safe_load(Path(kubeconfig).read_text())
    config["contexts"].append({"name": "away", "context": {"cluster": "away", "user": "u"}})
    config["clusters"].append({"name": "away", "cluster": {"server": "http://127.0.0.1:9"}})
    (tmp_path / "two").write_text(yaml.safe_dump(config | {"current-context": "away"}))
    KubeRayExecutor("sp500", context="here", kubeconfig=str(tmp_path / "two")).reachable()
    with pytest.raises(Unreachable, match=r"127\.0\.0\.1:9 "):
        KubeRayExecutor("sp500", kubeconfig=str(tmp_path / "two")).reachable()


def test_long_list_comes_page_by_page_in_full(kube, api):
    for number in range(1201):
        kube.store.put("events", {"metadata": {"name": f"event-{number:04}"}, "type": "Warning"})
        kube.store.put("events", {"metadata": {"name": f"other-{number:04}"}, "type": "Normal"})
    found = api.items(EVENTS, fields="type=Warning")
    assert [one["metadata"]["name"] for one in found] == [f"event-{number:04}" for number in range(1201)]
    assert len(kube.requests) == 3


def test_list_whose_pages_expire_begins_again(kube, api):
    for number in range(501):
        kube.store.put("events", {"metadata": {"name": f"event-{number:04}"}})
    kube.fail("continue=", code=410, message="The provided continue parameter is too old")
    assert len(api.items(EVENTS)) == 501


@pytest.mark.parametrize("answer", [b"<html>a proxy's page</html>", b"", b"[]"])
def test_answer_that_is_no_document_is_no_object(kube, api, monkeypatch, answer):
    monkeypatch.setattr(kube.store, "answer", lambda *_: answer)
    with pytest.raises(ResourcesError, match="answers 200 to GET"):
        api.get(CONFIG_MAPS, "night-1-settings")
