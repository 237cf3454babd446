#!/usr/bin/env python3
# SPDX-License-Identifier: MulanPSL-2.0
# runner: needs-root
# runner: alone
"""systrace convert ftrace on a recording of this kernel: all four formats pass the strict checkers and hold the same slices
to the nanosecond, what ran is what schedstat says, the parse is what trace-cmd sees, with and without lost events.
"""

import glob
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import time

from harness import (ROOT, SYSTRACE, check, check_equal, main, read_file, require, require_root, run, skip, start, tmpdir,
                     write_file)

TOOLS = next((t for t in (os.path.join(ROOT, up, "shared", "tools") for up in ("..", "../..")) if os.path.isdir(t)),
             os.path.join(ROOT, "..", "shared", "tools"))
DIR = tmpdir()
OUTPUTS = {"db": "ftrace_data.db", "json": "out.json", "chrome": "out.chrome.json", "perfetto": "out.pftrace"}
CHECKS = {"db": ["check_msinsight_db.py"], "json": ["check_chrome.py", "--mindstudio"],
          "chrome": ["check_chrome.py", "--require-names"], "perfetto": ["check_perfetto.py"]}
# two tasks that hand a byte to and fro, one that computes, one that sleeps
LOAD = r"""
import os, time, sys
a, b = os.pipe(), os.pipe()
end = time.time() + float(sys.argv[1])
if os.fork() == 0:
    while os.read(a[0], 1) == b"x":
        os.write(b[1], b"y")
    os._exit(0)
while time.time() < end:
    for i in range(200):
        os.write(a[1], b"x"); os.read(b[0], 1)
    time.sleep(0.001)
    sum(range(20000))
os.write(a[1], b"q")
print(open("/proc/self/schedstat").read(), flush=True)
"""


def path(name):
    return os.path.join(DIR, name)


def tool(name):
    script = os.path.join(TOOLS, name)
    if not os.path.exists(script):
        skip("the checkers are not there")
    return script


def recorded(name, *options, seconds=1.5):
    """A recording with the load in it; skipped where this kernel cannot record."""
    load = start([sys.executable, "-c", LOAD, str(seconds)])
    result = run([SYSTRACE, "record", "--backend=native", "--sched", "--irq", "--futex", "--record_time=2",
                  "--output=" + path(name), *options], cwd=DIR, timeout=120)
    load.communicate(timeout=60)
    if result.status != 0:
        skip("no recording here: %s" % result.err.splitlines()[-1:])
    return path(name)


def converted(source, fmt, *options):
    result = run([SYSTRACE, "convert", "ftrace", "--json", "--input", source, "--format", fmt, "--output",
                  path(OUTPUTS[fmt]), *options], timeout=300)
    check_equal(result.status, 0, "convert to %s, %s" % (fmt, result.err))
    return json.loads(result.out)


def checked(fmt):
    script, *options = CHECKS[fmt]
    result = run([sys.executable, tool(script), path(OUTPUTS[fmt]), *options], timeout=300)
    check(result.status == 0, "%s: %s" % (fmt, result.out))
    return json.loads(result.out.splitlines()[0])


def dumped(fmt):
    script, *options = CHECKS[fmt]
    shift = []
    if fmt == "chrome":
        with open(path(OUTPUTS[fmt])) as f:
            shift = ["--shift-ns", json.load(f)["metadata"]["base_time_ns"]]
    options = [o for o in options if o != "--require-names"]
    out = run([sys.executable, tool(script), path(OUTPUTS[fmt]), *options, "--dump-slices", *shift], timeout=300).out
    return {line for line in out.splitlines() if line.split("\t")[1] not in ("sched_switch", "lost events", "futex")}


def on_cpus(lines):
    return {line for line in lines if line.startswith("CPU Scheduling/") and not line.endswith("\t0")}


def at_the_end():
    """Slices that are open at the end, which Perfetto draws itself."""
    with sqlite3.connect(path(OUTPUTS["db"])) as db:
        return {"CPU Scheduling/%s\t%s\t%d\t%d" % row for row in db.execute(
            "SELECT thread_name, name, timestamp, duration FROM slice JOIN thread USING (track_id) WHERE args LIKE "
            "'%open at the end%' OR args LIKE '%whole trace%'")}


def same_slices(source):
    """Perfetto derives its slices from the switches: beside a gap, or switches that were hidden, it may show one
    that the database leaves open."""
    sums = {fmt: converted(source, fmt) for fmt in OUTPUTS}
    for fmt in OUTPUTS:
        checked(fmt)
    db, rest = dumped("db"), {fmt: dumped(fmt) for fmt in ("json", "chrome", "perfetto")}
    check(len(db) > 1000, "only %d slices" % len(db))
    check_equal(len(db ^ rest["json"]), 0, "slices that differ between db and json")
    check_equal(len(db ^ rest["chrome"]), 0, "slices that differ between db and chrome")
    odd = on_cpus(db) - at_the_end() ^ on_cpus(rest["perfetto"])
    check(len(odd) <= sums["db"]["gaps"],
          "slices that differ between db and perfetto: %s" % sorted(odd)[:6])
    return sums


def all_formats_show_the_same_slices():
    """Without losses."""
    sums = same_slices(recorded("trace.dat"))
    check_equal(sums["db"]["lost"], 0, "lost events")


def lost_events_are_gaps_in_all_formats():
    """A buffer far too small: the gaps are there, and the checkers' rules about overlaps hold."""
    source = recorded("lost.dat", "--bf_size=64", "--event=raw_syscalls", seconds=1.9)
    sums = same_slices(source)
    if not sums["db"]["lost"]:
        skip("nothing was lost with a buffer of 64 KB")
    check(sums["db"]["cut"] > 0 and sums["db"]["gaps"] > 0, "gaps of %r" % sums["db"])
    with sqlite3.connect(path(OUTPUTS["db"])) as db:
        cut = db.execute("SELECT count(*) FROM slice WHERE args LIKE '%cut by lost events%'").fetchone()[0]
    check(cut > 0, "no slice is marked as cut")


def time_on_cpu():
    """One recording of a task that lives inside it: ns on CPU in the trace, in the kernel's own count, cut slices."""
    recorder = start([SYSTRACE, "record", "--backend=native", "--sched", "--record_time=6", "--output",
                      path("stat.dat")], cwd=DIR)
    time.sleep(1.5)
    load = start([sys.executable, "-c", LOAD, "2"])
    out = load.communicate(timeout=60)[0].decode()
    if recorder.wait(timeout=60) != 0:
        skip("no recording here")
    converted(path("stat.dat"), "db")
    with sqlite3.connect(path(OUTPUTS["db"])) as db:
        ran = db.execute("SELECT sum(duration) FROM slice JOIN thread USING (track_id) WHERE "
                         "thread.pid = 'CPU Scheduling' AND name LIKE ?", ("%%:%d" % load.pid,)).fetchone()[0]
        cut = db.execute("SELECT count(*) FROM slice WHERE name LIKE ? AND args LIKE '%%cut by%%'",
                         ("%%:%d" % load.pid,)).fetchone()[0]
    return ran, int(out.split()[0]), cut


def running_time_is_what_schedstat_says():
    """On CPU in the trace against the kernel's own count. Some hypervisors hide switches of their own tasks; a recording
    in which that cut the task's slices proves nothing about them."""
    for _ in range(4):
        ran, kernel, cut = time_on_cpu()
        if not cut:
            # the kernel's number is that of a moment shortly before its exit
            check(0 <= ran - kernel < 0.001 * kernel + 30e6, "%d ns on CPU, schedstat says %d" % (ran, kernel))
            return
        check(ran < 1.001 * kernel + 30e6, "%d ns on CPU with %d slices cut, schedstat says %d" % (ran, cut, kernel))
    skip("this machine hides switches of some tasks: slices were cut in each of 4 recordings")


def the_parse_is_trace_cmds():
    """Switches event for event, field for field, as trace-cmd report -R shows them."""
    require("trace-cmd")
    source = recorded("fields.dat")
    converted(source, "json")
    with open(path(OUTPUTS["json"])) as f:
        ours = [e for e in json.load(f) if e["name"] == "sched_switch"]
    out = subprocess.run(["trace-cmd", "report", "-R", "-t", source], stdout=subprocess.PIPE,
                         stderr=subprocess.DEVNULL, check=True).stdout.decode("utf-8", "replace")
    theirs = [re.search(r" \[(\d+)\] +(\d+)\.(\d{9}): sched_switch: +prev_comm=(.*) prev_pid=(\d+) prev_prio=(\d+) "
                        r"prev_state=(\S+) next_comm=(.*) next_pid=(\d+) next_prio=(\d+)", line)
              for line in out.splitlines() if "sched_switch:" in line]
    check_equal(len(ours), len(theirs), "switches")
    bits = {"R": 0, "S": 1, "D": 2, "T": 4, "t": 8, "X": 16, "Z": 32, "P": 64, "I": 128, "R+": 256}
    ours.sort(key=lambda e: (e["ts"].rjust(30), e["tid"]))
    theirs.sort(key=lambda m: (int(m[2] + m[3]), m[1]))
    for a, b in zip(ours, theirs):
        args = a["args"]
        got = (a["tid"], a["ts"].replace(".", ""), args["prev_comm"], args["prev_pid"], args["prev_prio"],
               bits[args["prev_state"]], args["next_comm"], args["next_pid"], args["next_prio"])
        want = ("CPU " + b[1], str(int(b[2] + b[3])), b[4], b[5], b[6], int(b[7], 0), b[8], b[9], b[10])
        check_equal(got, want, "a switch")


def perfetto_output_decodes_without_unknown_fields():
    """With protoc alone every byte is a field."""
    require("protoc")
    source = recorded("pb.dat", seconds=0.5)
    converted(source, "perfetto")
    with open(path(OUTPUTS["perfetto"]), "rb") as f:
        result = subprocess.run(["protoc", "--decode_raw"], stdin=f, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    check_equal(result.returncode, 0, "protoc: %s" % result.stderr)
    check_equal(checked("perfetto")["unknown_fields"], {}, "unknown fields")


require_root()
require(SYSTRACE)
main(all_formats_show_the_same_slices, lost_events_are_gaps_in_all_formats, running_time_is_what_schedstat_says,
     the_parse_is_trace_cmds, perfetto_output_decodes_without_unknown_fields)
