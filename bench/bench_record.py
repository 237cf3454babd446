#!/usr/bin/env python3
# SPDX-License-Identifier: MulanPSL-2.0
"""How many kernel events a second each back end of systrace record takes without losing one, and what that costs: paced
loads of system calls on every CPU, the recorder's own CPU time, the time that saving takes, the size of the file.

    python3 bench/bench_record.py [--seconds 8] [--rates 200000,1000000,0] [--bf-size 40960]

A rate is in events a second over all CPUs, 0 = as fast as the load can. Needs root. All back ends run in one go, one after
the other, under the same load; where one cannot work its reason is printed instead.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SYSTRACE = os.path.join(os.environ.get("ST_BUILD", os.path.join(ROOT, "build")), "systrace")

# Each call is two events (enter and exit); bursts of 1 ms, so that the pace holds also when the machine is busy.
LOAD = r"""
#include <stdint.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
static uint64_t now(void)
{
	struct timespec ts;
	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}
int main(int argc, char **argv)
{
	uint64_t rate = strtoull(argv[1], 0, 10) / 2, parent = (uint64_t)getppid(), begin = now(), done = 0, due;
	struct timespec ms = { 0, 1000000 };
	while ((uint64_t)syscall(SYS_getppid) == parent) {
		due = rate ? (now() - begin) * rate / 1000000000u : done + 10000;
		for (; done < due; done++)
			syscall(SYS_getppid);
		if (rate)
			nanosleep(&ms, 0);
	}
	return 0;
}
"""

BACKENDS = (
    ("native, zstd", ["--backend=native", "--compress=zstd"]),
    ("native, raw pages", ["--backend=native", "--compress=none"]),
    ("trace-cmd", ["--backend=trace-cmd"]),
    ("debugfs", ["--backend=debugfs"]),
)


def record(options, how, rate, load, directory):
    """One recording under load; a dict of figures, or the reason why there is none."""
    cpus = sorted(os.sched_getaffinity(0))
    loads = [subprocess.Popen(["taskset", "-c", str(cpu), load, str(rate // len(cpus))]) for cpu in cpus]
    output = os.path.join(directory, "out")
    begin = time.monotonic()
    process = subprocess.Popen([SYSTRACE, "record", "--json", "--record-time=%s" % options.seconds, "--output=" + output,
                                "--bf-size=%d" % options.bf_size, "--event=raw_syscalls", *how],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    out, err = process.stdout.read(), process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    took = time.monotonic() - begin
    for each in loads:
        each.kill()
        each.wait()
    if status:
        return (re.findall(r"error: (.*)", err) or ["status %d" % status])[-1]
    result = json.loads(out)
    os.unlink(output)
    return {"events": result["events"], "lost": result["lost"], "bytes": result["bytes"],
            "cpu_s": usage.ru_utime + usage.ru_stime, "stop_s": took - options.seconds, "rss_kb": usage.ru_maxrss}


def show(name, rate, row, seconds):
    asked = "%.1f M/s" % (rate / 1e6) if rate else "full speed"
    if isinstance(row, str):
        print("%-18s %-10s  %s" % (name, asked, row), flush=True)
        return
    every = row["events"] + row["lost"]
    print("%-18s %-10s  %6.2f M events/s saved, %5.1f %% lost, %6.1f %% of a core (%4.0f ns an event), %6.1f MB "
          "(%4.1f B an event), start and stop %5.2f s, %4.0f MB resident" % (
              name, asked, row["events"] / seconds / 1e6, 100 * row["lost"] / every if every else 0,
              100 * row["cpu_s"] / seconds, 1e9 * row["cpu_s"] / max(1, row["events"]), row["bytes"] / 1e6,
              row["bytes"] / max(1, row["events"]), row["stop_s"], row["rss_kb"] / 1e3), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--rates", default="200000,1000000,0")
    parser.add_argument("--bf-size", type=int, default=40960, help="KB per CPU")
    options = parser.parse_args()
    if os.geteuid() != 0:
        print("skip: needs root")
        return 77
    with tempfile.TemporaryDirectory(prefix="st-bench-") as directory:
        load = os.path.join(directory, "load")
        subprocess.run(["gcc", "-O2", "-w", "-x", "c", "-", "-o", load], input=LOAD, text=True, check=True)
        for rate in (int(word) for word in options.rates.split(",")):
            for name, how in BACKENDS:
                show(name, rate, record(options, how, rate, load, directory), options.seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
