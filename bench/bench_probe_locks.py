#!/usr/bin/env python3
# SPDX-License-Identifier: MulanPSL-2.0
"""What the probe's uprobes cost a process whose locks (Mutex) or interpreter lock (GIL) it records: processor time of the
calling thread for each lock and unlock of a free mutex, each failing trylock, each signal of a condition (which Mutex does
not see), and each os.read of Python (of /dev/null), which drops and takes the interpreter lock. Off and on alternate in one process;
the agent's in-process hooks beside it. Prints one JSON line: median, least and most in ns a call. Needs root.

    python3 bench/bench_probe_locks.py [rounds]     # ST_BUILD names the build directory, default build/
"""

import json
import os
import statistics
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "tests", "e2e"))

import harness as h  # noqa: E402
import probes  # noqa: E402

PROGRAM = r"""
#include <pthread.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#define CALLS 20000

static pthread_mutex_t free_one = PTHREAD_MUTEX_INITIALIZER, taken = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t cond = PTHREAD_COND_INITIALIZER;

static double cpu_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
	return (double)ts.tv_sec * 1e9 + (double)ts.tv_nsec;
}

static double each(int what)
{
	double begin = cpu_ns();

	for (int i = 0; i < CALLS; i++) {
		if (what == 0) {
			pthread_mutex_lock(&free_one);
			pthread_mutex_unlock(&free_one);
		} else if (what == 1) {
			pthread_mutex_trylock(&taken);
		} else {
			pthread_cond_signal(&cond);
		}
	}
	return (cpu_ns() - begin) / CALLS;
}

int main(void)
{
	char line[16];

	pthread_mutex_lock(&taken);
	setvbuf(stdout, NULL, _IOLBF, 0);
	printf("%d\n", (int)getpid());
	while (fgets(line, sizeof(line), stdin))
		printf("%.1f %.1f %.1f\n", each(0), each(1), each(2));
	return 0;
}
"""
NAMES = ("free lock", "failing trylock", "cond_signal")
GUEST = """
import os, sys, time
null, read = os.open("/dev/null", os.O_RDONLY), os.read
print(os.getpid(), flush=True)
for line in sys.stdin:
    begin = time.thread_time_ns()
    for _ in range(20000):
        read(null, 0)
    print((time.thread_time_ns() - begin) / 20000, flush=True)
"""


class Program:
    def __init__(self, args, env):
        self.process = subprocess.Popen(args, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
        h._started.append(self.process)
        self.pid = int(self.process.stdout.readline())

    def measure(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return list(map(float, self.process.stdout.readline().split()))


def alternate(program, place, plugin, rounds, names=NAMES):
    off, on = [], []
    for _ in range(rounds):
        off.append(program.measure())
        place.cli("enable", plugin, *(["pid=%d" % program.pid] if place.by_pid else ["--pid", program.pid])).ok()
        on.append(program.measure())
        place.cli("disable", plugin, "--pid", program.pid).ok()
    return {name: {"off": [round(f([r[i] for r in off]), 1) for f in (statistics.median, min, max)],
                   "on": [round(f([r[i] for r in on]), 1) for f in (statistics.median, min, max)]}
            for i, name in enumerate(names)}


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    probes.require_probe("lock")
    path = h.compile_c(PROGRAM, os.path.join(h.tmpdir(), "bench_locks"), "-pthread")
    place = probes.Place()
    place.by_pid = True
    program = Program([path], place.env)
    result = {"probe": alternate(program, place, "Mutex", rounds)}
    guest = Program(["/usr/bin/python3", "-c", GUEST], place.env)
    result["probe"].update(alternate(guest, place, "GIL", rounds, ("os.read",)))
    place = probes.Place()
    place.by_pid = False
    program = Program([path], h.preload_env(place.dump, place.sock, SYSTRACE_ENABLE="1"))
    h.wait_for(lambda: os.path.exists(os.path.join(place.sock, "sysTrace_%d.sock" % program.pid)), what="the agent")
    result["agent"] = alternate(program, place, "Mutex", rounds)
    guest = Program(["/usr/bin/python3", "-c", GUEST], h.preload_env(place.dump, place.sock, SYSTRACE_ENABLE="1"))
    h.wait_for(lambda: os.path.exists(os.path.join(place.sock, "sysTrace_%d.sock" % guest.pid)), what="the agent")
    result["agent"].update(alternate(guest, place, "GIL", rounds, ("os.read",)))
    print(json.dumps(result))


main()
