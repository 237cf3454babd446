#!/usr/bin/env python3
# SPDX-License-Identifier: MulanPSL-2.0
"""What native hooks cost: one program calls in a loop, without the agent, with it and everything off, and with IO or Mutex on.
Nanoseconds a call, the best of several rounds: the disturbances of a shared machine only add. Prints one JSON line each.

    python3 bench/bench_hooks.py            # ST_BUILD names the build directory, default build/
"""

import json
import os
import subprocess
import sys

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
	int round, i;

	for (round = 0; round < 40; round++) {
		struct timespec ts;
		double begin = now(), took;

		for (i = 0; i < CALLS; i++) {
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
		took = (now() - begin) / CALLS;
		least = took < least ? took : least;
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


class Program:
    def __init__(self, tmp, env):
        path = h.compile_c(PROGRAM, os.path.join(tmp, "program"), "-O2", "-pthread")
        self.process = h.start([path], env=env, stdin=subprocess.PIPE)
        self.process.stdout.readline()

    def measure(self):
        self.process.stdin.write(b"go\n")
        self.process.stdin.flush()
        return dict(zip(("clock_pair", "mutex", "write"), map(float, self.process.stdout.readline().split())))


def main():
    tmp = h.tmpdir()
    env = h.preload_env(tmp, SYSTRACE_ENABLE="1", SYSTRACE_BUDGET_PCT="100")
    plain = dict(env)
    del plain["LD_PRELOAD"]
    bare, traced = Program(tmp, plain), Program(tmp, env)
    sock = ctl.socket_of(env["SYSTRACE_SOCKET_DIR"], traced.process.pid)
    h.wait_for(lambda: os.path.exists(sock), what="the control socket")
    base = bare.measure()
    print(json.dumps({"case": "without the agent", **base}))
    print(json.dumps({"case": "all off", **traced.measure()}))
    for plugin, call, clocks in (("Mutex", "mutex", 0), ("IO", "write", 1)):
        h.check_equal(ctl.ask(sock, "enable", plugin=plugin).code, 0, "enable")
        now = traced.measure()
        status = ctl.ask(sock, "status")
        h.check_equal(ctl.ask(sock, "disable", plugin=plugin).code, 0, "disable")
        print(json.dumps({"case": plugin + " on", **now, "extra_ns": round(
            now[call] - base[call] - clocks * now["clock_pair"], 2), "dropped": int(status.get("dropped"))}))
    print(json.dumps({"case": "off again", **traced.measure()}))


if __name__ == "__main__":
    main()
