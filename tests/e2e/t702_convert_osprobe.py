#!/usr/bin/env python3
# SPDX-License-Identifier: MulanPSL-2.0
"""`systrace convert osprobe`: known entries, written here byte by byte, as tables and as traces; both forms of the file,
published ones, damaged ones."""

import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import harness as h
from probes import NAMES, OFFCPU, OFF_OPEN, PREEMPTED, TAKER, UNSEEN

h.require(h.SYSTRACE)
NUMBERS = {name: number for number, name in NAMES.items()}
T0, WALL = 5_000_000_000_000, 1_700_000_000_000_000_000


def varint(value):
    out = b""
    while value >= 0x80:
        out += bytes([value & 0x7f | 0x80])
        value >>= 7
    return out + bytes([value])


def field(number, value):
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    value = value if isinstance(value, bytes) else value.encode()
    return varint(number << 3 | 2) + varint(len(value)) + value


def entry(kind, tid, start, dur, **more):
    """start and dur in ns after T0; published fields are made from them."""
    return dict(key=tid, start_us=(WALL + start) // 1000, dur=dur // 1000, type=kind, start_ns=T0 + start, dur_ns=dur, **more)


ORIGIN = {2: "node1", 4: "1000", 5: 77, 6: 3, 7: 1, 13: WALL - T0, 15: "probe", 17: 1000}
# thread 1000 runs on CPU 1, is preempted by hog, runs, sleeps, is woken while 1001 of the same process has the CPU
ENTRIES = [
    entry(OFFCPU, 1000, 0, 0, comm="main", cpu=2, on_ns=1_000_000, flags=UNSEEN),
    entry(TAKER, 77, 1_000_000, 4_000_000, comm="hog", cpu=2, pid=77),
    entry(OFFCPU, 1000, 1_000_000, 4_000_000, comm="main", nxt_comm="hog", nxt_pid=77, cpu=2, on_ns=2_000_000,
          delay_ns=4_000_000, rundelay=123, flags=PREEMPTED),
    entry(OFFCPU, 1001, 2_000_000, 5_000_000, comm="other", cpu=2, on_ns=6_000_000, state=1, delay_ns=0),
    entry(OFFCPU, 1000, 7_000_000, 6_000_000, comm="main", nxt_comm="other", nxt_pid=1001, cpu=2, on_ns=1_000_000, state=1,
          delay_ns=2_000_000, waker_pid=1001, waker_comm="other"),
    entry(OFFCPU, 1000, 14_000_000, 9_000_000, comm="main", state=2, flags=OFF_OPEN),
]


def message(number, fields):
    return field(number, b"".join(field(n, v) for n, v in sorted(fields.items()) if v not in (0, "")))


def as_pb(entries=ENTRIES, origin=ORIGIN):
    data = message(100, origin) if origin else b""
    return data + b"".join(message(1, {NUMBERS[k]: v for k, v in e.items()}) for e in entries)


def as_json():
    rows = [{("OS_event_type" if k == "type" else k): v for k, v in e.items()} for e in ENTRIES]
    origin = {"host": "node1", "pids": "1000", "proc_start": 77, "rank": 3, "rank_known": True, "pid": 1000,
              "wall_minus_mono_ns": WALL - T0, "author": "probe"}
    return json.dumps({"origin": [origin], "OSprobe_entries": rows, "dropped": 0})


def table(path):
    return json.loads(h.run([h.SYSTRACE, "convert", "osprobe", "--input", path, "--json"]).ok().out)


def check_table(got):
    threads = {t["tid"]: t for t in got["threads"]}
    main = threads[1000]
    h.check_equal((main["run_ns"], main["wait_ns"], main["preempted"]), (4_000_000, 6_000_000, 1), "main")
    h.check_equal((main["sleep_ns"], main["uninterruptible_ns"]), (4_000_000, 9_000_000), "main's sleep")
    takers = {t["task"]: t for t in got["takers"]}
    h.check_equal(set(takers), {"hog 77", "other 1001"}, "takers")
    h.check_equal((takers["hog 77"]["ns"], takers["hog 77"]["own"]), (4_000_000, 0), "hog")
    # 1000 waited from 11 to 13 ms, 1001 had the CPU until 13 ms
    h.check_equal((takers["other 1001"]["ns"], takers["other 1001"]["own"]), (2_000_000, 1), "other")
    h.check_equal((got["ranks"][0]["rank"], got["ranks"][0]["wait_ns"]), (3, 6_000_000), "rank")


def both_forms_give_the_same_tables():
    place = h.tmpdir()
    check_table(table(h.write_file(place + "/os_trace_20260101_00_rank_3_1000.probe.pb", as_pb())))
    check_table(table(h.write_file(place + "/x.json", as_json())))
    out = h.run([h.SYSTRACE, "convert", "osprobe", "--input", place + "/x.json"]).ok().out
    h.check("rank 3" in out and "hog 77" in out and "other 1001 (of the job itself)" in out, out)


def the_picture_has_states_cpus_and_arrows():
    place = h.tmpdir()
    path = h.write_file(place + "/os.pb", as_pb())
    h.run([h.SYSTRACE, "convert", "osprobe", "--input", path, "--output", place + "/os.trace.json"]).ok()
    events = json.loads(h.read_file(place + "/os.trace.json"))["traceEvents"]
    tracks = {e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    slices = [(tracks[e["tid"]], e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"]
    base = min(s[2] for s in slices)
    states = [(n, round(t - base), round(d)) for track, n, t, d in slices if track.startswith("state thread 1000")]
    h.check_equal(states, [("Running", 0, 1000), ("Preempted", 1000, 4000), ("Running", 5000, 2000),
                           ("Sleeping", 7000, 4000), ("Runnable", 11000, 2000), ("Running", 13000, 1000),
                           ("Uninterruptible sleep", 14000, 9000)], "states")
    cpu = [(n, round(t - base), round(d)) for track, n, t, d in slices if track == "CPU 1"]
    h.check_equal(cpu, [("main 1000", 0, 1000), ("hog 77", 1000, 4000), ("main 1000", 5000, 2000),
                        ("other 1001", 7000, 6000), ("main 1000", 13000, 1000)], "CPU 1")
    arrows = [(e["ph"], tracks[e["tid"]], round(e["ts"] - base)) for e in events if e["ph"] in "sf"]
    h.check_equal(arrows, [("s", "state thread 1000", 1000), ("f", "CPU 1", 1000)], "arrows")
    h.run([h.SYSTRACE, "convert", "osprobe", "--input", path, "--output", place + "/os.pftrace"]).ok()
    h.check(os.path.getsize(place + "/os.pftrace") > 500, "Perfetto file")


def published_files_are_read():
    """Fields below 20 only, no Origin: time off the CPU, who ran instead."""
    old = [{k: v for k, v in e.items() if NUMBERS[k] < 20} for e in ENTRIES if e["type"] == OFFCPU]
    for e in old:
        e["rank"] = 3
    path = h.write_file(h.tmpdir() + "/os_trace_20260101_00_rank_3_1000.pb", as_pb(old, None))
    got = table(path)
    h.check_equal(got["ranks"][0]["rank"], 3, "rank")
    main = next(t for t in got["threads"] if t["tid"] == 1000)
    h.check_equal(main["sleep_ns"], 19_000_000, "time off the CPU")


def damage_is_named():
    place = h.tmpdir()
    path = h.write_file(place + "/cut.pb", as_pb()[:-3])
    got = h.run([h.SYSTRACE, "convert", "osprobe", "--input", path, "--output", place + "/o.json"]).ok()
    h.check("cut" in got.err and "byte" in got.err, got.err)
    h.run([h.SYSTRACE, "convert", "osprobe", "--input", h.write_file(place + "/no.pb", b"\xff" * 64)]).ok(1)
    h.run([h.SYSTRACE, "convert", "osprobe", "--input", place]).ok()
    os.mkdir(place + "/empty")
    got = h.run([h.SYSTRACE, "convert", "osprobe", "--input", place + "/empty"]).ok(3).err
    h.check("no recording of the CPU plugin" in got, got)


h.main(both_forms_give_the_same_tables, the_picture_has_states_cpus_and_arrows, published_files_are_read, damage_is_named)
