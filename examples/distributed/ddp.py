"""DistributedDataParallel: large matrices are divided over the processes.

torchrun --standalone --nproc-per-node 2 examples/distributed/ddp.py
"""

import torch
import torch.distributed as dist
from torch import nn

import egalitarian as eg

dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
torch.manual_seed(0)
device = torch.device("cuda", dist.get_rank()) if torch.cuda.is_available() else torch.device("cpu")
network = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4)).to(device)
model = nn.parallel.DistributedDataParallel(network)
optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
egd = eg.attach(optimizer, model)

for step in range(10):
    generator = torch.Generator().manual_seed(1000 * step + dist.get_rank())  # data of its own on each process
    x, y = torch.randn(16, 12, generator=generator), torch.randint(4, (16,), generator=generator)
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x.to(device)), y.to(device)).backward()
    optimizer.step()

print(f"process {dist.get_rank()}: weights {network[0].weight.norm():.6f}")  # the same on all
dist.destroy_process_group()
