"""DDP without torch's compiler: the same gradients, and nothing of the compiler imported."""

import json
import subprocess
import sys

TRAIN = """
import json, sys
import torch
import torch.distributed as dist
from sp500.training import ddp

def train(wrap):
    torch.manual_seed(0)
    model = wrap(torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.BatchNorm1d(7), torch.nn.Linear(7, 1)))
    for number in range(3):
        with model.no_sync():
            model(torch.randn(4, 5)).sum().backward()
        model(torch.randn(4, 5)).square().sum().backward()
    return [weight.grad.flatten().tolist() for weight in model.parameters()]

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
ours = train(ddp.wrap)
loaded = sorted({"torch._dynamo", "sympy"} & {*sys.modules})
same = ours == train(torch.nn.parallel.DistributedDataParallel)  # which imports the compiler
print(json.dumps([loaded, same, type(ddp.wrap(torch.nn.Linear(1, 1))).__name__]))
dist.destroy_process_group()
"""


def test_gradients_are_those_of_torchs_ddp_without_its_compiler():
    done = subprocess.run([sys.executable, "-c", TRAIN], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [[], True, "DistributedDataParallel"]
