# SPDX-License-Identifier: MulanPSL-2.0
# runner: full
# runner: timeout 1200
"""Native hooks in the long run: IO, Mutex and GIL switched on and off a thousand times in a busy Python program, and while a
thread loads and unloads a thousand libraries; a thousand threads that take locks for a minute; a hundred switches of a real
PyTorch job. Every program checks its own work and ends as it would have without us."""

import os
import shutil
import subprocess
import time

import ctl
import harness as h
import jobs

h.require(h.AGENT, "gcc")

PLUGINS = ("IO", "Mutex", "GIL")

BUSY = r"""
import threading, time, queue, socket
go = True
done = [0] * 6
def compute(i):
    while go:
        sum(range(1000)); done[i] += 1
def files(i):
    while go:
        with open("/proc/self/stat") as f:
            assert f.read()
        done[i] += 1
def locks(i):
    lock = threading.Lock()
    while go:
        with lock:
            done[i] += 1
q = queue.Queue(10)
def produce(i):
    while go:
        try:
            q.put(i, timeout=0.1)
        except queue.Full:
            pass
def consume(i):
    while go:
        try:
            q.get(timeout=0.1); done[i] += 1
        except queue.Empty:
            pass
def forks(i):
    while go:
        pid = os.fork()
        if not pid:
            os._exit(5)
        assert os.waitpid(pid, 0)[1] == 5 << 8
        done[i] += 1
def guard(body, i):
    try:
        body(i)
    except BaseException as e:
        failed.append(repr(e))
failed = []
bodies = (compute, files, locks, consume, forks)
threads = [threading.Thread(target=guard, args=(b, i)) for i, b in enumerate(bodies)]
threads.append(threading.Thread(target=guard, args=(produce, 5)))
[t.start() for t in threads]
"""

LIBRARY = r"""
#include <pthread.h>
#include <unistd.h>

static pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;

int ask(int fd)
{
	int ok;

	pthread_mutex_lock(&m);
	ok = write(fd, "12345", 5) == 5;
	pthread_mutex_unlock(&m);
	return ok;
}
"""

LOADER = r"""
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static volatile int go = 1;
static const char *dir;
static unsigned long loads;
static int fd;

static void *load(void *unused)
{
	char path[512];

	for (; go; loads++) {
		int (*function)(int);
		void *handle;

		snprintf(path, sizeof(path), "%s/lib%lu.so", dir, loads % 1000);
		handle = dlopen(path, loads % 2 ? RTLD_NOW : RTLD_LAZY);
		if (!handle) {
			fprintf(stderr, "%s\n", dlerror());
			abort();
		}
		*(void **)&function = dlsym(handle, "ask");
		if (!function(fd))
			abort();
		dlclose(handle);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	pthread_t thread;
	char line[64];

	dir = argv[1];
	fd = open("/dev/null", O_WRONLY);
	pthread_create(&thread, NULL, load, NULL);
	puts("ready");
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin) && strcmp(line, "end\n"))
		;
	go = 0;
	pthread_join(thread, NULL);
	printf("%lu\n", loads);
	return 0;
}
"""

LOCKERS = r"""
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define THREADS 1000

static pthread_mutex_t locks[50];
static volatile int go = 1;
static unsigned long counts[THREADS], sums[50];

static void *take(void *arg)
{
	size_t me = (size_t)arg;
	unsigned int seed = (unsigned int)me;

	while (go) {
		int i = rand_r(&seed) % 50;

		pthread_mutex_lock(&locks[i]);
		sums[i]++; /* torn without the lock */
		if (rand_r(&seed) % 64 == 0)
			usleep(50);
		pthread_mutex_unlock(&locks[i]);
		counts[me]++;
	}
	return NULL;
}

int main(void)
{
	static pthread_t threads[THREADS];
	unsigned long all = 0, sum = 0;
	pthread_attr_t attr;
	char line[64];
	size_t i;

	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, 128 * 1024);
	for (i = 0; i < 50; i++)
		pthread_mutex_init(&locks[i], NULL);
	for (i = 0; i < THREADS; i++)
		if (pthread_create(&threads[i], &attr, take, (void *)i))
			abort();
	puts("ready");
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin) && strcmp(line, "end\n"))
		;
	go = 0;
	for (i = 0; i < THREADS; i++) {
		pthread_join(threads[i], NULL);
		all += counts[i];
	}
	for (i = 0; i < 50; i++)
		sum += sums[i];
	printf("%lu %lu\n", all, sum);
	return sum != all;
}
"""


class Program:
    """A program of ours with the agent; it ends when told, and its status and output are checked."""

    def __init__(self, command, tmp, **extra):
        self.env = h.preload_env(tmp, SYSTRACE_ENABLE="1", **extra)
        self.process = h.start(command, env=self.env, stdin=subprocess.PIPE)
        h.check_equal(self.process.stdout.readline(), b"ready\n", "the program said")
        self.sock = ctl.socket_of(self.env["SYSTRACE_SOCKET_DIR"], self.process.pid)
        h.wait_for(lambda: os.path.exists(self.sock), what="the control socket")

    def end(self):
        self.process.stdin.write(b"end\n")
        self.process.stdin.flush()
        result = h.finish(self.process).ok()
        h.check_equal(result.err, "", "stderr")
        return [int(n) for n in result.out.split()]


def switch(sock, verb, plugin, what):
    answer = ctl.ask(sock, verb, plugin=plugin)
    h.check_equal(answer.code, 0, "%s %s, %s: %s" % (verb, plugin, what, answer.text))


def test_a_thousand_switches():
    """Of all three plugins, in each interpreter's newest and oldest version here."""
    pythons = list(h.pythons().values())
    for python in {pythons[0], pythons[-1]}:
        job = jobs.Job(python, h.preload_env(h.tmpdir(), SYSTRACE_BUDGET_PCT="100"))
        h.wait_for(lambda: os.path.exists(job.sock), what="the control socket")
        job.do("exec(%r, globals())" % BUSY)
        for i in range(1000):
            for plugin in PLUGINS:
                switch(job.sock, "enable", plugin, "round %d" % i)
            for plugin in PLUGINS:
                switch(job.sock, "disable", plugin, "round %d" % i)
        job.do("go = False; [t.join() for t in threads]; assert not failed, failed; assert all(done[:5]), done")
        h.check_equal(job.status().get("hooks.slots"), "0", "slots at the end")
        job.quit().ok()


def test_a_thousand_libraries():
    tmp = h.tmpdir()
    first = h.compile_c(LIBRARY, os.path.join(tmp, "lib0.so"), "-shared", "-fPIC", "-pthread", "-Wl,-z,now,-z,relro")
    for i in range(1, 1000):
        shutil.copy(first, os.path.join(tmp, "lib%d.so" % i))
    program = h.compile_c(LOADER, os.path.join(tmp, "program"), "-pthread", "-w", "-ldl")
    host = Program([program, tmp], os.path.join(tmp, "dump"), SYSTRACE_BUDGET_PCT="100")
    for i in range(1000):
        for plugin in ("IO", "Mutex"):
            switch(host.sock, "enable" if i % 2 == 0 else "disable", plugin, "switch %d" % i)
        h.check_equal(host.process.poll(), None, "the program's status after switch %d" % i)
    loads, = host.end()
    h.check(loads >= 1000, "%d loads" % loads)


def test_a_thousand_threads():
    tmp = h.tmpdir()
    program = h.compile_c(LOCKERS, os.path.join(tmp, "program"), "-O1", "-pthread", "-w")
    host = Program([program], os.path.join(tmp, "dump"), SYSTRACE_BUDGET_PCT="10000", SYSTRACE_MAX_MB="200")

    def resident():
        text = h.read_file("/proc/%d/status" % host.process.pid)
        return int(text.split("VmRSS:")[1].split()[0])
    before = resident()
    switch(host.sock, "enable", "Mutex", "")
    end, most = time.monotonic() + 60, 0
    while time.monotonic() < end:
        most = max(most, resident())
        time.sleep(0.5)
    status = ctl.ask(host.sock, "status")
    switch(host.sock, "disable", "Mutex", "")
    h.check(most - before <= 64 * 1024, "the agent took %d KiB" % (most - before))
    h.check(int(status.get("pool_bytes")) <= 64 << 20, "pool: %s" % status.get("pool_bytes"))
    print("1000 threads: %s, %s records, %s dropped, %d KiB more than before" % (
        status.get("plugin.mutex.text"), status.get("records"), status.get("dropped"), most - before))
    calls, _ = host.end()
    h.check(calls > 100000, "%d calls" % calls)
    if int(status.get("dropped")):
        out = h.run([h.SYSTRACE, "convert", "mutex", "--input", os.path.join(tmp, "dump"), "--json"],
                    env=h.tool_env(tmp)).ok().out
        h.check('"lost":0' not in out, "drops are told")


def test_a_hundred_switches_of_pytorch():
    job = jobs.Job(h.python_with("torch"), h.preload_env(h.tmpdir(), RANK="0", SYSTRACE_BUDGET_PCT="100"), jobs.REAL_LOOP,
                   fake=False)
    job.wait_attached()
    for i in range(100):
        for plugin in PLUGINS:
            switch(job.sock, "enable" if i % 2 == 0 else "disable", plugin, "switch %d" % i)
        job.train(3)
    job.quit().ok()
    h.check_equal(jobs.steps_in(h.find_one(job.dump, "timeline/*")), list(range(1, 301)), "steps")


if __name__ == "__main__":
    h.main(test_a_thousand_switches, test_a_thousand_libraries, test_a_thousand_threads, test_a_hundred_switches_of_pytorch)
