import sys

import pytest

from sp500.doctor import versions
from sp500.doctor.versions import Gpus, Package

# As nvidia-smi prints it, cut to what is read.
LISTED = "GPU 0: NVIDIA H200 (UUID: GPU-1)\nGPU 1: NVIDIA H200 (UUID: GPU-2)\n"
WHOLE = "| NVIDIA-SMI 570.86.15    Driver Version: 570.86.15    CUDA Version: 12.8     |\n"


SHOWN = {"torch": Package("2.13.0+cpu"), "ray": Package("2.60.0")}
# As pip prints them, without the full stop.
RAY = "sp500 0.1.0 has requirement ray[data,default,train,tune]<2.61,>=2.60, but you have ray 2.40.0"
NUMPY = "sp500 0.1.0 has requirement numpy>=2.2, but you have numpy 1.26.4"


def put(folder, name, version, *requires):
    """Puts an installed package into a folder, as far as its metadata go."""
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    lines = [f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {one}" for one in requires)]
    (info / "METADATA").write_text("\n".join(["Metadata-Version: 2.1", *lines, ""]))


@pytest.mark.parametrize(
    ("shown", "faults", "wrong"),
    [
        (SHOWN, [], {}),
        (SHOWN | {"torch": None}, [], {"torch": "is missing"}),
        (SHOWN, [RAY, NUMPY], {"requirements": f"{RAY}; {NUMPY}"}),
        (SHOWN, [NUMPY] * 5, {"requirements": f"{NUMPY}; {NUMPY}; {NUMPY} and 2 more (pip check)"}),
    ],
)
def test_fault_is_named_with_what_to_do(shown, faults, wrong):
    checks = [check for check in versions.packages(shown, faults) if check.state == "wrong"]
    assert {check.name: check.found for check in checks} == wrong
    assert all("scripts/install" in check.advice for check in checks)


def test_pip_is_asked_and_its_faults_are_lines(tmp_path, monkeypatch):
    put(tmp_path, "owner", "1.0", "ray<2", "no-such-package")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    faults = [fault for fault in versions.check_requirements() or [] if fault.startswith("owner ")]
    assert sorted("no-such-package" in fault for fault in faults) == [False, True]
    assert versions.packages(SHOWN, faults)[2].state == "wrong"


def test_no_pip_is_no_fault_and_a_package_that_is_not_installed_is_one(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(versions, "OURS", "no-such-package")
        assert versions.packages(SHOWN, versions.check_requirements())[-1].state == "wrong"
    monkeypatch.setattr(versions, "PIP_CHECK", (sys.executable, "-c", "import sys; sys.exit('No module named pip')"))
    assert versions.check_requirements() is None
    assert [check.state for check in versions.packages(SHOWN, None)] == ["ok", "ok", "skipped"]


@pytest.mark.parametrize(("found", "state"), [("3.11.7", "ok"), ("3.10.14", "wrong"), ("3.12.0", "wrong")])
def test_python_is_held_to_the_versions_that_we_run_on(found, state):
    assert versions.python(found, Package("0.1.0", ">=3.11,<3.12")).state == state


@pytest.mark.parametrize(
    ("build", "driver", "state", "told"),
    [
        (None, None, "ok", "CPUs alone"),
        ("13.0", None, "ok", "CUDA 13.0"),
        ("12.8", Gpus((), "12.8"), "ok", "no GPU"),
        ("12.8", Gpus(("H200", "H200"), "12.4"), "ok", "2 x H200, driver for CUDA 12.4"),
        ("12.8", Gpus(("H200",), "13.0"), "ok", "1 x H200"),
        ("13.0", Gpus(("H200",), "12.8"), "wrong", "CUDA 13.0"),
        (None, Gpus(("H200",), "12.8"), "wrong", "CPUs alone"),
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


def test_driver_is_asked_where_there_is_one_and_quoted_where_it_fails(nvidia_smi, tmp_path, monkeypatch):
    nvidia_smi(LISTED + WHOLE)
    assert versions.gpus() == Gpus(("NVIDIA H200", "NVIDIA H200"), "12.8")
    nvidia_smi("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", code=9)
    assert "couldn't communicate" in str(versions.gpus())
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    assert versions.gpus() is None
