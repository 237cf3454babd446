# SPDX-License-Identifier: MulanPSL-2.0
"""Real PyTorch, two ranks over gloo with forked data-loader workers, controlled by the real sysTrace_cli: steps, ranks,
collectives and the workers' part are in the files; a dump path that does not answer holds nobody up."""

import glob
import os
import re
import signal
import socket

import harness as h
import jobs

h.require(h.AGENT, h.CLI)
PYTHON = h.python_with("torch")
HOST = socket.gethostname()

DDP = r"""
import os, sys, torch, torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset
say = lambda *words: (sys.stdout.write(" ".join(map(str, words)) + "\n"), sys.stdout.flush())
torch.set_num_threads(1)
say("pid", os.getpid())
sys.stdin.readline()
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=.1)
data = TensorDataset(torch.randn(64, 8))
def train(steps):
    done = 0
    while done < steps:
        for (x,) in DataLoader(data, batch_size=8, num_workers=1):
            if done == steps:
                break
            optimizer.zero_grad(); model(x).sum().backward(); optimizer.step()
            t = torch.ones(4); dist.all_reduce(t)
            done += 1
say("done")
for line in sys.stdin:
    if line.strip() == "quit":
        break
    exec(line)
    say("done")
"""


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def both(ranks, text):
    for job in ranks:
        job.process.stdin.write(text.encode() + b"\n")
        job.process.stdin.flush()
    for job in ranks:
        job.expect("done")


def test_two_ranks():
    dump = h.tmpdir()
    env = h.preload_env(dump, MASTER_ADDR="127.0.0.1", MASTER_PORT=free_port(), WORLD_SIZE="2")
    ranks = []
    for rank in range(2):
        ranks.append(jobs.Job(PYTHON, dict(env, RANK=str(rank), LOCAL_RANK=str(rank)), DDP, fake=False))
    both(ranks, "go")
    for job in ranks:
        job.wait_attached()
    both(ranks, "train(10)")
    pids = ",".join(str(job.pid) for job in ranks)
    tool = h.tool_env(dump)
    listed = h.run([h.CLI, "list", "--pid", pids], env=tool).ok().out
    for job in ranks:
        h.check(re.search(r"\b%d\b.*recording" % job.pid, listed), "list: %s" % listed)
    acks = h.run([h.CLI, "enable", "MSPTI", "event=marker", "--pid", pids], env=tool).ok().out
    for job in ranks:
        h.check("[ACK] %s: SUCCESS" % job.sock in acks, "enable: %s" % acks)
    both(ranks, "train(5)")
    h.run([h.CLI, "disable", "MSPTI", "--pid", pids], env=tool).ok()
    for n, job in enumerate(ranks):
        csv = h.read_file(h.find_one(dump, "mspti/mspti-marker-*-%d.csv" % n))
        h.check("all_reduce" in csv, "markers of rank %d: %s" % (n, csv[:500]))
        job.quit().ok()
    for rank in range(2):
        path = os.path.join(dump, "timeline", "%s--%05d.timeline" % (HOST, rank))
        steps = jobs.steps_in(path)
        h.check_equal(steps, list(range(1, len(steps) + 1)), "steps of rank %d" % rank)
        h.check(len(steps) >= 14, "steps of rank %d: %s" % (rank, steps))
        text = h.decode_pb(path)
        h.check("world_size: 2" in text and "rank_known: true" in text, "origin of rank %d" % rank)
        for word in ("_BaseDataLoaderIter@__next__", "autograd@backward", "Optimizer@step", 'op: "all_reduce"'):
            h.check(word in text, "no %s in the timeline of rank %d" % (word, rank))
    runs = {os.path.dirname(p) for p in glob.glob(os.path.join(dump, "meta", "*", "*.json"))}
    h.check_equal(len(runs), 1, "runs: %s" % runs)


def io_thread(job):
    return next(t for t in os.listdir("/proc/%d/task" % job.pid)
                if h.read_file("/proc/%d/task/%s/comm" % (job.pid, t)).strip() == "systrace/io")


def traced(tracer, job, tid):
    """Wait until strace has the thread; False when it may not."""
    return h.wait_for(lambda: "TracerPid:\t%d" % tracer.pid in h.read_file("/proc/%d/task/%s/status" % (job.pid, tid)) or
                      tracer.poll() is not None, what="strace") and tracer.poll() is None


def test_blocked_dump_path():
    """Writes that hang: training goes on, control answers, the exit is not held up for as long as the write hangs."""
    h.require("strace")
    job = jobs.Job(h.python_with("torch"), h.preload_env(h.tmpdir()), jobs.REAL_LOOP, fake=False)
    job.wait_attached()
    job.train(2)
    job.ask("flush")
    tid = io_thread(job)
    hang = "--inject=write,pwrite64,writev,pwritev,openat,newfstatat:delay_enter=60000000"
    tracer = h.start(["strace", "-o", "/dev/null", "-p", tid, hang])
    if not traced(tracer, job, tid):
        h.skip("strace is not allowed here")
    job.train(20)
    h.check_equal(job.ask("list").code, 0, "list while the io thread hangs")
    h.check_equal(job.status().get("step"), "22", "step while the io thread hangs")
    job.process.stdin.write(b"quit\n")
    job.process.stdin.close()
    job.process.stdin = None
    # the process has ended, but for the thread that strace holds
    h.wait_for(lambda: h.read_file("/proc/%d/stat" % job.pid).rsplit(")", 1)[1].split()[0] == "Z", what="the end")
    h.stop(tracer, signal.SIGKILL)
    h.finish(job.process).ok()


def test_slow_dump_path():
    """One write of more than two seconds: output goes on below SYSTRACE_LOCAL_PATH, nothing is lost."""
    h.require("strace")
    dump = h.tmpdir()
    job = jobs.Job(PYTHON, h.preload_env(dump), jobs.REAL_LOOP, fake=False)
    job.wait_attached()
    job.train(2)
    job.ask("flush")
    tid = io_thread(job)
    tracer = h.start(["strace", "-o", "/dev/null", "-p", tid,
                      "--inject=write,pwrite64,writev,pwritev:delay_enter=2500000:when=1"])
    if not traced(tracer, job, tid):
        h.skip("strace is not allowed here")
    job.train(3)
    h.wait_for(lambda: job.status().get("dump_path") == os.path.join(dump, "local"), what="the local path in status")
    h.stop(tracer)
    job.train(4)
    job.quit().ok()
    found = [p for place in (dump, os.path.join(dump, "local")) for p in glob.glob(os.path.join(place, "timeline", "*"))]
    h.check_equal(sorted(n for p in found for n in jobs.steps_in(p)), list(range(1, 10)), "steps in %s" % found)
    h.check("output goes below" in h.agent_log(dump), "log: %s" % h.agent_log(dump))


h.main(test_two_ranks, test_blocked_dump_path, test_slow_dump_path)
