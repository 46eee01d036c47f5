"""The table of jobs, and progress lines: what programs and clusters write is shown as it is, and commands nothing."""

import io

import pytest
from queue_fakes import new_job
from rich.console import Console

from sp500.commands.jobs import list as listing
from sp500.console.progress import Progress
from sp500.jobs.queue.ledger import Ledger


@pytest.fixture
def listed(tmp_path):
    """Lists one job with a reason."""
    ledger = Ledger(tmp_path / "queue.db")
    ledger.create()
    with ledger.writing() as entry:
        entry.add([new_job("a")], 1.0)

    def table(reason):
        with ledger.writing() as entry:
            entry.change(entry.jobs()[0], 2.0, state="RUNNING", reason=reason)
        return listing.table(ledger.jobs(), {}, 200)

    return table


@pytest.mark.parametrize("reason", ["[/opt/x] cannot be started", "unmounted volumes=[runs data], unattached", "[red]"])
def test_reason_with_brackets_is_listed_as_it_is(listed, reason):
    assert reason in listed(reason)


def test_reason_commands_no_terminal(listed):
    shown = listed("before\x1b]0;title\x07after\nmore")
    assert "before ]0;title after more" in shown
    assert shown.replace("\n", "").isprintable()


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_shows_names_with_brackets_as_they_are(terminal):
    out = io.StringIO()
    with Progress("trial", 2, Console(file=out, force_terminal=terminal, width=200)) as progress:
        progress.advance("[/b] loss 1\x1b]0;title\x07")
    assert "[/b] loss 1]0;title" in out.getvalue()
    assert "\x1b]0" not in out.getvalue()
