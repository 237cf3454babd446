#!/usr/bin/env python3
# SPDX-License-Identifier: MulanPSL-2.0
"""systrace convert ftrace on made-up text: formats by suffix, profiling data's clock and window, pid maps, clock files,
mmap_lock, every warning, every kind of bad input with its status. No root, no kernel trace."""

import json
import os
import re
import sqlite3
import sys

from harness import ROOT, SYSTRACE, check, check_equal, main, read_file, require, run, skip, tmpdir, write_file
import perfetto_text

DIR = tmpdir()
HEAD = "# tracer: nop\n#\n"


def line(comm, pid, cpu, t, event, text, tgid=None):
    group = "" if tgid is None else " (%7s)" % tgid
    return "%16s-%-7d%s [%03d] d..2.  %.6f: %s: %s\n" % (comm, pid, group, cpu, t, event, text)


def switch(t, cpu, prev, state, nxt):
    return line(prev[0], prev[1], cpu, t, "sched_switch",
                "prev_comm=%s prev_pid=%d prev_prio=120 prev_state=%s ==> next_comm=%s next_pid=%d next_prio=120"
                % (prev[0], prev[1], state, nxt[0], nxt[1]))


IDLE = ("swapper/0", 0)
APP, OTHER = ("a b:c", 100), ("kworker/0:1", 200)
TEXT = HEAD + "".join([
    switch(10.000100, 0, IDLE, "R", APP).replace("swapper/0-0", "   <idle>-0"),
    switch(10.000300, 0, APP, "R+", OTHER),
    switch(10.000400, 0, OTHER, "I", APP),
    line("a b:c", 100, 0, 10.000450, "softirq_entry", "vec=3 [action=NET_RX]"),
    line("a b:c", 100, 0, 10.000460, "softirq_exit", "vec=3 [action=NET_RX]"),
    switch(10.000500, 0, APP, "S", IDLE),
])


def path(name):
    return os.path.join(DIR, name)


def convert(*options, cwd=None):
    return run([SYSTRACE, "convert", "ftrace", *options], cwd=cwd or DIR)


def rows(name, sql):
    with sqlite3.connect(path(name)) as db:
        return db.execute(sql).fetchall()


def fresh(name, text=TEXT):
    write_file(path(name), text)
    return path(name)


def profile(name, begin_ns, end_ns, unix_us=1700000000000000, files=()):
    base = path(name)
    write_file(os.path.join(base, "PROF_1", "host", "start_info"), json.dumps(
        {"clockMonotonicRaw": str(begin_ns), "collectionTimeBegin": str(unix_us), "collectionTimeEnd": ""}))
    write_file(os.path.join(base, "PROF_1", "host", "end_info"), json.dumps({"clockMonotonicRaw": str(end_ns)}))
    for f in files:
        write_file(os.path.join(base, f), "")
    return base


def the_database_says_what_ran():
    fresh("t.txt")
    result = convert("--input=t.txt").ok()
    cpu = rows("ftrace_data.db", "SELECT name, timestamp, duration, args FROM slice JOIN thread USING (track_id) WHERE "
               "thread.pid = 'CPU Scheduling' AND name != 'sched_switch' ORDER BY id")
    check_equal([r[:3] for r in cpu], [("a b:c:100", 10000100000, 200000), ("kworker/0:1:200", 10000300000, 100000),
                                       ("a b:c:100", 10000400000, 100000), ("softirq", 10000450000, 10000)], "CPU 000")
    check_equal(json.loads(cpu[0][3]), {"host_pid": "100", "total_runtime": "0 [ns]", "vruntime": 0, "end_state": "R+",
                                        "prio": "120"}, "args")
    check_equal(json.loads(cpu[3][3]), {"vec": "3", "action": "NET_RX", "task": "a b:c:100"}, "softirq")
    states = rows("ftrace_data.db", "SELECT name, duration, args FROM slice JOIN thread USING (track_id) WHERE tid = "
                  "'a b:c:100' ORDER BY slice.id")
    check_equal([s[:2] for s in states], [("Running", 200000), ("Runnable", 100000), ("Running", 100000)], "states")
    check_equal(json.loads(states[1][2]), {"cpu": "000", "why": "preempted"}, "args of a state")
    check("ftrace_data.db" in result.out, result.out)


def an_older_output_is_replaced_whole():
    fresh("t.txt")
    write_file(path("ftrace_data.db"), "something else")
    write_file(path("ftrace_data.db-journal"), "old")
    convert("--input=t.txt").ok()
    convert("--input=t.txt").ok()
    check_equal(rows("ftrace_data.db", "PRAGMA integrity_check"), [("ok",)], "integrity")
    check(not [f for f in os.listdir(DIR) if "part" in f or "sort" in f or "journal" in f], str(os.listdir(DIR)))


def wakers_have_arrows():
    """From the waker's slice to the begin of the run; the idle task, which has no slices, has none."""
    wakeup = [line(comm, pid, 0, t, "sched_wakeup", "comm=kworker/0:1 pid=%d prio=120 target_cpu=000" % woken)
              for comm, pid, t, woken in (("a b:c", 100, 10.000250, 200), ("<idle>", 0, 10.000050, 100))]
    body = TEXT[len(HEAD):].splitlines(True)
    fresh("wake.txt", HEAD + wakeup[1] + body[0] + wakeup[0] + "".join(body[1:]))
    ends = {}
    check_equal(json.loads(convert("--json", "--input=wake.txt").ok().out)["arrows"], 1, "arrows of db")
    ends["db"] = rows("ftrace_data.db", "SELECT flow_id, name, cat, thread.tid, timestamp, type FROM flow JOIN thread USING "
                      "(track_id) ORDER BY id")
    convert("--input=wake.txt", "--output=wake.json").ok()
    with open(path("wake.json")) as f:
        ends["json"] = [(e["id"], e["name"], e["cat"], e["tid"], int(e["ts"].replace(".", "")), e["ph"]) for e in json.load(f)
                        if e["ph"] in "sf"]
    convert("--input=wake.txt", "--output=wake.trace.json").ok()
    with open(path("wake.trace.json")) as f:
        trace = json.load(f)
    base, lanes = int(trace["metadata"]["base_time_ns"]), {e["tid"]: e["args"]["name"] for e in trace["traceEvents"]
                                                           if e["name"] == "thread_name"}
    ends["chrome"] = [(str(e["id"]), e["name"], e["cat"], lanes[e["tid"]], base + round(e["ts"] * 1000), e["ph"])
                      for e in trace["traceEvents"] if e["ph"] in "sf"]
    for fmt in ends:
        check_equal(ends[fmt], [("1", "wake", "sched", "CPU 000", 10000250000, "s"),
                                ("1", "wake", "sched", "CPU 000", 10000300000, "f")], "arrows of " + fmt)


def suffix_or_option_decides_the_format():
    fresh("t.txt")
    for name, option, first in (("x.json", (), b"["), ("x.chrome.json", (), b"{"), ("x.trace.json", (), b"{"), ("x.pftrace", (), b"\x0a"),
                                ("x.db", (), b"S"), ("y.json", ("--format=chrome",), b"{"),
                                ("y.any", ("--format=json",), b"[")):
        convert("--input=t.txt", "--output=" + name, *option).ok()
        with open(path(name), "rb") as f:
            check_equal(f.read(1), first, name)
    convert("--input=t.txt", "--format=json").ok()
    check(os.path.exists(path("ftrace_data.json")), "default name of json")
    result = convert("--input=t.txt", "--format=json", "--output=-").ok()
    check(json.loads(result.out), "JSON on standard output")


def hidden_are_only_idle_or_kernel_threads():
    fresh("t.txt")
    convert("--input=t.txt", "--hide-kernel").ok()
    check_equal(rows("ftrace_data.db", "SELECT tid FROM thread ORDER BY track_id"), [("CPU 000",), ("a b:c:100",)], "lanes")


def profiling_data_give_clock_and_window():
    fresh("t.txt")
    base = profile("p1", 10000200000, 10000450000)
    result = convert("--input=t.txt", "--profiling_data=" + base).ok()
    first, last = rows("ftrace_data.db", "SELECT min(timestamp), max(end_time) FROM slice")[0]
    check_equal((first, last), (1700000000000000000, 1700000000000250000), "window on the profile's clock")
    check("1 events before and 2 after" in result.err, result.err)
    check("--format=json" in result.err, "advice for a text profile: %s" % result.err)
    args = rows("ftrace_data.db", "SELECT args FROM slice WHERE name = 'a b:c:100' ORDER BY id LIMIT 1")[0][0]
    check_equal(json.loads(args)["note"], "goes on outside the window", "note")
    base = profile("p2", 10000000000, 11000000000, files=("ASCEND_PROFILER_OUTPUT/analysis.db",))
    result = convert("--input=t.txt", "--profiling_data=" + base).ok()
    check("delete analysis.db" in result.err, result.err)


def a_window_that_excludes_all_says_which_side():
    fresh("t.txt")
    for name, begin, end, words in (("p3", 20 * 10**9, 21 * 10**9, "before it"), ("p4", 10**9, 2 * 10**9, "after it"),
                                    ("p5", 10000310000, 10000320000, "before and after")):
        result = convert("--input=t.txt", "--output=none.db", "--profiling_data=" + profile(name, begin, end))
        check_equal(result.status, 3, result.err)
        check(words in result.err and "10.000" in result.err, result.err)
        check(not os.path.exists(path("none.db")), "a file was left")


def broken_profiles_are_named():
    fresh("t.txt")
    os.makedirs(path("empty"), exist_ok=True)
    result = convert("--input=t.txt", "--profiling_data=" + path("empty"))
    check(result.status == 1 and "no start_info below" in result.err, result.err)
    result = convert("--input=t.txt", "--profiling_data=" + path("nowhere"))
    check(result.status == 1 and "no directory" in result.err, result.err)
    base = profile("p6", 1, 2)
    write_file(os.path.join(base, "PROF_1", "host", "start_info"), "{")
    result = convert("--input=t.txt", "--profiling_data=" + base)
    check(result.status == 1 and "start_info is no JSON" in result.err, result.err)
    write_file(os.path.join(base, "PROF_1", "host", "start_info"), '{"clockMonotonicRaw": "x"}')
    result = convert("--input=t.txt", "--profiling_data=" + base)
    check(result.status == 1 and "clockMonotonicRaw" in result.err, result.err)


def pids_are_those_inside_the_container():
    fresh("t.txt")
    write_file(path("map.json"), json.dumps({"100": {"NSpid": "7", "name": "a", "Tgid": "100", "PPid": "1"},
                                             "200": {"NSpid": "", "name": "k", "Tgid": "200", "PPid": "2"}}))
    convert("--input=t.txt", "--pid_mapping=map.json").ok()
    check_equal(rows("ftrace_data.db", "SELECT tid FROM thread ORDER BY track_id"),
                [("CPU 000",), ("a b:c:7",), ("kworker/0:1:200",)], "lanes")
    args = json.loads(rows("ftrace_data.db", "SELECT args FROM slice WHERE name = 'a b:c:7' ORDER BY id")[0][0])
    check_equal(args["host_pid"], "100", "host_pid")
    mark = json.loads(rows("ftrace_data.db", "SELECT args FROM slice WHERE name = 'sched_switch' ORDER BY id")[0][0])
    check_equal(mark["next_pid"], "7", "next_pid")
    write_file(path("bad.json"), "no json")
    result = convert("--input=t.txt", "--pid_mapping=bad.json")
    check(result.status == 1 and "bad.json is no JSON: line 1" in result.err, result.err)


def clock_snapshots_give_the_wall_clock():
    fresh("t.txt")
    write_file(path("meta.json"), json.dumps({"clocks": [
        {"mono_ns": 1, "mono_raw_ns": 10000000000, "boottime_ns": 1, "realtime_ns": 1700000000000000000},
        {"mono_ns": 1, "mono_raw_ns": 10001000000, "boottime_ns": 1, "realtime_ns": 1700000000002000000}]}))
    convert("--input=t.txt", "--align=meta.json").ok()
    # twice as fast between the two: 100 us are 200 us
    check_equal(rows("ftrace_data.db", "SELECT min(timestamp) FROM slice")[0][0], 1700000000000200000, "time")
    result = convert("--input=t.txt", "--align=meta.json", "--profiling_data=.")
    check_equal(result.status, 2, result.err)


def locks_have_waits_and_holds():
    fresh("t.txt")
    text = HEAD + "".join([
        line("app", 100, 0, 1.000000, "mmap_lock_start_locking", "mm=00000000abcd0001 memcg_path=/ write=true", 90),
        line("app", 101, 1, 1.000010, "mmap_lock_start_locking", "mm=00000000abcd0001 memcg_path=/ write=false", 90),
        line("app", 100, 0, 1.000020, "mmap_lock_acquire_returned",
             "mm=00000000abcd0001 memcg_path=/ write=true success=true", 90),
        " => some_function\n => another\n",
        line("app", 100, 0, 1.000050, "mmap_lock_released", "mm=00000000abcd0001 memcg_path=/ write=true", 90),
        line("app", 101, 1, 1.000060, "mmap_lock_acquire_returned",
             "mm=00000000abcd0001 memcg_path=/ write=false success=false", 90),
    ])
    fresh("locks.txt", text)
    result = convert("--input=locks.txt", "--type=mmaplock", "--output=l.chrome.json").ok()
    check("2 lines of stack traces were skipped" in result.err, result.err)
    with open(path("l.chrome.json")) as f:
        got = {(e["name"], round(e["dur"], 3), e["args"].get("result")) for e in json.load(f)["traceEvents"] if e["ph"] == "X"}
    check_equal(got, {("mmap_lock wait (write)", 20, None), ("mmap_lock held (write)", 30, None),
                      ("mmap_lock wait (read)", 50, "not taken")}, "spans")
    for name in ("l.db", "l.json", "l.pftrace"):
        convert("--input=locks.txt", "--type=mmaplock", "--output=" + name).ok()
    result = convert("--input=t.txt", "--type=mmaplock", "--output=no.db")
    check(result.status == 3 and "no pair of mmap_lock events" in result.err, result.err)


def perfetto_shows_futexes_under_their_threads():
    """Where the text tells the process (tgid column) or the pid map does; the others are in a group of their own."""
    def futexes(comm, pid, t, tgid):
        return (line(comm, pid, 0, t, "sys_enter_futex", "uaddr: 0x7f00, op: 0x80, val: 0x0", tgid) +
                line(comm, pid, 0, t + 0.00001, "sys_exit_futex", "0x0", tgid))

    fresh("futex.txt", HEAD + futexes("worker", 101, 1.0, 100) + futexes("worker", 101, 1.1, 100) +
          futexes("other", 201, 1.2, "-------") + futexes("mapped", 301, 1.3, "-------"))
    write_file(path("tgids.json"), json.dumps({"301": {"NSpid": "3", "name": "mapped", "Tgid": "300", "PPid": "1"}}))
    convert("--input=futex.txt", "--output=futex.pftrace", "--pid_mapping=tgids.json").ok()
    packets = perfetto_text.packets(path("futex.pftrace"))
    check_equal(perfetto_text.nameless(packets), [], "fields without a name")
    tracks = {t["uuid"][0]: t for t in (p["track_descriptor"][0] for p in packets if "track_descriptor" in p)}
    slices = [(p["timestamp"][0], tracks[p["track_event"][0]["track_uuid"][0]]) for p in packets
              if p.get("track_event", [{}])[0].get("name") == ["futex"]]
    check_equal([(t, track["thread"][0]["pid"] + track["thread"][0]["tid"] if "thread" in track else
                  track["name"] + tracks[track["parent_uuid"][0]]["name"]) for t, track in slices],
                [(1000000000, [100, 101]), (1100000000, [100, 101]), (1200000000, ["other:201", "futex"]),
                 (1300000000, [300, 301])], "futex calls")


def warnings_of_names_and_inputs():
    fresh("t.txt")
    check("imports only databases named" in convert("--input=t.txt", "--output=my.db").ok().err, "name of the database")
    check("imports only" not in convert("--input=t.txt", "--output=ftrace_data12.db").ok().err, "good name")
    other = path("cwd")
    write_file(os.path.join(other, "trace.txt"), TEXT)
    result = convert(cwd=other)
    check(result.status == 1 and "--input=trace.txt" in result.err, result.err)
    write_file(os.path.join(other, "trace.dat"), TEXT)
    os.utime(os.path.join(other, "trace.dat"), (1, 1))
    check("trace.txt is newer" in convert(cwd=other).ok().err, "newer text")


def padded_times_of_short_uptimes_are_read():
    fresh("short.txt", HEAD + TEXT[len(HEAD):].replace("  10.0004", "     10.0004"))
    result = json.loads(convert("--json", "--input=short.txt").ok().out)
    check_equal((result["events"], result["skipped"]), (6, 0), "events and lines not understood")


def slight_disorder_of_trace_pipe_is_put_right():
    """Events up to a millisecond late go to their places: the database is that of the text in order."""
    fresh("t.txt")
    convert("--input=t.txt").ok()
    want = rows("ftrace_data.db", "SELECT timestamp, duration, name, track_id, args FROM slice ORDER BY id")
    body = TEXT[len(HEAD):].splitlines(True)
    fresh("pipe.txt", HEAD + "".join([body[1], body[0], body[4], body[3], body[2], body[5]]))
    result = convert("--input=pipe.txt", "--output=ftrace_data2.db").ok()
    check("4 events came up to 1 ms after later ones" in result.err and "before" not in result.err, result.err)
    check_equal(rows("ftrace_data2.db", "SELECT timestamp, duration, name, track_id, args FROM slice ORDER BY id"), want, "rows")


def what_is_not_understood_is_counted():
    fresh("odd.txt", TEXT + "this is no event\nneither is this\n")
    result = convert("--input=odd.txt").ok()
    check("2 lines were not understood, first (line 9): this is no event" in result.err, result.err)
    fresh("back.txt", TEXT + switch(10.001600, 0, IDLE, "R", APP) + switch(9.990000, 0, APP, "S", IDLE))
    check("lie before" in convert("--input=back.txt").ok().err, "backwards")
    fresh("pid.txt", TEXT.replace("prev_pid=100", "prev_pid=4194399").replace("-100 ", "-4194399 "))
    convert("--input=pid.txt").ok()
    fresh("cpu.txt", TEXT.replace("[000]", "[70000]"))
    result = convert("--input=cpu.txt")
    check(result.status == 3, result.err)
    fresh("far.txt", TEXT.replace("[000]", "[1023]") + TEXT.replace("[000]", "[1024]"))
    result = convert("--input=far.txt", "--output=far.pftrace").ok()
    check("6 events of CPUs from 1024 on were left out" in result.err, result.err)


def bad_input_ends_in_words():
    for name, text, status in (("empty.txt", "", 3), ("none.txt", HEAD, 3), ("random.bin", "\x01\x02\x03" * 500, 1)):
        fresh(name, text)
        result = convert("--input=" + name, "--output=never.db")
        check_equal(result.status, status, "%s: %s" % (name, result.err))
        check(name in result.err, result.err)
        check(not os.path.exists(path("never.db")), "a file was left")
    result = convert("--input=missing.dat")
    check(result.status == 1 and "missing.dat" in result.err, result.err)
    fresh("t.txt")
    for output in ("/nonexistent/ftrace_data.db", "/nonexistent/x.json"):
        result = convert("--input=t.txt", "--output=" + output)
        check(result.status == 1 and "/nonexistent/" in result.err, result.err)
    if os.path.exists("/dev/full"):
        result = convert("--input=t.txt", "--format=json", "--output=/dev/full")
        check(result.status == 1 and "No space" in result.err, result.err)
        # so much that it shows while states end, not only at the end of the file
        fresh("long.txt", HEAD + "".join(
            switch(1 + i / 1e4, 0, APP, "S", IDLE) +
            line("<idle>", 0, 0, 1.00001 + i / 1e4, "sched_wakeup", "comm=a b:c pid=100 prio=120 target_cpu=000") +
            switch(1.00002 + i / 1e4, 0, IDLE, "R", APP) for i in range(9000)))
        result = convert("--input=long.txt", "--format=json", "--output=/dev/full")
        check(result.status == 1 and "No space" in result.err, result.err)


require(SYSTRACE)
main(the_database_says_what_ran, an_older_output_is_replaced_whole, wakers_have_arrows,
     suffix_or_option_decides_the_format,
     hidden_are_only_idle_or_kernel_threads, profiling_data_give_clock_and_window,
     a_window_that_excludes_all_says_which_side, broken_profiles_are_named, pids_are_those_inside_the_container,
     clock_snapshots_give_the_wall_clock, locks_have_waits_and_holds,
     perfetto_shows_futexes_under_their_threads, warnings_of_names_and_inputs,
     padded_times_of_short_uptimes_are_read, slight_disorder_of_trace_pipe_is_put_right,
     what_is_not_understood_is_counted, bad_input_ends_in_words)
