"""FSDP2: each gradient is equalised as a whole matrix, by the process that owns it.

torchrun --standalone --nproc-per-node 2 examples/distributed/fsdp2.py
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import egalitarian as eg

dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
torch.manual_seed(0)
if torch.cuda.is_available():
    torch.cuda.set_device(dist.get_rank())
device = "cuda" if torch.cuda.is_available() else "cpu"
mesh = init_device_mesh(device, (dist.get_world_size(),), mesh_dim_names=("fsdp",))
model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4)).to(device)
for layer in model:
    if isinstance(layer, nn.Linear):
        fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
egd = eg.attach(optimizer, model)
if dist.get_rank() == 0:
    print(egd.plan)  # owners and bytes

for step in range(10):
    generator = torch.Generator().manual_seed(1000 * step + dist.get_rank())  # data of its own on each process
    x, y = torch.randn(16, 12, generator=generator), torch.randint(4, (16,), generator=generator)
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x.to(device)), y.to(device)).backward()
    optimizer.step()

print(f"process {dist.get_rank()}: weights {model[0].weight.full_tensor().norm():.6f}")
dist.destroy_process_group()
