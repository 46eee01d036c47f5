"""Models of timm, where it and a torchvision of torch's build are installed; and what is refused without them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import save_file
from torch import nn

from sp500.config import ModelConfig, RunConfig
from sp500.errors import ConfigError
from sp500.models import batch_norm, catalog
from sp500.runs.store import RunStore
from sp500.serving.predictor import Predictor
from sp500.studies import train
from sp500.tasks.cuts import DEPENDS, SAME


@pytest.fixture
def timm() -> ModuleType:
    """The library, where it can be imported; a torchvision of another build breaks that, as doctor says."""
    try:
        import timm
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"timm cannot be imported: {error}")
    return timm  # type: ignore[no-any-return]


def build(architecture: str, path: Path | str = "", *, size: int = 32, channels: int = 1, classes: int = 10) -> Any:
    image = (size, size, channels)
    shape = SimpleNamespace(window=1, features=size * size * channels, row=image, outputs=classes, naive_output=0.0)
    return catalog.build(ModelConfig(kind="timm", architecture=architecture, path=str(path)), shape)


def kept(net: nn.Module, folder: Path) -> Path:
    file = folder / "weights.safetensors"
    save_file({name: value.contiguous() for name, value in net.state_dict().items()}, file)
    return file


@pytest.mark.parametrize(("architecture", "channels"), [("resnet18", 1), ("vit_tiny_patch16_224", 3)])
def test_scores_are_timms_own_for_images_of_any_size(timm, architecture, channels):
    model = build(architecture, channels=channels).eval()
    x = torch.randn(2, 1, 32 * 32 * channels)
    images = x.reshape(2, 32, 32, channels).movedim(3, 1)
    with torch.no_grad():
        assert torch.equal(model(x), model.net(images))
    assert model(x).shape == (2, 10)


def test_file_gives_all_weights_where_classes_and_channels_fit(timm, tmp_path):
    net = timm.create_model("resnet18", num_classes=10)
    found = build("resnet18", kept(net, tmp_path), channels=3).net.state_dict()
    assert all(torch.equal(found[name], value) for name, value in net.state_dict().items())


def test_head_for_other_classes_is_left_out_and_said(timm, tmp_path, caplog):
    net = timm.create_model("resnet18", num_classes=7)
    found = build("resnet18", kept(net, tmp_path)).net
    assert found.fc.weight.shape == (10, 512)
    assert torch.equal(found.layer4[1].conv2.weight, net.layer4[1].conv2.weight)
    torch.testing.assert_close(found.conv1.weight, net.conv1.weight.sum(dim=1, keepdim=True))
    assert "fc.weight and fc.bias left out: of 7 classes, the data has 10" in caplog.text


@pytest.mark.parametrize(("architecture", "kind"), [("resnet18", "Unexpected"), ("resnet50", "size mismatch|Missing")])
def test_weights_of_another_architecture_are_refused_by_name(timm, tmp_path, architecture, kind):
    file = kept(timm.create_model("resnet34", num_classes=10), tmp_path)
    with pytest.raises(ConfigError, match=rf"weights of {architecture} \(.*({kind}).*layer1"):
        build(architecture, file)


@pytest.mark.parametrize(
    ("architecture", "size", "said"),
    [
        ("resnet81", 32, "did you mean resnet18"),
        ("resnet18.nothing", 32, "Invalid pretrained tag"),
        ("vit_tiny_patch16_224", 8, "images of 8 x 8 do not fit it"),
        ("inception_v3", 32, "images of 32 x 32 do not fit it"),
    ],
)
def test_architecture_that_cannot_be_made_is_refused(timm, architecture, size, said):
    with pytest.raises(ConfigError, match=said):
        build(architecture, size=size)


def test_damaged_file_is_named(timm, tmp_path):
    file = tmp_path / "weights.safetensors"
    file.write_bytes(b"x" * 100)
    with pytest.raises(ConfigError, match=r"weights\.safetensors: cannot be read as safetensors"):
        build("resnet18", file)


def test_single_image_to_normalise_is_refused_with_the_settings_to_change(timm):
    model = build("resnet18").train()
    with pytest.raises(ConfigError, match=r"Change train\.batch_size or train\.micro_batch"):
        model(torch.zeros(1, 1, 1024))


def test_synchronized_layers_keep_their_activations(timm):
    model = nn.Sequential(build("mobilenetv3_small_050"))
    expected = model.eval()(torch.ones(2, 1, 1024))
    batch_norm.synchronize(model)
    assert {type(layer).__name__ for layer in model.modules() if "Norm" in type(layer).__name__} == {"SyncBatchNormAct"}
    assert torch.equal(model(torch.ones(2, 1, 1024)), expected)


@pytest.mark.parametrize(
    ("architecture", "note"), [("resnet18", DEPENDS.format("layer 1.net.bn1")), ("test_vit", SAME)]
)
def test_run_says_whether_its_numbers_depend_on_the_cut_and_answers_again(timm, tmp_path, architecture, note):
    x, y = np.random.default_rng(0).integers(0, 256, (80, 32, 32)), np.arange(80) % 4
    np.savez(tmp_path / "set.npz", x_train=x[:60], y_train=y[:60], x_test=x[60:], y_test=y[60:])
    config = RunConfig.model_validate(
        {
            "task": "images",
            "images": {"source": str(tmp_path / "set.npz")},
            "model": {"kind": "timm", "architecture": architecture},
            "train": {"epochs": 1, "batch_size": 16, "micro_batch": 8},
        }
    )
    with RunStore(tmp_path).open("run") as run:
        record = train.train(config, run)
        run.write_record(record)
    assert record.data["notes"][-1] == note
    Predictor(tmp_path / "run").check()


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ({}, "needs model.architecture"),
        ({"architecture": "hf-hub:timm/resnet18"}, "architecture"),
        ({"architecture": "resnet18", "path": "weights.pth"}, "pickles, which may run code"),
        ({"architecture": "resnet18", "hidden": 3}, "model.hidden is not used by model.kind timm"),
    ],
)
def test_settings_that_do_not_fit_are_refused(model, said):
    with pytest.raises(ValidationError, match=said):
        ModelConfig.model_validate({"kind": "timm", **model})


def test_other_tasks_are_refused():
    with pytest.raises(ValidationError, match=r"model\.kind timm is not for task returns; use linear, .* or your own"):
        RunConfig.model_validate({"model": {"kind": "timm", "architecture": "resnet18"}})


def test_torchvision_of_another_build_is_named_with_the_way_out(tmp_path):
    (tmp_path / "timm.py").write_text('raise RuntimeError("operator torchvision::nms does not exist")\n')
    code = "from sp500.models.pretrained import timm; timm.build(None, architecture='resnet18', path='')"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[2]}"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    message = done.stderr.splitlines()[-1]
    assert "torchvision::nms" in message
    assert "sp500 doctor" in message
