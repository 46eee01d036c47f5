"""One run of a program of the user's, alone or on workers of Ray, from its settings to its record. Loads no torch."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from sp500.errors import SP500Error
from sp500.machine.ports import LOOPBACK, find_free_port
from sp500.programs import ranks
from sp500.programs.output import Measurement
from sp500.programs.program import End, Program
from sp500.runs.experiments import PROGRAM
from sp500.runs.record import RunRecord, make_record
from sp500.runs.store import Run
from sp500.studies.program_settings import ProgramTrainSettings


def run_program(
    config: ProgramTrainSettings, run: Run, *, on_measurement: Callable[[Measurement], None] = lambda line: None
) -> RunRecord:
    """Run the program. Raises SP500Error with its exit code and last lines if it fails.

    `on_measurement` gets what it measures as it comes, on Ray once all ranks have ended.
    """
    argv, started = config.template.fill({}, run.path.resolve()), datetime.now(UTC)
    fingerprint = config.fingerprint
    cluster: dict[str, float] | None = None
    if config.num_workers:
        from sp500.distributed import program_group

        ends, cluster = program_group.run_group(
            config, run, config.build_request(argv, run.path, ranks.read_given_threads())
        )
        measured = ranks.read_measurements(run.path)
        for line in measured:
            on_measurement(line)
    else:
        end, measured = _run_alone(config, run, argv, on_measurement)
        ends = [end]
    setup = (datetime.now(UTC) - started).total_seconds() - max(end.seconds for end in ends)
    record = _build_record(config, run, ends, measured, setup=max(setup, 0.0), cluster=cluster)
    return record.model_copy(update={"fingerprint": fingerprint})  # of what ran, whatever the script is now


def _run_alone(
    config: ProgramTrainSettings, run: Run, argv: Sequence[str], on_measurement: Callable[[Measurement], None]
) -> tuple[End, list[Measurement]]:
    """Run it as the only rank of a group, which a script for torchrun expects."""
    shutil.rmtree(run.path / "ranks", ignore_errors=True)
    folder = ranks.rank_folder(run.path, 0)
    folder.mkdir(parents=True)
    variables = ranks.build_environment(ranks.Rank(), LOOPBACK, find_free_port(), run.name) | ranks.read_given_threads()
    program = Program(config.build_request(argv, folder / "log", variables))
    measured: list[Measurement] = []
    try:
        for event in program.events():
            if isinstance(event, End):
                end = event
                break
            measured.append(event)
            on_measurement(event)
    finally:
        program.close()
    if end.reason:
        raise SP500Error(end.report)
    return end, measured


def _build_record(
    config: ProgramTrainSettings,
    run: Run,
    ends: Sequence[End],
    measured: Sequence[Measurement],
    *,
    setup: float,
    cluster: dict[str, float] | None,
) -> RunRecord:
    last = measured[-1] if measured else None
    memory, seconds = [end.peak_bytes for end in ends], max(end.seconds for end in ends)
    return make_record(
        config.run_config(),
        name=run.name,
        experiment=PROGRAM,
        arm=config.arm,
        setup_seconds=setup,
        train_seconds=seconds,
        cluster=cluster,
        samples=(last.samples or 0) if last else 0,
        peak_memory_bytes=max(memory),
        peak_worker_bytes=max(memory),
        program={
            "metric": config.metric,
            "value": last.value if last else None,
            "epochs": max((line.epoch for line in measured), default=0),
            "samples": last.samples if last else None,
            "seconds": seconds,
            "cpu_seconds": sum(end.cpu_seconds for end in ends),
            "memory_bytes": memory,
        },
    )
