#!/usr/bin/env python3
# SPDX-License-Identifier: MulanPSL-2.0
"""What recording scheduling costs: pairs of threads on every CPU wake each other through pipes, with some work between
(about 200 000 switches a second on two idle CPUs); the CPU plugin, `perf sched record`, `trace-cmd record -e sched` and a
bpftrace one-liner that counts, each switched on and off in turn. Prints one JSON line: for each tool the workload's
processor time per round trip against the mean of the rounds before and after without it (so that other work on the machine
counts little), its rate likewise, the tool's own processor time in per cent of one CPU and per switch, and what it lost.
Also how fast `convert osprobe` reads such a recording, and what a small buffer loses. Needs root.

    python3 bench/bench_probe.py [rounds [work_ns]]     # ST_BUILD names the build directory, default build/
"""

import json
import os
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "tests", "e2e"))

import harness as h  # noqa: E402
import probes  # noqa: E402

PROGRAM = r"""
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static atomic_ulong rounds;
static long work_ns;
struct pair { int a[2], b[2], cpu; };

static long now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1000000000L + ts.tv_nsec;
}

static void work(void)
{
	long end = now_ns() + work_ns;

	while (now_ns() < end)
		;
}

static void pin(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	sched_setaffinity(0, sizeof(set), &set);
}

static void *one(void *arg)
{
	struct pair *p = arg;
	char c = 0;

	for (pin(p->cpu); read(p->a[0], &c, 1) == 1 && write(p->b[1], &c, 1) == 1;)
		work();
	return NULL;
}

static void *other(void *arg)
{
	struct pair *p = arg;
	char c = 0;

	for (pin(p->cpu); write(p->a[1], &c, 1) == 1 && read(p->b[0], &c, 1) == 1; atomic_fetch_add(&rounds, 1))
		work();
	return NULL;
}

int main(int argc, char **argv)
{
	int cpus = (int)sysconf(_SC_NPROCESSORS_ONLN);
	char line[64];

	work_ns = atol(argv[1]);
	for (int i = 0; i < cpus; i++) {
		struct pair *p = malloc(sizeof(*p));
		pthread_t thread;

		p->cpu = i;
		if (pipe(p->a) || pipe(p->b) || pthread_create(&thread, NULL, one, p) || pthread_create(&thread, NULL, other, p))
			return 1;
	}
	puts("up");
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin)) { /* a line: print the round trips so far */
		printf("%lu\n", atomic_load(&rounds));
		fflush(stdout);
	}
	return 0;
}
"""
BLOCK_S = 0.6


class Load:
    def __init__(self, work_ns):
        place = h.tmpdir()
        source = h.write_file(place + "/load.c", PROGRAM)
        h.compile_c(source, place + "/load", "-O2", "-pthread")
        self.process = subprocess.Popen([place + "/load", str(work_ns)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.process.stdout.readline()
        self.pid = self.process.pid

    def _now(self):
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()
        rounds = int(self.process.stdout.readline())
        tasks = "/proc/%d/task" % self.pid
        ran = sum(int(h.read_file("%s/%s/schedstat" % (tasks, t)).split()[0]) for t in os.listdir(tasks))
        return rounds, ran, time.monotonic()

    def block(self, seconds=BLOCK_S):
        """(processor ns per round trip, round trips a second)"""
        before = self._now()
        time.sleep(seconds)
        rounds, ran, wall = (b - a for a, b in zip(before, self._now()))
        return ran / rounds, rounds / wall


class Probe:
    name = "CPU plugin"

    def __init__(self, load, *params):
        self.load, self.params, self.place = load, params, probes.Place()

    def on(self):
        self.place.cli("enable", "CPU", "pid=%d" % self.load.pid, *self.params).ok()
        self.before = self.place.status()[0]

    def off(self):
        after = self.place.status()[0]
        self.place.cli("disable", "CPU").ok()
        self.place.wait_gone()
        cost = int(after["cost_ns"]) - int(self.before["cost_ns"])
        return cost, int(after["plugin.cpu.records"]) - int(self.before["plugin.cpu.records"]), int(after["plugin.cpu.lost"])


class Command:
    """A tool that records until SIGINT; its cost is what the process and its children took."""

    def __init__(self, name, *args):
        self.name, self.args, self.dir = name, args, h.tmpdir()

    def on(self):
        self.usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        self.process = subprocess.Popen(self.args, cwd=self.dir, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        time.sleep(4.0)  # trace-cmd and bpftrace read a lot before they begin

    def off(self):
        self.process.send_signal(signal.SIGINT)
        out = self.process.communicate(timeout=120)[0].decode(errors="replace")
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        cost = usage.ru_utime + usage.ru_stime - self.usage.ru_utime - self.usage.ru_stime
        lost = sum(int(w) for line in out.splitlines() if "overrun" in line or "lost" in line.lower()
                   for w in line.replace(":", " ").split() if w.isdigit())
        return int(cost * 1e9), None, lost


def measure(load, tool, rounds):
    cpu, rate, pct, per, lost = [], [], [], [], 0
    for _ in range(rounds):
        before = load.block()
        tool.on()
        begin, during = time.monotonic(), load.block()
        cost, records, gone = tool.off()
        wall = time.monotonic() - begin
        after = load.block()
        cpu.append(during[0] / ((before[0] + after[0]) / 2))
        rate.append(during[1] / ((before[1] + after[1]) / 2))
        pct.append(100 * cost / (wall * 1e9))
        if records:
            per.append(cost / records)
        lost += gone
    return {"workload_cpu_ratio": round(statistics.median(cpu), 4), "workload_rate_ratio": round(statistics.median(rate), 4),
            "quartiles": [round(q, 4) for q in statistics.quantiles(cpu, n=4)][::2],
            "tool_cpu_pct": round(statistics.median(pct), 2), "lost": lost,
            **({"tool_ns_per_record": round(statistics.median(per), 1)} if per else {})}


def convert_speed(load):
    """Entries a second that `convert osprobe` reads into tables and into a Chrome trace."""
    probe, got = Probe(load), {}
    probe.on()
    time.sleep(4)
    _, records, _ = probe.off()
    for name, more in (("tables", ["--json"]), ("chrome", ["--output", "/dev/null", "--format", "chrome"]),
                       ("perfetto", ["--output", "/dev/null", "--format", "perfetto"])):
        best = 1e9
        for _ in range(3):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            h.run([h.SYSTRACE, "convert", "osprobe", "--input", probe.place.dump, *more], timeout=300).ok()
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            best = min(best, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        got[name] = round(records / best)
    return {"entries": records, "entries_per_cpu_second": got}


def small_buffer(load):
    """With 64 KB something is lost: the count must be in the file."""
    probe = Probe(load, "buffer_kb=64")
    probe.on()
    time.sleep(1)
    _, records, lost = probe.off()
    told = sum(probes.OsFile(f).drops for f in probe.place.files())
    return {"records": records, "lost": lost, "told_in_the_file": told}


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    work_ns = int(sys.argv[2]) if len(sys.argv) > 2 else 5000
    probes.require_probe()
    load = Load(work_ns)
    tools = [Probe(load)]
    if shutil.which("perf"):
        tools.append(Command("perf sched record", "perf", "sched", "record", "-o", "perf.data"))
    if shutil.which("trace-cmd"):
        tools.append(Command("trace-cmd record -e sched", "trace-cmd", "record", "-e", "sched"))
    if shutil.which("bpftrace"):
        tools.append(Command("bpftrace, counting", "bpftrace", "-e", "tracepoint:sched:sched_switch { @[args->prev_pid] = count(); }"))
    alone = load.block(2)
    result = {"cpu_ns_per_round_trip": round(alone[0]), "switches_per_second": round(2 * alone[1]), "rounds": rounds,
              "load_average": os.getloadavg()[0]}
    try:
        for tool in tools:
            result[tool.name] = measure(load, tool, rounds)
        result["convert"] = convert_speed(load)
        result["buffer_kb=64"] = small_buffer(load)
    finally:
        load.process.kill()
    print(json.dumps(result))


main()
