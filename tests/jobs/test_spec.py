"""What a job is is checked at the door: each refusal names the field and the way out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from sp500.jobs import names
from sp500.jobs.spec import JobSpec

SECRET_NAMES = (
    *("MYPASS", "DB_PWD", "GH_PAT", "WANDB_KEY", "DBPASSWORD", "SSH_PASSPHRASE", "GOOGLE_CREDENTIALS", "NPM_AUTH"),
    *("SENTRY_DSN", "openai_apikey", "KEY"),
)
REFUSED = [
    ({"argv": ()}, ["argv", "is empty", "-- sp500 tune"]),
    ({"argv": ("",)}, ["argv", "is empty"]),
    ({"argv": ("python", "a\nb")}, ["'a\\nb'", "control character"]),
    ({"argv": ("python", "s3://me:pw@store/runs")}, ["password", "secrets"]),
    ({"name": "Tune"}, ["'Tune'", "start with a letter"]),
    ({"name": "1tune"}, ["'1tune'"]),
    ({"name": "tune-"}, ["'tune-'"]),
    ({"name": "a" * 48}, ["at most 47"]),
    ({"memory": "3Gi"}, ["'3Gi'", "512MiB"]),
    ({"memory": "100MiB"}, ["'100MiB'", "at least 256MiB"]),
    ({"env": {"a-b": "1"}}, ["'a-b'", "do not start with a digit"]),
    ({"env": {"RAY_ADDRESS": "auto"}}, ["RAY_ADDRESS", "leave it out"]),
    ({"secrets": {"RAY_AUTH_TOKEN": "a/b"}}, ["RAY_AUTH_TOKEN", "leave it out"]),
    ({"env": {"HF_TOKEN": "hf_abc"}}, ["HF_TOKEN=SECRET/KEY"]),
    ({"env": {"AWS_SECRET_ACCESS_KEY": "x"}}, ["under secrets"]),
    *[({"env": {name: "x"}}, [f"{name}=SECRET/KEY"]) for name in SECRET_NAMES],
    ({"env": {"URI": "https://me:pw@host"}}, ["password"]),
    ({"secrets": {"HF_TOKEN": "hf_abc"}}, ["HF_TOKEN", "for example hf/token"]),
    ({"secrets": {"HF_TOKEN": "Hf/token"}}, ["HF_TOKEN"]),
    ({"env": {"A": "1"}, "secrets": {"A": "a/b"}}, ["A is set in both env and secrets"]),
    ({"settings": {"a": 1}, "argv": ("python", "a.py", "--config", "b")}, ["cannot be combined with --config"]),
    ({"settings": {"a": 1}, "argv": ("python", "a.py", "--config=b")}, ["cannot be combined with --config"]),
    ({"mode": "InteractiveMode", "retries": 1}, ["retries", "InteractiveMode"]),
    ({"mode": "InteractiveMode", "working_dir": "s3://b/c.zip"}, ["working_dir", "InteractiveMode"]),
    ({"image": "sp500"}, ["'sp500'", "tag"]),
    ({"image": "registry:5000/sp500"}, ["tag"]),
    ({"image": "sp500:latest"}, ["other than latest"]),
    ({"working_dir": "."}, ["'.'", "InteractiveMode accepts a folder"]),
    ({"working_dir": "https://host/$(id).zip"}, [".zip"]),
    ({"queue": "research", "keep_failed": 60}, ["keep_failed", "use keep_succeeded"]),
    ({"queue": "Research"}, ["'Research'"]),
    ({"namespace": "a.b"}, ["'a.b'"]),
    ({"service_account": "a/b"}, ["'a/b'"]),
    ({"pull_secrets": ("a b",)}, ["'a b'"]),
    ({"node_labels": {"gpu": "l4 or t4"}}, ["gpu=l4 or t4"]),
    ({"tolerations": ("spot",)}, ["'spot'", "NoSchedule"]),
    ({"tolerations": ("spot=true:Never",)}, ["KEY[=VALUE]:EFFECT"]),
]


@pytest.mark.parametrize(("fields", "words"), REFUSED)
def test_job_that_cannot_be_is_refused_with_field_and_way_out(make, fields, words):
    with pytest.raises(ValidationError) as caught:
        make(**fields)
    assert all(word in str(caught.value) for word in words)


@pytest.mark.parametrize("name", ["PWD", "OLDPWD", "MONKEY", "DATA_FORMAT", "PATH", "AUTHOR", "KEYMAP", "PASSES"])
def test_name_that_only_resembles_a_secrets_passes(make, name):
    assert make(env={name: "x"}).env == {name: "x"}


def test_refused_secret_is_not_repeated_in_the_message(make):
    with pytest.raises(ValidationError) as caught:
        make(env={"HF_TOKEN": "hf_abc"}, secrets={"KEY": "hf_def"})
    messages = " ".join(fault["msg"] for fault in caught.value.errors())
    assert "HF_TOKEN" in messages
    assert "KEY" in messages
    assert "hf_" not in messages


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (["python", "experiments/walk_forward.py", "--name", "x"], "walk-forward"),
        (["torchrun", "Train V2.py"], "train-v2"),
        (["./2022/run"], "run"),
        (["python", "7.py"], "job-7"),
        (["é"], "job"),
        (["sp500", "walk-forward", "--name", "x"], "walk-forward"),
        (["python", f"{'a' * 46}-b.py"], "a" * 46),
    ],
)
def test_job_without_a_name_has_that_of_its_script(argv, name):
    assert JobSpec(argv=argv).name == name
    assert JobSpec(argv=argv, name="mine").name == "mine"


@given(st.lists(st.text(st.characters(categories=["L", "N", "P", "Zs"]), min_size=1), min_size=1))
def test_name_made_of_any_command_is_a_name(argv):
    made = names.of_command(argv)
    assert names.DNS_1035.fullmatch(made)
    assert len(made) <= 47


def test_settings_are_passed_as_a_file_only_where_there_are_some(make):
    assert make().command("/s.yaml") == ("python", "experiments/tune.py")
    assert make(settings={"a": 1}).command("/s.yaml")[-2:] == ("--config", "/s.yaml")


def test_job_written_down_and_read_again_is_the_same(make):
    job = make(workers=3, secrets={"HF_TOKEN": "hf/token"}, tolerations=("spot=true:NoSchedule",))
    assert JobSpec.model_validate_json(job.model_dump_json()) == job
