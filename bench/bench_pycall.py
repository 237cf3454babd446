#!/usr/bin/env python3
# SPDX-License-Identifier: MulanPSL-2.0
"""What a call of a traced Python function costs, per interpreter, against an untraced twin in the same process.

hook: the way into and out of C alone (tests/fake/python_host.c, empty stage functions); agent: with the real agent, that is
plus two clock reads and a record; off: traced once, switched off again; untraced: a pure-Python program that calls no
traced function, with the agent against without, as a ratio of the best times of alternating runs (1.000 = no cost).
usage: bench/bench_pycall.py [INTERPRETER...]     ST_BUILD names the build directory
"""

import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests", "e2e"))

import harness  # noqa: E402
import python_host  # noqa: E402

GUEST = r"""
import sys, time
sys.path.insert(0, %r)
import callee
def best(f, n=20000, rounds=60):
    low = 1e9
    for _ in range(rounds):
        begin = time.perf_counter_ns()
        for _ in range(n):
            f(1, 2)
        low = min(low, time.perf_counter_ns() - begin)
    return low / n
end = time.monotonic() + 10
while time.monotonic() < end:  # attached when the twins differ for long enough
    time.sleep(0.2)
    if best(callee.traced, 1000, 5) > best(callee.plain, 1000, 5) * 1.02 + 5:
        break
if len(sys.argv) > 1:
    import ctypes
    ctypes.CDLL(None).fake_switch(0, 5000)
plain, traced = best(callee.plain), best(callee.traced)
plain = min(plain, best(callee.plain))
print(plain, traced)
"""

CALLEE = """
def make():
    def f(a, b):
        return a
    return f
plain, traced = make(), make()
"""

UNTRACED = r"""
import time
class Node:
    def __init__(self, v): self.v, self.next = v, None
    def get(self): return self.v
def fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)
def work():
    nodes = [Node(i) for i in range(3000)]
    total = sum(n.get() for n in nodes) + fib(19)
    return total + len({str(i): i for i in range(3000)})
work()
low = 1e9
for _ in range(40):
    begin = time.perf_counter_ns(); work(); low = min(low, time.perf_counter_ns() - begin)
print(low)
"""


def output(args, env):
    return [float(x) for x in subprocess.run(args, env=env, stdout=subprocess.PIPE, check=True, text=True).stdout.split()]


def main(argv):
    tmp = harness.tmpdir("bench-")
    host = python_host.build(tmp, "-DFAKE_EMPTY")
    harness.write_file(os.path.join(tmp, "callee.py"), CALLEE)
    listed = harness.write_file(os.path.join(tmp, "list"), "callee@traced FORWARD\n")
    guest = GUEST % tmp
    pythons = argv[1:] or [*harness.pythons().values(), "/usr/bin/python3"]
    print("%-44s %8s %8s %8s %8s %9s" % ("ns a call", "plain", "+hook", "+agent", "+off", "untraced"))
    for python in dict.fromkeys(pythons):
        env = python_host.env(host, FAKE_START="1", FAKE_LIST=listed)
        plain, hook = output([python, "-c", guest], env)
        off_plain, off = output([python, "-c", guest, "off"], env)
        columns = ["%8.1f" % plain, "%8.1f" % (hook - plain)]
        ratio = "-"
        if os.path.exists(harness.AGENT):
            agent_env = harness.preload_env(os.path.join(tmp, "out"), SYSTRACE_ENABLE="1", SYSTRACE_PYFUNC_LIST=listed)
            plain_2, agent = output([python, "-c", guest], agent_env)
            columns.append("%8.1f" % (agent - plain_2))
            bare = {k: v for k, v in agent_env.items() if k != "LD_PRELOAD"}
            times = {True: [], False: []}
            for _ in range(8):
                for with_agent in (True, False):
                    times[with_agent] += output([python, "-c", UNTRACED], agent_env if with_agent else bare)
            ratio = "%.3f" % (min(times[True]) / min(times[False]))
        else:
            columns.append("%8s" % "-")
        print("%-44s %s %8.1f %9s" % (python.replace(os.path.expanduser("~"), "~"), " ".join(columns), off - off_plain,
                                      ratio), flush=True)


if __name__ == "__main__":
    main(sys.argv)
