"""scikit-learn's GridSearchCV over its own MLP: another model, with a penalty in place of dropout.

https://scikit-learn.org/stable/modules/generated/sklearn.model_selection.GridSearchCV.html
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import plain
from sklearn.model_selection import GridSearchCV, PredefinedSplit
from sklearn.neural_network import MLPRegressor

if __name__ == "__main__":
    job = plain.read_job()
    data, axes, patience = np.load(job["data"]), job["axes"], job["patience"]
    x, y = (np.concatenate([data[f"train_{name}"], data[f"valid_{name}"]]) for name in "xy")
    split = PredefinedSplit(np.repeat([-1, 0], [len(data["train_y"]), len(data["valid_y"])]))
    grid = {
        "hidden_layer_sizes": [(hidden, hidden) for hidden in axes["hidden"]],
        "learning_rate_init": axes["lr"],
        "alpha": axes["dropout"],
        "random_state": axes["seed"],
    }
    # Its early stopping holds out a tenth of the training windows, drawn at random. Without it nothing ends early.
    stop = {"early_stopping": True, "n_iter_no_change": patience} if patience else {"n_iter_no_change": job["epochs"]}
    model = MLPRegressor(batch_size=256, max_iter=job["epochs"], **stop)
    search = GridSearchCV(model, grid, cv=split, refit=False, n_jobs=job["processes"], scoring="neg_mean_squared_error")
    search.fit(x, y)
    losses = -search.cv_results_["mean_test_score"]  # the epochs of a fit are not kept
    Path(job["out"]).write_text(json.dumps({"trials": len(losses), "loss": losses.mean()}))
