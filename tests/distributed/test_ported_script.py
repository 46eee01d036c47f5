"""docs/from-a-script.md: a script of PyTorch and what it becomes, which loses nothing and runs on workers."""

from __future__ import annotations

import difflib
import math
import re
import runpy
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file
from test_training import train_workers

import sp500
from sp500.data.batches import order_of
from sp500.runs.record import RunRecord
from sp500.runs.store import RunStore
from sp500.seeding import derive
from sp500.tasks.cuts import SAME

DOCS = Path(__file__).parents[2] / "docs"
SCRIPT, PORT = DOCS / "examples/digits_script.py", DOCS / "examples/digits_task.py"
COMMAND = re.findall(r"```sh\n(.*?)```", (DOCS / "from-a-script.md").read_text(), re.DOTALL)[0]
FLAGS = re.findall(r"--train\.(\S+) (\S+)", COMMAND)
NOISE = """
    def transform(self, x, y, rng):
        return x + torch.from_numpy(rng.normal(0, 0.05, tuple(x.shape))), y
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def loop() -> dict[str, Any]:
    """The settings of the page's command."""
    settings: dict[str, Any] = {"optimizer_options": {}}
    for flag, value in FLAGS:
        group, _, name = flag.replace("-", "_").rpartition(".")
        (settings[group] if group else settings)[name] = yaml.safe_load(value)
    return settings


def ported(name: str, text: str, *, workers: int = 0, loaders: int = 0, **changed: Any) -> RunRecord:
    Path("digits_task.py").write_text(text)
    return sp500.train(
        name=name,
        task="digits_task.py:Task",
        model={"kind": "digits_task.py:Net"},
        train={**loop(), **changed, "dtype": "float64"},
        data={"loaders": loaders},
        num_workers=workers,
    )


def losses(name: str) -> list[tuple[float, float | None]]:
    return [(epoch.train_loss, epoch.valid_loss) for epoch in RunStore(Path("runs")).epochs(name)]


def test_at_most_twenty_lines_of_the_port_are_not_the_scripts_and_the_page_shows_them():
    script, port = (path.read_text().splitlines(keepends=True) for path in (SCRIPT, PORT))
    changes = "".join(difflib.unified_diff(script, port, SCRIPT.name, PORT.name, n=1))
    assert f"```diff\n{changes}```\n" in (DOCS / "from-a-script.md").read_text()
    assert sum(line.startswith("+") and line.strip() != "+" for line in changes.splitlines()[2:]) <= 20


def test_port_without_chance_has_the_losses_of_the_script(capsys):
    plain = PORT.read_text().replace("MOVED = 0.2, True", "MOVED = 0.2, False").replace("def mix", "def unused")
    ported("port", plain, epochs=3)
    found = losses("port")
    torch.manual_seed(derive(0, "weights"))
    made = runpy.run_path("digits_task.py")["Net"](None, None)
    script = runpy.run_path(str(SCRIPT))

    class Net(script["Net"]):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.load_state_dict(made.state_dict())

    class Loader:
        def __init__(self, data: Any, size: int, *, shuffle: bool) -> None:
            self.data, self.size, self.epoch = data, size, 0

        def __len__(self) -> int:
            return math.ceil(len(self.data) / self.size)

        def __iter__(self) -> Iterator[Any]:
            self.epoch += 1
            for numbers in order_of(len(self.data), self.epoch, shuffle=True, seed=0).split(self.size):
                yield torch.utils.data.default_collate([self.data[number] for number in numbers.tolist()])

    capsys.readouterr()
    main = script["main"]
    main.__globals__.update(EPOCHS=3, MIXUP=0, MOVED=False, Net=Net, DataLoader=Loader)
    torch.set_default_dtype(torch.float64)
    try:
        main()
    finally:
        torch.set_default_dtype(torch.float32)
    printed = np.array([[float(word) for word in line.split()] for line in capsys.readouterr().out.splitlines()])
    np.testing.assert_allclose(found, printed[:, 1:3], rtol=0, atol=1e-9)
    measured = [list(epoch.measures.values()) for epoch in RunStore(Path("runs")).epochs("port")]
    np.testing.assert_allclose(measured, printed[:, 3:], rtol=0, atol=1e-12)


def kill_in_second_epoch(checkpoints: Path, before: set[int], killed: list[int], ended: threading.Event) -> None:
    """End a worker that was not there `before` once a checkpoint inside the second epoch is there."""
    while not ended.wait(0.01) and not killed:
        if any(checkpoints.glob("epoch-00001-*")):
            for process in train_workers():
                if process.pid not in before and not killed:
                    process.kill()
                    killed.append(process.pid)


def weights(name: str) -> dict[str, torch.Tensor]:
    return load_file(Path("runs", name, "checkpoints", "last", "model.safetensors"))


def test_workers_that_read_change_and_mix_train_as_one_process_and_after_a_kill_to_the_same_bits(ray_cluster):
    grouped = PORT.read_text().replace("nn.BatchNorm2d(", "nn.GroupNorm(4, ") + NOISE
    short = {"epochs": 2, "checkpoint_steps": 4}
    ported("alone", grouped, **short)
    assert ported("two", grouped, workers=2, loaders=2, **short).data["notes"] == [SAME]
    np.testing.assert_allclose(losses("two"), losses("alone"), rtol=0, atol=1e-9)
    for name, value in weights("alone").items():
        np.testing.assert_allclose(weights("two")[name], value, rtol=0, atol=1e-9)

    killed: list[int] = []
    ended, before = threading.Event(), {process.pid for process in train_workers()}
    killer = threading.Thread(
        target=kill_in_second_epoch, args=(Path("runs/killed/checkpoints"), before, killed, ended)
    )
    killer.start()
    try:
        ported("killed", grouped, workers=2, loaders=2, **short)
    finally:
        ended.set()
        killer.join()
    assert killed
    assert losses("killed") == losses("two")
    assert all(torch.equal(value, weights("killed")[name]) for name, value in weights("two").items())
