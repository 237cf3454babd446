#!/usr/bin/env python3
# SPDX-License-Identifier: MulanPSL-2.0
# runner: needs-root
# runner: alone
"""systrace convert ftrace on recordings of this kernel: all four formats pass the strict checkers and hold the same slices
to the nanosecond, with and without lost events; the parse is what trace-cmd sees, field for field; every byte of a Perfetto
trace has a name. What ran is compared with the kernel's account in t531. ST_FULL: a longer recording.
"""

import gzip
import json
import os
import re
import sqlite3
import subprocess
import sys

from harness import (FULL, ROOT, SYSTRACE, check, check_equal, finish, main, require, require_root, run, skip, start,
                     tmpdir)
import perfetto_text

TOOLS = next((t for t in (os.path.join(ROOT, up, "shared", "tools") for up in ("..", "../..")) if os.path.isdir(t)),
             os.path.join(ROOT, "..", "shared", "tools"))
DIR = tmpdir()
OUTPUTS = {"db": "ftrace_data.db", "json": "out.json", "chrome": "out.trace.json", "perfetto": "out.pftrace"}
CHECKS = {"db": ["check_msinsight_db.py"], "json": ["check_chrome.py", "--mindstudio"],
          "chrome": ["check_chrome.py", "--require-names"], "perfetto": ["check_perfetto.py"]}
# two tasks that hand a byte to and fro, one that computes, one that sleeps, threads that wait for a lock
LOAD = r"""
import os, time, sys, threading
a, b = os.pipe(), os.pipe()
end = time.time() + float(sys.argv[1])
lock = threading.Lock()
def hold():
    while time.time() < end:
        with lock:
            time.sleep(0.002)
threads = [threading.Thread(target=hold) for _ in range(2)]
if os.fork() == 0:
    while os.read(a[0], 1) == b"x":
        os.write(b[1], b"y")
    os._exit(0)
for thread in threads:
    thread.start()
while time.time() < end:
    for i in range(int(sys.argv[2])):
        os.write(a[1], b"x"); os.read(b[0], 1)
    time.sleep(0.001)
    sum(range(20000))
os.write(a[1], b"q")
"""


def path(name):
    return os.path.join(DIR, name)


def tool(name):
    script = os.path.join(TOOLS, name)
    if not os.path.exists(script):
        skip("the checkers are not there")
    return script


def recorded(name, *options, rounds=10):
    """A recording with the load in it, made once; skipped where this kernel cannot record."""
    seconds = 1 if FULL else 0.5
    if os.path.exists(path(name)):
        return path(name)
    load = start([sys.executable, "-c", LOAD, str(seconds + 0.5), str(rounds)])
    result = run([SYSTRACE, "record", "--backend=native", "--sched", "--irq", "--futex", "--record_time=%s" % seconds,
                  "--output=" + path(name), *options], cwd=DIR, timeout=120)
    finish(load)
    if result.status != 0:
        skip("no recording here: %s" % result.err.splitlines()[-1:])
    return path(name)


def converted(source, fmt, *options):
    result = run([SYSTRACE, "convert", "ftrace", "--json", "--input", source, "--format", fmt, "--output",
                  path(OUTPUTS[fmt]), *options], timeout=300)
    check_equal(result.status, 0, "convert to %s, %s" % (fmt, result.err))
    return json.loads(result.out)


def checking(fmt):
    """A checker at work, which writes the slices to a file of its own and what is wrong to another."""
    script, *options = CHECKS[fmt]
    if fmt == "chrome":
        with open(path(OUTPUTS[fmt])) as f:
            options += ["--shift-ns", json.load(f)["metadata"]["base_time_ns"]]
    with open(path(fmt + ".tsv"), "w") as out, open(path(fmt + ".txt"), "w") as err:
        return start([sys.executable, tool(script), path(OUTPUTS[fmt]), *options, "--dump-slices"], stdout=out, stderr=err)


def checked(fmt, process):
    """The checker has found nothing wrong: the slices that it saw."""
    status = process.wait(timeout=300)
    with open(path(fmt + ".txt")) as f:
        text = f.read()
    check(status == 0, "%s: %s" % (fmt, text))
    check_equal(json.loads(text.splitlines()[0]).get("unknown_fields", {}), {}, "unknown fields of " + fmt)
    with open(path(fmt + ".tsv")) as f:
        return {line for line in f.read().splitlines()
                if line.split("\t")[1] not in ("sched_switch", "lost events", "futex")}


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
    at_work = {fmt: checking(fmt) for fmt in OUTPUTS}
    slices = {fmt: checked(fmt, at_work[fmt]) for fmt in OUTPUTS}
    db, rest = slices.pop("db"), slices
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
    source = recorded("lost.dat", "--bf_size=64", "--event=raw_syscalls", rounds=200)
    sums = same_slices(source)
    if not sums["db"]["lost"]:
        skip("nothing was lost with a buffer of 64 KB")
    check(sums["db"]["cut"] > 0 and sums["db"]["gaps"] > 0, "gaps of %r" % sums["db"])
    with sqlite3.connect(path(OUTPUTS["db"])) as db:
        cut = db.execute("SELECT count(*) FROM slice WHERE args LIKE '%cut by lost events%'").fetchone()[0]
    check(cut > 0, "no slice is marked as cut")


def perfetto_output_decodes_with_names():
    source = recorded("trace.dat")
    converted(source, "perfetto")
    packets = perfetto_text.packets(path(OUTPUTS["perfetto"]))
    check_equal(perfetto_text.nameless(packets), [], "fields without a name")
    seen = {key for packet in packets for key in packet}
    for key in ("clock_snapshot", "system_info", "ftrace_events", "track_descriptor", "track_event"):
        check(key in seen, "no packet has %s" % key)


# event: its fields, in the order of trace-cmd report -R and of Perfetto's messages; * = text
FIELDS = {
    "sched_waking": "*comm pid prio target_cpu", "sched_wakeup_new": "*comm pid prio target_cpu",
    "sched_migrate_task": "*comm pid prio orig_cpu dest_cpu", "sched_process_exec": "*filename pid old_pid",
    "sched_process_exit": "*comm pid prio", "sched_process_fork": "*parent_comm parent_pid *child_comm child_pid",
    "irq_handler_entry": "irq *name", "irq_handler_exit": "irq ret",
    "softirq_entry": "vec", "softirq_exit": "vec", "softirq_raise": "vec",
}


def raw_report(source):
    out = subprocess.run(["trace-cmd", "report", "-R", "-t", source], stdout=subprocess.PIPE,
                         stderr=subprocess.DEVNULL, check=True).stdout
    return [line for line in out.decode("utf-8", "replace").splitlines() if not line.startswith("cpus=")]


def number(text):
    return int(text, 16) if text.startswith("0x") else int(text)


def theirs(source):
    """Events as trace-cmd report -R shows them: {name: [(ns, cpu, task, fields...)]}, and how many there are in all."""
    lines = raw_report(source)
    shape = re.compile(r".*-(\d+) +\[(\d+)\] +(\d+)\.(\d{9}): (\w+): *(.*)$")
    fields = {name: re.compile("(?:.* )?" + " (?:.* )?".join(
        "%s=(%s)" % (word.strip("*"), ".*" if word[0] == "*" else r"[-\w]+") for word in words.split()) + "( |$)")
        for name, words in FIELDS.items()}
    events = {}
    for line in lines:
        match = shape.match(line)
        if match and match[5] in FIELDS:
            values = fields[match[5]].match(match[6])
            check(values, "cannot take %r apart" % line)
            events.setdefault(match[5], []).append((
                int(match[3] + match[4]), int(match[2]), int(match[1]),
                *(value if word[0] == "*" else number(value)
                  for word, value in zip(FIELDS[match[5]].split(), values.groups()))))
    return events, len(lines)


def ours():
    """The same from the Perfetto trace. Compact wakings do not tell the task on the CPU: None."""
    events = {}
    for bundle in (packet["ftrace_events"][0] for packet in perfetto_text.packets(path(OUTPUTS["perfetto"]))
                   if "ftrace_events" in packet):
        cpu = bundle["cpu"][0]
        for event in bundle.get("event", []):
            name, message = next((key, values[0]) for key, values in event.items() if isinstance(values[0], dict))
            if name in FIELDS:
                events.setdefault(name, []).append((event["timestamp"][0], cpu, event["pid"][0], *(
                    message[word.strip("*")][0] for word in FIELDS[name].split() if word.strip("*") in message)))
        for compact in bundle.get("compact_sched", []):
            t = 0
            for i, delta in enumerate(compact.get("waking_timestamp", [])):
                t += delta
                comm = compact["intern_table"][compact["waking_comm_index"][i]]
                events.setdefault("sched_waking", []).append((t, cpu, None, comm, compact["waking_pid"][i],
                                                              compact["waking_prio"][i], compact["waking_target_cpu"][i]))
    return events


def every_event_is_as_trace_cmd_shows_it():
    """Field for field. Exits of interrupts whose entry was not recorded are left out, and at a gap an exit is put in."""
    require("trace-cmd")
    source = recorded("trace.dat")
    sums = converted(source, "perfetto")
    (want, count), got = theirs(source), ours()
    check_equal(sums["events"], count, "events")
    check_equal(sums["skipped"], 0, "events that were not understood")
    for name, events in want.items():
        have = sorted(got.get(name, []), key=lambda e: e[:2])
        events.sort(key=lambda e: e[:2])
        if name.endswith("_exit") and "irq" in name:
            odd = set(have) ^ set(events)
            check(len(odd) <= 2 * (sums["gaps"] + sums["cpus"]), "%s that differ: %s" % (name, sorted(odd)[:6]))
            continue
        check_equal(len(have), len(events), name)
        for a, b in zip(have, events):
            check_equal(a, b[:2] + (None,) + b[3:] if name == "sched_waking" else b, name)
    check({"sched_waking", "sched_migrate_task", "softirq_entry", "softirq_exit", "softirq_raise"} <= set(want),
          "recorded were only %s" % sorted(want))


def the_switches_are_trace_cmds():
    """Event for event, field for field, as trace-cmd report -R shows them."""
    require("trace-cmd")
    source = recorded("trace.dat")
    converted(source, "json")
    with open(path(OUTPUTS["json"])) as f:
        ours = [e for e in json.load(f) if e["name"] == "sched_switch"]
    theirs = [re.search(r" \[(\d+)\] +(\d+)\.(\d{9}): sched_switch: +prev_comm=(.*) prev_pid=(\d+) prev_prio=(\d+) "
                        r"prev_state=(\S+) next_comm=(.*) next_pid=(\d+) next_prio=(\d+)", line)
              for line in raw_report(source) if "sched_switch:" in line]
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


def pipes_and_packed_files_are_the_same():
    """A trace.dat is read at many places: what cannot be is kept in a file first."""
    source = recorded("trace.dat")
    converted(source, "json")
    with open(path(OUTPUTS["json"]), "rb") as f:
        want = f.read()
    with open(source, "rb") as f:
        data = f.read()
    place = tmpdir()
    env = dict(os.environ, TMPDIR=place)
    with open(path("packed.dat"), "wb") as f:
        f.write(gzip.compress(data))
    for name, given in (("-", data), ("-", gzip.compress(data)), (path("packed.dat"), None)):
        out = subprocess.run([SYSTRACE, "convert", "ftrace", "--input", name, "--output=-", "--format=json"], input=given,
                             env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        check(out.returncode == 0 and out.stdout == want, "input %s: %s" % (name, out.stderr))
    check_equal(os.listdir(place), [], "what is left in TMPDIR")
    for given, status, words in ((gzip.compress(data)[:2000], 1, b"standard input: packed stream: it is cut"),
                                 (data[:2000], 3, b"standard input: cut at offset")):
        out = subprocess.run([SYSTRACE, "convert", "ftrace", "--input=-", "--output=-", "--format=json"], input=given,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        check(out.returncode == status and words in out.stderr, "cut input: %s" % out.stderr)
    out = subprocess.run([SYSTRACE, "convert", "ftrace", "--input=-", "--output=-", "--format=json"], input=data,
                         env=dict(os.environ, TMPDIR="/nonexistent"), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    check(out.returncode == 1 and b"set TMPDIR to a place with room" in out.stderr, "no TMPDIR: %s" % out.stderr)


def a_full_disk_is_told_and_nothing_is_left():
    source, place = recorded("trace.dat"), tmpdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", place]).returncode:
        skip("no tmpfs can be mounted here")
    try:
        for fmt in OUTPUTS:
            result = run([SYSTRACE, "convert", "ftrace", "--input", source, "--format", fmt, "--output",
                          os.path.join(place, OUTPUTS[fmt])])
            check(result.status == 1 and re.search("No space left on device|disk is full", result.err),
                  "%s: %s" % (fmt, result.err))
            check_equal(os.listdir(place), [], "files that are left of " + fmt)
    finally:
        subprocess.run(["umount", place])


def a_recording_without_events_is_told():
    result = run([SYSTRACE, "record", "--backend=native", "--sched=0", "--irq=0", "--event=sched/sched_process_hang",
                  "--record_time=0.1", "--output=" + path("none.dat")], cwd=DIR)
    if result.status:
        skip("no recording here: %s" % result.err.splitlines()[-1:])
    for command in (["convert", "ftrace", "--output=" + path("none.db")], ["analyze", "sched"]):
        result = run([SYSTRACE, *command, "--input", path("none.dat")])
        check(result.status == 3 and "none.dat holds no events" in result.err, "%s: %s" % (command, result.err))
    check(not os.path.exists(path("none.db")), "a file was left")


require_root()
require(SYSTRACE)
main(all_formats_show_the_same_slices, lost_events_are_gaps_in_all_formats, the_switches_are_trace_cmds,
     every_event_is_as_trace_cmd_shows_it, perfetto_output_decodes_with_names,
     pipes_and_packed_files_are_the_same, a_full_disk_is_told_and_nothing_is_left, a_recording_without_events_is_told)
