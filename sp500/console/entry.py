"""The shared runner of scripts: a settings file under the flags, a run folder, progress, one JSON object, exit codes.

A script is a frozen settings model and a function; this module does the rest, so that all of them answer --help in
under a second, refuse a wrong flag alike, and say what went wrong in one message.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

import tyro
import yaml
from pydantic import ConfigDict

from sp500 import execution
from sp500.config import RUN_NAME, Frozen, OwnModel, kinds
from sp500.config.frozen import Alias
from sp500.config.task import find as find_task
from sp500.console import arguments
from sp500.console.output import run_command
from sp500.credentials import mask
from sp500.errors import ConfigError
from sp500.execution import Experiment, Runnable
from sp500.formatting import join, some
from sp500.jobs.spec import PROJECT, WORLD_SIZE
from sp500.plugins.admission import lies_in_run
from sp500.plugins.source import make_absolute
from sp500.runs.record import RunRecord
from sp500.runs.store import Run
from sp500.schema import merge, read_mapping, read_value, validate

Options = Mapping[str, object]
OPTION, OPTIMIZER = "--model.options.", "--train.optimizer-options."


class Flags(Frozen):
    """Flags of every script."""

    config: Path | None = None
    """YAML file of settings; flags override it."""
    dry_run: bool = False
    """Print the plan without executing it."""
    print_config: bool = False
    """Print the effective settings as YAML, and do nothing."""
    json_output: Annotated[bool, tyro.conf.arg(name="json")] = False
    """One JSON object on stdout; all else goes to stderr."""

    def settings(self) -> dict[str, object]:
        """Return the effective settings as plain data."""
        plain: dict[str, object] = mask(self.model_dump(mode="json", exclude=set(Flags.model_fields)))
        return plain


class RunFlags(Runnable, Flags):
    """Settings of what leaves a run, and the flags that all scripts share."""

    takes_world_size: ClassVar[bool] = False
    """True if SP500_WORLD_SIZE is the default of its num_workers."""


class Command(Experiment, RunFlags):
    """Settings of an experiment and the flags that all scripts share."""

    model_config = ConfigDict(extra="allow")  # the task's section, as RunConfig has it


F = TypeVar("F", bound=Flags)
C = TypeVar("C", bound=RunFlags)
M = TypeVar("M", bound=Command)


@dataclass(frozen=True)
class Answer:
    """Output of a script: plain data for --json, text for a reader; and its exit code."""

    plain: Mapping[str, object]
    text: str
    code: int = 0


def run_experiment(
    model: type[C],
    main: Callable[[C, Run], RunRecord],
    argv: Sequence[str],
    *,
    plan: Callable[[C], Mapping[str, object]] | None = None,
    answer: Callable[[RunRecord], Mapping[str, object]] | None = None,
    prog: str | None = None,
) -> int:
    """Run one experiment and return its exit code.

    `main(config, run)` returns the run's record without writing it. `plan(config)` adds to the output of a dry run.
    `answer(record)` is the JSON object (default: the record). `prog` is the command in the usage line.
    """

    def act(config: C) -> Answer:
        """Return what the script prints."""
        if config.dry_run:
            plain = execution.outline(config, plan(config) if plan else {})
            return Answer(plain, _tell(config, plain))
        record = execution.execute(config, main)
        from sp500.report import terminal

        result = answer(record) if answer else record.model_dump(mode="json")
        code = 0 if record.status in {"ok", "out_of_memory"} else 1
        return Answer(result, terminal.text(record, config.io.save_dir), code)

    return run_script(model, act, argv, prog)


def _tell(config: RunFlags, outline: Mapping[str, object]) -> str:
    """Return what a dry run shows: six lines, and what the experiment itself adds."""
    workers: Any = config.num_workers  # of scale several numbers
    *counts, last = workers if isinstance(workers, tuple) else (workers,)
    where = f"Ray, {join([*map(str, counts), some(last, 'worker')])}" if workers else "this process"
    lines = {
        "run": outline["run"],
        "folder": outline["folder"],
        **(_tell_model(config, where) if isinstance(config, Command) else {"does": f"{config.subject} in {where}"}),
        "fingerprint": outline["fingerprint"],
        "settings": "all of them by --print-config, or by --json",
    }
    added = {key: value for key, value in outline.items() if key not in {*lines, "experiment", "arm", "config"}}
    return yaml.safe_dump(lines | added, sort_keys=False, width=120)


def _tell_model(config: Command, where: str) -> dict[str, str]:
    data = mask(config.data.model_dump(mode="json"))
    prices = f"{data['source']}, windows of {data['window']} sessions, horizon {data['horizon']}"
    return {
        "does": f"{config.experiment} {config.subject} on {config.task}, seed {config.train.seed}, in {where}",
        "data": prices if config.task_kind.from_prices else f"of task {config.task}",
    }


def run_script(model: type[F], act: Callable[[F], Answer], argv: Sequence[str], prog: str | None = None) -> int:
    """Parse, act, print, and return the exit code."""

    def run() -> tuple[str, int]:
        config = parse(model, argv, prog)
        if config.print_config:
            return yaml.safe_dump(config.settings(), sort_keys=False), 0
        answer = act(config)
        return json.dumps(answer.plain, indent=1) if config.json_output else answer.text, answer.code

    return run_command(
        run, only_json="--json" in argv, hint="--resume continues the run" if issubclass(model, RunFlags) else ""
    )


def parse(model: type[F], argv: Sequence[str], prog: str | None = None) -> F:
    """Return settings from the file (if --config names one) under the flags. Ends with exit code 2 on a wrong flag.

    With --resume, the file that the run kept is the one under the flags. A run that is missing starts, so that a job
    that is tried again has the same command. Raises ConfigError.
    """
    argv, options = _split_options(argv, OPTION)
    argv, of_optimizer = _split_options(argv, OPTIMIZER)
    base = defaults(model, flag(argv, "--task"))
    runs, name = flag(argv, "--runs-dir", "--io.save-dir"), flag(argv, "--name", "--io.run-name")
    file, folder = _settings_file(argv, base)
    if file:
        try:
            base = from_file(model, Path(file), flag(argv, "--task"), runs)
        except ConfigError as error:
            if not folder:
                raise
            fault = str(error).splitlines()[0].removeprefix("--config ")
            raise ConfigError(f"--resume {name}: {fault}\nIf another script began this run, resume it there") from error
    if file and folder and isinstance(base, RunFlags):
        # A run that was fetched names the folder that it was made in.
        base = base.model_copy(update={"io": base.io.model_copy(update={"save_dir": folder})})
    if "--resume" in argv and isinstance(base, RunFlags) and not file and not name:
        raise ConfigError("--resume: which run? Name it with --name (and --runs-dir)")
    if not isinstance(base, Command):
        config = arguments.parse(model, argv, prog, default=base)
        if isinstance(config, RunFlags):
            config.give({"command": flag(argv, "--command")})
        return config
    named, kind = flag(argv, "--task"), flag(argv, "--model.kind")
    chosen = arguments.parse(model, argv, prog, default=_choose(base, named, kind, (options, of_optimizer), argv))
    assert isinstance(chosen, Command)
    chosen.give({"task": named, "model": {"kind": kind}, "method": flag(argv, "--method")})
    return chosen


def _settings_file(argv: Sequence[str], base: Flags) -> tuple[str | None, Path | None]:
    """Return the file of settings under the flags and, if it is that of a run to resume, the folder of runs."""
    file, name = flag(argv, "--config"), flag(argv, "--name", "--io.run-name")
    if file or "--resume" not in argv or not isinstance(base, RunFlags):
        return file, None
    folder = Path(flag(argv, "--runs-dir", "--io.save-dir") or base.io.save_dir)
    if name and RUN_NAME.fullmatch(name):  # another name leads out of the folder, and is refused further down
        settings_file = folder / name / "config.yaml"
        file = str(settings_file) if settings_file.exists() else None
    return file, folder


def names_program(argv: Sequence[str], model: type[RunFlags]) -> bool:
    """Return whether the flags, or the file of settings under them, name a program of the user's to run."""
    if flag(argv, "--command") is not None:
        return True
    file, _ = _settings_file(argv, defaults(model))
    try:
        return bool(file) and "command" in read_mapping(Path(str(file)), "--config", "settings")
    except ConfigError:  # which the parsing of the flags explains
        return False


def _choose(base: M, named: str | None, kind: str | None, given: tuple[Options, Options], argv: Sequence[str]) -> M:
    """Return the defaults of the flags of a task and a kind of model, with the options of model and optimiser.

    Raises ConfigError.
    """
    options, of_optimizer = given
    try:
        base = base.for_task(named) if named else base
        model = base.model.for_kind(kind) if kind else base.model
    except ValueError as error:
        raise ConfigError(arguments.name_flags(type(base), str(error))) from None
    if options and not isinstance(model, OwnModel):
        raise ConfigError(
            f"{OPTION}{next(iter(options))} is not used by --model.kind {model.kind}; name a model of your own with "
            "--model.kind"
        )
    if isinstance(model, OwnModel):
        model = model.model_copy(update={"options": {**model.options, **options}})
    if base.own_task:  # it may inherit from any task, and use the section of that
        owners = {of for of in kinds.tasks().values() if any(word.startswith(f"--{of.section}.") for word in argv)}
        sections = {of.section: of.settings() for of in owners if of.settings and of.section not in base.sections}
        base = base.model_copy(update=sections)
    train = base.train.model_copy(update={"optimizer_options": {**base.train.optimizer_options, **of_optimizer}})
    chosen = base.model_copy(update={"model": model, "train": train})
    arguments.check_owners(chosen, argv)
    return chosen


def _split_options(argv: Sequence[str], prefix: str) -> tuple[list[str], dict[str, object]]:
    """Return the flags without those of a prefix, such as `--model.options.NAME VALUE`, and these options.

    tyro cannot know their names.
    """
    rest, options = list[str](), dict[str, object]()
    words = iter(argv)
    for word in words:
        if not word.startswith(prefix):
            rest.append(word)
            continue
        name, assigned, value = word.removeprefix(prefix).partition("=")
        value = value if assigned else next(words, "")
        if not name.isidentifier() or not value:
            raise ConfigError(f"{word}: expected {prefix}NAME VALUE")
        options[name] = read_value(value)
    return rest, options


def from_file(model: type[F], path: Path, task: str | None = None, runs: Path | str | None = None) -> F:
    """Return the settings of a YAML file over the defaults of `task`, or of the file's own.

    What it names comes from the user, unless it lies in a run: below the folder `runs`, or among the files of one.
    Raises ConfigError that names file, key and nearest key.
    """
    settings = read_mapping(path, "--config", "sections such as data, model and train")
    usual = defaults(model)
    of_run = lies_in_run(path.expanduser(), Path(runs or (usual.io.save_dir if isinstance(usual, RunFlags) else ".")))
    settings = make_absolute(settings, path.expanduser().parent, run=of_run)
    if isinstance(io := settings.get("io"), dict) and isinstance(io.get("run_name"), str):
        # Earlier files have names with capitals and spaces.
        io["run_name"] = re.sub(r"[^a-z0-9._-]+", "-", io["run_name"].lower())
    _move_short_keys(model, settings)
    settings |= {"task": task} if task else {}
    named = settings.get("task")
    base = defaults(model, named if isinstance(named, str) else None)
    config = validate(model, merge(base.model_dump(), settings), f"--config {path}")
    if isinstance(config, RunFlags) and not of_run:
        config.give(settings)
    return config


def _move_short_keys(model: type[Flags], settings: dict[str, Any]) -> None:
    """Move keys of a file that are short flags, such as `seed`, into their sections."""
    if not issubclass(model, RunFlags):
        return
    for section, of in model.all_fields().items():
        for key, field in getattr(of.annotation, "model_fields", {}).items():
            for short in (mark.flag[2:].replace("-", "_") for mark in field.metadata if isinstance(mark, Alias)):
                if short in settings and short not in model.model_fields:
                    settings[section] = {**(settings.get(section) or {}), key: settings.pop(short)}


def defaults(model: type[F], name: str | None = None) -> F:
    """Return the model's defaults for a task, with SP500_RUNS_DIR, SP500_PROJECT, SP500_WORLD_SIZE if set.

    A cluster's manifest or a user sets the folder; a job sets its project, and its workers are its world size. Raises
    ConfigError.
    """
    base, folder = model(), os.environ.get("SP500_RUNS_DIR")
    if isinstance(base, Command) and name and (usual := find_task(name).defaults):
        base = validate(model, merge(base.model_dump(), {"task": name, **usual}), f"task {name}")
    if isinstance(base, RunFlags) and base.takes_world_size and (size := _world_size()):
        base = validate(model, base.model_dump() | {"num_workers": size}, WORLD_SIZE)
    if isinstance(base, RunFlags) and (project := os.environ.get(PROJECT)):
        base = validate(model, merge(base.model_dump(), {"io": {"project": project}}), PROJECT)
    if not folder:
        return base
    if isinstance(base, RunFlags):
        return base.model_copy(update={"io": base.io.model_copy(update={"save_dir": Path(folder)})})
    return base.model_copy(update={"runs_dir": Path(folder)}) if "runs_dir" in model.model_fields else base


def _world_size() -> int | None:
    """Return the workers of the job that this command is.

    Raises ConfigError for a value that is not a whole number above 0.
    """
    text = os.environ.get(WORLD_SIZE)
    if not text:
        return None
    if not (text.isdecimal() and int(text)):
        raise ConfigError(
            f"{WORLD_SIZE}={text!r} is not a number of workers: expected a whole number of at least 1. Unset it, or"
            " submit the job with --workers N"
        )
    return int(text)


def flag(argv: Sequence[str], *names: str) -> str | None:
    """Return the last value of a flag before the real parsing, which needs the file that the flag names."""
    argv = [
        word.split("=")[0].replace("_", "-") + word[len(word.split("=")[0]) :] if word.startswith("--") else word
        for word in argv
    ]
    value = None
    for position, word in enumerate(argv):
        for name in names:
            if word == name and position + 1 < len(argv):
                value = argv[position + 1]
            if word.startswith(name + "="):
                value = word.removeprefix(name + "=")
    return value
