import os
import subprocess
import sys
from importlib import metadata

import pytest

from sp500.doctor import versions
from sp500.doctor.versions import Gpus, Package

# As nvidia-smi prints it, cut to what is read.
LISTED = "GPU 0: NVIDIA H200 (UUID: GPU-1)\nGPU 1: NVIDIA H200 (UUID: GPU-2)\n"
WHOLE = "| NVIDIA-SMI 570.86.15    Driver Version: 570.86.15    CUDA Version: 12.8     |\n"


def world(**changed):
    """Packages that fit together, but for those given; None is missing."""
    packages = {
        "sp500": Package("0.1.0", ("torch<2.14,>=2.9", "ray[data]<2.61,>=2.60", "numpy>=2.2", 'ruff; extra == "dev"')),
        "torch": Package("2.13.0+cpu", ("sympy>=1.13",)),
        "ray": Package("2.60.0", ("click", 'pyarrow>=9; extra == "data"', 'gymnasium; extra == "rllib"')),
        "numpy": Package("2.4.0"),
        "sympy": Package("1.14.0"),
        "click": Package("8.3.0"),
        "pyarrow": Package("26.0.0"),
    } | changed
    return packages.get


def checks(**changed):
    return {check.name: check for check in versions.packages(world(**changed))}


def test_packages_that_fit_are_counted_with_those_of_an_extra_asked_for():
    found = checks()
    assert [check.state for check in found.values()] == ["ok"] * 3
    assert (found["torch"].found, found["ray"].found) == ("2.13.0+cpu", "2.60.0")
    assert found["requirements"].found == "6 packages fit together"


@pytest.mark.parametrize(
    ("changed", "name", "told"),
    [
        ({"ray": Package("2.40.0")}, "ray", "ray 2.40.0 (sp500 wants <2.61,>=2.60)"),
        ({"torch": None}, "torch", "torch is missing (sp500 wants <2.14,>=2.9)"),
        ({"numpy": Package("1.26.4")}, "requirements", "numpy 1.26.4 (sp500 wants >=2.2)"),
        ({"pyarrow": None}, "requirements", "pyarrow is missing (ray wants >=9)"),
        ({"click": None}, "requirements", "click is missing (ray wants it)"),
        ({"sp500": None}, "requirements", "sp500 is not installed"),
    ],
)
def test_package_that_does_not_fit_is_named_once_with_who_wants_what(changed, name, told):
    wrong = [check for check in checks(**changed).values() if check.state == "wrong"]
    assert [check.name for check in wrong] == [name]
    assert told in wrong[0].found
    assert "scripts/install" in wrong[0].advice


def test_many_misfits_are_counted():
    many = tuple(f"gone-{number}" for number in range(5))
    assert "and 2 more" in checks(numpy=Package("2.4.0", many))["requirements"].found


def test_requirements_that_go_round_come_to_an_end():
    assert checks(click=Package("8.3.0", ("ray",)))["requirements"].state == "ok"


def test_installed_packages_agree_with_pip():
    done = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True, check=False)
    ours = {check.name: check.state for check in versions.packages(versions.find_package)}
    if done.returncode == 0:
        assert set(ours.values()) == {"ok"}
    else:
        pytest.skip(f"pip finds faults that may not be ours: {done.stdout[:200]}")


def test_installed_version_is_the_one_that_the_package_says():
    found = versions.find_package("ray")
    assert found is not None
    assert found.version == metadata.version("ray")
    assert versions.find_package("no-such-package") is None


@pytest.mark.parametrize(("found", "state"), [("3.11.7", "ok"), ("3.10.14", "wrong"), ("3.12.0", "wrong")])
def test_python_is_held_to_the_versions_that_we_run_on(found, state):
    assert versions.python(found, Package("0.1.0", (), ">=3.11,<3.12")).state == state


@pytest.mark.parametrize(
    ("build", "driver", "state", "told"),
    [
        (None, None, "ok", "no GPU here; torch is built for CPUs alone"),
        ("13.0", None, "ok", "no GPU here; torch is built for CUDA 13.0"),
        ("12.8", Gpus((), "12.8"), "ok", "no GPU here"),
        ("12.8", Gpus(("H200", "H200"), "12.4"), "ok", "2 x H200, driver for CUDA 12.4"),
        ("12.8", Gpus(("H200",), "13.0"), "ok", "1 x H200"),
        ("13.0", Gpus(("H200",), "12.8"), "wrong", "driver for CUDA 12.8; torch is built for CUDA 13.0"),
        (None, Gpus(("H200",), "12.8"), "wrong", "torch is built for CPUs alone"),
        ("12.8", "couldn't communicate with the NVIDIA driver", "wrong", "couldn't communicate"),
    ],
)
def test_cuda_is_wrong_where_torch_is_of_a_later_major_version_than_the_driver(build, driver, state, told):
    check = versions.cuda(build, driver)
    assert (check.state, told in check.found) == (state, True)
    assert bool(check.advice) is (state == "wrong")


@pytest.mark.parametrize("whole", [WHOLE, WHOLE.replace("CUDA Version", "CUDA UMD Version")])
def test_driver_is_read_from_what_nvidia_smi_prints(whole):
    assert versions.parse_nvidia_smi(LISTED, whole) == Gpus(("NVIDIA H200", "NVIDIA H200"), "12.8")


@pytest.fixture
def nvidia_smi(tmp_path, monkeypatch):
    """Puts an nvidia-smi on PATH that prints what it is given and ends with an exit code."""

    def put(text, code=0):
        file = tmp_path / "nvidia-smi"
        file.write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\nexit {code}\n")
        file.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    return put


def test_driver_that_works_is_asked(nvidia_smi):
    nvidia_smi(LISTED + WHOLE)
    assert versions.gpus() == Gpus(("NVIDIA H200", "NVIDIA H200"), "12.8")


def test_driver_that_fails_is_quoted(nvidia_smi):
    nvidia_smi("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", code=9)
    assert "couldn't communicate" in str(versions.gpus())


def test_machine_without_nvidia_smi_has_no_gpus(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert versions.gpus() is None


def test_cuda_of_torch_is_what_torch_says_itself():
    torch = pytest.importorskip("torch")
    assert versions.torch_cuda() == torch.version.cuda


@pytest.mark.parametrize("finder", ["importlib.metadata", "importlib_metadata"])
def test_fields_and_files_that_are_missing_are_read_alike_by_both_finders(finder, tmp_path):
    for name, text in {"plain": "Name: plain\nVersion: 1.5\n", "unnamed": "Name: unnamed\n", "half": None}.items():
        (tmp_path / f"{name}-1.5.dist-info").mkdir()
        if text:
            (tmp_path / f"{name}-1.5.dist-info" / "METADATA").write_text(text)
    program = (
        f"import sys, {finder}; from sp500.doctor.versions import find_package; print(*map(find_package, sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "plain", "unnamed", "half"],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": tmp_path},
    )
    assert done.stdout.strip() == f"{Package('1.5')} None None"
