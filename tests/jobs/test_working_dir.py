"""A working directory that is too large is refused before anything is packed."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from ray._private import ray_constants
from ray._private.runtime_env import packaging

from sp500.errors import ConfigError
from sp500.jobs import working_dir
from sp500.jobs.ray import executor

MIB = 2**20
SECRETS = [".env", "sub/.env.local", "tls/server.pem", "a.key", ".kube/config", "kubeconfig-prod", "deep/.ssh/id_rsa"]
ROOT = Path(__file__).parents[2]


def of_size(path: Path, size: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.truncate(size)


def test_101_mib_are_refused_with_the_largest_files_named(tmp_path):
    of_size(tmp_path / "data" / "prices.parquet", 80 * MIB)
    of_size(tmp_path / "notes.bin", 21 * MIB)
    for number in range(9):
        of_size(tmp_path / f"small{number}.py", 10)
    with pytest.raises(ConfigError) as error:
        working_dir.check(tmp_path)
    said = str(error.value)
    assert "101.0 MiB" in said
    assert said.index("80.0 MiB  data/prices.parquet") < said.index("21.0 MiB  notes.bin")
    assert said.count("small") == 3


def test_ray_job_submit_refuses_it_before_it_packs_or_asks_a_cluster(tmp_path):
    of_size(tmp_path / "big.bin", 101 * MIB)
    hook = {"RAY_JOB_SUBMIT_HOOK": "sp500.jobs.working_dir.submit_hook"}
    command = [Path(sys.executable).with_name("ray"), "job", "submit", "--address", "http://127.0.0.1:9"]
    command += ["--working-dir", tmp_path, "--", "true"]
    done = subprocess.run(command, env=os.environ | hook, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "101.0 MiB" in done.stderr
    assert "big.bin" in done.stderr


def test_what_the_ignore_files_and_ray_leave_out_does_not_count(tmp_path):
    (tmp_path / ".rayignore").write_text("# a comment\n*.parquet\n/runs/\n!keep.parquet\n")
    (tmp_path / ".gitignore").write_text("build/\n")
    kept = ["experiments/tune.py", "keep.parquet", "deep/runs/a"]
    for name in ["a.parquet", "runs/x", "build/y", ".git/z", ".venv/lib/q", "deep/__pycache__/c", *kept]:
        of_size(tmp_path / name, MIB)
    assert set(working_dir.files(tmp_path)) == {*kept, ".rayignore", ".gitignore"}
    assert working_dir.check(tmp_path) == pytest.approx(3 * MIB, abs=100)


def test_files_are_those_that_ray_packs(tmp_path):
    for name in ["a.py", "pkg/b.py", "runs/c", "pkg/.venv/d", "logs/e.log", "pkg/f.log", *SECRETS]:
        of_size(tmp_path / name, 5)
    for name in ["own/a.py", "own/kept.py", "own/deep/a.py", "none/x.py", "again/x.csv", "outside/b.csv"]:
        of_size(tmp_path / name, 5)
    (tmp_path / ".rayignore").write_text("/runs/\nlogs/\n!.env\n!kept.log\n/again/\n!/again/x.csv\n/outside\n")
    (tmp_path / ".gitignore").write_text("*.log\n")
    of_size(tmp_path / "kept.log", 5)
    (tmp_path / "own" / ".gitignore").write_text("/a.py\n")
    (tmp_path / "none" / ".gitignore").write_text("*\n")
    (tmp_path / "linked").symlink_to(tmp_path / "outside")
    (tmp_path / "linked.csv").symlink_to(tmp_path / "outside" / "b.csv")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    package = tmp_path.with_suffix(".zip")
    excludes = [*working_dir.ALWAYS_LEFT_OUT, *working_dir.CREDENTIALS]
    packaging.create_package(str(tmp_path), package, True, excludes=excludes)
    with zipfile.ZipFile(package) as packed:
        names = {info.filename for info in packed.infolist() if not info.is_dir()}
        assert all(info.compress_type == zipfile.ZIP_STORED for info in packed.infolist())
    assert {name.removeprefix(f"{tmp_path.name}/") for name in names} == set(working_dir.files(tmp_path))


def test_large_file_behind_a_linked_folder_is_named_and_a_link_without_end_is_refused(tmp_path):
    of_size(tmp_path / "data" / "x.bin", 2 * 2**30)
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "here").symlink_to(tmp_path / "data")
    with pytest.raises(ConfigError, match=r"2048\.0 MiB  here/x\.bin"):
        working_dir.check(folder)
    (folder / "here").unlink()
    (folder / "deep").mkdir()
    (folder / "deep" / "up").symlink_to(folder)
    with pytest.raises(ConfigError, match="deep/up: this link leads to a folder that it is in"):
        working_dir.check(folder)
    (folder / ".rayignore").write_text("/deep/up\n")
    assert working_dir.check(folder) < 100


def test_credentials_in_any_folder_are_left_out_by_the_hook_and_by_our_own_client(tmp_path, monkeypatch, make):
    monkeypatch.setenv(working_dir.EXCLUDES_VARIABLE, "")  # restored afterwards: the hook sets it
    working_dir.submit_hook(working_dir=str(tmp_path))
    own = executor.request(make(), cwd=tmp_path)["runtime_env"]["excludes"]
    for excludes in (ray_constants.get_runtime_env_default_excludes(), own):
        for name in ("a.py", *SECRETS):
            of_size(tmp_path / name, 5)
        package = tmp_path.with_suffix(".zip")
        packaging.create_package(str(tmp_path), package, True, excludes=excludes)
        with zipfile.ZipFile(package) as packed:
            assert [info.filename for info in packed.infolist() if not info.is_dir()] == ["a.py"]
        package.unlink()


def test_ignore_file_of_this_repository_names_all_credentials():
    assert set(working_dir.CREDENTIALS) <= set((ROOT / ".rayignore").read_text().splitlines())


def test_this_repository_is_small_and_leaves_out_what_jobs_do_not_need():
    found = working_dir.files(ROOT)
    assert {"experiments/tune.py", "sp500/errors.py"} <= set(found)
    assert not [name for name in found if name.startswith(("tests/", "runs/", ".git/", ".venv/"))]
    assert sum(found.values()) < 5 * MIB


@pytest.mark.parametrize("name", [".gitignore", ".rayignore", "inner/.gitignore"])
def test_ignore_file_that_is_not_utf_8_is_refused_by_name_as_ray_would_fail_on_it(tmp_path, name):
    (tmp_path / "inner").mkdir()
    (tmp_path / name).write_bytes("größe.csv\n".encode("latin-1"))
    with pytest.raises(UnicodeDecodeError):
        packaging.get_excludes_from_ignore_files((tmp_path / name).parent, include_gitignore=True)
    with pytest.raises(ConfigError, match=rf"{tmp_path / name}.*byte 2 is not UTF-8"):
        working_dir.check(tmp_path)
