"""Commands that could only fail once their turn has come are refused when they are submitted."""

import pytest

from sp500.errors import ConfigError
from sp500.jobs import command_words
from sp500.jobs.spec import JobSpec


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A folder with a script, and one with a program, whose path has a space."""
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "train.py").touch()
    (tmp_path / "my tools").mkdir()
    program = tmp_path / "my tools" / "run it"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    (tmp_path / "plain.sh").write_text("true\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(on, *argv, **spec):
    try:
        job = JobSpec(argv=argv, name="a", **spec)
        uploaded = on == "ray" and job.working_dir is None
        command_words.check(job, {"PATH": "/usr/bin:/bin"}, here=on == "local", uploaded=uploaded)
    except ConfigError as error:
        return str(error)
    return ""


EVERYWHERE = ("local", "ray", "kuberay")


@pytest.mark.parametrize("on", EVERYWHERE)
@pytest.mark.parametrize(
    ("argv", "advice"),
    [
        (["python experiments/train.py --task images"], "Leave the quotes out: -- python experiments/train.py"),
        (["echo hi; sleep 1"], "sh -c 'echo hi; sleep 1'"),
        (["python", "experiments/train.py", "&&", "echo", "hi"], "'&&'"),
        (["python", "experiments/train.py", ">", "out.log"], "'>'"),
        (["python", "experiments/train.py", "|", "tee", "a"], "sh -c"),
        (["python", "experiments/train.py", ";", "true"], "';'"),
    ],
)
def test_words_for_a_shell_are_refused_wherever_the_job_runs(on, argv, advice):
    assert advice in refused(on, *argv)


@pytest.mark.parametrize("on", EVERYWHERE)
@pytest.mark.parametrize(
    "argv",
    [
        ["python", "experiments/train.py"],
        ["python3", "-u", "-X", "utf8", "experiments/train.py", "--name", "nowhere.py"],
        ["python", "-c", "print(1); print(2)"],
        ["python", "-m", "http.server"],
        ["python", "-"],
        ["sh", "-c", "true && true > a | b"],
        ["find", ".", "-exec", "ls", "{}", ";"],
        ["my tools/run it"],
    ],
)
def test_commands_that_can_run_pass(on, argv):
    assert refused(on, *argv) == ""


def test_script_that_is_not_here_is_named_with_the_nearest_where_the_job_runs_on_this_folder():
    typo = ("python", "-u", "experiments/trian.py", "--seed", "1")
    for on in ("local", "ray"):
        assert "Did you mean experiments/train.py?" in refused(on, *typo)
    assert "experiments/" not in refused("local", "python", "train.py").partition("no such file")[2]
    # Code of the image, of a zip or of the cluster's storage is not known here.
    assert refused("kuberay", *typo) == ""
    assert refused("ray", *typo, working_dir="https://example.org/code.zip") == ""
    assert refused("ray", "python", "/data/mine.py") == ""
    assert "no such file" in refused("local", "python", "/data/mine.py")
    assert "no such file" in refused("local", "python", "a" * 5000)


def test_program_that_is_not_here_is_refused_on_this_machine_alone(here):
    for program in ("trian", "./plain.sh", "nowhere/run", "python3.99", "experiments"):
        assert "no program" in refused("local", program, "--version")
        assert refused("ray", program, "-V") == refused("kuberay", program, "-V") == ""
    assert refused("local", "run it", env={"PATH": str(here / "my tools")}) == ""
