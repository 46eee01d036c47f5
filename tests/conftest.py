"""What all tests share: shapes and types are checked in every call, and the bundled prices are loaded once."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pandas as pd
import pytest
from jaxtyping import install_import_hook
from threadpoolctl import threadpool_limits
from xdist.scheduler import LoadFileScheduling

# Threads of torch that wait for each other do not spin, which takes nine tenths of small models' time on busy cores.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# Those of OpenBLAS always spin: NumPy's of this process, which is loaded, and those of SciPy and of further processes.
threadpool_limits(1, user_api="blas")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

assert not [name for name in sys.modules if name.startswith("sp500.")], "imported before its types could be checked"
# The tower: an int is a float, as in PEP 484.
install_import_hook("sp500", "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))")

from sp500.config import DataConfig  # noqa: E402
from sp500.data.prices import Prices  # noqa: E402
from sp500.data.sources import load  # noqa: E402
from sp500.data.windows import Dataset, Windows  # noqa: E402

hypothesis.settings.register_profile("quick", max_examples=25, deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("quick")

MakePrices = Callable[..., Prices]
MakeDataset = Callable[..., Dataset]


def pytest_configure(config: pytest.Config) -> None:
    """exchange_calendars 4.13 uses what pandas 3.1 deprecates; nobody here can change that."""
    config.addinivalue_line("filterwarnings", "ignore:Series.values returning an ndarray:DeprecationWarning")


SLOW = (
    *("agent/test_arguments.py", "benchmarks", "cluster", "commands", "distributed", "doctor", "experiments"),
    *(
        "image",
        "jobs/kuberay",
        "jobs/local",
        "jobs/local_cluster",
        "jobs/queue",
        "jobs/ray",
        "models/test_hf.py",
        "old_runs",
        "plugins/test_admission.py",
        "plugins/test_source.py",
        "plugins/test_your_own.py",
        "report/test_seeds.py",
        "runs/test_archive.py",
        "runs/test_arm_timing.py",
        "scripts",
        "serving",
        "studies",
        "tracking",
    ),
    *("test_architecture.py", "test_credentials.py", "test_docs.py", "test_extras.py", "test_hub.py"),
    "training/test_changed_data.py",
)
"""Tests that start Ray, servers, a browser or whole programs."""
SLOW_PATHS = tuple(str(Path(__file__).parent / name) for name in SLOW)


def _share_a_cluster() -> Iterator[str]:
    """Files with a test that has the fixture `ray_cluster` of this file."""
    tests = Path(__file__).parent
    for path in sorted(tests.rglob("test_*.py")):
        text = path.read_text()
        if re.search(r"\bray_cluster(: None)?[,)]", text) and "def ray_cluster" not in text:
            yield str(path.relative_to(tests))


ON_ONE_CLUSTER = tuple(_share_a_cluster())
"""All in one process, so that Ray starts once for them."""

FIRST = (
    # These keep both cores busy, so what mostly waits (for servers, clocks and managers) runs beside them.
    *("experiments/test_runs.py", *ON_ONE_CLUSTER, "tracking", "jobs/local_cluster", "jobs/kuberay"),
    *("distributed/test_simulated_nodes.py", "scripts", "jobs/ray", "jobs/queue", "distributed", "test_hub.py"),
    *("jobs", "serving", "experiments", "benchmarks"),
)
"""What begins first: the longest, and what waits while another computes."""


MAY_BE_SKIPPED = (
    "root may write everywhere",
    "needs a machine without a GPU",
    "this machine itself is not well",
    "pip finds faults that may not be ours",
    "timm cannot be imported",  # PyPI has no torchvision of a torch for CPUs
)
"""Reasons that are no fault of the machine that runs all tests."""


def pytest_sessionfinish(session: pytest.Session) -> None:
    """With SP500_NO_SKIPS set, as continuous integration has it, a test skipped for another reason is a failure."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or not os.environ.get("SP500_NO_SKIPS"):
        return
    reasons = {str(report.longrepr[2]) for report in reporter.stats.get("skipped", ())}
    if wrong := sorted(reason for reason in reasons if not any(known in reason for known in MAY_BE_SKIPPED)):
        reporter.write_line("\nskipped, though SP500_NO_SKIPS is set: " + "; ".join(wrong), red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def is_slow(path: Path) -> bool:
    """Whether a file's tests are among those that `scripts/test --fast` leaves out."""
    return str(path).startswith(SLOW_PATHS)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Spare `scripts/test --fast` what the files that it leaves out import."""
    return True if config.option.markexpr == "not slow" and is_slow(collection_path) else None


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    """A file's tests stay in one process, and so do those of the files that share a Ray cluster."""
    return OneCluster(config, log) if config.getvalue("dist") == "loadfile" else None


class OneCluster(LoadFileScheduling):
    """Distributes files, of which some are one."""

    def _split_scope(self, nodeid: str) -> str:
        scope = super()._split_scope(nodeid)
        return "one cluster" if scope.removeprefix("tests/") in ON_ONE_CLUSTER else scope


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what `scripts/test --fast` leaves out, and begin with `FIRST`."""
    tests = Path(__file__).parent
    for item in items:
        if is_slow(item.path) or "ray_cluster" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)
    first = [str(tests / name) for name in FIRST]

    def order(item: pytest.Item) -> tuple[int, bool]:
        at = next((at for at, name in enumerate(first) if str(item.path).startswith(name)), len(first))
        return at, item.get_closest_marker("slow") is None

    items.sort(key=order)


@pytest.fixture
def make_disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mounts a disk of its own with options of tmpfs, such as size=1m. Skips where this process may not mount."""
    disk = tmp_path / "disk"

    def make(options: str) -> Path:
        disk.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(disk)]
        mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
        if mounted.returncode:
            pytest.skip(f"mounting takes root: {mounted.stderr.strip()}")
        return disk

    yield make
    if disk.is_mount():
        subprocess.run(["umount", "--lazy", disk], check=True)


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    """One Ray cluster of this machine for all tests of a process; stopped when the last test is done."""
    from sp500.distributed import session

    with session.connect():
        yield


@pytest.fixture(scope="session")
def bundled() -> Prices:
    """The S&P 500 index, 1990 to 2022."""
    return load(DataConfig())


@pytest.fixture(scope="session")
def bundled_stocks() -> Prices:
    """The 20 bundled stocks from 1996."""
    return load(DataConfig(tickers=("stocks",)))


@pytest.fixture
def clean(bundled_stocks: Prices) -> pd.DataFrame:
    """Two stocks over two quiet years, to be damaged: closing prices [date, ticker]."""
    return bundled_stocks.close.loc["2017-06-01":"2019-06-28", ["AAPL", "KO"]].copy()


@pytest.fixture
def ohlcv(clean: pd.DataFrame) -> pd.DataFrame:
    """Rows date, ticker, open, high, low, close, volume of one stock: real closes, the rest made up around them."""
    close = clean["KO"].to_numpy()
    opening = np.r_[close[0], close[:-1]]
    return pd.DataFrame(
        {
            "date": clean.index,
            "ticker": "KO",
            "open": opening,
            "high": np.maximum(opening, close) * 1.01,
            "low": np.minimum(opening, close) * 0.99,
            "close": close,
            "volume": 1e6 + 1e5 * np.random.default_rng(0).random(len(close)),
        }
    )


@pytest.fixture
def csv(tmp_path: Path) -> Callable[..., str]:
    """Writes a wide table (dates in the index) or long rows to a CSV file and returns its path."""

    def write(table: pd.DataFrame, name: str = "prices.csv", **options: object) -> str:
        rows = table.reset_index(names="date") if isinstance(table.index, pd.DatetimeIndex) else table
        rows.to_csv(tmp_path / name, index=False, **options)
        return str(tmp_path / name)

    return write


@pytest.fixture(scope="session")
def linear_dataset() -> MakeDataset:
    """Makes windows whose target is linear in them, plus noise: solvable, and known in closed form."""

    def make(
        *,
        samples: int = 96,
        length: int = 3,
        features: int = 2,
        noise: float = 0.1,
        dtype: str = "float32",
        seed: int = 0,
    ) -> Dataset:
        generator = np.random.default_rng(seed)
        weights = generator.standard_normal(length * features)

        def part(count: int) -> Windows:
            rows = generator.standard_normal((count * length, features))
            x = rows.reshape(count, length * features)
            y = x @ weights + 0.5 + noise * generator.standard_normal(count)
            return Windows(rows.astype(dtype), np.arange(count) * length, y.astype(dtype), length)

        return Dataset(part(samples), part(samples // 3), part(samples // 3))

    return make
