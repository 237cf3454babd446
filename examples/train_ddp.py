#!/usr/bin/env python3
# SPDX-License-Identifier: MulanPSL-2.0
"""A small distributed training job on CPUs: data parallel over gloo.

It stands for the jobs sysTrace is made for: a DataLoader with worker processes, forward, an all-reduce of the loss for
the log, backward, gradients averaged by DistributedDataParallel (inside its C++ part) or, with --grad-sync manual, by one
all_reduce a layer as Megatron does, an optimizer, a barrier and a checkpoint now and then. It knows nothing of sysTrace
and slows nothing down on purpose: run it on a busy CPU or on slow storage to see that.

    python3 examples/launch.py -n 2 examples/train_ddp.py --steps 100
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Samples(Dataset):
    """Sequences of random numbers and their class; from files below a directory when one is given."""

    def __init__(self, count, length, width, directory=None):
        self.count, self.length, self.width, self.directory = count, length, width, directory
        if directory:
            os.makedirs(directory, exist_ok=True)
            for index in range(64):
                path = self.path(index)
                if not os.path.exists(path):
                    torch.save(self.make(index), path + ".%d" % os.getpid())
                    os.replace(path + ".%d" % os.getpid(), path)

    def path(self, index):
        return os.path.join(self.directory, "sample-%02d.pt" % (index % 64))

    def make(self, index):
        generator = torch.Generator().manual_seed(index)
        return torch.randn(self.length, self.width, generator=generator), index % 10

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return torch.load(self.path(index)) if self.directory else self.make(index)


class Block(nn.Module):
    """One transformer block."""

    def __init__(self, width, heads):
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x):
        y = self.norm1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class Model(nn.Module):
    def __init__(self, layers, width, heads=4, classes=10):
        super().__init__()
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(layers)])
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        return self.head(self.blocks(x).mean(dim=1))


def batches(loader, sampler):
    """Batches without end, epoch after epoch."""
    epoch = 0
    while True:
        sampler.set_epoch(epoch)
        yield from loader
        epoch += 1


def average_gradients(model):
    """One all_reduce for each part of the model, the last part's first."""
    parts = list(model.blocks) + [model.head]
    for part in reversed(parts):
        gradients = [p.grad for p in part.parameters()]
        flat = torch.cat([g.flatten() for g in gradients])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        for gradient, mean in zip(gradients, flat.split([g.numel() for g in gradients])):
            gradient.copy_(mean.view_as(gradient))


def train(options, rank):
    data = Samples(options.samples, options.length, options.width, options.data)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=options.batch, sampler=sampler, num_workers=options.workers,
                        persistent_workers=options.workers > 0)
    plain = Model(options.layers, options.width)
    manual = options.grad_sync == "manual"
    model = plain if manual else nn.parallel.DistributedDataParallel(plain)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    source = batches(loader, sampler)

    for step in range(1, options.steps + 1):
        begin = time.monotonic()
        optimizer.zero_grad()
        for micro in range(options.accumulate):
            inputs, labels = next(source)
            loss = nn.functional.cross_entropy(model(inputs), labels) / options.accumulate
            if micro == 0:
                total = loss.detach().clone()
                dist.all_reduce(total)
            loss.backward()
        if manual:
            average_gradients(plain)
        optimizer.step()

        if options.barrier_every and step % options.barrier_every == 0:
            dist.barrier()
        if options.checkpoint and step % options.checkpoint_every == 0 and rank == 0:
            torch.save(plain.state_dict(), options.checkpoint)
        if rank == 0:
            print("step %d loss %.4f per_step_time: %.1fms" % (
                step, total.item() * options.accumulate / dist.get_world_size(), (time.monotonic() - begin) * 1e3), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--length", type=int, default=32, help="of a sequence")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--accumulate", type=int, default=1, help="batches per optimizer step")
    parser.add_argument("--grad-sync", choices=("ddp", "manual"), default="ddp")
    parser.add_argument("--samples", type=int, default=4096)
    parser.add_argument("--workers", type=int, default=0, help="DataLoader processes")
    parser.add_argument("--data", help="directory of sample files, made when missing (default: made up in memory)")
    parser.add_argument("--barrier-every", type=int, default=10, help="steps, 0 = never")
    parser.add_argument("--checkpoint", help="file that rank 0 writes")
    parser.add_argument("--checkpoint-every", type=int, default=50)
    options = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    try:
        train(options, dist.get_rank())
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
