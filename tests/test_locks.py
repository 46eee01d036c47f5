"""File systems without locks: runs and the queue say so, and write nothing that another process may write too."""

import errno
import fcntl
import os

import pytest

from sp500 import cli
from sp500.errors import ConfigError
from sp500.runs.store import RunStore


@pytest.fixture(params=[errno.ENOLCK, errno.EOPNOTSUPP])
def no_locks(request, monkeypatch):
    def flock(descriptor: int, operation: int) -> None:
        raise OSError(request.param, os.strerror(request.param))

    monkeypatch.setattr(fcntl, "flock", flock)


def test_run_where_no_lock_can_be_taken_is_refused_with_its_path(no_locks, tmp_path):
    with pytest.raises(ConfigError, match=r"a/\.lock: its file system has no file locks"), RunStore(tmp_path).open("a"):
        pass
    assert not RunStore(tmp_path).run("a").is_open()


@pytest.mark.parametrize("verb", [["submit", "--", "true"], ["manage", "--idle-seconds", "0"]])
def test_queue_where_no_lock_can_be_taken_is_refused_with_its_path_and_nothing_is_queued(
    no_locks, tmp_path, capfd, verb
):
    name, *words = verb
    assert cli.main(["jobs", name, "--state-dir", str(tmp_path / "state"), *words]) == 2
    assert "state/manager.lock: its file system has no file locks" in capfd.readouterr().err
    assert cli.main(["jobs", "list", "--state-dir", str(tmp_path / "state"), "--json"]) == 0
    assert '"id"' not in capfd.readouterr().out
