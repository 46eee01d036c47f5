"""What the client sends, and to whom: fake dashboards, proxies and redirects on loopback."""

import json
import tracemalloc

import pytest
from http_fakes import serving
from hypothesis import given
from hypothesis import strategies as st

from sp500.errors import Refused, Unreachable
from sp500.jobs.queue import log_archive
from sp500.jobs.ray import executor as ray_jobs
from sp500.jobs.ray.client import json_string
from sp500.jobs.ray.executor import RayExecutor
from sp500.jobs.ray.target import RAY, RayOptions
from sp500.jobs.spec import JobSpec

MIB = 2**20
JOB = {"status": "SUCCEEDED", "entrypoint": "true", "submission_id": "job-1", "message": "", "driver_node_id": "n"}


def test_token_for_a_forwarded_port_never_goes_to_a_proxy(monkeypatch):
    with (
        serving(lambda request: request.reply(200, {})) as proxy,
        serving(lambda request: request.reply(200, JOB)) as dashboard,
    ):
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url)
        RayExecutor(dashboard.url, "SECRET").status("job-1")
    assert proxy.requests == []
    sent = dashboard.requests[0]
    assert (sent.method, sent.path, sent.authorization) == ("GET", "/api/jobs/job-1", "Bearer SECRET")


@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_redirect_is_refused_and_code_goes_nowhere_else(method, tmp_path):
    (tmp_path / "code.py").write_text("print('mine')")

    def answer(request):
        if request.method == method:
            request.reply(307, Location=f"{other.url}{request.path}")
        elif request.path == "/api/version":
            request.reply(200, {"ray_version": "2.60.0"})
        else:
            request.reply(404, "Job job-1 does not exist" if "jobs" in request.path else "no such package")

    with serving(lambda request: request.reply(200, {})) as other, serving(answer) as dashboard:
        executor = RayExecutor(dashboard.url, "SECRET")
        with pytest.raises(Refused, match=f"redirects {method} .* to '{other.url}"):
            executor.submit("job-1", ray_jobs.request(JobSpec(argv=("true",)), cwd=tmp_path))
    assert other.requests == []


@pytest.mark.parametrize(
    ("address", "warned"),
    [
        ("http://10.0.0.1:8265", True),
        ("http://ray.example:8265", True),
        ("https://ray.example", False),
        ("http://127.0.0.1:8265", False),
        ("http://[::1]:8265", False),
        ("http://localhost:8265", False),
    ],
)
def test_token_without_tls_to_another_machine_is_warned_of(address, warned):
    assert bool(ray_jobs.insecure(address, "SECRET")) is warned
    assert ray_jobs.insecure(address, None) == ""


def test_submitting_with_a_token_and_without_tls_warns_and_does_not_repeat_the_token(monkeypatch, tmp_path, capsys):
    def answer(request):
        request.reply(404, f"Job {request.path.rpartition('/')[2]} does not exist")

    state = tmp_path / "state"
    with serving(answer) as proxy:
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("http_proxy", proxy.url)
        monkeypatch.setenv("RAY_AUTH_TOKEN", "SECRET")
        RAY.check([JobSpec(argv=("true",))], RayOptions(address="http://ray.example:8265"), state)
    assert proxy.requests[0].path.startswith("http://ray.example:8265/")
    said = capsys.readouterr().err
    assert said.startswith("warning: http://ray.example:8265 is reached without TLS")
    assert "SECRET" not in said


@given(st.text(max_size=60), st.integers(1, 9), st.booleans())
def test_string_of_an_answer_comes_whole_in_pieces_of_any_size(text, size, escaped):
    body = json.dumps({"logs": text}, ensure_ascii=escaped).encode("utf-8", "surrogatepass")
    chunks = [body[at : at + size] for at in range(0, len(body), size)]
    assert "".join(json_string("logs", chunks)) == text


def test_answer_that_is_no_log_is_told():
    with (
        serving(lambda request: request.reply(200, JOB)) as dashboard,
        pytest.raises(Unreachable, match="unexpected response"),
    ):
        list(RayExecutor(dashboard.url).logs("job-1", role=None, tail=None, follow=False))


@pytest.mark.parametrize("end", ["\\n", "\\r", "x"])
def test_log_of_a_ray_job_is_kept_in_little_memory(end, tmp_path):
    piece = ("loss" * 256 + end).encode() * 1024

    def answer(request):
        if not request.path.endswith("/logs"):
            return request.reply(200, JOB)
        handler = request.handler
        handler.send_response(200)
        handler.end_headers()
        handler.wfile.write(b'{"logs": "')
        for _ in range(32):
            handler.wfile.write(piece)
        return handler.wfile.write(b'"}')

    with serving(answer) as dashboard:
        tracemalloc.start()
        lines = RayExecutor(dashboard.url).logs("job-1", role=None, tail=log_archive.LINES, follow=False)
        log_archive.keep(tmp_path / "kept", lines)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert 1 * MIB < (tmp_path / "kept" / "log.jsonl").stat().st_size < 6 * MIB
    assert peak < 24 * MIB
