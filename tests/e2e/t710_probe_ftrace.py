#!/usr/bin/env python3
# SPDX-License-Identifier: MulanPSL-2.0
# runner: needs-root
# runner: alone
"""The plugin Ftrace by the probe: its log holds what the kernel saw and converts, bad input and faults are told, and the
kernel's tracing state afterwards is what it was.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import harness as h

h.require_root()
h.own_pid_namespace()  # no agent of another test's is asked where the files go

import ftrace_state as ft
import probes
from probes import Place

ft.tracefs()
EXEC = "sched/sched_process_exec"
MARKER = os.path.join(h.tmpdir(), "st-marker")
shutil.copy("/bin/true", MARKER)


def enable(place, *words, status=0):
    done = place.cli("enable", "Ftrace", *words).ok(status)
    return done.out + done.err


def disable(place):
    place.cli("disable", "Ftrace").ok()
    place.wait_gone()


def logs(place):
    return [p for p in place.files("Ftrace") if p.endswith(".log")]


def log_of(place):
    h.check_equal(len(logs(place)), 1, "logs: %r" % place.files("Ftrace"))
    return h.read_file(logs(place)[0])


def run_markers(count):
    for _ in range(count):
        subprocess.run([MARKER], check=True)


def event_lines(text):
    return [line for line in text.splitlines() if re.match(r" *\S.*-\d+ +\[\d+\]", line)]


def totals(text):
    """(events, lost, not written) of the last line."""
    found = re.search(r"^# recorded [\d.]+ s: (\d+) events, (\d+) lost in the kernel's buffer, (\d+) lines not written",
                      text, re.M)
    h.check(found, "no totals in ...%s" % text[-400:])
    return tuple(map(int, found.groups()))


def the_log_holds_what_the_kernel_saw():
    place = Place()
    with ft.Unchanged():
        out = enable(place, "cpu_list=0-4095", "events=%s" % EXEC)
        h.check("reaches beyond this machine" in out and "SUCCESS" in out, out)
        h.check_equal(len(ft.own_instances()), 1, "instances while it runs")
        run_markers(7)
        disable(place)
    text = log_of(place)
    name = os.path.basename(logs(place)[0])
    h.check(re.fullmatch(r"Ftrace_\d+_rank_0\.log", name), name)
    marked = [line for line in event_lines(text) if MARKER in line]
    h.check_equal(len(marked), 7, "executions in the log")
    events, lost, unwritten = totals(text)
    h.check_equal((len(event_lines(text)), lost, unwritten), (events, 0, 0), "lines, lost, not written")
    h.check("# clock=mono_raw " in text and re.search(r"^# CPU 0: \d+ events, lost: 0 ", text, re.M), text[-400:])


def a_small_buffer_suffices():
    """More than it holds goes through it; what was lost all the same is told."""
    place = Place()
    # two events of some 50 bytes for each system call of the storm: many times 64 KB
    with ft.Unchanged():
        enable(place, "cpu_list=0-4095", "events=raw_syscalls", "buffer_size_kb=64")
        h.wait_for(lambda: logs(place) and os.path.getsize(logs(place)[0]) > 4 << 20 or
                   subprocess.run(["ls", "-lR", "/usr/include"], stdout=subprocess.DEVNULL) and False, timeout=60,
                   what="4 MB of text")
        disable(place)
    text = log_of(place)
    events, lost, _ = totals(text)
    told = sum(map(int, re.findall(r"\[LOST (\d+) EVENTS\]", text)))
    h.check_equal(len(event_lines(text)), events, "lines against events read")
    h.check(told <= lost, "lost in the text %d, at the end %d" % (told, lost))


def the_log_converts():
    place = Place()
    enable(place, "cpu_list=0-4095", "events=sched,irq,mmap_lock", "event_stack_trace=1")
    run_markers(3)
    disable(place)
    log = logs(place)[0]
    h.check(re.search(r"^ => \w+", h.read_file(log), re.M), "no stacks")
    for kind, word in (("sched", "st-marker"), ("mmaplock", "mmap")):
        out = os.path.join(place.dir, kind + ".json")
        h.run([h.SYSTRACE, "convert", "ftrace", "--type", kind, "--input", log, "--format", "chrome", "--output",
               out]).ok()
        with open(out) as f:
            events = json.load(f)["traceEvents"]
        h.check(len(events) > 10, "%s: %d events" % (kind, len(events)))
        h.check(word in json.dumps(events), "%s: nothing about %s" % (kind, word))


def bad_input_is_told():
    place = Place()
    with ft.Unchanged():
        for words, status, want in (
                (["events=sched/nope"], 1, "this kernel has no event sched/nope (sched has "),
                (["events=sched/sched_swich,irqs"], 1,
                 "sched/sched_swich (did you mean sched/sched_switch?), irqs (did you mean irq?)"),
                (["events=sched_switch"], 1, "did you mean sched/sched_switch?"),
                (["events=irq", "set_event_pid=1"], 1, "take the host's process ids"),
                (["events=irq", "buffer_size_kb=0"], 1, "buffer_size_kb"),
                (["events=irq", "func=vfs_read"], 1, "add function_tracer=function"),
                (["function_tracer=function", "func_stack_trace=1"], 1, "would stop the machine"),
                (["function_tracer=function", "event_stack_trace=1", "func=vfs_read"], 1, "needs events=")):
            said = enable(place, "cpu_list=0", *words, status=status)
            h.check(want in said, "%r: %s" % (words, said))
        for cpus, status, want in (("3-1", 2, "must be CPU numbers"), ("a,b", 2, "must be CPU numbers"),
                                   ("99999", 2, "must be CPU numbers"), ("65000", 1, "none of the CPUs 65000")):
            said = enable(place, "cpu_list=" + cpus, "events=irq", status=status)
            h.check(want in said, "cpu_list=%s: %s" % (cpus, said))
        place.wait_gone()
    h.check_equal(place.files("Ftrace"), [], "files of what did not begin")


def functions_or_the_reason():
    place = Place()
    with ft.Unchanged():
        said = place.cli("enable", "Ftrace", "cpu_list=0", "function_tracer=function", "func=vfs_read").out
        if "SUCCESS" in said:
            subprocess.run(["cat", "/proc/self/maps"], stdout=subprocess.DEVNULL)
            disable(place)
            h.check("vfs_read" in log_of(place), "no vfs_read")
        else:
            h.check("refuses to trace functions" in said or "built without the tracer" in said, said)
            place.wait_gone()


def two_at_once_have_their_own():
    one, other = Place(), Place()
    with ft.Unchanged():
        enable(one, "cpu_list=0-4095", "events=%s" % EXEC)
        enable(other, "cpu_list=0-4095", "events=syscalls/sys_enter_sysinfo")
        h.check_equal(len(ft.own_instances()), 2, "instances")
        run_markers(2)
        disable(one)
        h.check_equal(len(ft.own_instances()), 1, "instances after the first one's end")
        disable(other)
    h.check_equal(len([line for line in event_lines(log_of(one)) if MARKER in line]), 2, "executions")
    h.check("sys_sysinfo" not in log_of(one) and "sched_process_exec" not in log_of(other), "they see each other's events")


def killed_and_cleaned_by_the_next_start():
    place = Place()
    with ft.Unchanged():
        enable(place, "cpu_list=0-4095", "events=%s" % EXEC)
        run_markers(5)
        h.wait_for(lambda: log_of(place).count(MARKER) >= 5, what="the events in the log")
        os.kill(place.probe_pid(), signal.SIGKILL)
        h.wait_for(lambda: not place.status(), what="the probe's death")
        h.check_equal(len(ft.own_instances()), 1, "instances that it left")
        text = log_of(place)
        h.check_equal(len([line for line in event_lines(text) if MARKER in line]), 5, "executions so far")
        h.check(text.endswith("\n"), "the log ends within a line")
        enable(place, "cpu_list=0", "events=%s" % EXEC, "duration=0.1")
        h.check_equal(len(ft.own_instances()), 1, "instances: the old one is gone")
        place.wait_gone()
    h.check_equal(len(place.files("Ftrace")), 2, "the log of before is kept beside: %r" % place.files("Ftrace"))


def without_root_or_tracefs():
    place = Place()
    said = h.run(["setpriv", "--reuid=65534", "--clear-groups", h.CLI, "enable", "Ftrace", "cpu_list=0", "events=irq"],
                 env=place.env).ok(1)
    h.check("CAP_SYS_ADMIN" in said.out and "as root" in said.out, repr(said))
    # nowhere mounted: the probe mounts it for itself alone
    mounts = h.read_file("/proc/self/mounts")
    out = h.run(["unshare", "--mount", "--propagation", "private", "sh", "-c",
                 "umount -a -t tracefs; umount -a -t debugfs; exec \"$@\"", "sh", h.CLI, "enable", "Ftrace",
                 "cpu_list=0-4095", "events=%s" % EXEC, "duration=0.5"], env=place.env).ok().out
    h.check("SUCCESS" in out, out)
    run_markers(3)
    place.wait_gone()
    h.check_equal(len([line for line in event_lines(log_of(place)) if MARKER in line]), 3, "executions")
    h.check_equal(h.read_file("/proc/self/mounts"), mounts, "mounts")


def a_full_disk_loses_lines_and_says_so():
    place = Place()
    h.mount("-t", "tmpfs", "-o", "size=256k", "st-small", place.dump)
    os.chmod(place.dump, 0o777)
    stop = threading.Event()

    def storm():
        while not stop.is_set():
            subprocess.run(["ls", "-lR", "/usr/include/linux"], stdout=subprocess.DEVNULL)

    thread = threading.Thread(target=storm)
    with ft.Unchanged():
        enable(place, "cpu_list=0-4095", "events=raw_syscalls")
        thread.start()
        try:
            h.wait_for(lambda: "cannot be written" in place.log_text(), what="the word about the full disk")
        finally:
            stop.set()
            thread.join()
        h.check(int(place.status()[0]["plugin.ftrace.lost"]) > 0, "lost in the status: %r" % place.status())
        # room again: it goes on, and says where lines are missing
        h.mount("-o", "remount,size=64m", place.dump)
        h.wait_for(lambda: "lines are missing here" in log_of(place) or run_markers(20), what="the gap in the log")
        disable(place)
    text = log_of(place)
    h.check(totals(text)[2] > 0, "lines not written: %r" % (totals(text),))
    h.check(text.endswith("\n"), "whole lines")


h.main(the_log_holds_what_the_kernel_saw, a_small_buffer_suffices, the_log_converts,
       bad_input_is_told, functions_or_the_reason, two_at_once_have_their_own, killed_and_cleaned_by_the_next_start,
       without_root_or_tracefs, a_full_disk_loses_lines_and_says_so)
