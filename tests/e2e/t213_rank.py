# SPDX-License-Identifier: MulanPSL-2.0
# runner: timeout 240
"""Ranks whose environment does not say which they are: torch's process group does, whatever is recorded first, and forked
ranks become agents of their own with their own files and steps from 1."""

import os
import socket

import harness as h
import ranks

OWN_RANK = r'''
import sys, torch, torch.distributed as dist
from torch.utils.data import DataLoader
rank, port = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method="tcp://127.0.0.1:" + port, rank=rank, world_size=2)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in DataLoader(torch.ones(8, 2), batch_size=2):  # steps come before the first collective
    model(batch).sum().backward()
    optimizer.step()
if sys.argv[3] == "collective":
    dist.barrier()
'''

FORKING = r'''
import sys, torch, torch.distributed as dist, torch.multiprocessing as mp

def work(rank, port):
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:" + port, rank=rank, world_size=2)
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for step in range(60):
        weight.sum().backward()
        optimizer.step()
        dist.all_reduce(torch.ones(4))
        __import__("time").sleep(0.02)

if __name__ == "__main__":
    mp.start_processes(work, args=(sys.argv[1],), nprocs=2, start_method="fork")
'''


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def run_own_rank(how):
    dump, port = h.tmpdir(), free_port()
    script = h.write_file(os.path.join(dump, "job.py"), OWN_RANK)
    env = h.preload_env(dump, GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS=1)
    jobs = [h.start([ranks.python(), script, rank, port, how], env=env) for rank in range(2)]
    for job in jobs:
        h.finish(job, 60).ok()
    return dump


def check_files(dump):
    for rank in range(2):
        timeline = ranks.Timeline(dump, rank)
        h.check_equal(timeline.rank, rank, "rank inside the file")
        h.check_equal(ranks.last_count(timeline.steps)[-1]["step"], 4, "steps of rank %d" % rank)


def test_rank_from_the_process_group():
    check_files(run_own_rank("collective"))


def test_rank_without_any_collective():
    check_files(run_own_rank("none"))


def test_forked_ranks_are_agents_of_their_own():
    dump = h.tmpdir()
    env = h.preload_env(dump, GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS=1)
    h.run([ranks.python(), h.write_file(os.path.join(dump, "job.py"), FORKING), free_port()], env=env, timeout=90).ok()
    for rank in range(2):
        timeline = ranks.Timeline(dump, rank)
        # steps before the promotion are the parent pool's, which counts none
        steps = [s["step"] for s in timeline.steps]
        h.check(len(steps) >= 20, "rank %d has %d steps" % (rank, len(steps)))
        h.check_equal(steps, list(range(1, len(steps) + 1)), "steps of rank %d" % rank)


if __name__ == "__main__":
    h.main(test_rank_from_the_process_group, test_rank_without_any_collective, test_forked_ranks_are_agents_of_their_own)
