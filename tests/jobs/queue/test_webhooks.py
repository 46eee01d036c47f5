"""Notices: receivers that are down, slow or broken change nothing for the job, and get the message later."""

import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial

import pytest
from http_fakes import serving
from queue_fakes import FakeExecutor, new_job

from sp500.jobs.queue import webhooks
from sp500.jobs.queue.ledger import Ledger
from sp500.jobs.queue.manager import Manager
from sp500.jobs.queue.settings import QueueSettings
from sp500.jobs.resources import Resources
from sp500.jobs.state import JobState, Status

DONE = FakeExecutor(Status(JobState.SUCCEEDED, "done", 0))


class Receiver(ExitStack):
    """A web server that keeps what it is told, and answers as a test wants."""

    def __init__(self, port=0):
        super().__init__()
        self.got, self.answers, self.open = [], [], threading.Event()
        self.open.set()
        self.port = self.enter_context(serving(self.answer, port)).port
        self.callback(self.open.set)

    def answer(self, request):
        self.open.wait(30)
        code = self.answers.pop(0) if self.answers and request.method == "POST" else 200
        if code < 300 and request.method == "POST":
            self.got.append(json.loads(request.body))
        request.reply(code, **({"Location": "/login"} if code == 302 else {}))

    @property
    def states(self):
        return [one["state"] for one in self.got]


@pytest.fixture
def receiver():
    made = Receiver()
    yield made
    made.close()


@pytest.fixture
def ledger(tmp_path):
    made = Ledger(tmp_path / "queue.db")
    made.create()
    return made


def queued(ledger, port, id="a"):
    job = new_job(id, name="train", target={"on": "kuberay"}, notify=f"http://127.0.0.1:{port}/hook")
    with ledger.writing() as entry:
        entry.add([job], 1000.0)


def change(ledger, state, reason, id="a"):
    with ledger.writing() as entry:
        entry.change(entry.jobs([id])[0], 1001.0, state=state, reason=reason)


def test_each_change_of_state_is_posted_once_and_in_order(ledger, receiver):
    queued(ledger, receiver.port)
    change(ledger, "PENDING", "its turn has come")
    change(ledger, "PENDING", "waits for the image")
    change(ledger, "RUNNING", "runs")
    webhooks.deliver(ledger, lambda: 1002.0)
    webhooks.deliver(ledger, lambda: 1003.0)
    assert receiver.states == ["QUEUED", "PENDING", "RUNNING"]
    numbers = [one.pop("number") for one in receiver.got]
    assert numbers == sorted(set(numbers))
    assert receiver.got[2] == {
        "id": "a", "name": "train", "project": "p", "state": "RUNNING", "reason": "runs", "at": 1001.0,
    }  # fmt: skip
    assert ledger.notices() == []


def test_receiver_that_was_down_gets_everything_in_order_when_it_is_back(ledger):
    gone = Receiver()
    gone.close()
    queued(ledger, gone.port)
    webhooks.deliver(ledger, lambda: 1000.0)
    change(ledger, "RUNNING", "runs")
    webhooks.deliver(ledger, lambda: 1001.0)  # not yet due
    assert [one.tries for one in ledger.notices()] == [1, 0]
    back = Receiver(gone.port)
    webhooks.deliver(ledger, lambda: 1002.1)
    back.close()
    assert back.states == ["QUEUED", "RUNNING"]


def test_receiver_that_answers_with_an_error_is_asked_again_with_growing_waits(ledger, receiver):
    receiver.answers = [500, 302, 404]
    queued(ledger, receiver.port)
    now, waits = 1000.0, []
    for _ in range(3):
        webhooks.deliver(ledger, lambda now=now: now)
        waits.append(ledger.notices()[0].not_before - now)
        now = ledger.notices()[0].not_before
    webhooks.deliver(ledger, lambda: now)
    assert waits == [2.0, 4.0, 8.0]
    assert receiver.states == ["QUEUED"]


def test_receiver_that_is_away_for_a_day_is_given_up(ledger, receiver):
    day = sum(min(webhooks.FIRST_WAIT * 2**tries, webhooks.LONGEST_WAIT) for tries in range(webhooks.MOST_TRIES))
    assert day == pytest.approx(86400, rel=0.02)
    receiver.answers = [500, 500]
    queued(ledger, receiver.port)
    with ledger.writing() as entry:
        entry.connection.execute("UPDATE notices SET tries = ?", (webhooks.MOST_TRIES - 2,))
    webhooks.deliver(ledger, lambda: 1000.0)
    assert [notice.tries for notice in ledger.notices()] == [webhooks.MOST_TRIES - 1]
    webhooks.deliver(ledger, lambda: 1300.0)
    assert ledger.notices() == []


def test_clock_that_is_set_loses_no_notice_and_holds_none_up(ledger, receiver):
    receiver.answers = [500, 500]
    queued(ledger, receiver.port)
    webhooks.deliver(ledger, lambda: 1000.0)
    webhooks.deliver(ledger, lambda: 1000.0 + 2 * 86400)
    assert receiver.states == []
    webhooks.deliver(ledger, lambda: 1000.0)
    assert receiver.states == ["QUEUED"]


def test_answer_that_comes_byte_by_byte_is_given_up_after_its_time(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        stop = threading.Event()

        def drip():
            connection, _ = server.accept()
            with connection, suppress(OSError):
                connection.send(b"HTTP/1.1 200 OK\r\nX-Slow: ")
                for _ in range(400):
                    if stop.wait(0.05):
                        return
                    connection.send(b"x")
                connection.send(b"\r\nContent-Length: 0\r\n\r\n")  # an acceptance, had it come in time
                stop.wait(30)

        thread = threading.Thread(target=drip)
        thread.start()
        assert not webhooks.post(f"http://127.0.0.1:{server.getsockname()[1]}/", {}, seconds=0.5)
        stop.set()
        thread.join()


def test_notices_of_a_deleted_job_are_forgotten(ledger):
    queued(ledger, 9)
    with ledger.writing() as entry:
        entry.change(entry.jobs()[0], 1001.0, state="FAILED", ended=1001.0)
        entry.remove("a")
    assert ledger.notices() == []
    assert not ledger.busy()


def test_job_ends_while_its_receiver_hangs_and_the_message_comes_after(ledger, receiver, tmp_path):
    receiver.open.clear()
    queued(ledger, receiver.port)
    manager = Manager(ledger, tmp_path, lambda _: DONE, QueueSettings, Resources(1))
    with ThreadPoolExecutor(4) as pool:
        end = time.monotonic() + 120
        while ledger.jobs()[0].state != JobState.SUCCEEDED:
            manager.turn(pool)
            assert time.monotonic() < end
        assert receiver.got == []
        receiver.open.set()
        while manager.turn(pool):
            assert time.monotonic() < end
    assert receiver.states == ["QUEUED", "PENDING", "SUCCEEDED"]


def test_receiver_that_hangs_does_not_hold_up_another(ledger, receiver, tmp_path, monkeypatch):
    monkeypatch.setattr(webhooks, "post", partial(webhooks.post, seconds=120))  # longer than the receiver hangs
    hanging = Receiver()
    hanging.open.clear()
    queued(ledger, hanging.port)
    queued(ledger, receiver.port, id="b")
    manager = Manager(ledger, tmp_path, lambda _: DONE, QueueSettings, Resources(2))
    with ThreadPoolExecutor(1) as pool:
        while len(receiver.states) < 3:
            manager.turn(pool)
    assert hanging.got == []
    hanging.close()
