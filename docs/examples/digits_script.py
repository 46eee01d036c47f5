import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, Dataset

EPOCHS, BATCH, RATE, MIXUP, MOVED = 30, 64, 0.1, 0.2, True


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
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(1)),
            *(nn.Flatten(), nn.Linear(32, 10)),
        )

    def forward(self, x):
        return self.layers(x)


def main(seed=0):
    torch.manual_seed(seed)
    train, valid = Digits(0, 1200, MOVED), Digits(1200, 1500)
    loader, model = DataLoader(train, BATCH, shuffle=True), Net()
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.95))
    optimizer = torch.optim.SGD(model.parameters(), RATE, momentum=0.9, nesterov=True, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, EPOCHS * len(loader))
    for epoch in range(1, EPOCHS + 1):
        model.train()
        train_loss = 0.0
        for x, y in loader:
            if MIXUP:
                share, partner = float(torch.distributions.Beta(MIXUP, MIXUP).sample()), torch.randperm(len(x))
                y = F.one_hot(y, 10).to(x.dtype)
                x, y = torch.lerp(x[partner], x, share), torch.lerp(y[partner], y, share)
            loss = F.cross_entropy(model(x), y, label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            average.update_parameters(model)
            train_loss += loss.item() * len(x) / len(train)
        average.eval()
        with torch.no_grad():
            output, target = average(valid.x), torch.tensor(valid.y)
        valid_loss = float(F.cross_entropy(output, target, label_smoothing=0.1))
        hits = output.topk(5).indices == target[:, None]
        top1, top5 = float(hits[:, 0].double().mean()), float(hits.any(dim=1).double().mean())
        print(epoch, train_loss, valid_loss, top1, top5)


if __name__ == "__main__":
    main()
