"""Train on random rows by DistributedDataParallel. A usual script for torchrun."""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn

arguments = argparse.ArgumentParser()
arguments.add_argument("--model_dir", required=True)
torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
rows = torch.rand(6400, 64)
classes = (rows[:, 0] * 10).long()
network = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
model = nn.parallel.DistributedDataParallel(network)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
started = time.monotonic()
for _ in range(6):
    for start in range(0, 6400, 64):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(rows[start : start + 64]), classes[start : start + 64]).backward()
        optimizer.step()
print(f"{600 / (time.monotonic() - started):.1f} steps a second", flush=True)
if dist.get_rank() == 0:
    torch.save(network.state_dict(), f"{arguments.parse_args().model_dir}/model.pt")
