"""Each chaos program has a fault that it has to find; `scripts/chaos --sabotage` shows that it does."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import sabotage


@pytest.mark.parametrize("program", ["managers", "searches", "training", "steps", "archive", "serving"])
def test_fault_can_be_put_into_a_copy(program, tmp_path):
    sabotage.copy_with_fault(program, tmp_path)
    changed = [
        line[6:] for line in (sabotage.PATCHES / f"{program}.patch").read_text().splitlines() if line[:4] == "+++ "
    ]
    assert changed
    for name in changed:
        assert (tmp_path / name).read_text() != (sabotage.ROOT / name).read_text()
