# SPDX-License-Identifier: MulanPSL-2.0
"""Signals: handlers run on the program's threads only, in every phase of the agent's life, on stacks of the least size, and
may fork and exit (docs/safety.md, property 11). pool_put under storms: tests/unit/safe/test_pool_signals.c."""

import os
import signal
import time

import harness as h
import jobs

h.require(h.AGENT, "gcc")
TMP = h.tmpdir()
HOST = h.compile_c(os.path.join(h.ROOT, "tests", "fake", "ends_host.c"), os.path.join(TMP, "host"), "-ldl", "-lpthread")
KERNEL_ONLY = 0x180040100  # KILL, STOP, and the two that the C library keeps for itself


def same(args, status, env):
    plain = {k: v for k, v in env.items() if k != "LD_PRELOAD"}
    want, got = h.run(args, env=plain), h.run(args, env=env)
    h.check_equal((got.status, got.out, got.err), (want.status, want.out, want.err), " ".join(args[1:]))
    h.check_equal(got.status, status, " ".join(args[1:]))
    return got


def enabled(**extra):
    return h.preload_env(h.tmpdir(), SYSTRACE_ENABLE="1", **extra)


def test_storm():
    """Timers and kill() at the process, from the start of the agent's threads on: no handler runs on one of ours."""
    got = same([HOST, "storm"], 41, enabled())
    h.check_equal(got.out, "many, 0 on strangers\n", "handlers")


def test_blocked_everywhere():
    """A signal that the whole program blocks stays pending: no thread of ours takes it."""
    for wait in ("0", "200"):
        same([HOST, "blocked"], 42, enabled(HOST_WAIT_MS=wait))


def test_exit_in_a_handler():
    """exit() on an alternative stack of the kernel's least size and 4 KiB, which the exit itself needs."""
    for wait in ("0", "200"):
        same([HOST, "handler_exit", "4096"], 43, enabled(HOST_WAIT_MS=wait))


def test_fork_in_a_handler():
    for wait in ("0", "200"):
        got = same([HOST, "handler_fork", "4096"], 44, enabled(HOST_WAIT_MS=wait))
        h.check_equal(got.out, "20\n", "forks")


def test_storm_at_the_end():
    for wait in ("0", "200"):
        same([HOST, "at_end"], 45, enabled(HOST_WAIT_MS=wait))


def test_all_signals_blocked():
    """The masks of all our threads, the Python one included, in every state of the agent."""
    for version, python in h.pythons().items():
        job = jobs.Job(python, h.preload_env(h.tmpdir()))
        job.wait_attached()
        job.train(2)
        names = set()
        for tid in os.listdir("/proc/%d/task" % job.pid):
            task = "/proc/%d/task/%s/" % (job.pid, tid)
            name = h.read_file(task + "comm").strip()
            if not name.startswith("systrace/"):
                continue
            names.add(name)
            masks = dict(x.split(":\t") for x in h.read_file(task + "status").splitlines() if x.startswith("Sig"))
            h.check_equal(int(masks["SigBlk"], 16) | KERNEL_ONLY, 0xffffffffffffffff, "%s blocks" % name)
            h.check_equal(int(masks["SigPnd"], 16), 0, "%s has pending" % name)
        h.check_equal(names, {"systrace/io", "systrace/ctl", "systrace/py"}, "threads under CPython %d.%d" % version)
        job.quit().ok()


STORM = r"""
import signal
count = 0
def handler(number, frame):
    global count
    count += 1
    torch.autograd.backward(1)
    if count % 50 == 0:
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
def storm(on):
    for timer, number in ((signal.ITIMER_PROF, signal.SIGPROF), (signal.ITIMER_REAL, signal.SIGALRM)):
        signal.signal(number, handler)
        signal.setitimer(timer, 0.001 * on, 0.001 * on)
"""


def test_traced_functions_in_handlers():
    """Python handlers call traced functions inside traced functions, and fork: steps stay what they are."""
    for python in h.pythons().values():
        job = jobs.Job(python, h.preload_env(h.tmpdir()), STORM + jobs.LOOP)
        job.wait_attached()
        job.do("storm(True)")
        for _ in range(5):
            job.train(20)
            job.do("sum(range(200000))")
        job.do("exec('while count < 20: sum(range(1000))'); storm(False)")
        job.quit().ok()
        h.check_equal(jobs.steps_in(h.find_one(job.dump, "timeline/*")), list(range(1, 101)), "steps under " + python)


def test_handler_ends_a_job():
    """A signal that ends the job by its handler, while its records are on the way: status as without us, and in time."""
    program = "import signal\nsignal.signal(signal.SIGUSR1, lambda *_: sys.exit(46))\n" + jobs.LOOP
    for python in h.pythons().values():
        job = jobs.Job(python, h.preload_env(h.tmpdir()), program)
        job.wait_attached()
        job.process.stdin.write(b"while True: model.train(1)\n")
        job.process.stdin.flush()
        h.wait_for(lambda: int(job.status().get("step", "0")) > 10, what="steps")
        begin = time.monotonic()
        os.kill(job.pid, signal.SIGUSR1)
        h.check_equal(h.finish(job.process).status, 46, "status under " + python)
        h.check(time.monotonic() - begin < 5, "took %.1f s" % (time.monotonic() - begin))


h.main(test_storm, test_blocked_everywhere, test_exit_in_a_handler, test_fork_in_a_handler, test_storm_at_the_end,
       test_all_signals_blocked, test_traced_functions_in_handlers, test_handler_ends_a_job)
