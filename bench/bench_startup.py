#!/usr/bin/env python3
# SPDX-License-Identifier: MulanPSL-2.0
"""What an inert process pays: start-up of /bin/true with the library against without, in alternating order, and the
memory that is left in a process that has neither interpreter nor device runtime. Goal (design 3): <= 0.5 ms, no page.

    python3 bench/bench_startup.py [--pairs 500]
"""

import argparse
import os
import random
import statistics
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests", "e2e"))

import harness as h  # noqa: E402


def start_ms(env):
    begin = time.perf_counter_ns()
    pid = os.posix_spawn("/bin/true", ["true"], env)
    os.waitpid(pid, 0)
    return (time.perf_counter_ns() - begin) / 1e6


def anonymous_kb(env):
    """Anonymous kB (written or copied pages) of the library's own mappings and of new anonymous ones in a process that sleeps in inert state."""
    def total(environment):
        process = subprocess.Popen(["/bin/sleep", "60"], env=environment)
        try:
            time.sleep(0.5)
            with open("/proc/%d/smaps" % process.pid) as f:
                lines = f.read().splitlines()
        finally:
            process.kill()
            process.wait()
        sums, name = {}, None
        for line in lines:
            words = line.split()
            if "-" in words[0] and not words[0].endswith(":"):
                name = os.path.basename(words[5]) if len(words) > 5 else "anonymous"
            elif words[0] == "Anonymous:":
                sums[name] = sums.get(name, 0) + int(words[1])
        return sums
    without, with_it = total({k: v for k, v in env.items() if k != "LD_PRELOAD"}), total(env)
    return (with_it.get("libsysTrace.so", 0), with_it.get("anonymous", 0) - without.get("anonymous", 0),
            with_it.get("[heap]", 0) - without.get("[heap]", 0))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--pairs", type=int, default=500)
    options = parser.parse_args()
    h.require(h.AGENT)
    env = h.preload_env(h.tmpdir())
    bare = {k: v for k, v in env.items() if k != "LD_PRELOAD"}

    rng = random.Random(1)
    times = {True: [], False: []}
    for _ in range(options.pairs):
        order = [True, False]
        rng.shuffle(order)
        for with_it in order:
            times[with_it].append(start_ms(env if with_it else bare))
    differences = [a - b for a, b in zip(times[True], times[False])]
    medians = sorted(statistics.median(rng.choices(differences, k=len(differences))) for _ in range(2000))
    print("start of /bin/true: %.3f ms without, %.3f ms with; difference %+.3f ms (95 %% interval %+.3f .. %+.3f), %d pairs"
          % (statistics.median(times[False]), statistics.median(times[True]), statistics.median(differences), medians[50],
             medians[1949], len(differences)))
    print("memory afterwards: %d kB in pages of the library that the dynamic linker relocated, "
          "%+d kB beside them, %+d kB heap" % anonymous_kb(env))
    return 0


if __name__ == "__main__":
    sys.exit(main())
