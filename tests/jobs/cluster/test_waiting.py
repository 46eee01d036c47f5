import pytest

from sp500.errors import ResourcesError, Unreachable
from sp500.jobs.cluster import waiting


class Slow:
    """Ready at the `turns`-th look, each of which takes a while; says why not before. The time is its own."""

    def __init__(self, turns, takes=0.0):
        self.turns, self.takes, self.looked, self.paused, self.now, self.said = turns, takes, 0, 0.0, 1000.0, []

    def done(self):
        self.looked += 1
        self.now += self.takes
        return self.looked >= self.turns

    def reasons(self):
        return ["pulling"] if self.looked < 3 else ["pulling", "starting"]

    def wait(self, seconds):
        say, clock = self.said.append, lambda: self.now
        waiting.until(self.done, self.reasons, what="the head", seconds=seconds, say=say, pause=self.pause, clock=clock)

    def pause(self, seconds):
        self.paused += seconds
        self.now += seconds


def test_what_is_ready_is_not_waited_for_and_what_gets_ready_in_the_last_pause_counts():
    slow = Slow(1)
    slow.wait(60)
    assert (slow.paused, slow.said) == (0, [])
    Slow(2).wait(2)


def test_each_reason_is_said_once_while_it_lasts():
    slow = Slow(5)
    slow.wait(60)
    assert [line.rpartition(": ")[2] for line in slow.said] == ["pulling", "starting"]


@pytest.mark.parametrize("seconds", [0, 1, 7, 60])
def test_deadline_holds_and_the_last_reasons_are_named(seconds):
    slow = Slow(1000)
    with pytest.raises(ResourcesError, match=rf"the head .* within {seconds} s:\n  pulling"):
        slow.wait(seconds)
    assert slow.paused == seconds
    slow = Slow(1000, takes=30.0)  # the time that a look takes counts
    with pytest.raises(ResourcesError):
        slow.wait(seconds)
    assert slow.now - 1000 <= seconds + 30


def test_outage_of_the_api_server_is_waited_for_and_reported():
    slow, outages = Slow(3), iter([True, True])

    def done():
        if next(outages, False):
            raise Unreachable("kubectl get: refused")
        return slow.done()

    say, clock = slow.said.append, lambda: slow.now
    waiting.until(done, slow.reasons, what="the head", seconds=60, say=say, pause=slow.pause, clock=clock)
    assert slow.said[0].endswith("kubectl get: refused")
