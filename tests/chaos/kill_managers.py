"""The queue under fire: a thousand jobs while managers are killed; `scripts/chaos managers` prints what came of it.

What ran is told by the jobs themselves, which append a line each to one file, and not by the ledger. Some managers die
between the hand-over of a job and its mark, where the next one hands it over again. Then managers are started two at a
time, and the one at work is killed with SIGKILL at a random moment.
"""

from __future__ import annotations

import collections
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import doomed
import psutil
from filelock import FileLock

from sp500.jobs.local import executor as local
from sp500.jobs.queue import budget
from sp500.jobs.queue.job import NewJob, Use
from sp500.jobs.queue.queue import Queue, new_id
from sp500.jobs.resources import of_spec
from sp500.jobs.spec import JobSpec
from sp500.jobs.state import JobState
from sp500.jobs.target import executors

# A third of the jobs is wide, some of them as wide as the machine is said to be.
CPUS = 8
# Money for five of the jobs that cost some at once, and for fewer than there are among a thousand.
BUDGET, PRICE, EXPECTED_SECONDS = 0.05, 0.01, 1.0
SETTINGS = f"capacity: {{local: {{cpus: {CPUS}}}}}\nbudgets: {{paid: {BUDGET}}}\n"
# The job's name goes into the file as one line; some fail at their first start.
COUNTED = 'echo "$1" >> "$2"; sleep "$3"; [ "$4" = good ] || [ "$(grep -c "^$1$" "$2")" -gt 1 ]'
ENDLESS = 'sleep 1000 & echo "$$ $!" > "$1"; trap "" TERM; wait; sleep 1000'


def manager(folder: Path) -> list[str]:
    return [sys.executable, "-m", "sp500.cli", "jobs", "manage", "--state-dir", str(folder), "--idle-seconds", "2"]


def job(script: str, *words: str, folder: Path, workers: int = 1, project: str = "default", **more: object) -> NewJob:
    spec = JobSpec(argv=("/bin/sh", "-c", script, "sh", *words), name="job", workers=workers)
    request = local.request(spec, cwd=folder, environment={"PATH": os.environ["PATH"]}, python=sys.executable)
    base = {"id": new_id("job"), "seconds": None, "hourly": 0.0, "retries": 0, "priority": 0}
    return NewJob(
        **base | more, name="job", spec=spec.model_dump(mode="json"), target={"on": "local"}, request=request,
        project=project, queued_elsewhere=False, demand=of_spec(spec),
    )  # fmt: skip


def flood(folder: Path, count: int, chance: random.Random) -> list[NewJob]:
    """Jobs of all widths and priorities; a twentieth fails once and is tried again, a tenth costs money."""
    jobs = []
    for _ in range(count):
        again, paid, id = chance.random() < 0.05, chance.random() < 0.1, new_id("job")
        seconds = chance.uniform(0.7, 0.95) if paid else chance.uniform(0.0, 0.1)
        words = (id, str(folder / "ran"), f"{seconds:.3f}", "bad" if again else "good")
        more = {"project": "paid", "hourly": PRICE * 3600, "seconds": EXPECTED_SECONDS} if paid else {}
        workers, priority = chance.choice([1, 1, 1, 1, 2, 4, CPUS]), chance.randrange(3)
        jobs.append(
            job(COUNTED, *words, folder=folder, id=id, workers=workers, retries=int(again), priority=priority, **more)
        )
    return jobs


@contextmanager
def managers(folder: Path, count: int) -> Iterator[list[subprocess.Popen[str]]]:
    """So many managers started at once; those that live are killed in the end."""
    started = [subprocess.Popen(manager(folder), stdout=subprocess.PIPE, text=True) for _ in range(count)]
    try:
        yield started
    finally:
        for process in started:
            with process:
                process.kill()


def finished(queue: Queue) -> bool:
    """Whether only jobs are left that wait for tomorrow's budget."""
    return all(one.project == "paid" and one.state == JobState.QUEUED for one in queue.ledger.jobs(unfinished=True))


def fire(queue: Queue, kills: int, chance: random.Random) -> tuple[int, int, int]:
    """Kill so many managers while they work: how many were, how often two were started, and how often one gave way."""
    killed = rounds = gave_way = 0
    while not finished(queue):
        with managers(queue.folder, 2) as pair:
            rounds += 1
            end = time.monotonic() + (chance.uniform(1.0, 4.0) if killed < kills else 1e9)
            while time.monotonic() < end and not finished(queue):
                time.sleep(0.02)
            at_work = [process for process in pair if process.poll() is None]
            for process in at_work:
                process.send_signal(signal.SIGKILL)
            killed += bool(at_work) and not finished(queue)
            names = [f"process {process.pid} on " for process in at_work]
            said = [process.stdout.read() for process in pair if process.stdout and process not in at_work]
            gave_way += sum(any(name in text for name in names) for text in said)
    return killed, rounds, gave_way


def interrupt_hand_overs(queue: Queue, kills: int, chance: random.Random) -> int:
    """Kill so many managers right after a hand-over; how many left a job that runs and is not marked."""
    place, argv, hits = "sp500.jobs.local.executor:LocalExecutor.submit", manager(queue.folder)[2:], 0
    for _ in range(kills):
        doomed.killed("after", place, chance.randint(1, 3), argv)
        open_starts = [one for one in queue.ledger.jobs(unfinished=True) if one.starts and not one.submitted]
        hits += any((queue.folder / "jobs" / one.handle / "request.json").exists() for one in open_starts)
    return hits


def stops(queue: Queue, count: int) -> dict[str, object]:
    """Stop jobs that ignore SIGTERM, and leave a process of theirs behind if they can."""
    files = [queue.folder / f"pids-{number}" for number in range(count)]
    jobs = [job(ENDLESS, str(file), folder=queue.folder) for file in files]
    queue.add(jobs)
    while not all(file.exists() and file.read_text().endswith("\n") for file in files):
        time.sleep(0.05)
    began = time.monotonic()
    queue.stop([one.id for one in jobs])
    ended = queue.wait([one.id for one in jobs], 120)
    seconds = time.monotonic() - began
    left = [pid for file in files for pid in file.read_text().split() if psutil.pid_exists(int(pid))]
    stopped = sum(one.state == JobState.STOPPED for one in ended)
    return {"stopped": stopped, "of": count, "stop_seconds": round(seconds, 1), "orphans": len(left)}


def spent(queue: Queue) -> float:
    """On jobs that cost some, each for no longer than it was expected to take: a busy machine stretches them."""
    uses: list[Use] = [use for use in queue.ledger.uses(0.0) if use.project == "paid"]
    return sum(use.hourly * min(use.finish - use.begin, EXPECTED_SECONDS) / budget.HOUR for use in uses)


def measured(count: int, kills: int, at_hand_over: int, seed: int, folder: Path) -> dict[str, object]:
    chance, began = random.Random(seed), time.monotonic()
    (folder / "queue.yaml").write_text(SETTINGS)
    queue = Queue(folder, executors(folder), manager(folder))
    jobs = flood(folder, count, chance)
    with queue.ledger.writing() as entry:
        entry.add(jobs, time.time())
    hits = interrupt_hand_overs(queue, at_hand_over, chance)
    killed, rounds, gave_way = fire(queue, kills, chance)
    ran = collections.Counter((folder / "ran").read_text().split())
    ended = queue.ledger.jobs()
    waiting = [one for one in ended if one.state == JobState.QUEUED]
    succeeded = sum(one.state == JobState.SUCCEEDED for one in ended)
    found = {
        "jobs": count,
        "kills": killed,
        "kills_between_hand_over_and_mark": hits,
        "lost": count - len(waiting) - succeeded + sum(ran[one.id] == 0 for one in ended if one not in waiting),
        "run_twice": sum(ran[one.id] > 1 + one.retries for one in ended),
        "retried": sum(one.starts > 1 for one in ended),
        "waiting_for_budget": len(waiting),
        "budget": BUDGET,
        "overshot": round(max(spent(queue) - BUDGET, 0.0), 4),
        "pairs_of_managers": rounds,
        "one_gave_way": gave_way,
        **stops(queue, 5),
        "seconds": round(time.monotonic() - began, 1),
    }
    left_in_peace(queue)
    return found


def left_in_peace(queue: Queue) -> None:
    """Return when the last manager has nothing to do any more, and is gone."""
    unfinished = [one.id for one in queue.ledger.jobs(unfinished=True)]
    queue.stop(unfinished)
    queue.wait(unfinished, 60)
    with FileLock(queue.folder / "manager.lock", timeout=120):
        pass


def wrong(found: dict[str, object]) -> bool:
    """Whether a job was lost, ran twice or stopped late, a budget passed by over one job, two managers worked, or no
    manager died where it matters."""
    spoiled = found["lost"] or found["run_twice"] or found["orphans"] or found["overshot"] > PRICE
    stopped = found["stopped"] == found["of"] and found["stop_seconds"] < 15
    hit = found["kills"] and found["kills_between_hand_over_and_mark"]
    return bool(spoiled or not (stopped and hit and found["one_gave_way"]))
