#!/usr/bin/env python3
# SPDX-License-Identifier: MulanPSL-2.0
"""PyTorch under the real agent with the built-in list: each data loader call, backward pass, optimizer step, collective and
checkpoint of a small training run is one stage, counted exactly, and the run prints what it prints without the agent.
"""

import collections
import os
import re

import harness

JOB = """
import sys, torch, torch.distributed as dist, inspect, pickle
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(1)
dist.init_process_group("gloo", init_method="file://" + sys.argv[1] + "/store", rank=0, world_size=1)
import time
time.sleep(1)  # every row is attached before the first call, so that all are counted
dist.barrier()
net = torch.nn.Linear(8, 1)
data = TensorDataset(torch.randn(64, 8), torch.randn(64, 1))
for kind in (torch.optim.SGD, torch.optim.Adam):
    opt = kind(net.parameters(), lr=0.01)
    for epoch in range(2):
        for x, y in DataLoader(data, batch_size=16):
            opt.zero_grad()
            ((net(x) - y) ** 2).mean().backward()
            for p in net.parameters():
                dist.all_reduce(p.grad, group=None)
            opt.step()
torch.save(net.state_dict(), sys.argv[1] + "/model")
print([list(inspect.signature(f).parameters) for f in (torch.save, dist.all_reduce, torch.optim.SGD.step)])
print(len(inspect.getsource(torch.autograd.backward)), pickle.dumps(torch.autograd.backward))
print(["%.6f" % v for v in net.weight.flatten().tolist()])
"""


def test_stages():
    python = harness.python_with("torch")
    out = harness.tmpdir()
    job = harness.write_file(os.path.join(out, "job.py"), JOB)
    results = []
    for name, preload in (("with", True), ("without", False)):
        work = os.path.join(out, name)
        os.makedirs(work)
        env = harness.preload_env(os.path.join(out, "dump"), RANK="0")
        if not preload:
            env.pop("LD_PRELOAD")
        results.append(harness.run([python, job, work], env=env, timeout=120).ok())
    harness.check_equal(results[0].out, results[1].out, "what the job prints")
    harness.check_equal(results[0].err, results[1].err, "what the job prints to stderr")

    text = harness.decode_pb(harness.find_one(out, "dump/timeline/*--00000.timeline"))
    stages = collections.Counter(re.findall(r'stage_type: "(.*)"', text))
    want = {"torch.utils.data.dataloader@_BaseDataLoaderIter@__next__": 20,  # 16 batches, 4 ends
            "torch@autograd@backward": 16, "torch.optim@Optimizer@step": 16, "torch@save": 1}
    harness.check_equal({k: stages[k] for k in want}, want, "stages")
    harness.check(stages["GC"] > 0, "no garbage collection was seen")
    calls = collections.Counter()
    for op, n in re.findall(r'op: "(\w+)"\s+group: "[^"]*"\s+calls: (\d+)', text):
        calls[op] += int(n)
    harness.check_equal({k: calls[k] for k in ("all_reduce", "barrier")}, {"all_reduce": 32, "barrier": 1}, "collectives")


if __name__ == "__main__":
    harness.require(harness.AGENT)
    harness.main(test_stages)
