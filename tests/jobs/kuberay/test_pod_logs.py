"""Lines of pods: in order, each once, over breaks, late pods and the ends of jobs."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kube_operator import Operator

from sp500.errors import ConfigError, Unreachable
from sp500.jobs.kuberay import api
from sp500.jobs.kuberay.executor import KubeRayExecutor
from sp500.jobs.kuberay.pod_logs import PodLog
from sp500.jobs.state import Role

START = datetime(2026, 1, 5, 12, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


@pytest.fixture
def steps():
    """What happens between one look of a follower and the next, in order; then it is an error to look again."""
    return []


@pytest.fixture
def executor(kubeconfig, steps):
    return KubeRayExecutor("sp500", kubeconfig=kubeconfig, pause=lambda seconds: steps.pop(0)())


@pytest.fixture
def operator(kube, executor, requested):
    """The operator of a job with two workers that runs."""
    executor.submit("night-1", requested(workers=2, retries=1))
    operator = Operator(kube.store, "night-1")
    operator.to_running()
    return operator


def texts(lines):
    return [line.text for line in lines]


def test_lines_of_all_roles_come_by_their_time_with_role_and_pod(operator, executor):
    operator.say(operator.head, "head at 1", "head again", moment=at(1))
    operator.say(operator.workers[0], "worker 0 at 0.5", moment=at(0.5))
    operator.say(operator.workers[1], "worker 1 at 3", moment=at(3))
    operator.say(operator.submitter, "submitter at 2", moment=at(2))
    found = list(executor.logs("night-1", role=None, tail=None, follow=False))
    assert [(line.role, line.source, line.text) for line in found] == [
        (Role.WORKER, operator.workers[0], "worker 0 at 0.5"),
        (Role.HEAD, operator.head, "head at 1"),
        (Role.HEAD, operator.head, "head again"),
        (Role.SUBMITTER, operator.submitter, "submitter at 2"),
        (Role.WORKER, operator.workers[1], "worker 1 at 3"),
    ]


def test_tail_is_of_each_pod(operator, executor):
    for pod in operator.workers:
        operator.say(pod, *(f"{pod} {number}" for number in range(9)))
    found = texts(executor.logs("night-1", role=Role.WORKER, tail=2, follow=False))
    assert sorted(found) == [f"{pod} {number}" for pod in operator.workers for number in (7, 8)]
    assert list(executor.logs("night-1", role=Role.WORKER, tail=0, follow=False)) == []


def test_tail_of_long_lines_is_read_in_pieces_within_the_limit_and_ends_with_the_last(
    kube, operator, executor, monkeypatch
):
    monkeypatch.setattr(api, "LOG_BYTES", 4000)
    operator.say(operator.head, *(f"{number} {'x' * 500}" for number in range(99)), "last")
    found = texts(executor.logs("night-1", role=Role.HEAD, tail=60, follow=False))
    assert found[-1] == "last"
    assert sum(map(len, found)) < 4000
    assert [text.split()[0] for text in found[:-1]] == [str(number) for number in range(100 - len(found), 99)]
    asked = ["limitBytes=4000" in request for request in kube.requests if "/log?" in request]
    assert asked
    assert all(asked)


def test_followed_lines_come_once_though_a_second_has_many_and_pods_come_late(kube, executor, requested, steps):
    executor.submit("night-1", requested(workers=1))
    operator = Operator(kube.store, "night-1")
    said = []

    def say(pod, *lines, moment):
        operator.say(pod, *lines, moment=moment)
        said.extend(lines)

    steps += [
        operator.initialize,
        operator.start_pods,
        lambda: say(operator.head, "a", "b", moment=at(0.1)),
        lambda: say(operator.head, "b", "c", moment=at(0.9)),
        lambda: None,
        lambda: say(operator.workers[0], "d", "d", moment=at(0.95)),
        lambda: say(operator.head, "e", moment=at(0.99)),
        operator.submit,
        operator.start_submitter,
        lambda: say(operator.submitter, "f", "f", moment=at(1)),
        operator.run,
        lambda: (say(operator.submitter, "f", "last", moment=at(1)), operator.succeed()),
    ]
    assert texts(executor.logs("night-1", role=None, tail=None, follow=True)) == said
    assert steps == []


def test_node_that_does_not_answer_is_told_after_the_lines_of_the_others(kube, operator, executor):
    operator.say(operator.head, "the head's")
    kube.fail(f"{operator.workers[0]}/log", times=99, code=500, message="dial tcp: i/o timeout")
    executor = KubeRayExecutor("sp500", kubeconfig=executor._api.kubeconfig, pause=lambda seconds: None)
    found = executor.logs("night-1", role=None, tail=None, follow=False)
    assert next(found).text == "the head's"
    with pytest.raises(Unreachable, match="i/o timeout"):
        next(found)


@pytest.mark.parametrize("how", [{"act": "drop"}, {"code": 503}])
def test_follower_outlasts_an_api_server_that_is_away(kube, kubeconfig, operator, how):
    operator.say(operator.submitter, "before", moment=at(0))

    def pause(seconds):
        """Between two looks: the server goes away for many of them, and comes back with the end of the job."""
        if not kube.requests[-1].startswith("GET /api/v1/namespaces/sp500/pods/") or away:
            return
        away.append(True)
        kube.fail("GET", times=60, **how)
        operator.say(operator.submitter, "after", moment=at(1))
        operator.succeed()

    away = []
    executor = KubeRayExecutor("sp500", kubeconfig=kubeconfig, pause=pause)
    assert texts(executor.logs("night-1", role=Role.SUBMITTER, tail=None, follow=True)) == ["before", "after"]
    assert len([asked for asked in kube.requests if "/rayjobs/" in asked]) > 50


@pytest.fixture
def now():
    """The clock of a follower that is asked for a long time."""
    return [0.0]


@pytest.mark.parametrize("how", [{"act": "drop"}, {"code": 403, "message": "cannot get"}])
def test_follower_of_a_server_that_stays_away_or_takes_a_right_away_ends_at_last(
    kube, kubeconfig, operator, now, caplog, how
):
    def pause(seconds):
        kube.fail("GET", times=10**6, **how)
        now[0] += seconds

    executor = KubeRayExecutor("sp500", kubeconfig=kubeconfig, clock=lambda: now[0], pause=pause)
    with pytest.raises(Unreachable):
        list(executor.logs("night-1", role=None, tail=None, follow=True))
    assert now[0] > 600
    assert [record.message.startswith("waiting for") for record in caplog.records] == [True]


def test_line_of_the_kubelet_about_a_log_that_is_gone_is_no_line_of_the_job(kube, operator, executor):
    operator.say(operator.submitter, "own")
    kube.store.logs[operator.submitter].append(("unable", "to retrieve container logs for containerd://4f2\n"))
    assert texts(executor.logs("night-1", role=Role.SUBMITTER, tail=None, follow=False)) == ["own"]


def test_replaced_submitter_repeats_no_lines(operator, executor, steps):
    header, lines = "Waiting for the dashboard", ["epoch 1", "epoch 1", "epoch 2"]
    operator.say(operator.submitter, header, *lines, moment=at(0))

    def replace():
        operator.replace_submitter()
        operator.say(operator.submitter, header, *lines, "epoch 3", moment=at(20))

    steps += [replace, operator.succeed]
    assert texts(executor.logs("night-1", role=None, tail=None, follow=True)) == [header, *lines, "epoch 3"]


def test_submitter_that_failed_and_its_successor_give_each_line_once(operator, executor):
    operator.say(operator.submitter, "epoch 1", moment=at(0))
    operator.replace_submitter(keep=True)
    operator.say(operator.submitter, "epoch 1", "epoch 2", moment=at(20))
    assert texts(executor.logs("night-1", role=None, tail=None, follow=False)) == ["epoch 1", "epoch 2"]


@pytest.mark.parametrize("tail", [0, 1, 2])
def test_following_from_the_tail_gives_nothing_older_later(operator, executor, steps, tail):
    operator.say(operator.submitter, "1", "2", moment=at(0.2))
    operator.say(operator.submitter, "3", moment=at(0.3))
    operator.say(operator.submitter, "4", moment=at(0.4))
    steps += [
        lambda: operator.say(operator.submitter, "5", moment=at(0.5)),
        lambda: operator.say(operator.submitter, "6", moment=at(2)),
        operator.succeed,
    ]
    found = texts(executor.logs("night-1", role=Role.SUBMITTER, tail=tail, follow=True))
    assert found == ["3", "4", "5", "6"][2 - tail :]


@pytest.mark.parametrize("how", [{"act": "drop"}, {"act": "cut"}, {"code": 500, "message": "dial tcp: i/o timeout"}])
def test_follower_goes_on_where_reading_broke_off(kube, operator, executor, steps, how):
    lines = [f"line {number}" for number in range(9)]
    operator.say(operator.submitter, *lines[:4], moment=at(0))
    kube.fail("/log", times=1, **how)
    steps += [
        lambda: None,
        lambda: (operator.say(operator.submitter, *lines[4:], moment=at(0.5)), kube.fail("/log", times=1, **how)),
        operator.succeed,
    ]
    assert texts(executor.logs("night-1", role=Role.SUBMITTER, tail=None, follow=True)) == lines


FORBIDDEN = {"code": 403, "message": 'rayjobs.ray.io "night-1" is forbidden: User "me" cannot get resource "rayjobs"'}


def test_follower_without_the_right_is_told_at_once(kube, operator, executor):
    kube.fail("/rayjobs/night-1", times=1, **FORBIDDEN)
    with pytest.raises(Unreachable, match="Role sp500-jobs"):
        list(executor.logs("night-1", role=Role.SUBMITTER, tail=None, follow=True))


def test_follower_sees_the_next_start_after_a_failed_one(operator, executor, steps):
    operator.say(operator.submitter, "first try")
    steps += [
        operator.retry,
        lambda: (operator.to_running(), operator.say(operator.submitter, "second try")),
        operator.succeed,
    ]
    assert texts(executor.logs("night-1", role=Role.SUBMITTER, tail=None, follow=True)) == ["first try", "second try"]


def test_follower_ends_with_a_job_that_is_deleted(kube, operator, executor, steps):
    operator.say(operator.submitter, "so far")
    steps += [lambda: (kube.store.delete("rayjobs", "night-1"), kube.store.collect())]
    assert texts(executor.logs("night-1", role=None, tail=None, follow=True)) == ["so far"]


def test_submitter_of_an_interactive_job_is_you(executor, requested):
    executor.submit("night-1", requested(mode="InteractiveMode"))
    with pytest.raises(ConfigError, match="ray job logs"):
        list(executor.logs("night-1", role=Role.SUBMITTER, tail=None, follow=False))
    assert list(executor.logs("night-1", role=None, tail=None, follow=False)) == []


def raw(seconds: int, text: str) -> str:
    return f"{at(seconds / 4):%Y-%m-%dT%H:%M:%S.%f}Z {text}\n"


@given(
    st.lists(st.tuples(st.integers(0, 12), st.sampled_from("abc")), max_size=30),
    st.lists(st.integers(0, 30), max_size=6),
)
def test_any_readings_of_a_log_in_order_give_each_line_once(lines, seen):
    written = [raw(when, text) for when, text in sorted(lines, key=lambda line: line[0])]
    log, given_texts = PodLog(Role.HEAD, "pod", "ray-head", None), []
    for upto in [*sorted(seen), len(written)]:
        kept = [line for line in written[:upto] if line[:19] >= (log.since or "")[:19]]
        given_texts += [line.text for _, line in log.new("".join(kept).encode(), complete=False)]
    assert given_texts == [line.split(" ")[1].rstrip("\n") for line in written]


def test_line_that_is_being_written_waits_until_it_is_whole():
    log = PodLog(Role.HEAD, "pod", "ray-head", None)
    half, whole = raw(0, "all of it")[:-4].encode(), raw(0, "all of it").encode()
    assert log.new(half, complete=False) == []
    assert [line.text for _, line in log.new(whole, complete=False)] == ["all of it"]
    assert log.new(whole, complete=True) == []


def test_times_of_another_zone_and_shorter_fractions_are_times():
    log = PodLog(Role.HEAD, "pod", "ray-head", None)
    read = b"2026-01-05T14:00:00.5+02:00 a\n2026-01-05T12:00:00.25Z b\nno time at all\n\xff\n2026-01-05T12:00:01Z c\n"
    found = log.new(read, complete=True)
    ordered = [line.text for _, line in sorted(found, key=lambda one: one[0])]
    assert ordered == ["b", "a", "no time at all", "\ufffd", "c"]
    assert log.since == "2026-01-05T12:00:01Z"
