import os
import stat
from pathlib import Path

import psutil
import pytest

from sp500.doctor import machine
from sp500.doctor.machine import Memory, Space
from sp500.machine.cores import cpu_limit

MIB, GIB = 2**20, 2**30


@pytest.mark.parametrize(
    ("limit", "state", "told"),
    [(None, "ok", "8"), (8.0, "ok", "8"), (1.5, "ok", "8, limited to 1.5 CPUs"), (0.5, "wrong", "Ray counts 0")],
)
def test_cores_are_wrong_where_ray_would_count_none(limit, state, told):
    check = machine.cores(8, limit)
    assert (check.state, told in check.found) == (state, True)


def test_memory_is_wrong_where_less_than_a_gibibyte_is_free():
    assert machine.memory(Memory(8 * GIB, GIB)).state == "ok"
    check = machine.memory(Memory(2 * GIB, GIB - 1, limit=2 * GIB))
    assert (check.state, "limit" in check.advice) == ("wrong", True)


def test_store_is_what_the_installed_ray_plans(monkeypatch):
    utils = pytest.importorskip("ray._private.utils")
    for shared in (64 * MIB, 4 * GIB, 20 * GIB, 300 * GIB):
        monkeypatch.setattr(utils, "get_shared_memory_bytes", lambda shared=shared: shared)
        for free in (GIB, 30 * GIB, 100 * GIB, 900 * GIB):
            assert machine.store_bytes(shared, free) == utils.resolve_object_store_memory(free)


def test_shared_memory_too_small_for_the_store_names_the_size_to_give():
    check = machine.shared_memory(64 * MIB, 10 * GIB)
    assert check.state == "wrong"
    assert ("64 MiB free" in check.found, "3 GiB (30%" in check.found) == (True, True)
    assert "--shm-size=3380m" in check.advice  # 3 GiB and a tenth, rounded up
    assert machine.shared_memory(3380 * MIB, 10 * GIB).state == "ok"
    assert machine.shared_memory(None, GIB).state == "skipped"  # on a system without it


@pytest.mark.parametrize(("free", "state"), [(6, "ok"), (5, "wrong"), (0, "wrong")])
def test_temporary_folder_is_wrong_from_95_percent_on(free, state):
    check = machine.spill(Path("/tmp"), Space(100 * 100 * GIB, free * 100 * GIB), "")
    assert check.state == state


@pytest.mark.parametrize(
    ("free", "refused", "state", "told"),
    [
        (GIB, "", "ok", "1 GiB free of 100 GiB"),
        (GIB - 1, "", "wrong", "a full disk"),
        (50 * GIB, "Read-only file system", "wrong", "(Read-only file system)"),
    ],
)
def test_folder_is_wrong_where_it_is_full_or_cannot_be_written_to(free, refused, state, told):
    check = machine.folder("runs folder", Path("/runs"), Space(100 * GIB, free), refused, "--runs-dir")
    assert (check.state, told in check.found, "/runs" in check.found) == (state, True, True)
    assert state == "ok" or "--runs-dir" in check.advice


def test_space_is_that_of_the_nearest_folder_that_exists(tmp_path):
    found = os.statvfs(tmp_path)
    space = machine.space(tmp_path / "not" / "there")
    assert space.total == found.f_blocks * found.f_frsize
    assert space.free == pytest.approx(found.f_bavail * found.f_frsize, rel=0.05)


def test_refusal_is_empty_for_a_folder_that_can_be_written_to_and_leaves_nothing_there(tmp_path):
    assert machine.refusal(tmp_path / "new" / "folder") == ""
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "runs").write_text("")
    assert machine.refusal(tmp_path / "runs") == "Not a directory"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_refusal_names_a_folder_of_somebody_else(tmp_path):
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    assert machine.refusal(tmp_path) == "Permission denied"


def test_full_disk_is_seen(make_disk):
    full = make_disk("size=64k")
    (full / "filler").write_bytes(bytes(64 * 1024))
    space, refused = machine.space(full), machine.refusal(full)
    assert (space.free, space.used_share) == (0, 1.0)
    assert machine.spill(full, space, "").state == "wrong"
    check = machine.folder("runs folder", full, space, refused, "--runs-dir")
    assert (check.state, "No space left on device" in check.found) == ("wrong", True)


def cgroup(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({}, None),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "50000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 0.5),
    ],
)
def test_cpu_limit_is_that_of_the_control_group(tmp_path, files, limit):
    assert cpu_limit(cgroup(tmp_path, files)) == limit


@pytest.mark.parametrize(
    ("prefix", "limit", "use"), [("", "max", "current"), ("memory/", "limit_in_bytes", "usage_in_bytes")]
)
def test_memory_of_a_container_is_its_limit_less_what_cannot_be_given_back(tmp_path, prefix, limit, use):
    total = "total_" if prefix else ""
    counts = f"inactive_file 7\n{total}inactive_file 4194304\n{total}active_file 4194304\n"
    files = {f"memory.{limit}": "67108864\n", f"memory.{use}": "41943040\n", "memory.stat": counts}
    found = machine.memory_here(cgroup(tmp_path, {f"{prefix}{name}": text for name, text in files.items()}))
    assert found == Memory(64 * MIB, 32 * MIB, 64 * MIB)


@pytest.mark.parametrize(
    "files", [{}, {"memory.max": "max\n"}, {"memory/memory.limit_in_bytes": "9223372036854771712\n"}]
)
def test_memory_without_a_limit_is_the_machines(tmp_path, files):
    found = machine.memory_here(cgroup(tmp_path, files))
    assert (found.total, found.limit) == (psutil.virtual_memory().total, None)


@pytest.mark.parametrize(
    ("environment", "folder"),
    [({}, "/tmp"), ({"TMPDIR": "/a"}, "/a"), ({"TMPDIR": "/a", "RAY_TMPDIR": "/b"}, "/b")],
)
def test_temporary_folder_is_rays(environment, folder):
    assert machine.temporary_folder(environment) == Path(folder)
