# SPDX-License-Identifier: MulanPSL-2.0
"""Every way to make a child leaves the job, the child and the agent as they should be; records of data-loader workers are
complete and carry the step of the training loop (docs/safety.md, property 3). More in t014."""

import os
import re
import socket

import ctl
import harness as h
import jobs

h.require(h.AGENT, "gcc")
TMP = h.tmpdir()
HOST = h.compile_c(os.path.join(h.ROOT, "tests", "fake", "ends_host.c"), os.path.join(TMP, "host"), "-ldl", "-lpthread")
PYTHON = list(h.pythons().values())[-1]
HOSTNAME = socket.gethostname()

FORKS = {"fork": 21, "vfork": 22, "spawn": 23, "system": 24, "_Fork": 25, "clone": 26}


def test_every_fork():
    for way, status in FORKS.items():
        for switch in ("1", None):
            env = h.preload_env(h.tmpdir(), SYSTRACE_ENABLE=switch, HOST_WAIT_MS="100")
            want = h.run([HOST, way], env={k: v for k, v in env.items() if k != "LD_PRELOAD"})
            got = h.run([HOST, way], env=env)
            h.check_equal((got.status, got.out, got.err), (want.status, want.out, want.err), way)
            h.check_equal(got.status, status, way)
            if way in ("fork", "_Fork", "clone"):  # the others run a shell, which may leave by _exit
                h.check_equal(os.listdir(env["SYSTRACE_SOCKET_DIR"]), [], "sockets left by " + way)


def test_child_with_our_pid():
    """A container within a container: parent and child are both 1 where they live. The child's exit is not the parent's."""
    h.require_root()
    directory = h.tmpdir()
    env = h.preload_env(directory, SYSTRACE_ENABLE="1")
    env["SOCKET_OF_1"] = ctl.socket_of(env["SYSTRACE_SOCKET_DIR"], 1)
    result = h.run([HOST, "same_pid", "go"], env=env)
    if result.status == 77:
        h.skip("no pid namespaces here")
    h.check_equal((result.status, result.out), (27, "inner is 1\nsocket there\n"), "nested pid namespaces")


def test_many_forks():
    """Forks while other threads allocate and ours work; each child ends, half of them through the destructors."""
    env = h.preload_env(h.tmpdir(), SYSTRACE_ENABLE="1")
    result = h.run([HOST, "many", "1000"], env=env)
    h.check_equal((result.status, result.err), (28, ""), "1000 forks")


def job_with(program, python=PYTHON, **extra):
    job = jobs.Job(python, h.preload_env(h.tmpdir(), **extra), program + jobs.LOOP)
    job.wait_attached()
    return job


STORM = r"""
import torch
def storm(n):
    for i in range(n):
        pid = os.fork()
        if pid == 0:
            torch.save(i, os.devnull)
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
"""


def test_forks_of_a_training_job(count=200):
    """Forked children that each record: none blocks, and the parent's steps stay what they are."""
    job = job_with(STORM)
    job.train(3)
    for _ in range(5):
        job.do("storm(%d)" % (count // 5))
        job.train(1)
    job.ask("flush")
    status = job.status()
    h.check_equal(status.get("step"), "8", "steps of the parent")
    job.quit().ok()
    h.check_equal(jobs.steps_in(h.find_one(job.dump, "timeline/*")), list(range(1, 9)), "steps")


WORKERS = r"""
import multiprocessing as mp, torch
def worker(queue, n):
    for batch in DataLoader(list(range(n))):
        torch.autograd.backward(batch)
    torch.save(1, os.devnull)
    queue.put(os.getpid())
def workers(kind, count, n):
    context = mp.get_context(kind)
    queue = context.Queue()
    started = [context.Process(target=worker, args=(queue, n)) for _ in range(count)]
    [p.start() for p in started]
    pids = sorted(queue.get() for _ in started)
    [p.join() for p in started]
    assert all(p.exitcode == 0 for p in started), [p.exitcode for p in started]
    say("pids", *pids)
"""


def test_forked_loader_workers():
    """Each worker's calls are in the parent's file, with its pid, the worker's flag, and the step that the loop was in."""
    job = job_with(WORKERS)
    job.train(4)
    job.process.stdin.write(b"workers('fork', 3, 5)\n")
    job.process.stdin.flush()
    pids = job.expect("pids").split()[1:]
    job.expect("done")
    job.train(1)
    job.ask("flush")
    text = h.decode_pb(h.find_one(job.dump, "timeline/*"))
    blocks = re.findall(r"^(\w+) \{\n(.*?)^\}", text, re.S | re.M)
    for pid in pids:
        mine = [b for _, b in blocks if re.search(r"^  pid: %s$" % pid, b, re.M)]
        backward = [b for b in mine if "autograd@backward" in b]
        loads = [b for b in mine if "__next__" in b]
        h.check_equal((len(backward), len(loads)), (5, 6), "calls of worker %s in:\n%s" % (pid, text))
        for block in backward + loads:
            h.check(re.search(r"^  step: 5$", block, re.M), "the step of worker %s: %s" % (pid, block))
            h.check(re.search(r"^  flags: [45]$", block, re.M), "the flag of worker %s: %s" % (pid, block))
    job.quit().ok()
    h.check_equal(jobs.steps_in(h.find_one(job.dump, "timeline/*")), [1, 2, 3, 4, 5], "the parent's own steps")


MAIN = r"""
import multiprocessing as mp, os, sys
import torch
from torch.utils.data import DataLoader
def worker(queue, n):
    for batch in DataLoader(list(range(n))):
        pass
    queue.put((os.getpid(), sorted(open("/proc/self/task/%s/comm" % t).read().strip()
                                   for t in os.listdir("/proc/self/task"))))
if __name__ == "__main__":
    context = mp.get_context(sys.argv[1])
    queue = context.Queue()
    started = [context.Process(target=worker, args=(queue, 3)) for _ in range(int(sys.argv[2]))]
    [p.start() for p in started]
    got = [queue.get() for _ in started]
    [p.join() for p in started]
    print(len(got), sorted({p.exitcode for p in started}))
"""


def test_other_workers():
    """spawn and forkserver, with their resource tracker: same output and status, on every interpreter."""
    script = h.write_file(os.path.join(TMP, "main.py"), MAIN)
    for version, python in h.pythons().items():
        for kind in ("spawn", "forkserver"):
            dump = h.tmpdir()
            env = h.preload_env(dump, PYTHONPATH=jobs.FAKE_TORCH, PYTHONDONTWRITEBYTECODE="1")
            got = h.run([python, script, kind, "2"], env=env)
            h.check_equal((got.status, got.out, got.err), (0, "2 [0]\n", ""), "%s under CPython %d.%d" % ((kind,) + version))
            if kind == "spawn":  # a forkserver's children leave by os._exit
                h.check_equal(os.listdir(env["SYSTRACE_SOCKET_DIR"]), [], "sockets left")


def test_fork_inside_a_stage():
    """The child returns from a traced function that its parent entered."""
    program = r"""
class Forking(list):
    pid = None
    def __getitem__(self, n):
        if n == 1:
            Forking.pid = os.fork()
        return n
def fork_inside():
    for batch in DataLoader(Forking([1, 2, 3])):
        torch.autograd.backward(batch)
    if Forking.pid == 0:
        os._exit(3)
    assert os.waitpid(Forking.pid, 0)[1] >> 8 == 3
"""
    job = job_with(program)
    job.train(2)
    job.do("fork_inside()")
    job.train(2)
    job.ask("flush")
    job.quit().ok()
    path = h.find_one(job.dump, "timeline/*")
    h.check(jobs.steps_in(path)[-1] >= 4, "steps: %s" % jobs.steps_in(path))
    child = [b for b in re.findall(r"^\w+ \{\n(.*?)^\}", h.decode_pb(path), re.S | re.M) if re.search("flags: [45]", b)]
    # it returns from the second __next__, goes on to the third, and to the one that finds no more
    h.check_equal([sum(name in b for b in child) for name in ("__next__", "autograd@backward")], [3, 2], "calls of the child")


DAEMON = r"""
def daemonise(path):
    if os.fork():
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    [os.dup2(os.open(os.devnull, os.O_RDWR), fd) for fd in range(3)]
    os.environ["RANK"] = "5"
    model.train(4)
    time.sleep(0.5)
    model.train(2)
    open(path, "w").write(str(os.getpid()))
    while os.path.exists(path):
        time.sleep(0.02)
    sys.exit(0)
"""


def test_daemon_becomes_an_agent():
    """A rank that daemonises: an agent with rank, socket and files of its own; its parent may be gone by then."""
    job = job_with(DAEMON)
    job.train(1)
    path = os.path.join(job.dump, "alive")
    job.do("daemonise(%r)" % path)
    job.quit().ok()
    pid = int(h.wait_for(lambda: os.path.exists(path) and h.read_file(path), what="the daemon"))
    sock = ctl.socket_of(os.path.join(job.dump, "sock"), pid)
    h.wait_for(lambda: os.path.exists(sock), what="the daemon's socket")
    answer = ctl.ask(sock, "list")
    h.check_equal((answer.get("pid"), answer.get("rank"), answer.get("state")), (str(pid), "5", "recording"), "daemon")
    os.unlink(path)
    h.wait_for(lambda: not os.path.exists(sock), what="the end of the daemon")
    steps = jobs.steps_in(os.path.join(job.dump, "timeline", HOSTNAME + "--00005.timeline"))
    h.check(len(steps) >= 5 and steps[-1] - steps[0] == len(steps) - 1, "steps of the daemon: %s" % steps)


if __name__ == "__main__":
    h.main(test_every_fork, test_child_with_our_pid, test_many_forks, test_forks_of_a_training_job,
           test_forked_loader_workers, test_other_workers, test_fork_inside_a_stage, test_daemon_becomes_an_agent)
