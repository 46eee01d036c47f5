"""What a study returns to Python: the run's record, and what lies in its folder, as tables, figures and a predictor."""

from __future__ import annotations

import html
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sp500.errors import ConfigError
from sp500.formatting import some
from sp500.runs.record import RunRecord
from sp500.runs.store import RunStore

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from sp500.serving.predictor import Predictor

FEW = 20
"""Points of a line below which each has a mark."""


@dataclass(frozen=True, repr=False)
class Result:
    """A run and its folder. It also has what its record has: `metrics`, `search`, `folds`, `seconds`, others."""

    record: RunRecord
    folder: Path
    """The run's folder."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.record, name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *RunRecord.model_fields})

    def __repr__(self) -> str:
        return f"<{self.record.name}: {self.record.experiment}, {self.record.status}, {self.folder}>"

    def __str__(self) -> str:
        from sp500.report import terminal

        return terminal.text(self.record, self.folder.parent)

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        first, *rest = str(self).splitlines()
        style = "font-family: inherit; font-size: small; white-space: pre-wrap"
        return f"<b>{html.escape(first)}</b>" + f'<pre style="{style}">' + html.escape("\n".join(rest)) + "</pre>"

    @property
    def history(self) -> pd.DataFrame:
        """A row per epoch; of a walk-forward run a row per fold, whose improvement is over the best naive forecast."""
        import pandas as pd

        if self.record.folds:
            rows = [
                {
                    **{key: fold.get(key) for key in ("fold", "status", "seconds", "epochs", "best_epoch")},
                    "improvement": fold["improvement"]["value"] if "improvement" in fold else None,
                }
                for fold in self.record.folds
            ]
            return pd.DataFrame(rows).set_index("fold")
        epochs = RunStore(self.folder.parent).epochs(self.record.name)
        return pd.DataFrame([epoch.model_dump() for epoch in epochs]).set_index("epoch") if epochs else pd.DataFrame()

    @property
    def trials(self) -> pd.DataFrame:
        """A row per trial of a search, best first: its settings, and its lowest validation loss."""
        import pandas as pd

        from sp500.runs.trials import Ledger

        rows = [
            {**trial.overrides, "valid_loss": trial.valid_loss, "status": trial.status, "seconds": trial.seconds}
            for trial in Ledger(self.folder).results.values()
        ]
        return pd.DataFrame(rows).sort_values("valid_loss", ignore_index=True) if rows else pd.DataFrame()

    @property
    def predictions(self) -> pd.DataFrame:
        """Forecasts of the test dates. Raises ConfigError for a run without any."""
        import pandas as pd

        path = self.folder / "predictions.parquet"
        if not path.exists():
            raise ConfigError(f"{self.folder} has no predictions.parquet")
        return pd.read_parquet(path)

    def predictor(self) -> Predictor:
        """Return the trained model."""
        from sp500.serving.predictor import Predictor

        return Predictor(self.folder)

    def plot(self) -> Figure:
        """Draw the losses per epoch; of a search the loss of each trial, best first, of a walk-forward run the
        improvement per fold, of a scale run the seconds per size and arm. Raises ConfigError for a run with none.
        """
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator

        table, size, unit = self._curves()
        if table.empty or table.isna().all(axis=None):
            raise ConfigError(
                f"{self.folder}: nothing to plot; the run ({self.record.experiment}, {self.record.status}) has no "
                "epochs, trials, folds or sizes with a result"
            )
        figure = Figure(figsize=(7, 3.5), layout="constrained")
        # One fold or size is a point, which a line without marks would not show.
        table.plot(ax=figure.subplots(), xlabel=size, ylabel=unit, marker="o" if len(table) < FEW else None)
        figure.axes[0].set_title(self.record.name)
        figure.axes[0].xaxis.set_major_locator(MaxNLocator(integer=True))
        return figure

    def _curves(self) -> tuple[pd.DataFrame, str, str]:
        """Return what is drawn: a column per line, and the labels of both axes."""
        import pandas as pd

        if self.record.search:
            return self.trials.reindex(columns=["valid_loss"]), "trial, best first", "loss"
        if self.record.folds:
            return self.history[["improvement"]].astype(float), "fold", "improvement over the naive forecast"
        if self.record.scale:
            rows = [row for row in self.record.scale if row["status"] == "ok"]
            table = pd.DataFrame(rows, columns=["windows", "arm", "num_workers", "seconds"])
            table["arm"] += [f", {some(count, 'worker')}" if count else "" for count in table.pop("num_workers")]
            return table.pivot_table("seconds", "windows", "arm"), "windows", "seconds"
        return self.history.reindex(columns=["train_loss", "valid_loss"]), "epoch", "loss"
