"""The target of docs/your-own-target.md: another package's, on programs that stand in for Slurm's."""

from __future__ import annotations

import importlib.util
import json
import shlex
import sys
from importlib import metadata
from pathlib import Path

import pytest
from executor_contract import ProgramContract, ended, until

from sp500.errors import LimitExceeded, Refused, Unreachable
from sp500.jobs import client, target
from sp500.jobs.spec import JobSpec
from sp500.jobs.state import JobState

ROOT = Path(__file__).parents[2]
FILE = ROOT / "docs" / "examples" / "slurm_target.py"


@pytest.fixture(scope="module")
def module():
    """The file, as an installed package."""
    spec = importlib.util.spec_from_file_location("slurm_target", FILE)
    sys.modules["slurm_target"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules["slurm_target"]


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """The folder of the cluster, whose programs are in PATH."""
    folder, programs = tmp_path / "slurm", tmp_path / "bin"
    (folder / "jobs").mkdir(parents=True)
    programs.mkdir()
    for name in ("sbatch", "squeue", "scancel", "sacct"):
        words = [sys.executable, "-S", "-E", str(Path(__file__).parent / "fake_slurm.py"), str(folder), name]
        (programs / name).write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    return folder


@pytest.fixture
def executor(module, slurm, tmp_path):
    return module.SlurmExecutor(tmp_path / "100 % of 'them'" / "slurm")


@pytest.fixture
def ask(module, tmp_path, monkeypatch):
    """Makes a request for a Python program; every start of it appends a line to `starts`."""

    def make(program, **given):
        monkeypatch.chdir(tmp_path)
        text = f"open('starts', 'a').write('start\\n')\n{program}\n"
        (tmp_path / "a program.py").write_text(text)
        spec = JobSpec(argv=("python", "a program.py", 'it\'s "$HOME" `here`'), name="job", **given)
        return module.SLURM.request(spec, "job", module.SlurmOptions())

    return make


class TestSlurmExecutor(ProgramContract):
    @pytest.fixture
    def executor(self, executor):
        return executor

    @pytest.fixture
    def starts(self, tmp_path):
        return lambda handle: len((tmp_path / "starts").read_text().splitlines())


def test_command_gets_its_words_as_they_are_and_its_settings_as_a_file(executor, ask):
    settings = {"train": {"epochs": 3}}
    executor.submit("a", ask("import sys; print(sys.argv[1]); print(open(sys.argv[3]).read())", settings=settings))
    assert until(executor, "a", ended).state is JobState.SUCCEEDED
    lines = [line.text for line in executor.logs("a", role=None, tail=None, follow=False)]
    assert lines == ['it\'s "$HOME" `here`', "train:", "  epochs: 3", ""]


def test_sbatch_gets_the_resources_of_all_workers_and_the_deadline_in_minutes(ask):
    flags = ask("pass", workers=2, cpus=3, gpus=1, memory="1.5GiB", deadline=61)["flags"]
    expected = {"--nodes=1", "--no-requeue", "--cpus-per-task=6", "--gres=gpu:2", "--mem=3072M", "--time=2"}
    assert set(flags) == expected


@pytest.mark.parametrize(
    ("said", "state", "code", "retryable"),
    [
        ("NODE_FAIL NodeDown", JobState.LOST, None, True),
        ("PREEMPTED None", JobState.LOST, None, True),
        ("TIMEOUT TimeLimit", JobState.FAILED, LimitExceeded.exit_code, False),
        ("OUT_OF_MEMORY OutOfMemory", JobState.FAILED, None, False),
        ("CANCELLED None", JobState.STOPPED, None, False),
        ("PENDING Resources", JobState.PENDING, None, False),
        ("COMPLETING None", JobState.RUNNING, None, False),
    ],
)
def test_state_of_slurm_is_one_of_the_queues(executor, ask, slurm, said, state, code, retryable):
    executor.submit("a", ask("pass"))
    (slurm / "jobs" / "1" / "state").write_text(said)
    seen = executor.status("a")
    assert (seen.state, seen.exit_code, seen.retryable) == (state, code, retryable)
    word, why = said.split()
    assert word in seen.reason
    assert why in {*seen.reason.split(), "None"}


def test_job_that_slurm_has_forgotten_is_lost_and_is_not_started_again(executor, ask, slurm, tmp_path):
    executor.submit("a", ask("pass"))
    until(executor, "a", ended)
    (slurm / "jobs").rename(tmp_path / "forgotten")
    (slurm / "jobs").mkdir()
    executor.submit("a", ask("pass"))
    assert executor.status("a").state is JobState.LOST
    assert (tmp_path / "starts").read_text() == "start\n"


def test_controller_that_does_not_answer_is_unreachable_and_what_it_refuses_is_refused(executor, ask, slurm):
    request = ask("pass")
    (slurm / "fault").write_text("Unable to contact slurm controller (connect failure)")
    for act in (lambda: executor.submit("a", request), lambda: executor.status("a"), lambda: executor.stop("a")):
        with pytest.raises(Unreachable, match="contact slurm controller"):
            act()
    (slurm / "fault").unlink()
    with pytest.raises(Refused, match="not available"):
        executor.submit("a", ask("pass", cpus=9))


@pytest.fixture
def installed(module, slurm, monkeypatch):
    """The target as an entry point; both caches forget it afterwards."""
    point = metadata.EntryPoint("slurm", "slurm_target:SLURM", target.GROUP)
    monkeypatch.setattr(metadata, "entry_points", lambda group: (point,) if group == target.GROUP else ())
    caches = (target._references, target.find, cli_flags())
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


def cli_flags():
    from sp500.commands.submission.submit import flags_with_options

    return flags_with_options


def test_client_submits_to_the_installed_target_and_its_executor_runs_the_job(installed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kind = target.find("slurm")
    specs, options = [JobSpec(argv=("python", "-c", "print(1)"))], kind.options(partition="gpu")
    kind.check(specs, options, tmp_path)
    (job,) = client.prepare(tmp_path, specs, kind, options, client.Estimator())
    assert (job.target, job.deadline) == ({"on": "slurm"}, None)
    assert "--partition=gpu" in job.request["flags"]
    executor = target.executors(tmp_path)(json.loads(json.dumps(job.target)))
    executor.submit(job.id, job.request)
    assert until(executor, job.id, ended).state is JobState.SUCCEEDED
    with pytest.raises(Refused, match="not available"):
        kind.check([JobSpec(argv=("a",), cpus=64)], options, tmp_path)


def test_no_file_of_the_project_knows_it():
    assert [path for path in (ROOT / "sp500").rglob("*.py") if "slurm" in path.read_text().lower()] == []


def test_example_has_at_most_150_lines():
    assert len(FILE.read_text().splitlines()) <= 150
