import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import Dataset

import sp500

MIXUP, MOVED = 0.2, True


class Digits(Dataset):
    def __init__(self, first, last, moved=False):
        x, y = load_digits(return_X_y=True)
        self.x = torch.tensor(x[first:last] / 16, dtype=torch.get_default_dtype()).view(-1, 1, 8, 8)
        self.y, self.moved = y[first:last], moved

    def __len__(self):
        return len(self.y)

    def __getitem__(self, number):
        x = self.x[number]
        if self.moved:
            top, left = torch.randint(3, (2,)).tolist()
            x = F.pad(x, (1, 1, 1, 1))[:, top : top + 8, left : left + 8]
            x = x.flip(-1) if torch.rand(1) < 0.5 else x
        return x, int(self.y[number])


class Net(nn.Module):
    def __init__(self, config, dataset):
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(1)),
            *(nn.Flatten(), nn.Linear(32, 10)),
        )

    def forward(self, x):
        return self.layers(x[:, 0])


class Task(sp500.Task):
    def prepare(self, config):
        parts = Digits(0, 1200, MOVED), Digits(1200, 1500), Digits(1500, 1797)
        return sp500.from_torch(*parts, config=config, identity="scikit-learn's digits")

    def mix(self, x, y, x2, y2, rng):
        share, (y, y2) = rng.beta(MIXUP, MIXUP), F.one_hot(torch.stack([y, y2]), 10).to(x.dtype)
        return torch.lerp(x2, x, share), torch.lerp(y2, y, share)

    def loss(self, output, target):
        return F.cross_entropy(output, target, label_smoothing=0.1, reduction="sum")

    def measure(self, output, target):
        hits = output.topk(5).indices == target[:, None]
        return {"top1": sp500.Sums(hits[:, 0].sum(), len(hits)), "top5": sp500.Sums(hits.sum(), len(hits))}

    def judge(self, outputs, dataset):
        scores = {name: sp500.metrics.multiclass(outputs[name], getattr(dataset, name).targets) for name in outputs}
        return {**scores, "naive": {}}
