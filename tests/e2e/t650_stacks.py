# SPDX-License-Identifier: MulanPSL-2.0
"""Stacks in the job, with the plugin Mutex: a known chain of C functions and of Python functions is what is stored, each
distinct stack once, forked children and killed processes included."""

import glob
import json
import os
import subprocess

import ctl
import harness as h
import jobs
from stack_files import Stacks

h.require(h.AGENT, "gcc", "addr2line")

PROGRAM = r"""
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define KEEP __asm__ volatile("" ::: "memory")
static sem_t sem;

static __attribute__((noinline)) void wait_here(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_REALTIME, &ts);
	ts.tv_nsec += 5000000;
	ts.tv_sec += ts.tv_nsec / 1000000000;
	ts.tv_nsec %= 1000000000;
	sem_timedwait(&sem, &ts);
	KEEP;
}

static __attribute__((noinline)) void by_one(void) { wait_here(); KEEP; }
static __attribute__((noinline)) void by_two(void) { by_one(); KEEP; }
static __attribute__((noinline)) void other(void) { wait_here(); KEEP; }

int main(void)
{
	char line[64];
	int i, status;

	sem_init(&sem, 0, 0);
	while (puts("ready"), fflush(stdout), fgets(line, sizeof(line), stdin)) {
		for (i = 0; i < 20; i++)
			by_two();
		other();
		if (line[0] == 'f' && !fork()) {
			for (i = 0; i < 3; i++)
				by_two();
			_exit(0);
		}
		if (line[0] == 'f')
			wait(&status);
	}
	return 0;
}
"""


class Host:
    def __init__(self):
        self.tmp = h.tmpdir()
        self.program = h.compile_c(PROGRAM, os.path.join(self.tmp, "program"), "-O2", "-fno-ipa-icf", "-lpthread")
        self.env = h.preload_env(self.tmp, RANK="2", SYSTRACE_ENABLE="1", SYSTRACE_BUDGET_PCT="100")
        self.process = h.start([self.program], env=self.env, stdin=subprocess.PIPE)
        self.ready()
        self.sock = ctl.socket_of(self.env["SYSTRACE_SOCKET_DIR"], self.process.pid)
        h.wait_for(lambda: os.path.exists(self.sock), what="the control socket")

    def ready(self):
        h.check_equal(self.process.stdout.readline(), b"ready\n", "what the program says")

    def do(self, word):
        self.process.stdin.write(word.encode() + b"\n")
        self.process.stdin.flush()
        self.ready()

    def ask(self, verb, **keys):
        answer = ctl.ask(self.sock, verb, plugin="Mutex", **keys)
        h.check_equal(answer.code, 0, "%s: %s" % (verb, answer.text))

    def quit(self):
        self.process.stdin.close()
        self.process.stdin = None
        h.finish(self.process).ok()


def waits(dump, pid, name):
    found = glob.glob(os.path.join(dump, "**", "Mutex_%d_rank_*.json*" % pid), recursive=True)
    h.check(found, "no file of this process")
    events = [e for path in found for e in json.loads(h.read_file(path))["traceEvents"]]
    return [e for e in events if e["ph"] == "X" and e["name"] == name]


def functions(program, frames):
    """Names of the program's functions, by a tool that is not ours."""
    addresses = ["%#x" % f[1] for f in frames if len(f) == 2 and f[0] == program]
    return h.run(["addr2line", "-f", "-e", program, *addresses]).ok().out.splitlines()[::2]


def check_native(host, events):
    stacks = Stacks(host.tmp, host.process.pid)
    count = {}
    for e in events:
        names = tuple(functions(host.program, stacks.frames(e["args"]["stack"])))
        count[names] = count.get(names, 0) + 1
        h.check("cut" not in stacks.stacks[e["args"]["stack"]], "a stack that could be unwound")
    return count, stacks


BY_TWO = ("wait_here", "by_one", "by_two", "main", "_start")
OTHER = ("wait_here", "other", "main", "_start")


def test_native():
    host = Host()
    host.ask("enable", stack="1")
    host.do("go")
    host.ask("disable")
    events = waits(host.tmp, host.process.pid, "sem_timedwait")
    count, stacks = check_native(host, events)
    status = ctl.ask(host.sock, "status")
    h.check(int(status.get("stacks")) >= 2 and status.get("stacks.full") == "0", "stacks in status: %r" % status)
    host.quit()
    h.check_equal(count, {BY_TWO: 20, OTHER: 1}, "stacks by functions")
    h.check(len({e["args"]["stack"] for e in events}) <= 2, "each distinct stack has one id")
    module, = [m for m in stacks.modules.values() if m["path"] == host.program]
    notes = h.run(["readelf", "-n", host.program]).ok().out
    h.check("Build ID: %s" % module["build_id"] in notes, "build id of the program: %s" % module)


def test_convert():
    host = Host()
    host.ask("enable", stack="1")
    host.do("fork")
    host.ask("disable")
    host.quit()
    text = h.run([h.SYSTRACE, "convert", "mutex", "--input", host.tmp]).ok().out
    h.check("called from wait_here@" in text and " < by_one@" in text, text)
    chrome = os.path.join(host.tmp, "out.json")
    h.run([h.SYSTRACE, "convert", "mutex", "--input", host.tmp, "--output", chrome]).ok()
    slices = [e for e in json.loads(h.read_file(chrome))["traceEvents"] if e.get("name") == "sem_timedwait" and e["ph"] != "i"]
    h.check(slices and all("by_two@" in json.dumps(e) or "other@" in json.dumps(e) for e in slices), "stacks of %s" % slices[:2])
    h.check_equal(len({(e["pid"], e["tid"]) for e in slices}), 2, "the child's waits too")
    # elsewhere, without the program: addresses by the debug file of that build alone
    gone = os.path.join(host.tmp, "gone")
    tree = os.path.join(host.tmp, "tree")
    os.mkdir(tree)
    os.rename(host.program, os.path.join(tree, "program"))
    got = h.run([h.SYSTRACE, "convert", "mutex", "--input", host.tmp]).ok()
    h.check("program+0x" in got.out and "--symbols" in got.err, "%r" % got)
    got = h.run([h.SYSTRACE, "convert", "mutex", "--input", host.tmp, "--symbols", gone, "--symbols", tree]).ok()
    h.check("called from wait_here@" in got.out and "--symbols" not in got.err, "%r" % got)


def test_without():
    host = Host()
    host.ask("enable")
    host.do("go")
    host.ask("disable")
    events = waits(host.tmp, host.process.pid, "sem_timedwait")
    host.quit()
    h.check_equal(len(events), 21, "waits")
    h.check(not any("stack" in e["args"] for e in events), "stacks only on demand")
    # the modules of locks and callers are in the file, no stack is
    text = h.read_file(h.find_one(host.tmp, "stacks/stacks_rank*_%d.json" % host.process.pid))
    h.check('"module":' in text and '"stack":' not in text, "the file of stacks: %s" % text)


def test_child():
    host = Host()
    host.ask("enable", stack="1")
    host.do("fork")
    host.ask("disable")
    events = waits(host.tmp, host.process.pid, "sem_timedwait")
    count, _ = check_native(host, events)
    host.quit()
    h.check_equal(len({e["pid"] for e in events}), 2, "processes in the file")
    h.check_equal(count, {BY_TWO: 23, OTHER: 1}, "stacks by functions")


def test_killed():
    host = Host()
    host.ask("enable", stack="1")
    host.do("go")
    host.process.kill()
    host.process.wait()
    h.run([h.SYSTRACE, "recover", "--spool", host.env["SYSTRACE_SPOOL_PATH"]]).ok()
    count, _ = check_native(host, waits(host.tmp, host.process.pid, "sem_timedwait"))
    h.check_equal(count, {BY_TWO: 20, OTHER: 1}, "stacks by functions")


PYTHON = (r"import threading\nlock = threading.Lock()\ndef outer(n):\n    inner(n)\ndef inner(n):\n"
          r"    lock.acquire(timeout=0.05)\nclass K:\n    def method(self):\n        list(map(outer, [1]))\n")


def check_python(python):
    job = jobs.Job(python, h.preload_env(h.tmpdir(), RANK="1", SYSTRACE_BUDGET_PCT="100"))
    h.wait_for(lambda: os.path.exists(job.sock), what="the control socket")
    job.do("exec(compile('%s', 'known.py', 'exec'), globals())" % PYTHON)
    answer = job.ask("enable", plugin="Mutex", stack="1", min_us="10000")
    h.check_equal((answer.code, answer.text), (0, ""), "enable")
    job.do("lock.acquire(); t = threading.Thread(target=K().method); t.start(); t.join()")
    h.check_equal(job.ask("disable", plugin="Mutex").code, 0, "disable")
    stacks = Stacks(job.dump, job.pid)
    all_waits = [w for name in ("sem_timedwait", "sem_clockwait") for w in waits(job.dump, job.pid, name)]
    job.quit().ok()
    chains = [stacks.python(w["args"]["stack"]) for w in all_waits if w["tid"] != job.pid and "stack" in w["args"]]
    chain = next((c for c in chains if "inner" in c), None)
    h.check(chain and chain[:4] == ["inner", "outer", "method", "run"], "functions of the thread: %s" % chains)
    wait = next(w for w in all_waits if stacks.python(w["args"]["stack"])[:1] == ["inner"])
    frames = stacks.frames(wait["args"]["stack"])
    h.check_equal([f[2] for f in frames if len(f) == 3][:3], [6, 4, 9], "lines")
    h.check_equal({f[1] for f in frames if len(f) == 3 and f[0] in ("inner", "outer")}, {"known.py"}, "file")
    # native frames inside and outside of the Python ones
    h.check(len(frames[0]) == 2 and os.path.basename(frames[-1][0]).startswith("libc"), "native frames: %s" % frames)


def test_python():
    for version, python in h.pythons().items():
        try:
            check_python(python)
        except h.CheckFailed as e:
            raise h.CheckFailed("%d.%d: %s" % (*version, e))


if __name__ == "__main__":
    h.main(test_native, test_convert, test_without, test_child, test_killed, test_python)
