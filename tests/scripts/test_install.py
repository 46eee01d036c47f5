"""Locks: which wheels get a hash, and that pip refuses a file with another one. Which Python an environment has."""

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import locks  # noqa: E402


@pytest.mark.parametrize(
    ("wheel", "suits"),
    [
        ("idna-3.20-py3-none-any.whl", True),
        ("six-1.17.0-py2.py3-none-any.whl", True),
        ("numpy-2.5.0-cp311-cp311-macosx_14_0_arm64.whl", True),
        ("numpy-2.5.0-cp313-cp313-manylinux_2_28_aarch64.whl", True),
        ("numpy-2.5.0-cp313-cp313-macosx_10_13_x86_64.whl", False),
        ("numpy-2.5.0-cp313-cp313t-manylinux_2_28_x86_64.whl", False),
        ("numpy-2.5.0-cp310-cp310-manylinux_2_28_x86_64.whl", False),
        ("psutil-7.1.0-cp36-abi3-manylinux_2_17_x86_64.manylinux2014_x86_64.whl", True),
        ("cryptography-50.0.2-cp314-abi3-manylinux_2_28_x86_64.whl", False),
        ("pynacl-1.7.0-cp38-abi3-win_amd64.whl", False),
        ("built-1.0-1-cp312-cp312-macosx_11_0_universal2.whl", True),
        ("musl-1.0-cp312-cp312-musllinux_1_2_x86_64.whl", False),
    ],
)
def test_wheels_for_our_pythons_and_machines_get_a_hash(wheel, suits):
    assert locks.suits(wheel) is suits


@pytest.mark.parametrize(
    ("marker", "short"),
    [
        ("python_full_version < '4' and (sys_platform == 'linux' or sys_platform == 'darwin')", ""),
        ("platform_machine == 'x86_64' or platform_machine == 'aarch64'", "sys_platform == 'linux'"),
        ("python_version >= '3.12'", "python_version >= '3.12'"),
    ],
)
def test_marker_is_the_shortest_that_says_the_same_here(marker, short):
    assert locks.shorten(marker) == short


def test_no_lock_names_what_is_of_the_build_of_torch():
    locked = [line for path in ROOT.glob("scripts/*.lock") if "torch" not in path.name for line in path.open()]
    assert [line for line in locked if locks.APART.match(line)] == []
    assert all(locks.APART.match(f"{name}==1.0") for name in ("torch", "triton", "nvidia-cublas", "cuda-toolkit"))


NOT_TAKEN = {"wrong": "DO NOT MATCH THE HASHES", "none": "Hashes are required in --require-hashes mode"}


def test_install_takes_a_file_with_the_hash_of_the_lock_and_no_other(tmp_path):
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts/install", tmp_path / "scripts")
    wheel = tmp_path / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny.py", "")
        archive.writestr("tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        archive.writestr("tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("tiny-1.0.dist-info/RECORD", "")
    for extra in ("serve", "llm", "mlflow", "garch", "cmaes"):
        (tmp_path / f"scripts/{extra}.lock").write_text("")
    (tmp_path / "scripts/torch.lock").write_text("not-there==1.0\n")  # so that a right hash gets no further than this
    for given in (*NOT_TAKEN, "right"):  # in this order, for what is installed is not looked at again
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest() if given == "right" else "0" * 64
        line = "tiny==1.0" if given == "none" else f"tiny==1.0 \\\n    --hash=sha256:{digest}"
        (tmp_path / "scripts/requirements.lock").write_text(f"{line}\n")
        done = subprocess.run(
            [tmp_path / "scripts/install"],
            env={**os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path), "PYTHON": sys.executable},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode != 0
        assert NOT_TAKEN.get(given, "not-there==1.0") in done.stderr
        assert ("not-there==1.0" in done.stderr) is (given == "right")
        assert not (tmp_path / ".venv/installed.lock").exists()


@pytest.mark.parametrize("script", ["install", "checkov", "moto", "extras"])
def test_script_installs_wheels_alone_and_by_hash_but_for_torch(script):
    lines = [line.strip() for line in (ROOT / "scripts" / script).read_text().splitlines()]
    installs = [line for line in lines if line.startswith("pip install") and "--requirement" in line]
    assert installs
    assert all("--only-binary :all:" in line for line in installs)
    assert all("--require-hashes" in line for line in installs if "/torch" not in line)


def test_environment_of_another_checkout_is_left_alone(tmp_path):
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts/install", tmp_path / "scripts")
    (tmp_path / "other").mkdir()
    (tmp_path / ".venv").symlink_to(tmp_path / "other")
    done = subprocess.run([tmp_path / "scripts/install"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "is a link" in done.stderr
    assert list((tmp_path / "other").iterdir()) == []


def test_python_that_is_too_old_or_too_new_is_refused_with_places_of_others(tmp_path):
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts/install", tmp_path / "scripts")
    for name in ("requirements", "serve", "llm", "mlflow", "garch", "cmaes", "torch"):
        (tmp_path / f"scripts/{name}.lock").touch()
    python = tmp_path / "python3"
    python.write_text(f'#!/bin/sh\nshift\nexec {sys.executable} -c "import sys; sys.version_info = (3, 99); $1"\n')
    python.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:/usr/bin:/bin", "PYTHON": str(python)}
    done = subprocess.run([tmp_path / "scripts/install"], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, (tmp_path / ".venv").exists()) == (2, False)
    assert f"none of these is one: {python}" in done.stderr
    assert "uv python install" in done.stderr


def test_package_is_found_where_a_folder_of_its_name_is_in_the_current_one(tmp_path):
    (tmp_path / "sp500").mkdir()  # a clone in the home folder, where Jupyter begins
    done = subprocess.run(
        [sys.executable, "-c", "import sp500; print(sp500.__version__)"], cwd=tmp_path, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
