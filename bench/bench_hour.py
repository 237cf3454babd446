#!/usr/bin/env python3
# SPDX-License-Identifier: MulanPSL-2.0
"""How much an hour of one rank is: a job that paces itself to a given number of steps a second, with that many collectives
in each, runs for a while; the growth of the rank's files is scaled to an hour. Budgets (design 3): 8 MiB always on, 50 MiB
with markers at 20 collectives a second.

    python3 bench/bench_hour.py [--seconds 60] [--rate 2] [--collectives 40] [--markers]
"""

import argparse
import glob
import os
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests", "e2e"))


def job(options):
    import torch
    import torch.distributed as dist
    from torch.utils.data import DataLoader, TensorDataset

    dist.init_process_group("gloo")
    groups = [dist.group.WORLD, dist.new_group([0]), dist.new_group([0])]  # data, tensor and pipeline parallel
    model = torch.nn.Linear(16, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(torch.randn(1 << 16, 16)), batch_size=4)
    source = iter(loader)
    tensor = torch.ones(64)
    begin, steps = time.monotonic(), 0
    while time.monotonic() - begin < options.seconds:
        inputs, = next(source)
        optimizer.zero_grad()
        model(inputs).sum().backward()
        for n in range(options.collectives):
            if n % 4 == 3:
                dist.all_gather([torch.empty(64)], tensor, group=groups[n % 3])
            else:
                dist.all_reduce(tensor, group=groups[n % 3])
        optimizer.step()
        steps += 1
        time.sleep(max(0, begin + steps / options.rate - time.monotonic()))
        if steps in (options.rate * 10, options.rate * options.seconds - 1):  # what every file begins with is not growth
            time.sleep(0.5)
            sizes = {os.path.relpath(p, options.dump): os.path.getsize(p)
                     for d in ("timeline", "mspti") for p in glob.glob(os.path.join(options.dump, d, "*"))}
            print("at %d %s" % (steps, " ".join("%s=%d" % item for item in sorted(sizes.items()))), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--rate", type=int, default=2, help="steps a second")
    parser.add_argument("--collectives", type=int, default=40, help="in a step")
    parser.add_argument("--markers", action="store_true", help="with MSPTI event=marker")
    parser.add_argument("--dump", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.dump:
        return job(options)

    import harness as h
    h.require(h.AGENT)
    dump = h.tmpdir()
    env = h.preload_env(dump, RANK=0, LOCAL_RANK=0, WORLD_SIZE=1, MASTER_ADDR="127.0.0.1", MASTER_PORT=29578,
                        GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS=1, SYSTRACE_ENABLE=1,
                        SYSTRACE_PLUGINS="MSPTI event=marker" if options.markers else None)
    out = subprocess.run([h.python_with("torch"), os.path.abspath(__file__), "--dump", dump] + sys.argv[1:], env=env,
                         stdout=subprocess.PIPE, check=True, text=True).stdout
    looks = []
    for line in out.splitlines():
        words = line.split()
        looks.append((int(words[1]), {k: int(v) for k, _, v in (w.partition("=") for w in words[2:])}))
    (steps0, first), (steps1, last) = looks[0], looks[-1]
    hours = (steps1 - steps0) / options.rate / 3600
    for name in sorted(last):
        grown = last[name] - first.get(name, 0)
        print("%-44s %6.2f MiB an hour, %.0f bytes a step" % (name, grown / hours / 2**20, grown / (steps1 - steps0)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
