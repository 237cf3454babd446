# SPDX-License-Identifier: MulanPSL-2.0
"""Jobs that make life hard for a library inside them: fork workers (with and without atfork handlers), forked ranks,
daemons, hosts that close every descriptor, change identity or their environment, and short-lived children."""

import glob
import os
import re
import socket

import ctl
import harness as h
import jobs

h.require(h.AGENT)
PYTHON = list(h.pythons().values())[-1]
HOST = socket.gethostname()

WORKERS = r"""
def worker(kind):
    if kind == "fork":
        pid = os.fork()
    else:
        import ctypes
        pid = ctypes.CDLL(None)._Fork()
    if pid == 0:
        for batch in DataLoader(list(range(3))):
            pass
        os._exit(9)
    assert os.waitpid(pid, 0)[1] >> 8 == 9
"""


def job_with(program, **extra):
    job = jobs.Job(PYTHON, h.preload_env(h.tmpdir(), **extra), program + jobs.LOOP)
    job.wait_attached()
    return job


def pids_in(path):
    return set(re.findall(r"\bpid: (\d+)", h.decode_pb(path)))


def check_worker(kind):
    job = job_with(WORKERS)
    job.train(2)
    job.do("worker(%r)" % kind)
    job.ask("flush")
    h.check(os.path.exists(job.sock), "the child removed the parent's socket")
    spools = glob.glob(os.path.join(job.dump, "spool", "*", "*-%d-*" % job.pid))
    h.check_equal(len(spools), 1, "spool directories: %s" % spools)
    text = h.decode_pb(h.find_one(job.dump, "timeline/*"))
    h.check("flags: 4" in text, "no stage of a worker (%s) in the parent's file:\n%s" % (kind, text))
    job.train(2)
    job.quit().ok()
    h.check_equal(jobs.steps_in(h.find_one(job.dump, "timeline/*")), [1, 2, 3, 4], "the parent's own steps")


def test_forked_worker():
    check_worker("fork")


def test_forked_worker_without_handlers():
    """_Fork runs no atfork handler; the wiped guard page tells the child."""
    import ctypes
    if not hasattr(ctypes.CDLL(None), "_Fork"):
        h.skip("this C library has no _Fork")
    check_worker("_Fork")


def test_children_that_end_normally():
    """A child that returns from main runs destructors, and must not end the parent's agent."""
    job = job_with("")
    job.do("import subprocess; subprocess.run([sys.executable, '-c', 'pass'], check=True)")
    job.do("exec('pid = os.fork()\\nif pid == 0: sys.stdin = None; sys.exit(0)\\nos.waitpid(pid, 0)')")
    h.check(os.path.exists(job.sock), "the child removed the parent's socket")
    job.train(3)
    h.check_equal(job.ask("flush").code, 0, "flush")
    job.quit().ok()
    h.check_equal(jobs.steps_in(h.find_one(job.dump, "timeline/*")), [1, 2, 3], "steps")


RANKS = r"""
def rank(n):
    pid = os.fork()
    if pid:
        return pid
    os.environ["RANK"] = str(n)
    model.train(4)
    time.sleep(0.5)
    model.train(3)
    sys.stdout.flush()
    sys.exit(0)
"""


def test_forked_ranks():
    """A forked child that completes optimizer steps is a rank: an agent, a pool and a file of its own."""
    job = job_with(RANKS, WORLD_SIZE="3", RANK="0")
    job.train(1)
    job.do("exec('for p in [rank(1), rank(2)]: assert os.waitpid(p, 0)[1] == 0')")
    job.train(1)
    job.quit().ok()
    names = sorted(os.listdir(os.path.join(job.dump, "timeline")))
    h.check_equal(names, ["%s--%05d.timeline" % (HOST, n) for n in range(3)], "timelines")
    for n in (1, 2):
        steps = jobs.steps_in(os.path.join(job.dump, "timeline", names[n]))
        h.check(steps[-1] - steps[0] == len(steps) - 1 and len(steps) >= 6, "steps of forked rank %d: %s" % (n, steps))
    h.check_equal(len(glob.glob(os.path.join(job.dump, "meta", "*", "*.json"))), 3, "meta files")
    left = [d for d, _, fs in os.walk(os.path.join(job.dump, "spool")) if any("pool" in f for f in fs)]
    h.check_equal(left, [], "spool directories left behind")


def test_closing_all_descriptors():
    """A host that closes everything neither loses our files nor gets our bytes in its own."""
    directory = h.tmpdir()
    job = job_with("")
    own = os.path.join(directory, "own")
    job.train(2)
    job.ask("flush")
    job.do("os.closerange(3, 4096); fds = [os.open(%r + str(i), os.O_CREAT | os.O_RDWR) for i in range(20)]" % own)
    job.train(3)
    h.check_equal(job.ask("flush").code, 0, "flush")
    job.quit().ok()
    h.check_equal(sum(os.path.getsize(own + str(i)) for i in range(20)), 0, "bytes in the host's files")
    h.check_equal(jobs.steps_in(h.find_one(job.dump, "timeline/*")), [1, 2, 3, 4, 5], "steps")


def test_exec():
    """A process that execs another program: its agent goes, the new program's takes the pid's socket."""
    job = job_with("")
    job.train(2)
    job.ask("flush")
    job.process.stdin.write(("os.execv(sys.executable, [sys.executable, '-c', %r])\n" % jobs.LOOP).encode())
    job.process.stdin.flush()
    job.expect("pid")
    h.wait_for(lambda: answers(job), what="the socket of the new program")
    job.wait_attached()
    job.train(3)
    job.quit().ok()


def answers(job):
    try:
        return job.ask("list").code == 0
    except OSError:
        return False


def test_changing_environment():
    """The rank is read while other threads change the environment; values set late count."""
    program = r"""
import threading
def churn():
    for i in range(20000):
        os.environ["CHURN%d" % (i % 50)] = "x" * (i % 700)
"""
    job = job_with(program)
    job.do("t = threading.Thread(target=churn); t.start(); os.environ['RANK'] = '7'")
    job.train(3)
    job.do("t.join()")
    job.quit().ok()
    h.check_equal(os.listdir(os.path.join(job.dump, "timeline")), [HOST + "--00007.timeline"], "timeline of a late rank")


def test_many_short_children():
    """Shells and interpreters that a training script starts all the time."""
    job = job_with("")
    job.do("import subprocess; [subprocess.run(['sh', '-c', 'exit 0'], check=True) for _ in range(30)]")
    job.do("[subprocess.run([sys.executable, '-c', 'import json'], check=True) for _ in range(5)]")
    job.train(2)
    result = job.quit().ok()
    h.check_equal(result.err, "", "stderr")
    h.check_equal(len(os.listdir(os.path.join(job.dump, "sock"))), 0, "sockets left")


def test_threads_in_the_host():
    """Steps from a second thread, and a process that ends while threads still run."""
    job = job_with("import threading\n")
    job.do("t = threading.Thread(target=model.train, args=(5,)); t.start(); t.join()")
    job.do("threading.Thread(target=lambda: [model.train(1) for _ in iter(int, 1)], daemon=True).start()")
    job.quit().ok()


if __name__ == "__main__":
    h.main(test_forked_worker, test_forked_worker_without_handlers, test_children_that_end_normally, test_forked_ranks,
           test_closing_all_descriptors, test_exec, test_changing_environment, test_many_short_children,
           test_threads_in_the_host)
