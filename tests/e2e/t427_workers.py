# SPDX-License-Identifier: MulanPSL-2.0
"""Data-loader workers that multiprocessing starts by spawn and forkserver are programs of their own; what they record is
complete, carries the step of the training loop and says whose workers they are (docs/safety.md, property 3)."""

import glob
import json
import os
import re
import signal
import socket

import ctl
import harness as h
import jobs

h.require(h.AGENT, h.SYSTRACE)
PYTHONS = h.pythons()
PYTHON = list(PYTHONS.values())[-1]
HOST = socket.gethostname()
MODULES = h.tmpdir()

h.write_file(os.path.join(MODULES, "work.py"), r"""
import os, time, torch
from torch.utils.data import DataLoader

def wait(path):
    while not os.path.exists(path):
        time.sleep(0.01)

def load(queue, gate, n):
    queue.put(os.getpid())
    wait(gate)
    for batch in DataLoader(list(range(n))):
        torch.autograd.backward(batch)
    torch.save(1, os.devnull)
    queue.put(None)
    wait(gate + ".end")

def train(queue, gate, steps, rank=None):
    os.environ.update({} if rank is None else {"RANK": rank})
    load(queue, gate, 3)
    optimizer = torch.optim.SGD([])
    for batch in DataLoader(list(range(steps))):
        optimizer.step()
""")

PROGRAM = r"""
import multiprocessing as mp, sys
sys.path.insert(0, %r)
import work
def begin(kind, name, count, *args):
    global started, queue
    context = mp.get_context(kind)
    queue = context.Queue()
    started = [context.Process(target=getattr(work, name), args=(queue, *args)) for _ in range(count)]
    [p.start() for p in started]
    say("pids", *sorted(queue.get() for _ in started))
def loaded():
    assert [queue.get() for _ in started] == [None] * len(started)
def end():
    [p.join() for p in started]
    say("status", *sorted({p.exitcode for p in started}))
""" % MODULES


class Rank(jobs.Job):
    """A job and the workers that it has started."""

    def __init__(self, python=PYTHON, program=jobs.LOOP, **extra):
        env = h.preload_env(h.tmpdir(), **dict({"RANK": "3", "WORLD_SIZE": "8"}, **extra))
        super().__init__(python, env, PROGRAM + program)
        self.gate = os.path.join(self.dump, "gate")
        self.wait_attached()

    def begin(self, kind, name="load", count=2, *args):
        self.process.stdin.write(("begin(%r, %r, %d, %r, *%r)\n" % (kind, name, count, self.gate, args)).encode())
        self.process.stdin.flush()
        self.workers = [int(pid) for pid in self.expect("pids").split()[1:]]
        self.expect("done")
        for pid in self.workers:
            self.wait_worker(pid)

    def wait_worker(self, pid):
        """Until its agent traces what it is going to call."""
        path = self.socket_of(pid)
        h.wait_for(lambda: os.path.exists(path), what="the worker's socket")
        h.wait_for(lambda: re.search(r": %d functions attached" % self.functions,
                                     ctl.ask(path, "status").get("python.text", "")), what="attached functions")

    def socket_of(self, pid):
        return ctl.socket_of(os.path.join(self.dump, "sock"), pid)

    def go(self):
        h.write_file(self.gate, "")
        self.do("loaded()")

    def end(self, status="0"):
        h.write_file(self.gate + ".end", "")
        self.process.stdin.write(b"end()\n")
        self.process.stdin.flush()
        h.check_equal(self.expect("status").split()[1:], [status], "exit status of the workers")
        self.expect("done")

    def file_of(self, pid):
        return os.path.join(self.dump, "timeline", "%s--00003-%d.timeline" % (HOST, pid))

    def pools(self):
        return glob.glob(os.path.join(self.dump, "spool", "*", "*", "pool"))


def stages(path):
    return re.findall(r"^pytorch_stages \{\n(.*?)^\}", h.decode_pb(path), re.S | re.M)


def check_worker(job, pid, step, n):
    """All that it called, each with that step and flag; whose it is."""
    blocks = [b for b in stages(job.file_of(pid)) if "__next__" in b or "backward" in b]
    h.check_equal([sum(name in b for b in blocks) for name in ("__next__", "backward")], [n + 1, n],
                  "calls of the worker in:\n" + "".join(blocks))
    for block in blocks:
        h.check(re.search(r"^  step: %d$" % step, block, re.M), "step %d in %s" % (step, block))
        h.check(re.search(r"^  flags: [45]$", block, re.M), "the worker's flag in %s" % block)
    head = h.decode_pb(job.file_of(pid)).split("origin {")[1]
    h.check(re.search(r"^  rank: 3$", head, re.M), "rank in %s" % head[:900])


def each_method(python):
    job = Rank(python)
    job.train(4)
    for step, kind in ((5, "spawn"), (7, "forkserver")):
        job.begin(kind, "load", 2, step)  # as many batches
        status = ctl.ask(job.socket_of(job.workers[0]), "status")
        h.check_equal((status.get("worker_of"), status.get("step")), (str(job.pid), str(step - 1)), "status of a worker")
        job.go()
        job.end()
        job.train(2)
        os.unlink(job.gate)
        os.unlink(job.gate + ".end")
        for pid in job.workers:
            job.seen = getattr(job, "seen", []) + [(pid, step)]
    job.quit().ok()
    for pid, step in job.seen:
        check_worker(job, pid, step, step)
    h.check_equal((job.pools(), os.listdir(os.path.join(job.dump, "sock"))), ([], []), "pools and sockets left")
    runs = {json.loads(h.read_file(p))["run"] for p in glob.glob(os.path.join(job.dump, "meta", "*", "*.json"))}
    h.check_equal(len(runs), 1, "runs: %s" % runs)
    h.check_equal(jobs.steps_in(os.path.join(job.dump, "timeline", HOST + "--00003.timeline")), list(range(1, 9)),
                  "the rank's own steps")
    return job


def test_oldest_interpreter():
    each_method(list(PYTHONS.values())[0])


def test_newest_interpreter():
    job = each_method(PYTHON)
    out = os.path.join(job.dump, "all.json")
    h.run([h.SYSTRACE, "convert", "timeline", "--input", job.dump, "--output", out]).ok()
    events = json.loads(h.read_file(out))
    events = events["traceEvents"] if isinstance(events, dict) else events
    found = [e for e in events if "in a worker" in json.dumps(e)]
    h.check(len(found) >= 4 * 11, "%d events of workers in the converted file" % len(found))


def test_other_interpreters():
    for version, python in list(PYTHONS.items())[1:-1] if h.FULL else []:
        each_method(python)


def test_json():
    job = Rank(SYSTRACE_FORMAT="json")
    job.train(2)
    job.begin("spawn", "load", 1, 4)
    job.go()
    job.end()
    job.quit().ok()
    found = json.loads(h.read_file(job.file_of(job.workers[0])))["pytorch_stages"]
    h.check_equal([(s["step"], s["flags"]) for s in found if "backward" in s["stage_type"]], [(3, 4)] * 4, "stages")


def test_before_the_first_step():
    """Workers are there before the loop's first batch: nothing is written before the rank writes, and nothing is lost."""
    job = Rank()
    job.begin("spawn", "load", 1, 6)
    job.do("loop = iter(DataLoader([1, 2, 3])); next(loop)")
    job.go()
    h.check_equal(glob.glob(os.path.join(job.dump, "timeline", "*")), [], "files before the first step")
    job.do("optimizer.step()")
    h.wait_for(lambda: os.path.exists(job.file_of(job.workers[0])), what="the worker's file")
    job.end()
    job.quit().ok()
    check_worker(job, job.workers[0], 1, 6)


def test_killed():
    """What killed workers leave is finished by their rank while it runs: files, pools, sockets."""
    job = Rank()
    job.train(4)
    job.begin("forkserver", "load", 2, 5)
    job.go()
    h.check_equal(len(job.pools()), 3, "pools")
    for pid in job.workers:
        os.kill(pid, signal.SIGKILL)
    h.wait_for(lambda: len(job.pools()) == 1, timeout=60, what="the workers' pools to go")
    h.wait_for(lambda: os.listdir(os.path.join(job.dump, "sock")) == ["sysTrace_%d.sock" % job.pid], what="their sockets to go")
    for pid in job.workers:
        check_worker(job, pid, 5, 5)
    job.end(str(-signal.SIGKILL))
    job.quit().ok()


def test_spawned_ranks():
    """A launcher that trains nothing has no workers: who it starts is a rank, from its first call on."""
    job = Rank()
    job.begin("spawn", "train", 1, 5, "6")
    job.go()
    job.end()
    job.quit().ok()
    names = [os.path.basename(p) for p in glob.glob(os.path.join(job.dump, "timeline", "*"))]
    h.check_equal(names, [HOST + "--00006.timeline"], "files")
    path = os.path.join(job.dump, "timeline", names[0])
    steps = jobs.steps_in(path)  # of its loader first, then of its optimizer
    h.check_equal(steps[-5:], [1, 2, 3, 4, 5], "steps")
    h.check_equal([b for b in stages(path) if re.search(r"^  flags: [45]$", b, re.M)], [], "stages of workers")


def test_a_child_that_trains():
    """Of a rank that trains, too: until its first step it passes for a worker, then it has its own rank, steps and file."""
    job = Rank()
    job.train(4)
    job.begin("spawn", "train", 1, 5, "6")
    job.go()
    h.wait_for(lambda: os.path.exists(job.file_of(job.workers[0])), what="its file as a worker")
    job.end()
    job.quit().ok()
    path = os.path.join(job.dump, "timeline", HOST + "--00006.timeline")
    h.check_equal(jobs.steps_in(path), [1, 2, 3, 4, 5], "its steps")
    h.check_equal(jobs.steps_in(os.path.join(job.dump, "timeline", HOST + "--00003.timeline")), [1, 2, 3, 4], "the rank's steps")
    early = glob.glob(job.file_of(job.workers[0]) + "*")
    h.check_equal([jobs.steps_in(p) for p in early], [[]], "steps in the worker's file")


if __name__ == "__main__":
    h.main(test_oldest_interpreter, test_newest_interpreter, test_other_interpreters, test_json, test_before_the_first_step,
           test_killed, test_spawned_ranks, test_a_child_that_trains)
