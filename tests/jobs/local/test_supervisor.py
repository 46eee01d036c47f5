"""What is killed at which step, and what then is true. Every kill is a SIGKILL of a real process."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict

from executor_contract import ended, look, running, until
from queue_fakes import until_gone

from sp500.jobs.local import supervisor
from sp500.jobs.local.job_folder import JobFolder
from sp500.jobs.state import JobState

SLEEP = "import time; print('line 1'); time.sleep(3600)"
# Steps that the operating system sees: opened files, folders, renames, forks, processes, signals.
STEPS = ("open", "os.", "fcntl.", "subprocess.", "ctypes.")


def killed_at(step, act):
    """Act in a fork that is killed at its `step`-th step; whether it got there."""
    pid = os.fork()
    if pid == 0:
        left = step

        def count(event, _):
            nonlocal left
            if event.startswith(STEPS) and os.getpid() == child:
                left -= 1
                if left == 0:
                    os.kill(child, signal.SIGKILL)

        child = os.getpid()
        try:
            sys.addaudithook(count)
            act()
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(pid, 0)[1])


def pid_of(folder, handle, name):
    return json.loads((folder / "jobs" / handle / f"{name}.json").read_text())["pid"]


def test_submit_killed_at_any_step_and_repeated_runs_the_job_once(here, ask, started):
    request, step, cut = ask("pass"), 0, True
    while cut:
        step, before = step + 1, started()
        handle = f"step-{step}"
        cut = killed_at(step, lambda handle=handle: here.submit(handle, request))
        here.submit(handle, request)
        assert look(here, handle).state is not JobState.LOST
        assert until(here, handle, ended).state is JobState.SUCCEEDED
        assert started() == before + 1
    assert step > 10


def test_supervisor_killed_at_any_step_runs_the_job_at_most_once_and_leaves_no_doubt(here, ask, started, tmp_path):
    request, step, cut, outcomes = ask("import time; time.sleep(0.05)"), 0, True, set()
    while cut:
        step, before = step + 1, started()
        job = JobFolder(tmp_path / "jobs" / f"step-{step}")
        cut = killed_at(step, lambda job=job: supervised(job, request))
        seen = until(here, job.path.name, ended)
        outcomes.add(seen.state)
        here.submit(job.path.name, request)
        again = until(here, job.path.name, ended)
        assert started() <= before + 1
        assert again.state is not JobState.SUCCEEDED or started() == before + 1
    assert step > 20
    assert outcomes == {JobState.LOST, JobState.SUCCEEDED}


def supervised(job, request):
    """What submit does, with the supervisor in this process."""
    job.path.mkdir(parents=True)
    lock = job.lock()
    job.write("request.json", request)
    os.setsid()
    supervisor.main([str(job.path), str(lock)])


def test_many_submits_of_one_handle_from_several_processes_run_it_once(here, ask, started):
    request = ask("pass")
    pids = []
    for _ in range(20):
        if (pid := os.fork()) == 0:
            try:
                here.submit("a", request)
                os._exit(0)
            finally:
                os._exit(1)
        pids.append(pid)
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0] * 20
    assert until(here, "a", ended).state is JobState.SUCCEEDED
    assert started() == 1


def test_job_outlives_the_process_that_submitted_it(here, ask):
    request = ask(SLEEP)
    assert killed_at(1, lambda: (here.submit("a", request), os.kill(os.getpid(), signal.SIGKILL)))
    here.submit("a", request)
    assert until(here, "a", running)


def test_command_whose_supervisor_was_killed_runs_on_and_can_be_stopped(here, ask, tmp_path):
    here.submit("a", ask(SLEEP))
    until(here, "a", running)
    next(here.logs("a", role=None, tail=None, follow=True))
    os.kill(pid_of(tmp_path, "a", "start"), signal.SIGKILL)
    seen = until(here, "a", lambda seen: "supervisor was killed" in seen.reason)
    assert seen.state is JobState.RUNNING
    here.stop("a")
    assert until(here, "a", ended, seconds=15).state is JobState.STOPPED
    until_gone(pid_of(tmp_path, "a", "command"))


def without_supervisor(here, folder, request):
    """A job that runs, whose supervisor was killed."""
    here.submit("a", request)
    next(here.logs("a", role=None, tail=None, follow=True))
    os.kill(pid_of(folder, "a", "start"), signal.SIGKILL)
    assert until(here, "a", lambda seen: seen.unattended).state is JobState.RUNNING


def test_job_whose_supervisor_was_killed_is_held_to_its_deadline_by_the_next(here, ask, tmp_path):
    without_supervisor(here, tmp_path, ask(SLEEP, deadline_seconds=3))
    here.submit("a", {})
    seen = until(here, "a", ended)
    assert (seen.state, seen.exit_code, seen.retryable) == (JobState.FAILED, 4, False)
    assert "deadline of 3 s" in seen.reason
    until_gone(pid_of(tmp_path, "a", "command"))


def test_deadline_counts_from_the_commands_start_and_not_from_the_second_supervisor(here, ask, tmp_path):
    without_supervisor(here, tmp_path, ask(SLEEP, deadline_seconds=3600))
    job = JobFolder(tmp_path / "jobs/a")
    job.write("command.json", asdict(job.command()) | {"begun": time.monotonic() - 3600})
    here.submit("a", {})
    assert "deadline of 3600 s" in until(here, "a", ended).reason


def test_job_whose_supervisor_was_killed_is_held_to_its_memory_by_the_next(here, ask, tmp_path):
    grows = "import os, time\nprint('line 1')\nwhile not os.path.exists('grow'): time.sleep(0.01)\n"
    request = ask(f"{grows}data = bytearray(b'x') * {200 * 2**20}\ntime.sleep(3600)", memory_bytes=100 * 2**20)
    without_supervisor(here, tmp_path, request)
    here.submit("a", {})
    until(here, "a", lambda seen: "first supervisor was killed" in seen.reason)
    (tmp_path / "grow").touch()
    seen = until(here, "a", ended)
    assert (seen.state, seen.exit_code) == (JobState.FAILED, 137)
    assert "limit of 100 MiB" in seen.reason
    until_gone(pid_of(tmp_path, "a", "command"))


DAEMON = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open('part', 'w').write(str(os.getpid()))
        os.rename('part', 'daemon')
        time.sleep(3600)
    os._exit(0)
while not os.path.exists('daemon'): time.sleep(0.01)
print('line 1')
"""


def test_stop_ends_the_daemons_of_a_job_whose_supervisor_was_killed(here, ask, tmp_path):
    without_supervisor(here, tmp_path, ask(f"{DAEMON}time.sleep(3600)", grace_seconds=0.3))
    here.stop("a")
    assert until(here, "a", ended).state is JobState.STOPPED
    until_gone(int((tmp_path / "daemon").read_text()))


def test_daemon_that_outlives_its_command_and_both_supervisors_is_found_and_ended(here, ask, tmp_path):
    without_supervisor(here, tmp_path, ask(f"{DAEMON}time.sleep(3600)"))
    here.submit("a", {})
    until(here, "a", lambda seen: "first supervisor was killed" in seen.reason)
    os.kill(pid_of(tmp_path, "a", "second"), signal.SIGKILL)
    os.kill(pid_of(tmp_path, "a", "command"), signal.SIGKILL)
    assert until(here, "a", lambda seen: seen.unattended).state is JobState.RUNNING
    here.submit("a", {})
    seen = until(here, "a", ended)
    assert (seen.state, seen.retryable) == (JobState.LOST, True)
    until_gone(int((tmp_path / "daemon").read_text()))


def test_command_gone_with_its_supervisor_is_lost_and_worth_another_try(here, ask, tmp_path):
    here.submit("a", ask(SLEEP))
    until(here, "a", running)
    for name in ("start", "command"):
        os.kill(pid_of(tmp_path, "a", name), signal.SIGKILL)
    seen = until(here, "a", ended)
    assert (seen.state, seen.retryable, seen.exit_code) == (JobState.LOST, True, None)
    here.submit("a", ask(SLEEP))
    assert look(here, "a").state is JobState.LOST


def test_number_that_belongs_to_somebody_else_by_now_is_neither_the_job_nor_killed(here, ask, tmp_path):
    here.submit("a", ask("pass"))
    until(here, "a", ended)
    job = JobFolder(tmp_path / "jobs/a")
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as stranger:
        (job.path / "exit.json").unlink()
        job.write("start.json", {"pid": stranger.pid})
        job.write("command.json", {"pid": stranger.pid, "started": time.time(), "begun": 0.0, "born": 1.0})
        assert until(here, "a", ended).state is JobState.LOST
        here.stop("a")
        here.delete("a")
        assert stranger.poll() is None
        stranger.kill()


def test_supervisor_told_to_end_ends_the_job_as_a_shutdown_does(here, ask, tmp_path):
    here.submit("a", ask(SLEEP))
    until(here, "a", running)
    os.kill(pid_of(tmp_path, "a", "start"), signal.SIGTERM)
    seen = until(here, "a", ended)
    assert (seen.state, seen.exit_code, seen.retryable) == (JobState.FAILED, 143, True)
    until_gone(pid_of(tmp_path, "a", "command"))


def test_job_stopped_before_it_began_never_begins(here, ask, started, tmp_path):
    job = JobFolder(tmp_path / "jobs/a")
    job.path.mkdir(parents=True)
    job.write("request.json", ask("pass"))
    assert look(here, "a").state is JobState.LOST
    here.stop("a")
    here.submit("a", ask("pass"))
    assert until(here, "a", ended).state is JobState.STOPPED
    assert started() == 0
