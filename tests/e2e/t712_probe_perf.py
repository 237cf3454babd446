#!/usr/bin/env python3
# SPDX-License-Identifier: MulanPSL-2.0
# runner: needs-root
# runner: alone
"""The plugins CacheMiss and Trace by the probe: they run perf stat and trace-cmd as they are told, say what is missing, put
the kernel's tracing state back, and leave no child behind. Stand-ins (tests/fake/bin) show what this machine lacks.
"""

import os
import re
import shutil
import signal
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import harness as h

h.require_root()
h.own_pid_namespace()  # no agent of another test's is asked where the files go

import ftrace_state as ft
from probes import Place

FAKE = os.path.join(h.ROOT, "tests", "fake", "bin")


def fake_place(**more):
    place = Place(**more)
    place.env["PATH"] = FAKE + ":" + os.environ["PATH"]
    return place


def enable(place, plugin, *words, status=0):
    return place.cli("enable", plugin, *words).ok(status).out


def children_of(pid):
    """Its children, as (pid, command line)."""
    found = []
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and int(h.read_file("/proc/%s/stat" % name).rsplit(")", 1)[1].split()[1]) == pid:
                found.append((int(name), h.read_file("/proc/%s/cmdline" % name).replace("\0", " ").strip()))
        except (OSError, IndexError):
            pass
    return found


def gone(pid):
    """Has it ended? Nobody waits for the children of a killed probe in this namespace."""
    try:
        return h.read_file("/proc/%d/stat" % pid).rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


# --- CacheMiss ---------------------------------------------------------------------------------------------------------

def perf_stat_runs_as_told():
    place = fake_place(ST_PERF_LOG=os.path.join(h.tmpdir(), "log"))
    out = enable(place, "CacheMiss", "args=-e cache-misses,cache-references --timeout 300")
    h.check("SUCCESS" in out, out)
    place.wait_gone()
    h.check_equal(len(place.files("CacheMiss")), 1, "results")
    name = os.path.basename(place.files("CacheMiss")[0])
    h.check(re.fullmatch(r"CacheMiss_\d+_rank_0\.txt", name), name)
    text = h.read_file(place.files("CacheMiss")[0])
    h.check("1234      cache-misses" in text and "seconds time elapsed" in text, text)
    runs = [line.split("\t") for line in h.read_file(place.env["ST_PERF_LOG"]).splitlines()]
    h.check_equal(runs[-1], ["stat", "-a", "-e", "cache-misses,cache-references", "--timeout", "300"], "the run")


def several_processes_and_quotes_are_one_run():
    place = fake_place(ST_PERF_LOG=os.path.join(h.tmpdir(), "log"))
    jobs = [h.start(["sleep", "60"], env=dict(os.environ, RANK=str(3 + i))) for i in range(2)]
    pids = ",".join(str(job.pid) for job in jobs)
    enable(place, "CacheMiss", "duration=0.3", "args=-p %s -e 'cache-misses'" % pids)
    place.wait_gone()
    runs = [line.split("\t") for line in h.read_file(place.env["ST_PERF_LOG"]).splitlines()]
    h.check_equal([run for run in runs if "-x," not in run],
                  [["stat", "--timeout", "300", "-p", pids, "-e", "cache-misses"]], "runs")
    h.check_equal([os.path.basename(p) for p in place.files("CacheMiss")],
                  ["CacheMiss_%d_rank_3.txt" % jobs[0].pid], "results")


def what_cannot_be_counted_is_told():
    place = fake_place(ST_PERF_NONE="cache-misses,cache-references")
    out = enable(place, "CacheMiss", "args=-e cache-misses,cache-references --timeout 100", status=1)
    h.check("does not count cache-misses, cache-references" in out and "virtual PMU" in out, out)
    out = enable(place, "CacheMiss", "args=-e cache-misses,page-faults --timeout 100")
    h.check("SUCCESS" in out and "not counted on this machine: cache-misses" in out, out)
    place.wait_gone()
    out = enable(place, "CacheMiss", "args=-e cache-missesnope --timeout 100", status=1)
    h.check("perf knows no event 'cache-missesnope'" in out, out)
    for args, want in (("-e page-faults --timeout 100 -p 4194304", "there is no process 4194304"),
                       ("-e page-faults --timeout 100 -p x", "is not a list of process ids"),
                       ("-e page-faults --timeout 100 -o /etc/passwd", "leave out -o"),
                       ("-e 'page-faults --timeout 100", "a quote is not closed")):
        out = enable(place, "CacheMiss", "args=" + args, status=1)
        h.check(want in out, "%s: %s" % (args, out))
    place.wait_gone()
    h.check_equal(len(place.files("CacheMiss")), 1, "results: %r" % place.files("CacheMiss"))


def perf_is_missing():
    place = Place()
    place.env["PATH"] = place.dir
    out = enable(place, "CacheMiss", "args=-e cache-misses --timeout 100", status=1)
    h.check("perf is not installed" in out and "apt-get install" in out, out)
    out = enable(place, "Trace", "args=record -e sched", status=1)
    h.check("trace-cmd is not installed" in out, out)


def a_real_perf_counts():
    h.require("perf")
    place = Place()
    out = place.cli("enable", "CacheMiss", "args=-e context-switches,page-faults --timeout 300").out
    if "SUCCESS" not in out:
        h.skip("perf does not count here: %s" % out)
    place.wait_gone()
    text = h.read_file(place.files("CacheMiss")[0])
    h.check(re.search(r"^\s+[\d,.]+\s+context-switches", text, re.M) and "elapsed" in text, text)


def disabled_perf_prints_and_killed_probe_takes_it_along():
    place = fake_place()
    enable(place, "CacheMiss", "args=-e cache-misses --timeout 60000")
    (perf, command), = children_of(place.probe_pid())
    h.check("stat -a -e cache-misses" in command, command)
    place.cli("disable", "CacheMiss").ok()
    h.check(gone(perf), "perf still runs")
    h.check("elapsed" in h.read_file(place.files("CacheMiss")[0]), "no result")
    place.wait_gone()
    enable(place, "CacheMiss", "args=-e cache-misses --timeout 60000")
    (perf, _), = children_of(place.probe_pid())
    os.kill(place.probe_pid(), signal.SIGKILL)
    h.wait_for(lambda: gone(perf), what="end of perf after the probe's")
    newest = max(place.files("CacheMiss"), key=lambda p: ".txt." not in p)
    h.wait_for(lambda: "elapsed" in h.read_file(newest), what="the result so far")


# --- Trace -------------------------------------------------------------------------------------------------------------

def trace_place(**more):
    return fake_place(ST_TRACEFS=ft.tracefs(), **more)


def trace_cmd_runs_in_its_directory():
    place = trace_place()
    with ft.Unchanged():
        out = enable(place, "Trace", "args=record -e sched sleep 1")
        h.check("SUCCESS" in out, out)
        h.check("[boot]" in ft.read("trace_clock"), "the stand-in did nothing")
        place.wait_gone()
    h.check_equal([os.path.basename(p) for p in place.files("Trace")], ["trace.dat"], "results")
    h.check_equal(h.read_file(place.files("Trace")[0]), "record -e sched sleep 1\n", "arguments")
    # again, until it is disabled: the file of before is kept
    with ft.Unchanged():
        enable(place, "Trace", "args=record -e 'sched:sched_switch'")
        (child, _), = children_of(place.probe_pid())
        place.cli("disable", "Trace").ok()
        h.check(gone(child), "trace-cmd still runs")
        place.wait_gone()
    names = [os.path.basename(p) for p in place.files("Trace")]
    h.check("trace.dat" in names and [n for n in names if re.fullmatch(r"trace\.dat\.\d+", n)], "results: %r" % names)
    h.check_equal(h.read_file(os.path.join(place.dump, "Trace", "trace.dat")), "record -e sched:sched_switch\n",
                  "arguments")


def no_link_leads_it_away():
    place = trace_place()
    prey = h.write_file(os.path.join(place.dir, "prey"), "mine")
    os.makedirs(os.path.join(place.dump, "Trace"))
    os.symlink(prey, os.path.join(place.dump, "Trace", "trace.dat"))
    enable(place, "Trace", "args=record -e sched sleep 0.1")
    place.wait_gone()
    h.check_equal(h.read_file(prey), "mine", "what a planted link leads to")
    h.check(not os.path.islink(os.path.join(place.dump, "Trace", "trace.dat")), "the link is still there")


def its_failure_is_told():
    place = trace_place(ST_TRACE_CMD="fail")
    with ft.Unchanged():
        out = enable(place, "Trace", "args=record -e sched", status=1)
        h.check("trace-cmd ended at once" in out and "Can't enable ftrace" in out, out)
        place.wait_gone()
    h.check_equal(place.files("Trace"), [], "files of what did not begin")


def killed_trace_cmd_is_cleaned_up():
    place = trace_place()
    with ft.Unchanged():
        enable(place, "Trace", "args=record -e sched")
        h.wait_for(lambda: "[boot]" in ft.read("trace_clock"), what="the stand-in's disorder")
        (child, _), = children_of(place.probe_pid())
        os.kill(place.probe_pid(), signal.SIGKILL)
        h.wait_for(lambda: gone(child), what="end of trace-cmd after the probe's")
        out = enable(place, "Trace", "args=record -e sched sleep 0.1")
        h.check("SUCCESS" in out, out)
        place.wait_gone()
    left = [d for d in os.listdir(os.path.join(place.dump, "Trace")) if d.startswith("unfinished-")]
    h.check_equal(len(left), 1, "the killed one's directory")
    h.check_equal(os.listdir(os.path.join(place.dump, "Trace", left[0])), ["trace.dat"], "its data")
    shutil.rmtree(os.path.join(place.dump, "Trace", left[0]))


def others_at_the_top_level_are_left_alone():
    place = trace_place()
    ft.write("set_event", "sched:sched_process_hang")
    try:
        before = ft.state()
        out = enable(place, "Trace", "args=record -e sched", status=1)
        h.check("somebody else is tracing at the top level" in out, out)
        place.wait_gone()
        h.check_equal(ft.state(), before, "tracing state")
    finally:
        ft.write("set_event", "")


h.main(perf_stat_runs_as_told, several_processes_and_quotes_are_one_run, what_cannot_be_counted_is_told, perf_is_missing,
       a_real_perf_counts, disabled_perf_prints_and_killed_probe_takes_it_along, trace_cmd_runs_in_its_directory,
       no_link_leads_it_away, its_failure_is_told, killed_trace_cmd_is_cleaned_up,
       others_at_the_top_level_are_left_alone)
