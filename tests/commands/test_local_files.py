"""Files of this machine in a command for a cluster: refused unless they are there as well."""

import io
import os
import re
import zipfile
from pathlib import Path

import pytest
import yaml
from ray._private.runtime_env.packaging import unzip_package

from sp500.errors import ConfigError
from sp500.jobs.kuberay import target as kuberay
from sp500.jobs.ray import target as ray
from sp500.jobs.spec import JobSpec

ROOT = Path(__file__).parents[2]
CLUSTER = next(
    document for document in yaml.safe_load_all((ROOT / "cluster/raycluster.yaml").read_text())
    if document["kind"] == "RayCluster"
)  # fmt: skip
TRAIN = ("python", "experiments/train.py")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A folder with a checkout's scripts and a user's own files, two of them ignored."""
    folder = tmp_path / "work"
    own = ("experiments/train.py", "blobs.py", "my.yaml", "prices.csv", "photos/a.png", "big/x.csv", "../beside.csv")
    for name in own:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (folder / ".gitignore").write_text("big\n")
    monkeypatch.chdir(folder)
    return folder


def refuses(check, *words, **spec):
    try:
        check(JobSpec(argv=(*TRAIN, *words), **spec))
    except ConfigError as error:
        return "this is on this machine" in str(error)
    return False


def on_kuberay(spec):
    kuberay.check(spec, CLUSTER)


def on_ray(spec):
    ray.check_upload_has(spec, Path.cwd())


OWN = ["--task blobs.py:Blobs", "--model.kind=./blobs.py:Net", "--config my.yaml", "--data.source prices.csv"]
FOLDERS = ["--images.source photos", "--shards photos", "--x ./photos"]


@pytest.mark.parametrize(
    "words", [*OWN, *FOLDERS, "--x photos/a.png", "--x ../beside.csv", "--x experiments/../blobs.py"]
)
def test_pods_of_a_job_do_not_have_the_files_of_this_folder(words):
    assert refuses(on_kuberay, *words.split())


@pytest.mark.parametrize(
    "words",
    [
        *("--config experiments/train.py", "--data.source /data/prices.csv", "--task /app/blobs.py:Blobs"),
        *("--data.source https://example.org/prices.csv", "--task mine.blobs:Blobs", "--name photos"),
        *("--runs-dir ./photos", "--out photos/a.png", "--x nowhere.csv", f"--x {'a' * 5000}.py", "--x /usr/bin/env"),
    ],
)
def test_what_the_image_or_a_claim_has_passes_and_what_is_not_here_is_taken_to_be_there(words):
    assert not refuses(on_kuberay, *words.split())
    assert not refuses(on_ray, *words.split())


@pytest.mark.parametrize("words", [*OWN, *FOLDERS])
def test_ray_uploads_this_folder(words):
    assert not refuses(on_ray, *words.split())


@pytest.mark.parametrize("words", ["--x big/x.csv", "--images.source big", "--x ../beside.csv"])
def test_ray_does_not_upload_what_is_ignored_or_outside(words):
    assert refuses(on_ray, *words.split())


def test_absolute_path_of_this_machine_is_nowhere_else(here):
    for check in (on_kuberay, on_ray):
        assert refuses(check, "--data.source", str(here / "prices.csv"))
        assert refuses(check, "--images.source", str(here / "photos"), settings={"a": 1})


def test_program_and_script_count_as_well():
    assert not refuses(on_ray)
    for argv in (("./blobs.py",), ("python", "blobs.py"), ("python", "-u", "blobs.py")):
        with pytest.raises(ConfigError, match=r"blobs\.py"):
            on_kuberay(JobSpec(argv=argv))


def test_settings_that_go_with_the_job_may_not_name_such_a_file_either():
    assert refuses(on_kuberay, settings={"task": "blobs.py:Blobs"})
    assert refuses(on_kuberay, settings={"images": {"source": "photos"}})
    assert refuses(on_kuberay, settings={"tickers": ["A", "prices.csv"]})
    assert not refuses(on_kuberay, settings={"runs_dir": "./photos", "name": "photos"})


@pytest.mark.parametrize("how", [{"working_dir": "https://example.org/code.zip"}, {"mode": "InteractiveMode"}])
def test_code_that_comes_from_elsewhere_may_hold_relative_paths(how, here):
    assert not refuses(on_kuberay, "--task", "blobs.py:Blobs", **how)
    assert refuses(on_kuberay, "--data.source", str(here / "prices.csv"), **how)


PROGRAM = "python train.py --lr {lr} --log=./notes/plan.txt"


@pytest.fixture
def program(here):
    """Files of a program that runs unchanged."""
    files = {"train.py": b"import net", "net.py": b"\xff\0", "space.yaml": b"lr: [1]", "notes/plan.txt": b""}
    for name, content in files.items():
        (here / name).parent.mkdir(exist_ok=True)
        (here / name).write_bytes(content)
    (here / "train.py").chmod(0o755)
    return {Path(name): content for name, content in files.items()}


@pytest.mark.parametrize(
    "spec",
    [
        {"argv": ("sp500", "tune", "--command", PROGRAM, "--file", "./net.py", "notes/plan.txt", "--space=space.yaml")},
        {
            "argv": (*TRAIN, "--file=/data/prices.csv"),
            "settings": {"command": PROGRAM, "file": ["net.py", "notes/plan.txt"], "space": "space.yaml"},
        },
    ],
)
def test_script_space_and_files_of_a_program_go_with_its_job_as_ray_unpacks_them(program, spec, tmp_path):
    job, archive = JobSpec(**spec), tmp_path / "files.zip"
    archive.write_bytes(kuberay.check(job, CLUSTER))
    unzip_package(archive, str(tmp_path / "there"), remove_top_level_directory=True, unlink_zip=False)
    there = {path.relative_to(tmp_path / "there"): path for path in (tmp_path / "there").rglob("*") if path.is_file()}
    expected = program | ({} if job.argv[0] == "sp500" else {Path(TRAIN[1]): b""})
    assert {path: file.read_bytes() for path, file in there.items()} == expected
    assert os.access(there[Path("train.py")], os.X_OK)
    assert kuberay.check(job.model_copy(update={"working_dir": "https://example.org/code.zip"}), CLUSTER) == b""
    on_ray(job)


def test_program_of_a_claim_starts_in_a_folder_of_its_own(here):
    assert kuberay.check(JobSpec(argv=("sp500", "train", "--command", "/data/run --out ./")), CLUSTER)
    assert kuberay.check(JobSpec(argv=("sp500", "train")), CLUSTER) == b""


@pytest.mark.parametrize(
    ("command", "files", "reason"),
    [
        (PROGRAM, ["net.py"], r"notes/plan\.txt: this is on this machine.* --file"),
        ("python trian.py", [], r"^trian\.py: cannot be read in .*No such file"),
        ("python train.py", ["photos"], r"^photos: cannot be read in .*directory"),
        ("python train.py", ["../beside.csv"], r"^\.\./beside\.csv: is not in this folder"),
        ("python ../nowhere.py", [], r"^\.\./nowhere\.py: is not in this folder"),
        ("python train.py", ["large.bin"], r"^large\.bin: .* 1\.00 MB.* /data/FOLDER/large\.bin"),
        ("python train.py", [".env"], r"^\.env: .*credentials.* --secrets"),
        *(("python train.py", [name], "credentials") for name in ("server.PEM", "a/Secrets.yaml", "hf_token")),
        ("python train.py", ["plain.txt"], r"^plain\.txt: .*credentials"),
        ("python train.py", ["linked.csv"], r"^linked\.csv: is not in this folder .*link to .*/beside\.csv"),
        ("python train.py", ["photos/up/beside.csv"], "not in this folder"),
        ("python train.py", ["loop"], r"^loop: cannot be read"),
        ("python train.py", [f"m/{at:04}{'n' * 240}" for at in range(1900)], "1901 files .* 1.11 MB"),
        ("python 'train.py", [], "No closing quotation"),
        *((command, [], "--file FILE") for command in ("bash -c 'python train.py'", "sh plain", "python3 -m trian")),
    ],
)
def test_file_that_cannot_go_with_a_programs_job_is_refused_with_the_way_out(program, command, files, reason):
    Path("m").mkdir()
    for name in (".env", *(name for name in files if name.startswith("m/"))):
        Path(name).touch()
    for link, to in {"plain.txt": ".env", "linked.csv": "../beside.csv", "photos/up": "../..", "loop": "loop"}.items():
        Path(link).symlink_to(to)
    Path("large.bin").write_bytes(bytes(10**6 - len(program[Path("train.py")]) + 1))
    with pytest.raises(ConfigError, match=reason):
        on_kuberay(JobSpec(argv=("sp500", "train", "--command", command, "--file", *files)))


@pytest.mark.parametrize(
    ("command", "files", "packed"),
    [
        ("python -m train --lr 1", [], {"train.py"}),
        ("torchrun -m pkg.main", [], {"pkg/main/__main__.py"}),
        ("bash -c 'python train.py'", ["train.py"], {"train.py"}),
        ("sh plain", ["tokenizer.json", "tokens.py"], {"tokenizer.json", "tokens.py"}),
        ("bash /data/run", [], set()),
    ],
)  # fmt: skip
def test_files_that_go_with_a_program(program, command, files, packed):
    Path("pkg/main").mkdir(parents=True)
    for name in ("pkg/main/__main__.py", "tokenizer.json", "tokens.py"):
        Path(name).touch()
    archive = kuberay.check(JobSpec(argv=("sp500", "train", "--command", command, "--file", *files)), CLUSTER)
    assert set(zipfile.ZipFile(io.BytesIO(archive)).namelist()) == {"files/", *(f"files/{name}" for name in packed)}


def test_image_holds_what_the_dockerfile_copies_into_its_working_folder():
    last = (ROOT / "Dockerfile").read_text().split(f"WORKDIR {kuberay.IMAGE_FOLDER}\n")[1]
    assert set(re.findall(r"^COPY (\S+) ", last, re.MULTILINE)) == set(kuberay.IN_IMAGE)
