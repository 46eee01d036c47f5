"""The file of a job has a key for each flag of `sp500 jobs submit`, under the same name."""

import re

import pytest
import yaml

from sp500.commands.submission import submit
from sp500.errors import ConfigError
from sp500.jobs.spec import JobSpec

# What a call is asked for, and no setting of a job.
OF_THE_CALL = {"file", "json_output"}
COMMAND = {"argv": ["python", "experiments/tune.py"]}
OTHER = {
    "name": "night", "workers": 3, "cpus": 2, "memory": "4GiB", "gpus": 1, "processes_per_node": 2,
    "env": {"LR": "high"}, "secrets": {"HF": "hf/token"}, "settings": {"trials": 3}, "retries": 2,
    "start_deadline": 60, "deadline": 900, "project": "research", "priority": 5, "expected": 60,
    "notify": "http://127.0.0.1:9/x", "mode": "InteractiveMode", "image": "sp500:1",
    "working_dir": "https://example.org/code.zip", "keep_succeeded": 5, "keep_failed": 5, "namespace": "lab",
    "service_account": "reader", "pull_secrets": ["registry"], "queue": "sp500", "priority_class": "high",
    "node_labels": {"disk": "fast"}, "tolerations": ["gpu:NoSchedule"], "on": "kuberay", "fallback": True,
    "cluster": "mine.yaml", "context": "lab", "address": "http://127.0.0.1:8265", "rates": "rates.yaml",
    "node_type": "spot", "strict": True, "dry_run": True, "state_dir": "state",
}  # fmt: skip
TOGETHER = {"priority_class": {"queue": "sp500"}}


def parsed(tmp_path, document):
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(document).replace("'on':", "on:"))  # as people write it
    return submit._parse(["--file", str(file)])


def test_every_flag_is_here(capsys):
    with pytest.raises(SystemExit):
        submit.main(["--help"])
    flags = set(re.findall(r"^│? *--([a-z][a-z-]+)", capsys.readouterr().out, re.MULTILINE))
    assert flags >= {name.replace("_", "-") for name in OTHER} | {"file", "json"}
    assert submit.flags_with_options().model_fields.keys() == OTHER.keys() | OF_THE_CALL | {"argv"}


@pytest.mark.parametrize("name", OTHER)
def test_flag_is_a_key_of_a_job_and_next_to_a_list_of_jobs(tmp_path, name):
    given = {name: OTHER[name], **TOGETHER.get(name, {})}
    expected = getattr(submit.flags_with_options()(**COMMAND | given), name)
    flags, [spec] = parsed(tmp_path, COMMAND | given)
    assert getattr(flags, name) == expected != getattr(submit.flags_with_options()(**COMMAND), name)
    flags, [spec] = parsed(tmp_path, given | {"jobs": [COMMAND]})
    assert getattr(spec if name in JobSpec.model_fields else flags, name) == expected


@pytest.mark.parametrize("name", sorted(OTHER.keys() - JobSpec.model_fields.keys()))
def test_place_and_rates_are_those_of_all_jobs_of_a_list(tmp_path, name):
    with pytest.raises(ConfigError, match=f"{name} holds for all"):
        parsed(tmp_path, {"jobs": [COMMAND | {name: OTHER[name]}]})
