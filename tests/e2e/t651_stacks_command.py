# SPDX-License-Identifier: MulanPSL-2.0
"""`sysTrace_cli stacks`: native and Python stacks of every thread of processes that hang, also with the interpreter's lock
held in C code, on each interpreter; nothing that waits in the process is cut short by being looked at."""

import json
import os
import subprocess

import ctl
import harness as h
import jobs

h.require(h.AGENT, h.CLI, "gcc")

TMP = h.tmpdir()
LIBRARY = h.compile_c(r"""
#include <unistd.h>
#define KEEP __asm__ volatile("" ::: "memory")
static volatile int never;
__attribute__((noinline)) void stuck_inner(void) { while (!never) usleep(100000); }
void stuck(void) { stuck_inner(); KEEP; }
__attribute__((noinline)) void spin_inner(void) { while (!never) KEEP; }
void spin(void) { spin_inner(); KEEP; }
""", os.path.join(TMP, "extension.so"), "-shared", "-fPIC")

PYTHON = (r"import ctypes, threading, time\nlock = threading.Lock()\nlock.acquire()\nextension = ctypes.PyDLL('%s')\n"
          r"def sleeper():\n    time.sleep(1000)\ndef locker():\n    lock.acquire()\n"
          r"def holder(name):\n    getattr(extension, name)()\n"
          r"def begin(target, *args):\n    threading.Thread(target=target, args=args, daemon=True).start()\n" % LIBRARY)


def ask(job, *words):
    """The answer of --json for one job."""
    got = h.run([h.CLI, "stacks", "--pid", job.pid, "--json", *words], env=h.tool_env(job.dump)).ok()
    return json.loads(got.out)["processes"][0]


def functions(thread, kind=None):
    return [f.get("function", "?").rsplit(".", 1)[-1] for f in thread["frames"] if kind in (None, f["kind"])]


def thread_of(answer, function):
    return next((t for t in answer["threads"] if function in functions(t, "python")), None)


def wait_threads(job, *names):
    """An answer in which threads run these Python functions."""
    def there():
        answer = ask(job)
        return answer if all(thread_of(answer, n) for n in names) else None
    return h.wait_for(there, what="threads in %s" % (names,))


def start(python):
    job = jobs.Job(python, h.preload_env(h.tmpdir(), RANK="1"))
    h.wait_for(lambda: os.path.exists(job.sock), what="the control socket")
    job.do("exec(compile(\"\"\"%s\"\"\", 'known.py', 'exec'), globals())" % PYTHON)
    return job


def check_hang(python):
    job = start(python)
    job.do("begin(sleeper); begin(locker)")
    answer = wait_threads(job, "sleeper", "locker")
    for name in ("sleeper", "locker"):
        thread = thread_of(answer, name)
        h.check_equal(functions(thread, "python")[:2], [name, "run"], "Python functions")
        kinds = [f["kind"] for f in thread["frames"]]
        h.check_equal((kinds[0], kinds[-1]), ("native", "native"), "native frames around the Python ones: %s" % thread)
    frame = next(f for f in thread_of(answer, "sleeper")["frames"] if f.get("function") == "sleeper")
    h.check_equal((frame["file"], frame["line"]), ("known.py", 6), "where it sleeps")
    h.check(functions(thread_of(answer, "sleeper"))[0] != "?", "the system call's name: %s" % thread_of(answer, "sleeper"))
    # from here on no other Python code runs: the lock is held inside C code that waits
    job.process.stdin.write(b"begin(holder, 'stuck'); time.sleep(1000)\n")
    job.process.stdin.flush()
    answer = wait_threads(job, "holder")
    answer = h.wait_for(lambda: [a for a in [ask(job)] if "stuck_inner" in functions(thread_of(a, "holder"))],
                        what="the thread inside C code")[0]
    thread = thread_of(answer, "holder")
    h.check_equal((answer["gil_holder"], thread["holds_gil"]), (thread["tid"], True), "who holds the GIL: %s" % answer)
    names = functions(thread)
    at = names.index("stuck_inner")
    h.check(names[at:at + 2] == ["stuck_inner", "stuck"] and names.index("holder") > at, "its functions: %s" % names)
    h.check_equal(functions(thread_of(answer, "sleeper"), "python")[0], "sleeper", "the others are still told")
    h.stop(job.process, 9)


def test_hang():
    for version, python in h.pythons().items():
        try:
            check_hang(python)
        except h.CheckFailed as e:
            raise h.CheckFailed("%d.%d: %s" % (*version, e))


def test_busy_in_c():
    job = start(next(iter(h.pythons().values())))
    job.process.stdin.write(b"begin(holder, 'spin'); time.sleep(1000)\n")
    job.process.stdin.flush()
    wait_threads(job, "holder")

    def inside():
        thread = thread_of(ask(job), "holder")
        note = thread.get("note", "")
        h.check("refused" in note or "it runs" in note or "too fast" in note or not note, note)
        return thread if "refused" in note or "spin_inner" in functions(thread) else None
    thread = h.wait_for(inside, what="the thread that spins")
    h.check(thread["holds_gil"], "it holds the GIL")
    if "refused" in thread.get("note", ""):
        h.skip("perf events are not allowed here: %s" % thread["note"])
    h.check_equal(functions(thread)[:2], ["spin_inner", "spin"], "functions of a thread that runs")
    h.stop(job.process, 9)


PROGRAM = r"""
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

static _Atomic int cut, rounds;
static sem_t sem;
static int pipes[2], poller;

static void count(int ret) { if (ret < 0 && errno == EINTR) cut++; rounds++; }
static void *in_poll(void *arg) { for (;;) count(poll(NULL, 0, 30)); }
static void *in_epoll(void *arg) { struct epoll_event e; for (;;) count(epoll_wait(poller, &e, 1, 30)); }
static void *in_sleep(void *arg) { struct timespec t = { 0, 30000000 }; for (;;) count(nanosleep(&t, NULL)); }
static void *in_sem(void *arg)
{
	for (;;) {
		struct timespec t;

		clock_gettime(CLOCK_REALTIME, &t);
		t.tv_nsec += 30000000;
		t.tv_sec += t.tv_nsec / 1000000000;
		t.tv_nsec %= 1000000000;
		count(sem_timedwait(&sem, &t));
	}
}

/* frames by frame pointers: nothing but the stack tells where they are */
static void innermost(void) { char c; while (read(pipes[0], &c, 1) != 1) ; }
static void middle(void) { innermost(); }
static void *outer(void *arg) { middle(); return NULL; }

int main(void)
{
	void *(*const run[])(void *) = { in_poll, in_epoll, in_sleep, in_sem, outer };
	pthread_t thread;
	char line[64];
	unsigned i;

	poller = epoll_create1(0);
	sem_init(&sem, 0, 0);
	if (pipe(pipes))
		return 1;
	for (i = 0; i < 5; i++)
		pthread_create(&thread, NULL, run[i], NULL);
	while (printf("%d %d\n", cut, rounds), fflush(stdout), fgets(line, sizeof(line), stdin))
		;
	return 0;
}
"""


class Native:
    def __init__(self):
        self.dump = h.tmpdir()
        self.program = h.compile_c(PROGRAM, os.path.join(self.dump, "program"), "-O0", "-lpthread")
        env = h.preload_env(self.dump, RANK="5", SYSTRACE_ENABLE="1")
        self.process = h.start([self.program], env=env, stdin=subprocess.PIPE)
        self.pid = self.process.pid
        self.process.stdout.readline()
        sock = ctl.socket_of(env["SYSTRACE_SOCKET_DIR"], self.pid)
        h.wait_for(lambda: os.path.exists(sock), what="the control socket")

    def counts(self):
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()
        return [int(n) for n in self.process.stdout.readline().split()]


def test_nothing_is_cut_short():
    host = Native()
    for _ in range(10):
        answer = ask(host)
        h.check_equal(len(answer["threads"]), 6, "threads of the program")
    h.wait_for(lambda: host.counts()[1] > 50, what="calls that come back")
    h.check_equal(host.counts()[0], 0, "system calls cut short")


def test_frame_pointers():
    host = Native()
    answer = h.wait_for(lambda: [a for a in [ask(host)] if any("innermost" in functions(t) for t in a["threads"])],
                        what="the thread inside read")[0]
    thread = next(t for t in answer["threads"] if "innermost" in functions(t))
    names = functions(thread)
    h.check_equal(names[names.index("innermost"):][:3], ["innermost", "middle", "outer"], "the chain: %s" % thread)
    text = h.run([h.CLI, "stacks", "--pid", host.pid], env=h.tool_env(host.dump)).ok().out
    h.check("thread %d" % thread["tid"] in text and "innermost+0x" in text and "no Python stacks" in text, text)


def test_choice():
    host = Native()
    env = h.tool_env(host.dump)
    got = h.run([h.CLI, "stacks", "--pid", host.pid, "--rank", "4-6", "--json"], env=env).ok()
    h.check_equal([p["pid"] for p in json.loads(got.out)["processes"]], [host.pid], "a rank by its environment")
    h.run([h.CLI, "stacks", "--pid", host.pid, "--rank", "0-4"], env=env).ok(3)
    h.run([h.CLI, "stacks", "--rank", "x"], env=env).ok(2)
    h.check("libsysTrace.so is not loaded" in h.run([h.CLI, "stacks", "--pid", os.getpid()], env=env).ok(1).err, "no agent")


if __name__ == "__main__":
    h.main(test_hang, test_busy_in_c, test_nothing_is_cut_short, test_frame_pointers, test_choice)
