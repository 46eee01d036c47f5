"""sbatch, squeue, scancel and sacct without a cluster: `fake_slurm.py FOLDER PROGRAM ARGUMENTS`.

Each job is a process group of this machine, and a folder of files. A file `fault` is what every program fails with.
There is no accounting, so sacct fails.
"""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

KEEP = 'sh -c "$1"; code=$?; date +%s >"$2/ended"; echo $code >"$2/new"; mv "$2/new" "$2/code"'


def sbatch(jobs, words):
    flags = dict(word.removeprefix("--").partition("=")[::2] for word in words)
    if int(flags["cpus-per-task"]) > 8:
        sys.exit("allocation failure: Requested node configuration is not available")
    if "test-only" in flags:
        return
    job = jobs / str(len(list(jobs.glob("*"))) + 1)
    job.mkdir()
    with Path(flags["output"].replace("%%", "%")).open("ab") as log:
        words = ["sh", "-c", KEEP, "sh", flags["wrap"], str(job)]
        streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
        process = subprocess.Popen(words, **streams, cwd=flags["chdir"], start_new_session=True)
    facts = {"name": flags["job-name"], "group": process.pid, "started": int(time.time())}
    (job / "facts").write_text(json.dumps(facts))
    print("Submitted batch job", job.name)


def squeue(jobs, words):
    for job, facts in named(jobs, words):
        forced = job / "state"  # written by a test, or by scancel
        code = int((job / "code").read_text()) if (job / "code").exists() else None
        state = "RUNNING" if code is None else "FAILED" if code else "COMPLETED"
        state, _, reason = (forced.read_text() if forced.exists() else f"{state} None").partition(" ")
        status = 0 if code is None else code - 128 if code > 128 else code << 8
        ended = (job / "ended").read_text().strip() if (job / "ended").exists() else "N/A"
        print(job.name, state, status, facts["started"], ended, "node1", reason, sep="|")


def scancel(jobs, words):
    for job, facts in named(jobs, words):
        if not (job / "code").exists() and not (job / "state").exists():
            (job / "ended").write_text(str(int(time.time())))
            (job / "state").write_text("CANCELLED None")
            with suppress(ProcessLookupError):
                os.killpg(facts["group"], signal.SIGTERM)


def sacct(jobs, words):
    sys.exit("Slurm accounting storage is disabled")


def named(jobs, words):
    name = next(word.removeprefix("--name=") for word in words if word.startswith("--name="))
    for job in jobs.iterdir():
        facts = json.loads((job / "facts").read_text())
        if facts["name"] == name:
            yield job, facts


if __name__ == "__main__":
    folder, program, *arguments = sys.argv[1:]
    if (Path(folder) / "fault").exists():
        sys.exit((Path(folder) / "fault").read_text())
    {"sbatch": sbatch, "squeue": squeue, "scancel": scancel, "sacct": sacct}[program](Path(folder) / "jobs", arguments)
