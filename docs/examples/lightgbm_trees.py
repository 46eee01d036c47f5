"""LightGBM's trees as a model of your own, stored in LightGBM's own text format."""

import lightgbm
import numpy as np


class Trees:
    """Made once for each fit; `config` has the settings of the model, `dataset` its shapes."""

    def __init__(self, config, dataset, *, rounds=300, leaves=15, rate=0.05):
        self.rounds, self.settings = rounds, {"num_leaves": leaves, "learning_rate": rate, "num_threads": 1}
        self.settings |= {"objective": "regression", "seed": 0, "deterministic": True, "verbose": -1}

    def fit(self, X, y, X_valid=None, y_valid=None):
        train = lightgbm.Dataset(X, y)
        valid = [] if X_valid is None else [lightgbm.Dataset(X_valid, y_valid, reference=train)]
        stop = [lightgbm.early_stopping(20, verbose=False)] if valid else []
        self.booster = lightgbm.train(self.settings, train, self.rounds, valid_sets=valid, callbacks=stop)

    def predict(self, X):
        return np.asarray(self.booster.predict(X, num_threads=1))

    def save(self, folder):
        self.booster.save_model(f"{folder}/trees.txt", num_iteration=self.booster.best_iteration)

    def load(self, folder):
        self.booster = lightgbm.Booster(model_file=f"{folder}/trees.txt")
