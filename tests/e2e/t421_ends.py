# SPDX-License-Identifier: MulanPSL-2.0
"""A process ends as it would without the agent, whatever the way: same status, same output, no more than two seconds
later (docs/safety.md, property 2). Programs are tests/fake/ends_host.c; the hanging dump path is tests/e2e/hang_fs.py."""

import glob
import os
import signal
import time

import hang_fs
import harness as h
import jobs

h.require(h.AGENT, "gcc")
TMP = h.tmpdir()
HOST = h.compile_c(os.path.join(h.ROOT, "tests", "fake", "ends_host.c"), os.path.join(TMP, "host"), "-ldl", "-lpthread")
PYTHON = list(h.pythons().values())[-1]
LATEST = 5.0  # the promise is two seconds; the rest is for a machine that is busy with other tests
worst = 0.0

# way: status; a signal is negative
ENDS = {"return": 7, "exit": 3, "_exit": 4, "quick_exit": 5, "abort": -signal.SIGABRT, "segv": -signal.SIGSEGV,
        "term": -signal.SIGTERM, "kill": -signal.SIGKILL, "exec": 9, "in_thread": 8, "last_thread": 0, "in_atexit": 6}


def timed(args, env):
    begin = time.monotonic()
    result = h.run(args, env=env)
    return result, time.monotonic() - begin


def compare(args, env, what):
    """The same command without and with the agent; returns what it did with it."""
    global worst
    plain = {k: v for k, v in env.items() if k != "LD_PRELOAD"}
    want, before = timed(args, plain)
    got, took = timed(args, env)
    h.check_equal((got.status, got.out, got.err), (want.status, want.out, want.err), what)
    h.check(took - before < LATEST, "%s: %.1f s with the agent, %.1f s without" % (what, took, before))
    worst = max(worst, took - before)
    return got


def test_every_end():
    """At once, while the agent's threads are only just starting, and later."""
    for way, status in ENDS.items():
        for wait in ("0", "250"):
            env = h.preload_env(h.tmpdir(), SYSTRACE_ENABLE="1", HOST_WAIT_MS=wait, HOST_SAY_FAREWELL="1")
            got = compare([HOST, way], env, "%s after %s ms" % (way, wait))
            h.check_equal(got.status, status, way)
    print("at most %.2f s later" % worst)


def test_ends_leave_nothing():
    """After a normal end socket and spool are gone; what a signal leaves is what `systrace recover` looks for."""
    for way in ("return", "exit", "in_thread", "last_thread"):
        dump = h.tmpdir()
        h.run([HOST, way], env=h.preload_env(dump, SYSTRACE_ENABLE="1", HOST_WAIT_MS="250"))
        left = [f for d in ("sock", "spool/*/*-*") for f in glob.glob(os.path.join(dump, d, "*"))]
        h.check_equal(left, [], "left behind by " + way)


def test_daemon():
    for wait in ("0", "250"):
        env = h.preload_env(h.tmpdir(), SYSTRACE_ENABLE="1", HOST_WAIT_MS=wait)
        note = os.path.join(h.tmpdir(), "note")
        compare([HOST, "daemon", note], env, "daemon")
        h.wait_for(lambda: os.path.exists(note) and h.read_file(note) == "daemon\n", what="the daemon")


def test_dlclose():
    """Opened and closed as a plug-in: it stays mapped, also with its threads running, and the program ends well."""
    for switch in ("1", "0"):
        env = h.tool_env(h.tmpdir(), SYSTRACE_ENABLE=switch)
        result, took = timed([HOST, "dlclose", h.AGENT], env)
        h.check_equal((result.status, result.out, result.err), (11, "stays\n", ""), "dlclose, enabled %s" % switch)
        h.check(took < LATEST, "took %.1f s" % took)


def test_python_finalisation():
    """Threads that run traced functions, an atexit callback that does, and the interpreter going down around them."""
    program = r"""
import atexit, threading
def churn():
    while True:
        model.train(1)
atexit.register(lambda: (model.train(1), say("at exit")))
"""
    for python in h.pythons().values():
        for end, status in (("sys.exit(3)", 3), ("os._exit(4)", 4), ("os.abort()", -signal.SIGABRT),
                            ("raise KeyError(1)", 1), ("raise KeyError(2)", 1), ("os.kill(os.getpid(), 15)", -signal.SIGTERM)):
            job = jobs.Job(python, h.preload_env(h.tmpdir()), program + jobs.LOOP)
            job.wait_attached()
            job.do("[threading.Thread(target=churn, daemon=True).start() for _ in range(4)]")
            begin = time.monotonic()
            job.process.stdin.write(end.encode() + b"\n")
            job.process.stdin.close()
            job.process.stdin = None
            result = h.finish(job.process)
            h.check_equal(result.status, status, "%s under %s" % (end, python))
            h.check("Fatal" not in result.err, result.err)
            h.check(time.monotonic() - begin < LATEST, "%s took %.1f s" % (end, time.monotonic() - begin))


def hanging_job(mount, **extra):
    job = jobs.Job(PYTHON, h.preload_env(h.tmpdir(), SYSTRACE_DUMP_PATH=mount, SYSTRACE_LOCAL_PATH=None, **extra))
    job.wait_attached()
    job.train(2)
    h.check_equal(job.ask("flush").code, 0, "flush")
    h.check(glob.glob(os.path.join(mount, "timeline", "*")), "no file on the mounted file system")
    return job


def test_dump_path_hangs():
    """A file system that stops answering: training goes on, the socket answers, and the end comes two seconds later."""
    for end, status in (("quit", 0), ("sys.exit(3)", 3), ("os._exit(4)", 4), ("os.abort()", -signal.SIGABRT),
                        ("os.kill(os.getpid(), 15)", -signal.SIGTERM)):
        with hang_fs.Mounted() as fs:
            job = hanging_job(fs.path)
            fs.hang()
            job.train(3)
            h.wait_for(fs.asked, what="a request that nobody answers")
            job.train(3)
            h.check_equal(job.status().get("step"), "8", "step while the dump path hangs")
            begin = time.monotonic()
            job.process.stdin.write(end.encode() + b"\n")
            job.process.stdin.close()
            job.process.stdin = None
            result = h.finish(job.process)
            took = time.monotonic() - begin
            print("%s: %.2f s" % (end, took))
            h.check_equal(result.status, status, end + " while the dump path hangs")
            h.check(took < LATEST, "%s took %.1f s" % (end, took))


def test_dump_path_hangs_from_the_start():
    with hang_fs.Mounted() as fs:
        fs.hang()
        begin = time.monotonic()
        env = h.preload_env(h.tmpdir(), SYSTRACE_DUMP_PATH=fs.path, SYSTRACE_LOCAL_PATH=None, SYSTRACE_LOG_PATH=fs.path,
                            SYSTRACE_LOG_LEVEL="DEBUG")
        job = jobs.Job(PYTHON, env)
        job.wait_attached()
        job.train(5)
        h.check_equal(job.status().get("step"), "5", "step")
        begin = time.monotonic()
        job.quit().ok()
        h.check(time.monotonic() - begin < LATEST, "the end took %.1f s" % (time.monotonic() - begin))


h.main(test_every_end, test_ends_leave_nothing, test_daemon, test_dlclose, test_python_finalisation, test_dump_path_hangs,
       test_dump_path_hangs_from_the_start)
