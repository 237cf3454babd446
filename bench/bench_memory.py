#!/usr/bin/env python3
# SPDX-License-Identifier: MulanPSL-2.0
"""What the plugin Memory costs: one process works in blocks with the plugin on and off by turns, so that neighbours can be
compared (a block is long enough that the first touch of the tables does not count); then whole runs of the same program, alone and under heaptrack where that is installed.

    python3 bench/bench_memory.py [--pairs 60] [--sample-bytes 524288]      # ST_BUILD names the build directory

loop: malloc and free of one size, nothing else, nanoseconds a pair: the worst there can be. words: a hash table of words
is built, grown, read and taken down, two allocations a word: a program that allocates heavily. python: objects of dictionaries
and lists. Ratios of process CPU time of neighbouring blocks: median and 95 % interval of it. Prints one JSON line each.
"""

import argparse
import json
import os
import random
import resource
import shutil
import statistics
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "tests", "e2e"))

import ctl  # noqa: E402
import harness as h  # noqa: E402

PROGRAM = r"""
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct node { struct node *next; char *word; unsigned count; };

static unsigned long long seed = 1;
static unsigned long long cpu(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
	return ts.tv_sec * 1000000000ull + ts.tv_nsec;
}

static void loop(int rounds)
{
	int i;

	for (i = 0; i < rounds; i++) {
		void *p = malloc(100);

		__asm__ volatile("" : : "r"(p) : "memory");
		free(p);
	}
}

static uint32_t hash_of(const char *word)
{
	uint32_t hash = 2166136261u;

	for (; *word; word++)
		hash = (hash ^ (unsigned char)*word) * 16777619u;
	return hash;
}

static struct node **find(struct node **table, uint32_t room, const char *word)
{
	struct node **at = &table[hash_of(word) & (room - 1)];

	while (*at && strcmp((*at)->word, word))
		at = &(*at)->next;
	return at;
}

/* Counts words, as a tokenizer does; the table doubles as it fills. */
static unsigned words(int count)
{
	uint32_t room = 1024, used = 0, i;
	struct node **table = calloc(room, sizeof(*table));
	unsigned most = 0;
	char word[64];

	for (i = 0; i < (uint32_t)count; i++) {
		struct node **at;

		seed = seed * 6364136223846793005ull + 1442695040888963407ull;
		snprintf(word, sizeof(word), "word-%llu-of-the-corpus", seed >> 46);
		at = find(table, room, word);
		if (!*at) {
			size_t n = strlen(word) + 1;
			struct node *node = malloc(sizeof(*node));

			node->word = malloc(n);
			memcpy(node->word, word, n);
			node->count = 0;
			node->next = NULL;
			*at = node;
			used++;
		}
		most = ++(*at)->count > most ? (*at)->count : most;
		if (used > room) {
			struct node **bigger = calloc(room * 2, sizeof(*bigger));
			uint32_t k;

			for (k = 0; k < room; k++)
				for (struct node *node = table[k], *next; node; node = next) {
					next = node->next;
					uint32_t slot = hash_of(node->word) & (room * 2 - 1);
					node->next = bigger[slot];
					bigger[slot] = node;
				}
			free(table);
			table = bigger;
			room *= 2;
		}
	}
	for (i = 0; i < room; i++)
		for (struct node *node = table[i], *next; node; node = next) {
			next = node->next;
			free(node->word);
			free(node);
		}
	free(table);
	return most;
}

int main(int argc, char **argv)
{
	char line[64], what[16];
	int count;

	if (argc > 2) {
		for (count = atoi(argv[2]); count; count--)
			argv[1][0] == 'l' ? loop(10000000) : (void)words(300000);
		return 0;
	}
	puts("ready");
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin)) {
		unsigned long long begin = cpu();

		if (sscanf(line, "%15s %d", what, &count) != 2)
			return 1;
		if (what[0] == 'l')
			loop(count);
		else
			words(count);
		printf("%llu\n", cpu() - begin);
		fflush(stdout);
	}
	return 0;
}
"""

PYTHON = r"""
import sys, time
def work(n):
    rows = []
    for i in range(n):
        rows.append({"id": i, "text": "sample %d" % i, "ids": list(range(i % 200)), "mask": bytearray(1000 + i % 1000)})
        if i % 100 == 99:
            rows.clear()
print("ready", flush=True)
for line in sys.stdin:
    begin = time.process_time_ns()
    work(int(line.split()[1]))
    print(time.process_time_ns() - begin, flush=True)
"""


class Worker:
    def __init__(self, args, sample_bytes, stack):
        tmp = h.tmpdir()
        env = h.preload_env(tmp, SYSTRACE_ENABLE="1", RANK="0", SYSTRACE_BUDGET_PCT="100")
        self.process = h.start(args, env=env, stdin=subprocess.PIPE)
        self.process.stdout.readline()
        self.sock = ctl.socket_of(env["SYSTRACE_SOCKET_DIR"], self.process.pid)
        h.wait_for(lambda: os.path.exists(self.sock), what="the control socket")
        self.keys = {"sample_bytes": str(sample_bytes), "stack": stack}

    def switch(self, on):
        keys = self.keys if on else {}
        answer = ctl.ask(self.sock, "enable" if on else "disable", plugin="Memory", **keys)
        if answer.code:
            sys.exit(answer.text)

    def do(self, what, count):
        self.process.stdin.write(b"%s %d\n" % (what.encode(), count))
        self.process.stdin.flush()
        return int(self.process.stdout.readline())


def interval(values):
    """Median, and the 95 % interval of it by the bootstrap."""
    rng = random.Random(1)
    medians = sorted(statistics.median(rng.choices(values, k=len(values))) for _ in range(2000))
    return statistics.median(values), medians[50], medians[1949]


def compare(name, worker, count, pairs):
    worker.do(name, count)
    ratios, offs = [], []
    for i in range(pairs):
        took = {}
        for on in (i % 2 == 0, i % 2 == 1):
            worker.switch(on)
            took[on] = worker.do(name, count)
        ratios.append(took[True] / took[False])
        offs.append(took[False])
    worker.switch(False)
    median, low, high = interval(ratios)
    print(json.dumps({"case": name, "pairs": pairs, "off_ns_each": round(statistics.median(offs) / count, 2),
                      "on_pct": round(100 * (median - 1), 2), "from_pct": round(100 * (low - 1), 2),
                      "to_pct": round(100 * (high - 1), 2), "extra_ns_each": round(statistics.median(offs) / count * (median - 1), 2),
                      **worker.keys}), flush=True)


def whole_runs(program, times):
    """Processor time of the same work as whole processes: alone, with the agent and Memory, under heaptrack."""
    tmp = h.tmpdir()
    env = h.preload_env(tmp, SYSTRACE_ENABLE="1", RANK="0", SYSTRACE_BUDGET_PCT="100", SYSTRACE_PLUGINS="Memory")
    forms = {"alone": ([program], None), "Memory": ([program], env)}
    if shutil.which("heaptrack"):
        forms["heaptrack"] = (["heaptrack", "-o", os.path.join(tmp, "trace"), program], None)
    took = {name: [] for name in forms}
    for _ in range(times):
        for name, (args, environment) in forms.items():
            begin = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run(args + ["words", "6"], env=environment, check=True, stdout=subprocess.DEVNULL,
                           stderr=subprocess.DEVNULL)
            end = resource.getrusage(resource.RUSAGE_CHILDREN)
            took[name].append(end.ru_utime + end.ru_stime - begin.ru_utime - begin.ru_stime)
    alone = statistics.median(took["alone"])
    print(json.dumps({"case": "whole runs of words", "times": times, "alone_s": round(alone, 3),
                      **{name + "_ratio": round(statistics.median(t) / alone, 3) for name, t in took.items() if name != "alone"}}),
          flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=60)
    parser.add_argument("--sample-bytes", type=int, default=524288)
    parser.add_argument("--stack", default="1")
    parser.add_argument("--times", type=int, default=5)
    options = parser.parse_args()
    h.require(h.AGENT, "gcc")
    program = h.compile_c(PROGRAM, os.path.join(h.tmpdir(), "program"), "-O2", "-w")
    worker = Worker([program], options.sample_bytes, options.stack)
    compare("loop", worker, 2000000, options.pairs)
    compare("words", worker, 600000, options.pairs)
    python = Worker([list(h.pythons().values())[-1], "-c", PYTHON], options.sample_bytes, options.stack)
    compare("python", python, 2000000, max(options.pairs // 6, 4))
    whole_runs(program, options.times)


if __name__ == "__main__":
    main()
