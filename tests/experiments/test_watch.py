"""The live report next to a real training: its epochs appear, and a kill is shown as one."""

import re
import signal

from forks import Script
from waiting import until_epoch

from sp500.report.live import LivePage
from sp500.runs.store import RunStore

LONG = ("--train.epochs", 200, "--train.early-stop-patience", 0, "--model.hidden", 128)


def test_training_is_shown_as_running_and_after_a_kill_as_killed(command, tmp_path):
    process = Script(command("train", "--runs-dir", tmp_path, "--name", "going", *LONG)[1:])
    page = LivePage(RunStore(tmp_path), None)
    try:
        counts = []
        for epoch in (2, 4):
            until_epoch(process, tmp_path / "going", epoch)
            html = page()
            done = r"<p>epoch (\d+)/200, best validation loss [\d.]+, the last [\d.]+ s ago, [\d.]+ \w+ left\.</p>"
            counts += map(int, re.findall(done, html))
            assert '<p class="number running">running</p>' in html
            assert 'aria-label="Validation loss of each epoch of going so far."' in html
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(60)
    assert 2 <= counts[0] < counts[1]
    html = page()
    assert '<p class="number killed">killed</p>' in html
    assert " left.</p>" not in html
