#!/usr/bin/env python3
# SPDX-License-Identifier: MulanPSL-2.0
"""What the always-on agent costs a PyTorch step (design 10): the layer is switched on and off every 20 steps inside one
process, so that both halves see the same machine, and the difference of neighbouring blocks is given with a 95 %
bootstrap interval. Beside it the accounted cost: traced calls of a step times the measured cost of one, and the CPU time
of the agent's threads.

    python3 bench/bench_overhead.py [--blocks 240] [--steps 20]

Wall time is what a user feels; process CPU time disturbs less easily on a busy machine and holds our threads as well.
"""

import argparse
import os
import random
import statistics
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests", "e2e"))


# --- inside the job ------------------------------------------------------------------------------------------------

def noop():
    pass


def status(ctl, sock):
    return dict(ctl.ask(sock, "status").entries)


def switch(ctl, sock, on):
    answer = ctl.ask(sock, "enable" if on else "disable", plugin="stages")
    if answer.code:
        sys.exit("the agent refused: %s" % answer.text)


def cost_of_a_call(ctl, sock, calls=500, rounds=6):
    """ns that tracing adds to one call of an empty Python function; few calls, so that each one is written."""
    best = {}
    for on in (False, True) * rounds:
        switch(ctl, sock, on)
        begin = time.perf_counter()
        for _ in range(calls):
            noop()
        spent = (time.perf_counter() - begin) / calls * 1e9
        best[on] = min(best.get(on, spent), spent)
    return best[True] - best[False]


def job(options):
    import ctl
    import torch
    import torch.distributed as dist
    from torch.utils.data import DataLoader, TensorDataset
    sys.path.insert(0, os.path.join(ROOT, "examples"))
    from train_ddp import Model

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(Model(options.layers, 64))
    optimizer = torch.optim.AdamW(model.parameters())
    data = TensorDataset(torch.randn(4096, 32, 64), torch.randint(10, (4096,)))
    loader = DataLoader(data, batch_size=options.batch)

    def batches():
        while True:
            yield from loader

    source = batches()

    def step():
        inputs, labels = next(source)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        dist.all_reduce(loss.detach())
        loss.backward()
        optimizer.step()

    sock = os.path.join(os.environ["SYSTRACE_SOCKET_DIR"], "sysTrace_%d.sock" % os.getpid())
    for _ in range(20):
        step()
    deadline = time.monotonic() + 10
    while status(ctl, sock)["step"] == "0" and time.monotonic() < deadline:
        step()
    call_ns = cost_of_a_call(ctl, sock)
    before = status(ctl, sock)
    print("agent: %s" % before.get("python.text", before.get("python")))

    blocks = {False: [], True: []}
    rng = random.Random(1)
    for _ in range(options.blocks // 2):
        order = [False, True]
        rng.shuffle(order)
        for on in order:
            switch(ctl, sock, on)
            step()  # the first step after a switch is nobody's
            cpu, wall = time.process_time(), time.perf_counter()
            for _ in range(options.steps):
                step()
            blocks[on].append(((time.perf_counter() - wall) / options.steps,
                               (time.process_time() - cpu) / options.steps))
    report(blocks)
    account(before, status(ctl, sock), blocks, options, call_ns)


def interval(pairs, rng, rounds=4000):
    """Median of the relative differences and its 95 % bootstrap interval, in percent."""
    differences = [100 * (on - off) / off for off, on in pairs]
    medians = sorted(statistics.median(rng.choices(differences, k=len(differences))) for _ in range(rounds))
    return statistics.median(differences), medians[int(0.025 * rounds)], medians[int(0.975 * rounds)]


def report(blocks):
    rng = random.Random(2)
    for which, name in ((0, "wall time"), (1, "process CPU time")):
        pairs = [(off[which], on[which]) for off, on in zip(blocks[False], blocks[True])]
        middle, low, high = interval(pairs, rng)
        off, on = (statistics.median(p[k] for p in pairs) * 1e3 for k in (0, 1))
        print("%-17s a step %.3f ms off, %.3f ms on; difference %+.2f %% (95 %% interval %+.2f .. %+.2f), "
              "%d pairs of blocks" % (name + ":", off, on, middle, low, high, len(pairs)))


def account(before, after, blocks, options, call_ns):
    """Calls of a step times the cost of one, and the io thread's CPU time, as parts of a step."""
    step_ns = statistics.median(b[0] for b in blocks[True]) * 1e9
    steps_on = (options.steps + 1) * len(blocks[True])
    io_ns = (int(after["thread.io.cpu_ns"]) - int(before["thread.io.cpu_ns"])) / steps_on
    calls = 4  # dataloader, all_reduce, backward, optimizer
    print("accounted:        %d traced calls of %.0f ns each, io thread %.1f us a step: %.3f %% of a step"
          % (calls, call_ns, io_ns / 1e3, 100 * (calls * call_ns + io_ns) / step_ns))


# --- outside -------------------------------------------------------------------------------------------------------

def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--blocks", type=int, default=240, help="of both kinds together")
    parser.add_argument("--steps", type=int, default=20, help="in a block")
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--batch", type=int, default=4)
    options = parser.parse_args()
    if "BENCH_JOB" in os.environ:
        return job(options)

    import harness as h
    h.require(h.AGENT)
    dump = h.tmpdir()
    builtin = h.read_file(os.path.join(ROOT, "src", "agent", "python", "default_list.list"))
    functions = h.write_file(os.path.join(dump, "functions"), builtin + "__main__@noop BACKWARD\n")
    env = h.preload_env(dump, BENCH_JOB=1, RANK=0, LOCAL_RANK=0, WORLD_SIZE=1, MASTER_ADDR="127.0.0.1",
                        MASTER_PORT=29577, GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS=1, SYSTRACE_ENABLE=1,
                        SYSTRACE_PYFUNC_LIST=functions)
    return subprocess.call([h.python_with("torch"), os.path.abspath(__file__)] + sys.argv[1:], env=env)


if __name__ == "__main__":
    sys.exit(main())
