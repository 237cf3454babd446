#!/usr/bin/env python3
# SPDX-License-Identifier: MulanPSL-2.0
"""What native hooks cost: one program calls in a loop, without the agent, with it and everything off, and with IO or Mutex on.
Nanoseconds a call, the best of several rounds: the disturbances of a shared machine only add. A Python program of four busy
threads tells what GIL costs: processor time a turn, on and off by turns. Beside it strace -f -c and bpftrace's uprobes on the
same programs, where they are installed. Prints one JSON line each.

    python3 bench/bench_hooks.py            # ST_BUILD names the build directory, default build/
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "tests", "e2e"))

import ctl  # noqa: E402
import harness as h  # noqa: E402

PROGRAM = r"""
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define CALLS 10000
#define ROUND_NS 2e6 /* shorter than a time slice: some round is left alone */

static pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;
static int null;

static double now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec * 1e9 + (double)ts.tv_nsec;
}

static double best(int what)
{
	double least = 1e18;
	int round, i, calls = 100;

	for (round = 0; round < 60; round++) {
		struct timespec ts;
		double begin = now(), took;

		for (i = 0; i < calls; i++) {
			if (what == 0) {
				clock_gettime(CLOCK_MONOTONIC, &ts);
				clock_gettime(CLOCK_MONOTONIC, &ts);
			} else if (what == 1) {
				pthread_mutex_lock(&m);
				pthread_mutex_unlock(&m);
			} else if (write(null, "", 0)) {
				return -1;
			}
		}
		took = (now() - begin) / calls;
		least = took < least ? took : least;
		calls = ROUND_NS / least > CALLS ? CALLS : ROUND_NS / least < 20 ? 20 : (int)(ROUND_NS / least);
		usleep(20000); /* the io thread empties the pool */
	}
	return least;
}

int main(void)
{
	char line[16];

	null = open("/dev/null", O_WRONLY);
	puts("ready");
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin)) {
		printf("%.2f %.2f %.2f\n", best(0), best(1), best(2));
		fflush(stdout);
	}
	return 0;
}
"""


SPIN = r"""
import sys, threading, time
def count(stop, turns):
    n = 0
    while time.monotonic() < stop:
        n += 1
    turns.append(n)
print("ready", flush=True)
for line in sys.stdin:
    turns, begin = [], time.process_time()
    stop = time.monotonic() + float(line)
    threads = [threading.Thread(target=count, args=(stop, turns)) for _ in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    print(1e9 * (time.process_time() - begin) / sum(turns), flush=True)
"""


class Program:
    def __init__(self, tmp, env, *prefix):
        path = h.compile_c(PROGRAM, os.path.join(tmp, "program"), "-O2", "-pthread")
        self.process = h.start([*prefix, path], env=env, stdin=subprocess.PIPE)
        self.process.stdout.readline()

    def measure(self):
        self.process.stdin.write(b"go\n")
        self.process.stdin.flush()
        return dict(zip(("clock_pair", "mutex", "write"), map(float, self.process.stdout.readline().split())))


class Spinner:
    def __init__(self, env, *prefix):
        self.process = h.start([*prefix, list(h.pythons().values())[-1], "-c", SPIN], env=env, stdin=subprocess.PIPE)
        self.process.stdout.readline()

    def turn(self, seconds=0.5):
        """Processor time of the whole process, ns a turn of the loop."""
        self.process.stdin.write(b"%g\n" % seconds)
        self.process.stdin.flush()
        return float(self.process.stdout.readline())


def show(case, **figures):
    print(json.dumps({"case": case, **figures}), flush=True)


def switch(sock, verb, plugin):
    h.check_equal(ctl.ask(sock, verb, plugin=plugin).code, 0, verb)


def measure_gil(env, pairs=15):
    spinner = Spinner(env)
    sock = ctl.socket_of(env["SYSTRACE_SOCKET_DIR"], spinner.process.pid)
    h.wait_for(lambda: os.path.exists(sock), what="the control socket")
    spinner.turn()
    ratios = []
    for i in range(pairs):
        figures = {}
        for on in (i % 2 == 0, i % 2 == 1):
            switch(sock, "enable" if on else "disable", "GIL")
            figures[on] = spinner.turn()
        ratios.append(figures[True] / figures[False])
    ratios.sort()
    show("GIL on, four busy threads", slower_pct=round(100 * (statistics.median(ratios) - 1), 2), pairs=pairs,
         quartiles_pct=[round(100 * (ratios[pairs // 4] - 1), 2), round(100 * (ratios[3 * pairs // 4] - 1), 2)])


class Uprobes:
    """bpftrace that counts calls of one function of the C library in one process."""

    def __init__(self, pid, function):
        libc = next(line.split()[-1] for line in open("/proc/%d/maps" % pid) if "/libc.so" in line or "/libc-" in line)
        self.process = h.start(["bpftrace", "-p", str(pid), "-e", "uprobe:%s:%s { @ = count(); }" % (libc, function)])
        if not self.process.stdout.readline().startswith(b"Attach"):
            raise h.CheckFailed("bpftrace: %s" % self.process.stderr.read().decode())
        time.sleep(8)  # that line comes before the probes are in

    def stop(self):
        h.stop(self.process, 2)


def measure_others(tmp, plain):
    """The same programs under the tools that one would take otherwise."""
    if shutil.which("strace"):
        show("strace -f -c", **Program(tmp, plain, "strace", "-f", "-c", "-o", os.path.join(tmp, "strace")).measure())
    if not shutil.which("bpftrace") or os.geteuid() != 0:
        return
    bare = Program(tmp, plain)
    for function in ("pthread_mutex_lock", "write"):
        probes = Uprobes(bare.process.pid, function)
        show("bpftrace uprobe on " + function, **bare.measure())
        probes.stop()
    spinner, ratios = Spinner(plain), []
    spinner.turn()
    for _ in range(5):
        off = spinner.turn()
        probes = Uprobes(spinner.process.pid, "pthread_cond_timedwait")
        ratios.append(spinner.turn() / off)
        probes.stop()
    show("bpftrace uprobe on pthread_cond_timedwait, four busy threads", pairs=len(ratios),
         slower_pct=round(100 * (statistics.median(ratios) - 1), 2))


def main():
    tmp = h.tmpdir()
    env = h.preload_env(tmp, SYSTRACE_ENABLE="1", SYSTRACE_BUDGET_PCT="100")
    plain = dict(env)
    del plain["LD_PRELOAD"]
    bare, traced = Program(tmp, plain), Program(tmp, env)
    sock = ctl.socket_of(env["SYSTRACE_SOCKET_DIR"], traced.process.pid)
    h.wait_for(lambda: os.path.exists(sock), what="the control socket")
    base = bare.measure()
    show("without the agent", **base)
    show("all off", **traced.measure())
    for plugin, call, clocks in (("Mutex", "mutex", 0), ("IO", "write", 1)):
        switch(sock, "enable", plugin)
        now = traced.measure()
        status = ctl.ask(sock, "status")
        switch(sock, "disable", plugin)
        show(plugin + " on", **now, extra_ns=round(now[call] - base[call] - clocks * now["clock_pair"], 2),
             dropped=int(status.get("dropped")))
    show("off again", **traced.measure())
    measure_gil(env)
    measure_others(tmp, plain)


if __name__ == "__main__":
    main()
