"""The verbs of the queue as a user types them: processes, streams, exit codes."""

import json
import os
import re
import signal
import stat
import sys
from pathlib import Path

import forks
import pytest
import queue_fakes
import yaml

from sp500.jobs.queue.ledger import Ledger

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def state(tmp_path_factory):
    """A state folder; when the tests are done, whoever still manages it is ended."""
    with queue_fakes.managed(tmp_path_factory.mktemp("state") / "sp500") as folder:
        yield folder


@pytest.fixture
def sp500(state):
    """Runs `sp500 jobs` on that folder to its end; what a test leaves running is stopped at its end."""

    def run(*words, code=0, **environment):
        settings = {**os.environ, "XDG_STATE_HOME": str(state.parent), **environment}
        done = forks.run(["sp500", "jobs", *map(str, words)], cwd=ROOT, env=settings)
        assert done.returncode == code, (words, done)
        return done

    yield run
    jobs = Ledger(state / "queue.db").jobs() if (state / "queue.db").exists() else []
    if left := [job.id for job in jobs if not job.state.finished]:
        run("stop", *left)


@pytest.fixture
def submit(sp500):
    """Submits a command for this machine, one worker wide: what is told of it."""
    return lambda *words, flags=(): json.loads(sp500("submit", "--workers", 1, "--json", *flags, "--", *words).stdout)


def told(done):
    return json.loads(done.stdout)


@pytest.fixture
def until(sp500, state):
    """Waits until the manager has brought a job to a state, which `status` shows then."""

    def wait(id, wanted):
        ledger = Ledger(state / "queue.db")
        queue_fakes.until(lambda: ledger.jobs([id])[0].state == wanted)
        assert told(sp500("status", id, "--json"))["state"] == wanted

    return wait


def test_job_goes_from_submit_to_its_end_and_other_shells_see_it(sp500, submit):
    job = submit("python", "-c", "import sys; print('ran on', sys.executable)")
    assert (job["on"], job["state"], job["id"].startswith("python-")) == ("local", "QUEUED", True)
    plan = {"takes": "1 CPU", "queued_before": 0, "starts": "", "seconds": [None, None], "cost": [0.0, 0.0]}
    assert job["plan"].items() >= plan.items()
    assert "SUCCEEDED" in sp500("wait", job["id"]).stdout
    assert sp500("logs", job["id"]).stdout == f"ran on {sys.executable}\n"
    seen = told(sp500("status", job["id"], "--json"))
    assert (seen["state"], seen["exit_code"], seen["starts"]) == ("SUCCEEDED", 0, 1)
    assert next(step["state"] for step in seen["history"]) == "QUEUED"
    assert seen["log"] == [f"ran on {sys.executable}"]


def test_exit_code_of_wait_is_the_jobs(sp500, submit):
    job = submit("/bin/sh", "-c", "echo before; exit 7")
    assert "FAILED: ended with exit code 7" in sp500("wait", job["id"], code=7).stdout


def test_stopped_job_is_stopped_and_wait_says_so(sp500, submit, until):
    job = submit("sleep", "1000")
    until(job["id"], "RUNNING")
    (stopped,) = told(sp500("stop", job["id"], "--json"))
    assert stopped["state"] == "STOPPED"
    sp500("wait", job["id"], code=143)


def test_interrupted_follower_leaves_the_job_alone(state, sp500, submit):
    job = submit("/bin/sh", "-c", "echo first; sleep 1000")
    follower = forks.Script(["sp500", "jobs", "logs", job["id"], "--follow", "--state-dir", str(state)], cwd=ROOT)
    queue_fakes.until(lambda: follower.written() == "first\n")
    follower.send_signal(signal.SIGINT)
    done = follower.finish(15)
    assert done.returncode == 130
    assert "keeps running" in done.stderr
    assert told(sp500("status", job["id"], "--json"))["state"] == "RUNNING"
    sp500("stop", job["id"])


def test_second_manager_gives_way_and_names_the_first(sp500, submit, state, until):
    job = submit("sleep", "1000")
    until(job["id"], "RUNNING")
    assert f"process {(state / 'manager.holder').read_text().split()[1]} " in sp500("manage").stdout
    sp500("stop", job["id"])


def test_job_outlives_the_shell_and_the_manager_that_started_it(state, sp500, submit, tmp_path, until):
    job = submit("/bin/sh", "-c", f"while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; echo done")
    until(job["id"], "RUNNING")
    pid = int((state / "manager.holder").read_text().split()[1])
    os.kill(pid, signal.SIGKILL)
    (tmp_path / "go").touch()
    sp500("wait", job["id"])
    assert sp500("logs", job["id"]).stdout == "done\n"


def test_batch_is_taken_whole_or_not_at_all_and_without_the_flags_of_one_job(sp500, state, tmp_path):
    before = len(Ledger(state / "queue.db").jobs())
    file = tmp_path / "jobs.yaml"
    jobs = [{"argv": ["true"], "name": f"batch-{number}"} for number in range(5)]
    file.write_text(yaml.safe_dump({"workers": 1, "jobs": [*jobs, {"argv": ["true"], "wrokers": 2}]}))
    refused = sp500("submit", "--file", file, code=2)
    assert f"--file {file}: jobs[5]: unknown key wrokers; did you mean workers?" in refused.stderr
    file.write_text(yaml.safe_dump({"workers": 1, "jobs": jobs}))
    assert "--workers describes" in sp500("submit", "--file", file, "--workers", 3, code=2).stderr
    assert len(Ledger(state / "queue.db").jobs()) == before
    batch = told(sp500("submit", "--file", file, "--json"))["jobs"]
    assert [job["name"] for job in batch] == [job["name"] for job in jobs]
    sp500("wait", *(job["id"] for job in batch))


def test_dry_run_sends_nothing_and_shows_no_secret(sp500, state):
    before = len(Ledger(state / "queue.db").jobs()) if (state / "queue.db").exists() else 0
    done = sp500("submit", "--dry-run", "--", "python", "experiments/train.py", MY_API_KEY="kept-from-you")
    shown = yaml.safe_load(done.stdout)
    assert shown["request"]["argv"] == [sys.executable, "experiments/train.py"]
    assert "MY_API_KEY" in shown["request"]["of_this_shell"]
    assert "kept-from-you" not in done.stdout + done.stderr
    assert len(Ledger(state / "queue.db").jobs()) == before


def test_job_wider_than_the_machine_is_refused_with_the_way_out(sp500):
    done = sp500("submit", "--workers", 10_000, "--", "true", code=1)
    assert "needs 10000 CPUs" in done.stderr
    assert "fewer --workers" in done.stderr


@pytest.mark.parametrize("flags", [("kuberay", "--workers", 1), ("ray", "--address", "http://127.0.0.1:9")], ids=str)
def test_cluster_out_of_reach_is_refused_and_falls_back_only_when_asked(sp500, tmp_path, flags):
    nowhere = {"KUBECONFIG": str(tmp_path / "none")}
    assert "--fallback" in sp500("submit", "--on", *flags, "--", "true", code=1, **nowhere).stderr
    done = sp500("submit", "--on", *flags, "--fallback", "--json", "--", "true", **nowhere)
    assert told(done)["on"] == "local"
    assert "--fallback: " in done.stderr
    sp500("wait", told(done)["id"])


def test_deleted_job_is_gone_and_a_running_one_is_not_deleted(sp500, submit, state):
    job = submit("sleep", "1000")
    assert f"sp500 jobs stop {job['id']}" in sp500("delete", job["id"], code=2).stderr
    sp500("stop", job["id"])
    sp500("delete", job["id"])
    assert "no job " in sp500("status", job["id"], code=2).stderr
    assert not (state / "jobs" / job["id"]).exists()


def test_list_shows_the_queue_and_the_last_that_ended(sp500, submit):
    job = submit("true")
    sp500("wait", job["id"])
    line = next(line for line in sp500("list").stdout.splitlines() if job["id"] in line)
    assert line.split()[1:4] == ["local", "SUCCEEDED", "0:00:00"]
    assert job["id"] in [one["id"] for one in told(sp500("list", "--json"))]


@pytest.fixture
def settings(state):
    """Writes queue.yaml; at the end there is none."""
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    yield (state / "queue.yaml").write_text
    (state / "queue.yaml").unlink()


def test_settings_that_are_wrong_are_refused_by_file_and_field(sp500, settings):
    settings("budgets: {poor: nothing}\n")
    assert "queue.yaml: budgets.poor" in sp500("submit", "--", "true", code=2).stderr


@pytest.fixture
def paid(sp500, settings, tmp_path):
    """Submits jobs that cost 6.00 each on this machine, of a project that may spend 10 a day."""
    settings("budgets: {research: 10.0}\n")
    node = {"cpu_hour": 6, "gib_hour": 0, "node": {"cpus": 1, "gib": 1}}
    table = {"currency": "USD", "date": "2026-01-02", "source": "made up", "types": {"a": node}}
    (tmp_path / "rates.yaml").write_text(yaml.safe_dump(table | {"rule": {"alone": "a", "cluster": "a", "gpu": "a"}}))
    flags = ("--rates", tmp_path / "rates.yaml", "--project", "research", "--expected", 3600, "--workers", 1)
    return lambda *more, code=0: sp500("submit", *flags, *more, "--json", "--", "sleep", "1000", code=code)


def test_job_that_would_pass_the_budget_waits_and_says_so(sp500, paid, until):
    first, second = told(paid()), told(paid())
    assert first["plan"]["cost"] == [6.0, 6.0]
    assert "4.00 USD left" in second["plan"]["starts"]
    until(first["id"], "RUNNING")
    waiting = told(sp500("status", second["id"], "--json"))
    assert (waiting["state"], waiting["starts"]) == ("QUEUED", 0)
    assert "4.00 USD left" in waiting["reason"]
    sp500("stop", first["id"], second["id"])


def test_strict_refuses_what_would_have_to_wait_for_money_and_counts_what_waits_already(sp500, paid):
    first = told(paid("--strict"))
    said = paid("--strict", code=4).stderr  # jobs of other tests have used some of the day's budget
    assert re.search(r"[34]\.\d\d USD left.* up to 6\.00 USD", said)
    sp500("stop", first["id"])


def test_project_without_a_budget_is_told_where_its_name_looks_wrong_and_by_status(sp500, settings):
    settings("budgets: {research: 10.0}\n")
    done = sp500("submit", "--project", "resarch", "--json", "--", "true")
    assert "resarch has no budget; did you mean research?" in done.stderr
    assert "none for project resarch" in sp500("status", told(done)["id"]).stdout
    usual = sp500("submit", "--json", "--", "true")
    assert usual.stderr == ""
    sp500("wait", told(done)["id"], told(usual)["id"])


def test_no_job_named_is_no_success(sp500):
    for verb in ("wait", "stop", "delete"):
        assert "no job" in sp500(verb, code=2).stderr


def test_earlier_start_of_a_job_has_its_log_too(sp500, submit, tmp_path):
    script = f"echo start >> {tmp_path}/n; echo this is start $(wc -l < {tmp_path}/n); exit 7"
    job = submit("/bin/sh", "-c", script, flags=("--retries", 1))
    sp500("wait", job["id"], "--timeout", 40, code=7)
    assert sp500("logs", job["id"]).stdout == "this is start 2\n"
    assert sp500("logs", job["id"], "--start", 1).stdout == "this is start 1\n"
    assert "2 starts" in sp500("logs", job["id"], "--start", 3, code=2).stderr


def test_state_folder_and_every_file_in_it_are_the_owners_alone(sp500, submit, state):
    sp500("wait", submit("true")["id"])
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    # The settings are what a test wrote. SQLite's other files come and go at any moment, with the mode of its database.
    files = [
        path for path in state.iterdir() if path.name.startswith(("queue.db", "manager.")) and "-" not in path.name
    ]
    kept = {path.name: stat.S_IMODE(path.stat().st_mode) for path in files}
    assert kept == dict.fromkeys(("queue.db", "manager.lock", "manager.log", "manager.holder"), 0o600)
