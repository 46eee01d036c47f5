"""Models of transformers, offline: from random weights, fine-tuned, with an adapter, as the ecosystem loads them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from sp500.config import RunConfig
from sp500.errors import ConfigError
from sp500.models import weights
from sp500.models.pretrained import hf
from sp500.runs.record import RunRecord
from sp500.runs.store import RunStore
from sp500.serving.predictor import Predictor
from sp500.studies import train
from sp500.tasks import catalog

LLAMA = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 400,
    "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 64,
}  # fmt: skip
SHAPE = SimpleNamespace(window=64, features=1, row=(1,), outputs=400, naive_output=0.0)


ROOT = Path(__file__).parents[2]
TRAIN = "import json, sys, sp500\nfor settings in json.loads(sys.argv[1]):\n    sp500.train(**settings)"


@pytest.fixture(autouse=True, scope="module")
def offline() -> Iterator[None]:
    """The library refuses every request. It reads its environment once, and may have been imported before."""
    from huggingface_hub import constants

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(constants, "HF_HUB_OFFLINE", True)
        yield


def without_network() -> tuple[list[str], dict[str, str]]:
    """Words before a command and variables that take its network away.

    A namespace without interfaces; where the kernel gives none, proxies at a port where nothing listens.
    """
    for words in (["unshare", "-rn"], ["unshare", "-n"]):
        if (
            shutil.which("unshare")
            and subprocess.run([*words, "true"], capture_output=True, check=False).returncode == 0
        ):
            return words, {}
    return [], dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), "http://127.0.0.1:9") | {"NO_PROXY": ""}


@pytest.fixture(autouse=True)
def _library_warnings() -> Any:
    with warnings.catch_warnings():  # the library's own, of what it will rename
        warnings.simplefilter("ignore")
        yield


def trained(folder: Path, name: str, path: Path, *, source: str = "docs", **more: Any) -> RunRecord:
    config = RunConfig.model_validate(
        {
            "task": "language",
            "text": {"source": source, "max_bytes": 30_000, "context": 32, **more.pop("text", {})},
            "model": {"kind": "hf", "path": str(path), **more.pop("model", {})},
            "train": {"lr": 0.003, "batch_size": 16, "max_steps": 24, "epochs": 2, **more},
        }
    )
    with RunStore(folder).open(name, resume=(folder / name).exists()) as run:
        record = train.train(config, run)
        run.write_record(record)
        return record


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a tiny Llama that began with random weights, with a tokenizer trained on its text."""
    folder = tmp_path_factory.mktemp("base")
    (folder / "llama").mkdir()
    (folder / "llama" / "config.json").write_text(json.dumps(LLAMA))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trained(folder, "base", folder / "llama", text={"tokenizer": "bpe", "vocabulary": 400})
    return folder / "base"


def digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def test_saved_folder_is_one_that_transformers_loads_with_equal_scores(base):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    found = AutoModelForCausalLM.from_pretrained(base / "model", local_files_only=True)
    tokenizer = AutoTokenizer.from_pretrained(base / "model", local_files_only=True)
    ids = torch.tensor([tokenizer("The with statement").input_ids])
    predictor = Predictor(base)
    with torch.no_grad():
        assert torch.equal(found(ids).logits, predictor.model(ids))
    assert tokenizer.decode(ids[0]) == "The with statement"
    predictor.check()


def test_fine_tuned_model_knows_another_text_better_than_its_base_and_than_one_from_nothing(base, tmp_path):
    tuned = trained(tmp_path, "tuned", base / "model", source="stdlib")
    fresh = trained(tmp_path, "fresh", base.parent / "llama", source="stdlib", text={"tokenizer": str(base / "model")})
    assert tuned.untrained_loss is not None
    assert fresh.untrained_loss is not None
    assert tuned.best_loss is not None
    assert fresh.best_loss is not None
    assert tuned.best_loss < tuned.untrained_loss < fresh.untrained_loss
    assert tuned.metrics["test"]["bits_per_byte"] < fresh.metrics["test"]["bits_per_byte"]


def test_adapter_is_small_leaves_its_base_as_it_is_and_loads_in_peft(base, tmp_path):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    before = digests(base / "model")
    model = {"adapter_rank": 2, "adapter_targets": ["q_proj", "v_proj"]}
    record = trained(tmp_path, "adapted", base / "model", source="stdlib", model=model)
    assert digests(base / "model") == before
    kept = load_file(tmp_path / "adapted" / "checkpoints" / "best" / "model.safetensors")
    count = sum(value.numel() for value in kept.values())
    assert count == 2 * 2 * (2 * 64 * 2)  # layers, projections, two matrices of rank 2
    assert all(hf.ADAPTER in name for name in kept)
    assert record.best_loss is not None
    assert record.untrained_loss is not None
    assert record.best_loss < record.untrained_loss
    net = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(base / "model", local_files_only=True), tmp_path / "adapted" / "model"
    )
    ids = torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        torch.testing.assert_close(net(ids).logits, Predictor(tmp_path / "adapted").model(ids))


def test_resumed_adapter_ends_in_the_same_bits(base, tmp_path):
    def adapted(name: str) -> None:
        settings = {"max_steps": 0, "checkpoint_steps": 5, "keep": "all", "text": {"max_bytes": 12_000}}
        trained(tmp_path, name, base / "model", model={"adapter_rank": 2}, **settings)

    adapted("whole")
    whole, part = (tmp_path / name / "checkpoints" for name in ("whole", "part"))
    shutil.copytree(tmp_path / "whole", tmp_path / "part", symlinks=True)
    versions = sorted(path for path in part.glob("epoch-*"))
    for path in versions[3:]:  # as if it had been killed inside an epoch
        shutil.rmtree(path)
    (part / "last").unlink()
    (part / "best").unlink()
    assert "step" in versions[2].name
    adapted("part")
    found = [load_file(folder / "last" / "model.safetensors") for folder in (whole, part)]
    assert found[0].keys() == found[1].keys()
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


def test_tied_weights_are_kept_and_read(tmp_path):
    (tmp_path / "tied").mkdir()
    (tmp_path / "tied" / "config.json").write_text(json.dumps(LLAMA | {"tie_word_embeddings": True}))
    record = trained(tmp_path, "run", tmp_path / "tied", text={"tokenizer": "bpe", "vocabulary": 400})
    assert record.status == "ok"
    Predictor(tmp_path / "run").check()


def test_unknown_layer_for_an_adapter_is_named_with_those_there_are(base, tmp_path):
    from sp500.errors import ConfigError

    with pytest.raises(ConfigError, match=r"model.adapter_targets c_attn: .* it has .*q_proj.*v_proj"):
        trained(tmp_path, "run", base / "model", model={"adapter_rank": 2, "adapter_targets": ["c_attn"]})


def test_model_is_trained_and_adapted_in_a_process_without_a_network(tmp_path):
    (tmp_path / "llama").mkdir()
    (tmp_path / "llama" / "config.json").write_text(json.dumps(LLAMA))
    words, variables = without_network()
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    environment |= {**variables, "HF_HOME": str(tmp_path / "hub")}
    text = {"max_bytes": 20_000, "context": 32}
    runs = [
        {"name": name, "runs_dir": str(tmp_path), "task": "language", "train": {"max_steps": 4}, **settings}
        for name, settings in {
            "base": {
                "text": {**text, "tokenizer": "bpe", "vocabulary": 400},
                "model": {"kind": "hf", "path": str(tmp_path / "llama")},
            },
            "adapted": {
                "text": text,
                "model": {"kind": "hf", "path": str(tmp_path / "base" / "model"), "adapter_rank": 2},
            },
        }.items()
    ]
    command = [*words, sys.executable, "-c", TRAIN, json.dumps(runs)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "base" / "model" / "tokenizer.json").exists()
    assert (tmp_path / "adapted" / "model" / "adapter_model.safetensors").exists()
    assert not (tmp_path / "hub").exists()


CODE = "open({mark!r}, 'w')\nfrom transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast\n"
"""Python in the folder of a model."""


@pytest.mark.parametrize("part", ["AutoConfig", "AutoModelForCausalLM", "AutoTokenizer"])
def test_python_in_the_folder_of_a_model_does_not_run_whatever_is_answered(part, base, tmp_path, monkeypatch):
    mark, folder = tmp_path / "mark", tmp_path / "model"
    shutil.copytree(base / "model", folder)
    (folder / "theirs.py").write_text(CODE.format(mark=str(mark)))
    kind = {"AutoConfig": "LlamaConfig", "AutoModelForCausalLM": "LlamaForCausalLM"}.get(part)
    name = "config.json" if kind else "tokenizer_config.json"
    settings = json.loads((folder / name).read_text())
    named = f"theirs.{kind}" if kind else [None, "theirs.PreTrainedTokenizerFast"]
    # A type that the library does not know has no other way in.
    settings |= {"auto_map": {part: named}} | ({"model_type": "theirs"} if part == "AutoConfig" else {})
    settings |= {"tokenizer_class": "Theirs"} if part == "AutoTokenizer" else {}
    (folder / name).write_text(json.dumps(settings))
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    with contextlib.suppress(ConfigError):  # the library may go on with a class of its own
        trained(tmp_path, "one", folder, text={"tokenizer": "model"})
    assert not mark.exists()


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (["decoy.safetensors", "pytorch_model.bin"], r"as a pickle \(pytorch_model.bin\)"),
        (["adapter_config.json", "adapter_model.bin", "model.safetensors"], r"as a pickle \(adapter_model.bin\)"),
        (["consolidated.safetensors"], "has consolidated.safetensors, and no model.safetensors"),
    ],
)
def test_weights_that_transformers_would_not_read_or_read_from_a_pickle_are_refused(files, said, tmp_path):
    for name in files:
        (tmp_path / name).touch()
    with pytest.raises(ConfigError, match=said):
        hf.has_weights(tmp_path)


def test_weights_of_fewer_layers_than_the_config_has_are_refused(base, tmp_path):
    folder = Path(shutil.copytree(base / "model", tmp_path / "partial"))
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | {"num_hidden_layers": 3}))
    with pytest.raises(
        ConfigError, match=r"9 weights that its config\.json asks for .*\(model\.layers\.2\.input_layernorm"
    ):
        hf.build(SHAPE, path=str(folder), adapter_rank=0, adapter_targets=())


@pytest.mark.parametrize(
    "settings",
    [
        {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", "vocab_size": 400}},
        {"model_type": "llava", "text_config": {"model_type": "llama", "vocab_size": 400}},
        {"model_type": "vit"},
        {"model_type": "t5"},
    ],
)
def test_config_of_another_kind_of_model_is_refused(settings, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(settings))
    with pytest.raises(ConfigError, match=r"model\.path .*: (\w+ is not a model of text alone|cannot be loaded)"):
        hf.build(SHAPE, path=str(tmp_path), adapter_rank=0, adapter_targets=())


@pytest.mark.parametrize("names", [["model.safetensors"], ["model-00001-of-00002.safetensors", "pytorch_model.bin"]])
def test_weights_in_safetensors_are_found(names, tmp_path):
    assert not hf.has_weights(tmp_path)
    for name in names:
        (tmp_path / name).touch()
    assert hf.has_weights(tmp_path)


def test_a_model_without_a_base_keeps_all_its_weights():
    config = RunConfig()
    task = catalog.task(config)
    model = task.model(config, task.prepare(config))
    assert weights.dump(model).keys() == model.state_dict().keys()
