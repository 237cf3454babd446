#!/usr/bin/env python3
# SPDX-License-Identifier: MulanPSL-2.0
"""How fast `systrace analyze sched` is, and whether its memory depends on the length of the trace: records real events (pairs of
programs that wake each other, root needed) for a short and a ten times longer while, and reports both.

    python3 bench/bench_analyze_sched.py [--seconds 3] [--keep DIRECTORY]

For each capture and output: events (or slices) a second of CPU time, best of three, and peak memory (of what the file itself takes
in memory nothing is subtracted). `trace-cmd report >/dev/null` of the same file stands beside it.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SYSTRACE = os.path.join(os.environ.get("ST_BUILD", os.path.join(ROOT, "build")), "systrace")

PING = """
import os, sys
a, b, c, d = *os.pipe(), *os.pipe()
if os.fork():
    while os.write(b, b"x") and os.read(c, 1):
        pass
else:
    while os.read(a, 1) and os.write(d, b"x"):
        pass
"""


def measure(args, times=3):
    """Best CPU time (s), peak memory (MiB)."""
    best, peak = None, 0
    for _ in range(times):
        pid = os.posix_spawnp(args[0], args, os.environ, file_actions=[
            (os.POSIX_SPAWN_OPEN, fd, "/dev/null", os.O_WRONLY, 0) for fd in (1, 2)])
        _, status, usage = os.wait4(pid, 0)
        if status:
            raise SystemExit("%s: status %d" % (" ".join(args), status))
        spent = usage.ru_utime + usage.ru_stime
        best = spent if best is None else min(best, spent)
        peak = max(peak, usage.ru_maxrss / 1024)
    return best, peak


def record(path, seconds):
    players = [subprocess.Popen([sys.executable, "-c", PING], start_new_session=True) for _ in range(3)]
    try:
        time.sleep(0.3)
        subprocess.run([SYSTRACE, "record", "--backend=native", "--bf-size=131072", "--record-time=%g" % seconds, "--output=" + path,
                        "-q"], check=True, stdout=subprocess.DEVNULL)
    finally:
        for player in players:
            os.killpg(player.pid, 9)
            player.wait()


def row(name, what, count, spent, peak):
    print("%-10s %-26s %9.2f M/s %8.2f s CPU %8.1f MiB" % (name, what, count / spent / 1e6, spent, peak), flush=True)


def bench(name, path, directory):
    report = json.loads(subprocess.run([SYSTRACE, "analyze", "sched", "--input", path, "--json"], check=True,
                                       stdout=subprocess.PIPE).stdout)
    events = report["events"]
    print("%s: %.2f M events, %.1f MB, %.2f s, %d tasks, %d lost" % (name, events / 1e6, os.path.getsize(path) / 1e6, (
        report["end_ns"] - report["begin_ns"]) / 1e9, len(report["by_pid"]), report["trace_quality"]["lost_events"]))
    sched = [SYSTRACE, "analyze", "sched", "--input", path]
    for what, args in (("text", sched), ("json", sched + ["--json"]),
                       ("xlsx", sched + ["--output", os.path.join(directory, "r.xlsx")])):
        row(name, what, events, *measure(args))
    if shutil.which("trace-cmd"):
        row(name, "(trace-cmd report)", events, *measure(["trace-cmd", "report", path], 1))
    return events


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=3, help="length of the short capture")
    parser.add_argument("--keep", help="directory for the captures")
    options = parser.parse_args()
    if os.geteuid() != 0:
        raise SystemExit("recording needs root")
    directory = options.keep or tempfile.mkdtemp(prefix="st-bench-")
    try:
        short, long = (os.path.join(directory, n + ".dat") for n in ("short", "long"))
        record(short, options.seconds)
        record(long, 10 * options.seconds)
        bench("short", short, directory)
        bench("long", long, directory)
        text = os.path.join(directory, "short.txt")
        with open(text, "w") as f:
            f.write("# tracer: nop\n")
            f.flush()
            subprocess.run("trace-cmd report -t %s 2>/dev/null | grep -v ^cpus=" % short, shell=True, check=True, stdout=f)
        lines = int(subprocess.run(["wc", "-l", text], stdout=subprocess.PIPE, text=True).stdout.split()[0])
        row("short", "ftrace text, lines", lines, *measure([SYSTRACE, "analyze", "sched", "--input", text]))
        db = os.path.join(directory, "ftrace_data.db")
        done = subprocess.run([SYSTRACE, "convert", "ftrace", "--input", short, "--output", db], stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL)
        if done.returncode == 0:
            import sqlite3
            slices = sqlite3.connect(db).execute("SELECT count(*) FROM slice").fetchone()[0]
            row("short", "database, slices", slices, *measure([SYSTRACE, "analyze", "sched", "--input", db]))
            row("short", "database, --write-db", slices, *measure([SYSTRACE, "analyze", "sched", "--input", db, "--write-db", db]))
    finally:
        if not options.keep:
            shutil.rmtree(directory)


main()
