"""Optuna in several processes, which share a journal; the trials of the grid are enqueued.

https://optuna.readthedocs.io/en/stable/tutorial/10_key_features/004_distributed.html
"""

from __future__ import annotations

from multiprocessing import Pool
from typing import Any

import optuna
import plain
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend


def open_study() -> optuna.Study:
    """Return the study in the journal of this folder."""
    storage = JournalStorage(JournalFileBackend(file_path="./journal.log"))
    return optuna.create_study(study_name="search", storage=storage, load_if_exists=True)


def run(job: dict[str, Any], trials: int) -> None:
    """Run some trials in this process."""
    data = plain.load(job["data"])

    def objective(trial: optuna.Trial) -> float:
        config = {name: trial.suggest_categorical(name, values) for name, values in job["axes"].items()}
        loss, epochs = plain.fit(config, data, job)
        trial.set_user_attr("epochs", epochs)
        return loss

    open_study().optimize(objective, n_trials=trials)


if __name__ == "__main__":
    job = plain.read_job()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study, configs, processes = open_study(), plain.list_configs(job), job["processes"]
    for config in configs:
        study.enqueue_trial(config)
    shares = [len(range(number, len(configs), processes)) for number in range(processes)]
    with Pool(processes) as pool:
        pool.starmap(run, [(job, share) for share in shares])
    trials = study.get_trials()
    plain.write(job, [(trial.values[0], trial.user_attrs["epochs"]) for trial in trials])
