#!/usr/bin/env python3
# SPDX-License-Identifier: MulanPSL-2.0
"""How fast kernel traces are read and converted, on recordings made here: 1.5 million real events or more, natively and as
text; beside `trace-cmd report` in the same run. Times are processor time (user and system), since the machine may be busy
with other things; memory is the peak resident set. Needs root (tracefs) and the targets systrace and bench_ftrace.

usage: bench_ftrace.py [--build DIR] [--events N] [--times N] [--dir DIR]
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time


def timed(args, **more):
    """(processor seconds, peak KiB, stdout) of a command."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    process = subprocess.Popen(args, stderr=subprocess.PIPE, **more)
    out = process.stdout.read() if process.stdout else b""
    err = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = status
    if status:
        sys.exit("%s: status %d: %s" % (" ".join(args), status, err.decode()))
    del before
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss, out


def record(args, backend, name, seconds, pairs):
    load = subprocess.Popen([args.bench, "load", str(seconds + 2), str(pairs)])
    time.sleep(0.5)
    timed([args.systrace, "record", "--backend=" + backend, "--sched", "--irq", "--bf_size=600000",
           "--record_time=%d" % seconds, "--output=" + name], stdout=subprocess.PIPE)
    load.wait()
    return json.loads(timed([args.bench, "read", name], stdout=subprocess.PIPE)[2])["events"]


def best(times, command, **more):
    return min((timed(command, **more) for _ in range(times)), key=lambda r: r[0])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", default="build")
    parser.add_argument("--events", type=int, default=1500000)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--dir")
    args = parser.parse_args()
    args.systrace = os.path.abspath(os.path.join(args.build, "systrace"))
    args.bench = os.path.abspath(os.path.join(args.build, "bench_ftrace"))
    directory = args.dir or tempfile.mkdtemp(prefix="bench-ftrace-")
    os.chdir(directory)
    try:
        measure(args)
    finally:
        if not args.dir:
            shutil.rmtree(directory)


def measure(args):
    for backend, name in (("native", "trace.dat"), ("debugfs", "trace.txt")):
        seconds, events = 2, 0
        while events < args.events:
            events = record(args, backend, name, seconds, 4)
            seconds += 1
        print("%s: %d events, %.1f MB" % (name, events, os.path.getsize(name) / 1e6), flush=True)
    print("%-34s %9s %12s %10s %8s" % ("", "cpu s", "events/s", "input MB/s", "peak MiB"))
    for mode in ("read", "states"):
        for name in ("trace.dat", "trace.txt"):
            runs = [timed([args.bench, mode, name], stdout=subprocess.PIPE) for _ in range(args.times)]
            result = min((json.loads(r[2]) for r in runs), key=lambda r: r["cpu_s"])
            show("%s %s" % (mode, name), result["cpu_s"], result["events"], result["bytes"], runs[0][1])
    for name in ("trace.dat", "trace.txt"):
        for fmt, output in (("json", "o.json"), ("db", "ftrace_data.db"), ("chrome", "o.trace.json"),
                            ("perfetto", "o.pftrace")):
            convert(args, name, fmt, output, args.times)
    if shutil.which("trace-cmd"):
        with open("report.txt", "wb") as out:
            cpu, peak, _ = best(args.times, ["trace-cmd", "report", "trace.dat"], stdout=out)
        events = json.loads(timed([args.bench, "read", "trace.dat"], stdout=subprocess.PIPE)[2])["events"]
        show("trace-cmd report trace.dat", cpu, events, os.path.getsize("trace.dat"), peak)
    timed([args.bench, "repeat", "trace.txt", "ten.txt", "10"])
    for fmt, output in (("json", "o.json"), ("db", "ftrace_data.db")):
        convert(args, "ten.txt", fmt, output, 1)


def show(what, cpu, events, size, peak, more=""):
    print("%-34s %9.3f %12.0f %10.0f %8.1f %s" % (what, cpu, events / cpu, size / cpu / 1e6, peak / 1024, more),
          flush=True)


def convert(args, name, fmt, output, times):
    cpu, peak, out = best(times, [args.systrace, "convert", "ftrace", "--json", "--input", name, "--format", fmt,
                                  "--output", output], stdout=subprocess.PIPE)
    result = json.loads(out)
    rows = result["slices"] + result["switches"]
    show("%s -> %s" % (name, fmt), cpu, result["events"], os.path.getsize(name), peak,
         "%.0f slices/s, %.1f MB out" % (rows / cpu, result["bytes"] / 1e6))
    os.unlink(output)


main()
