"""The shell side: every script parses, and finds or names what it needs."""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted(path for path in (ROOT / "scripts").iterdir() if path.read_bytes().startswith(b"#!"))


@pytest.fixture
def checkout(tmp_path):
    """The scripts beside stand-ins: an install that has nothing to do, and a bin that holds what a test puts there."""
    root = tmp_path / "checkout"
    (root / ".venv/bin").mkdir(parents=True)
    (root / "bin").mkdir()
    shutil.copytree(ROOT / "scripts", root / "scripts")
    (root / "scripts/install").write_text("#!/bin/sh\n")
    for tool in ("sh", "sed", "dirname", "mktemp", "rm", "grep", "cat"):
        (root / "bin" / tool).symlink_to(shutil.which(tool))
    return root


def stand_in(checkout, name, body):
    path = checkout / "bin" / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


def engine(checkout, name, answers=True):
    """A builder of images that writes down what it is asked."""
    log = checkout / "log"
    stand_in(checkout, name, f'[ "$1" = info ] && exit {0 if answers else 1}\necho "{name} $*" >> "{log}"')


def tools_of_kind(checkout):
    """Write down what they are asked, in the order of the calls."""
    for tool in ("kind", "helm", "kubectl"):
        stand_in(checkout, tool, f'echo "{tool} $*" >> "{checkout / "log"}"')
    (checkout / "scripts/deploy").write_text(f'#!/bin/sh\necho "deploy $*" >> "{checkout / "log"}"\n')


def steps(checkout):
    """The first three words of each call."""
    return [" ".join(line.split()[:3]) for line in (checkout / "log").read_text().splitlines()]


def call(checkout, script, *words, **environment):
    command, variables = (
        [checkout / "scripts" / script, *words],
        {"PATH": str(checkout / "bin"), "PYTHONPATH": str(ROOT)},
    )
    folder = checkout.parent
    return subprocess.run(command, env=variables | environment, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("path", SCRIPTS, ids=[path.name for path in SCRIPTS])
def test_script_parses_stops_at_errors_says_what_it_does_and_can_be_run(path):
    subprocess.run(["sh", "-n", path], check=True)
    assert "\nset -eu\n" in path.read_text()
    assert path.read_text().splitlines()[1].startswith("# ")
    assert os.access(path, os.X_OK)


def test_deploy_finds_the_overlays_of_its_checkout_from_anywhere(checkout):
    stand_in(checkout, "../.venv/bin/python", f'exec "{sys.executable}" "$@"')
    (checkout / "cluster/overlays/kind").mkdir(parents=True)
    done = call(checkout, "deploy", "knid")
    assert done.returncode == 2
    assert "the overlays are: kind" in done.stderr


def test_first_engine_that_answers_is_taken(checkout):
    engine(checkout, "docker", answers=False)
    engine(checkout, "podman")
    engine(checkout, "buildah")
    assert call(checkout, "engine").stdout == "podman\n"
    assert call(checkout, "engine", ENGINE="buildah").stdout == "buildah\n"


def test_without_an_engine_one_is_told_which_there_could_be(checkout):
    done = call(checkout, "image")
    assert done.returncode == 2
    assert "docker, podman and buildah" in done.stderr
    engine(checkout, "docker", answers=False)
    assert "not answering: docker" in call(checkout, "image").stderr


def test_image_is_built_from_the_checkout_under_the_name_that_manifests_use(checkout):
    engine(checkout, "docker")
    assert call(checkout, "image", "--base", "mine", "--no-cache").returncode == 0
    build = (checkout / "log").read_text()
    assert build.startswith("docker build --tag docker.io/library/sp500:2.60.0 ")
    assert {"COMMIT=unknown", "EXTRA=", "BASE=mine", "--no-cache"} < set(build.split())
    assert build.endswith(" .\n")


def test_image_with_an_extra_has_its_own_tag(checkout):
    engine(checkout, "docker")
    (checkout / "scripts/serve.lock").touch()
    assert call(checkout, "image", "--gpu", "--extra", "serve", "--base", "mine").returncode == 0
    said = (checkout / "log").read_text()
    assert "--tag docker.io/library/sp500:2.60.0-gpu-serve " in said
    assert "--build-arg EXTRA=serve " in said
    done = call(checkout, "image", "--extra", "nothing")
    assert (done.returncode, "has no scripts/nothing.lock" in done.stderr) == (2, True)


@pytest.mark.parametrize("base", [[], ["--base", "python:3.11-slim"], ["--base", "python@sha256:1234"]])
def test_image_whose_base_is_no_digest_is_not_pushed_and_the_message_says_how_to_look_it_up(checkout, base):
    engine(checkout, "docker")
    done = call(checkout, "image", *base, "--push", "registry.example/lab")
    assert done.returncode == 2
    assert "by digest" in done.stderr
    assert "imagetools inspect docker.io/rayproject/ray:2.60.0-py311 " in done.stderr
    assert not (checkout / "log").exists()


def test_image_for_gpus_is_pushed_under_its_own_tag(checkout):
    engine(checkout, "podman")
    base = f"docker.io/rayproject/ray@sha256:{'0' * 64}"
    assert call(checkout, "image", "--gpu", "--base", base, "--push", "registry.example/lab").returncode == 0
    build, tag, push = (checkout / "log").read_text().splitlines()
    assert f"BASE={base} --build-arg TORCH_INDEX= ." in build
    assert tag.split() == [
        "podman",
        "tag",
        "docker.io/library/sp500:2.60.0-gpu",
        "registry.example/lab/sp500:2.60.0-gpu",
    ]
    assert push == "podman push registry.example/lab/sp500:2.60.0-gpu"


def test_kind_up_builds_loads_installs_and_deploys_in_this_order(checkout):
    engine(checkout, "docker")
    tools_of_kind(checkout)
    assert call(checkout, "kind-up").returncode == 0
    assert steps(checkout) == [
        "docker build --tag",
        "kind get clusters",
        "kind create cluster",
        "docker exec sp500-control-plane",
        "docker save --output",
        "kind load image-archive",
        "helm pull kuberay-operator",
        "helm upgrade --install",
        "deploy kind --context",
    ]


@pytest.mark.parametrize(("rebuilt", "pods"), [(True, ["kubectl --context kind-sp500"]), (False, [])])
def test_kind_up_deletes_rays_pods_when_their_image_is_another(checkout, rebuilt, pods):
    tools_of_kind(checkout)
    node = checkout / "node"
    node.write_text("sha256:1")
    stand_in(checkout, "docker", f'case $1 in exec) cat "{node}" ;; esac')
    load = f'load) printf sha256:{2 if rebuilt else 1} > "{node}"'
    stand_in(checkout, "kind", f"case $1 in {load} ;; get) echo sp500 ;; esac")
    assert call(checkout, "kind-up").returncode == 0
    assert steps(checkout) == [*pods, "helm pull kuberay-operator", "helm upgrade --install", "deploy kind --context"]
    assert ("--selector ray.io/cluster=sp500" in (checkout / "log").read_text()) is rebuilt


@pytest.mark.parametrize("right", [True, False])
def test_kind_up_installs_the_chart_with_the_checksum_that_is_given_and_no_other(checkout, right):
    tools_of_kind(checkout)
    log = checkout / "log"
    pull = 'case $1 in pull) for last; do :; done; printf chart > "$last/kuberay-operator-1.7.0.tgz" ;; esac'
    stand_in(checkout, "helm", f'{pull}\necho "helm $*" >> "{log}"')
    engine(checkout, "docker")
    (checkout / "bin/sha256sum").symlink_to(shutil.which("sha256sum"))
    wanted = hashlib.sha256(b"chart" if right else b"other").hexdigest()
    done = call(checkout, "kind-up", CHART_SHA256=wanted)
    assert done.returncode == (0 if right else 2)
    assert ("the checksum" in done.stderr) is not right
    assert ("helm upgrade --install" in steps(checkout)) is right


def test_kind_up_refuses_the_image_for_gpus_and_names_the_tool_that_is_missing(checkout):
    engine(checkout, "docker")
    done = call(checkout, "kind-up", "--gpu")
    assert (done.returncode, "--gpu" in done.stderr) == (2, True)
    assert not (checkout / "log").exists()
    done = call(checkout, "kind-up")
    assert (done.returncode, "kind on PATH" in done.stderr) == (2, True)
