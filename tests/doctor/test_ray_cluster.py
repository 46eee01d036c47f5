import pytest

from sp500.doctor import ray_cluster
from sp500.machine.ray_token import find_token, token_path


def looked(home, address=None, wanted=None, **environment):
    checks = ray_cluster.cluster(address, environment, home, "2.60.0", wanted=wanted)
    assert [check.name for check in checks] == ["ray address", "ray token", "ray version"]
    return checks


def states(checks):
    return [str(check.state) for check in checks]


def test_cluster_that_takes_the_token_is_well(dashboard, tmp_path):
    ray = dashboard(token="secret")
    checks = looked(tmp_path, RAY_ADDRESS=ray.url, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN="secret\n")
    assert states(checks) == ["ok", "ok", "ok"]
    assert "accepted (RAY_AUTH_TOKEN)" in checks[1].found
    assert ray.sent == ["", "Bearer secret"]


@pytest.mark.parametrize(
    ("environment", "told", "advice"),
    [
        ({"RAY_AUTH_MODE": "token"}, "missing (401)", "RAY_AUTH_TOKEN"),
        ({"RAY_AUTH_TOKEN": "secret"}, "RAY_AUTH_MODE", "export RAY_AUTH_MODE=token"),
        ({"RAY_AUTH_MODE": "disabled", "RAY_AUTH_TOKEN": "secret"}, "RAY_AUTH_MODE is disabled", "RAY_AUTH_MODE=token"),
        ({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "old"}, "wrong (403)", "Secret"),
        ({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "a\x00b"}, "no token", "Secret"),
        ({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": "/not/there"}, "names /not/there", "Secret"),
    ],
)
def test_token_that_is_not_taken_is_wrong_and_never_shown(dashboard, tmp_path, environment, told, advice):
    checks = looked(tmp_path, address=dashboard(token="secret").url, **environment)
    assert states(checks) == ["ok", "wrong", "skipped"]
    assert (told in checks[1].found, advice in checks[1].advice) == (True, True)
    assert not any(word in str(checks) for word in ("secret", "old'", "a\\x00b"))


def test_token_is_sent_to_no_cluster_that_asks_for_none(dashboard, tmp_path):
    ray = dashboard()
    checks = looked(tmp_path, address=ray.url, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN="secret")
    assert states(checks) == ["ok", "wrong", "ok"]
    assert "authOptions" in checks[1].advice
    assert ray.sent == [""]


def test_token_follows_no_redirect(dashboard, serve, tmp_path):
    ray = dashboard(token="secret")
    door = serve(lambda _m, _p, token, _b: (302, ray.url) if token else (401, "no"))
    checks = looked(tmp_path, address=door.url, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN="secret")
    assert (states(checks), ray.sent) == (["ok", "wrong", "skipped"], [])


def test_version_that_differs_is_wrong_and_names_both(dashboard, tmp_path):
    checks = looked(tmp_path, address=dashboard(version="2.52.1").url)
    assert states(checks) == ["ok", "wrong", "wrong"]
    assert ("2.52.1" in checks[2].found, "2.60.0" in checks[2].found) == (True, True)


def test_cluster_that_does_not_answer_is_wrong_unless_jobs_run_elsewhere(nowhere, tmp_path):
    checks = looked(tmp_path, RAY_ADDRESS=nowhere)
    assert states(checks) == ["wrong", "skipped", "skipped"]
    assert f"{nowhere} does not answer" in checks[0].found
    assert states(looked(tmp_path, RAY_ADDRESS=nowhere, wanted=False)) == ["skipped"] * 3


@pytest.mark.parametrize("answer", [(404, "404: Not Found"), (200, "<html>"), (200, {"version": "1"}), (200, [1])])
def test_server_that_is_not_rays_is_wrong(serve, tmp_path, answer):
    checks = looked(tmp_path, address=serve(lambda *_: answer).url)
    assert states(checks) == ["wrong", "skipped", "skipped"]
    assert f"HTTP {answer[0]}" in checks[0].found


@pytest.mark.parametrize(("wanted", "first"), [(None, "skipped"), (False, "skipped"), (True, "wrong")])
def test_no_address_is_wrong_only_where_a_cluster_is_asked_for(tmp_path, wanted, first):
    assert states(looked(tmp_path, wanted=wanted)) == [first, "skipped", "skipped"]


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("http://head:8265/", "http://head:8265"),
        ("https://ray.example", "https://ray.example"),
        ("10.0.0.7:6379", "http://10.0.0.7:8265"),
        ("sp500-head-svc:6379", "http://sp500-head-svc:8265"),
        ("[::1]:6379", "http://[::1]:8265"),
        ("auto", "http://127.0.0.1:8265"),
        ("ray://head:10001", ""),
    ],
)
def test_dashboard_stands_on_the_host_of_the_address(address, url):
    assert ray_cluster.dashboard(address) == url


@pytest.mark.parametrize(("mode", "state"), [(0o600, "ok"), (0o400, "ok"), (0o640, "wrong"), (0o644, "wrong")])
def test_token_file_that_others_can_read_is_wrong_and_none_is_skipped(tmp_path, mode, state):
    assert ray_cluster.token_file(*ray_cluster.mode_of(token_path({}, tmp_path))).state == "skipped"
    file = tmp_path / ".ray" / "auth_token"
    file.parent.mkdir()
    file.write_text("secret")
    file.chmod(mode)
    check = ray_cluster.token_file(*ray_cluster.mode_of(token_path({}, tmp_path)))
    assert check.state == state
    assert state == "ok" or (f"mode {mode:04o}" in check.found and check.advice == f"chmod 600 {file}")


@pytest.mark.parametrize(
    ("variables", "text"),
    [
        ({}, "at home"),
        ({"RAY_AUTH_TOKEN_PATH": "other"}, "elsewhere"),
        ({"RAY_AUTH_TOKEN_PATH": "other", "RAY_AUTH_TOKEN": " given "}, "given"),
        ({"RAY_AUTH_TOKEN": "  "}, "at home"),
    ],
)
def test_token_is_the_one_that_rays_client_takes(tmp_path, variables, text):
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("at home\nsecond line\n")
    (tmp_path / "other").write_text("elsewhere")
    if "RAY_AUTH_TOKEN_PATH" in variables:
        variables = variables | {"RAY_AUTH_TOKEN_PATH": str(tmp_path / "other")}
    assert find_token(variables, tmp_path).text == text
