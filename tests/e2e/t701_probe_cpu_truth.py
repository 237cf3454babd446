#!/usr/bin/env python3
# SPDX-License-Identifier: MulanPSL-2.0
"""Is it true? What the plugin CPU records against the kernel's own accounts: schedstat, the ftrace event sched_switch, and
a competitor on the same CPU that is known by name. No time is asserted, only that two accounts of the same run agree."""

import json
import os
import re
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import ftrace_state
import harness as h
import probes
from probes import PREEMPTED, UNSEEN, Job, OsFile, Place

probes.require_probe()
SCHEDULE = ("pin=0", "name=subject", "say=up", "read", "sleep=3,60", "spin=150", "yield=300", "sleep=1,20", "spin=100",
            "say=done", "read")


def schedstat(pid):
    return [int(n) for n in h.read_file("/proc/%d/schedstat" % pid).split()[:2]]


def close(got, want, what, part=0.01, slack=200000):
    h.check(abs(got - want) <= part * want + slack, "%s: %d ns recorded, the kernel says %d ns" % (what, got, want))


def record(place, job, hog=None):
    """Run the schedule with the probe on; returns the file and what schedstat gained meanwhile."""
    job.line()
    place.cli("enable", "CPU", "pid=%d" % job.pid).ok()
    before = schedstat(job.pid)
    job.go()
    h.check_equal(job.line(), "done", "job")
    h.wait_for(lambda: h.read_file("/proc/%d/stat" % job.pid).rsplit(")", 1)[1].split()[0] == "S", what="it waits again")
    after = schedstat(job.pid)
    place.cli("disable", "CPU").ok()
    return OsFile(place.files()[0]), [b - a for a, b in zip(before, after)]


def with_hog(run):
    hog = Job("pin=0", "name=hog", "say=up", "hog=30000")
    hog.line()
    try:
        return run()
    finally:
        h.stop(hog.process, 9)


def it_agrees_with_schedstat():
    place, job = Place(), Job(*SCHEDULE)
    file, (ran, delay) = with_hog(lambda: record(place, job))
    cycles = file.cycles(job.pid)
    h.check_equal(file.drops, 0, "drops")
    close(sum(c["on_ns"] for c in cycles), ran, "time on the CPU")
    close(sum(c["delay_ns"] for c in cycles), delay, "run delay")
    # the published cumulative field tells the same as the spans' own
    seen = [c for c in cycles if not c["flags"] & UNSEEN]
    close(cycles[-1]["rundelay"] - seen[0]["rundelay"], sum(c["delay_ns"] for c in seen[:-1]), "cumulative run delay")
    # a cycle begins where the one before it ended
    for one, other in zip(cycles, cycles[1:]):
        h.check_equal(one["start_ns"] + one["dur_ns"] + one["on_ns"], other["start_ns"], "end of a cycle")
    # what was preempted waited all the time that it was off
    for c in cycles:
        h.check(c["delay_ns"] <= c["dur_ns"] + 1000000, "more delay than span: %r" % c)
    job.go()
    job.end()


def it_agrees_with_ftrace():
    root = ftrace_state.tracefs()
    instance = os.path.join(root, "instances", "st-t701-%d" % os.getpid())
    place, job = Place(), Job(*SCHEDULE)
    os.mkdir(instance)
    try:
        h.write_file(instance + "/trace_clock", "mono")
        h.write_file(instance + "/buffer_size_kb", "8192")
        h.write_file(instance + "/events/sched/sched_switch/filter",
                     "prev_pid == %d || next_pid == %d" % (job.pid, job.pid))
        h.write_file(instance + "/events/sched/sched_switch/enable", "1")
        file, _ = record(place, job)
        h.write_file(instance + "/tracing_on", "0")
        text = h.read_file(instance + "/trace")
    finally:
        os.rmdir(instance)
    on = []  # (begin, end) of the kernel's own account, microseconds
    begin = None
    for line in text.splitlines():
        got = re.search(r"(\d+)\.(\d{6}): sched_switch: .*prev_pid=(\d+) .* next_pid=(\d+) ", line)
        if not got:
            continue
        now = int(got.group(1)) * 1000000 + int(got.group(2))
        if int(got.group(4)) == job.pid:
            begin = now
        elif int(got.group(3)) == job.pid and begin is not None:
            on.append((begin, now))
            begin = None  # some switches are reported to nobody, ftrace included
    ours = {(c["start_ns"] + c["dur_ns"] + c["on_ns"]) // 1000: c for c in file.cycles(job.pid) if c["on_ns"]}
    h.check(len(on) > 80, "ftrace saw %d spans" % len(on))
    matched = wrong = 0
    for begin, end in on:
        cycle = next((ours[end + d] for d in (0, -1, 1, -2, 2) if end + d in ours), None)
        if cycle is None:
            continue  # before or after the capture
        matched += 1
        wrong += abs((cycle["start_ns"] + cycle["dur_ns"]) // 1000 - begin) > 3
    h.check(matched >= len(on) - 4, "of %d spans of ftrace %d are recorded" % (len(on), matched))
    h.check(wrong <= len(on) // 100, "of %d spans %d begin elsewhere" % (matched, wrong))
    job.go()
    job.end()


def the_hog_is_named():
    place, job = Place(), Job(*SCHEDULE)
    file, _ = with_hog(lambda: record(place, job))
    cycles = file.cycles(job.pid)
    taken = [c for c in cycles if c["flags"] & PREEMPTED]
    h.check(any(c["nxt_comm"] == "hog" for c in taken), "who ran instead: %r" % {c["nxt_comm"] for c in cycles})
    got = json.loads(h.run([h.SYSTRACE, "convert", "osprobe", "--input", place.dump, "--json"]).ok().out)
    rank, takers = got["ranks"][0], {t["task"]: t for t in got["takers"]}
    hogs = [t for name, t in takers.items() if name.startswith("hog ")]
    h.check_equal(len(hogs), 1, "hogs among %r" % list(takers))
    h.check(hogs[0]["ns"] > 0 and not hogs[0]["own"], hogs)
    # all of the waiting is accounted for: whoever ran on that CPU meanwhile is known
    close(rank["taken_ns"], rank["wait_ns"], "time taken, and waited", part=0.02, slack=2000000)
    close(rank["wait_ns"], sum(c["delay_ns"] for c in cycles), "waiting in the table", part=0.02, slack=2000000)
    job.go()
    job.end()


h.main(it_agrees_with_schedstat, it_agrees_with_ftrace, the_hog_is_named)
