#!/usr/bin/env python3
# SPDX-License-Identifier: MulanPSL-2.0
"""Evidence: a finding is joined with what other layers recorded of that rank; a cause is named only where it explains most of the
loss, else what to switch on next, layer by layer."""

import glob
import json
import os
import shutil
import time

import harness as h
import t500_failslow_localize as t500
from t500_failslow_localize import job, result
from t502_service import Service

LATE = 1  # 99 ms of each step from step 30 on


def steps_of(source, rank):
    """Begin of each step of a rank, Unix us."""
    doc = json.loads(h.read_file("%s/timeline/host--%05d.timeline" % (source, rank)))
    return [s["start_us"] for s in doc["pytorch_stages"] if s["stage_type"] == "dataloader"]


def put_io(source, rank, ms, steps, name="/data/shard-7.bin"):
    """Reads of that many ms in each of these steps, two of them on the file and one short one elsewhere."""
    begins = steps_of(source, rank)
    entries = []
    for n in steps:
        for part, path in ((0.6, name), (0.35, name), (0.05, "/etc/hosts")):
            entries.append({"start_us": begins[n] + 20000, "dur": int(ms * 1000 * part), "stage_type": "STAGE_FORWARD",
                            "io_type": "IO_READ", "file_name": path, "rank": rank})
    doc = {"origin": [{"host": "host", "pid": 100 + rank, "rank": rank, "rank_known": True}], "IO_entries": entries}
    h.write_file("%s/io_trace/io_trace_rank%d_%d.json" % (source, rank, 100 + rank), json.dumps(doc))


def put_trace(source, kind, rank, slices):
    pid = 100 + rank
    events = [{"ph": "M", "name": "thread_name", "pid": pid, "tid": pid + 5, "args": {"name": "pin_memory"}}]
    for name, tid, begin_us, ms in slices:
        events.append({"ph": "X", "name": name, "pid": pid, "tid": tid, "cat": kind, "ts": begin_us, "dur": ms * 1000, "args": {}})
    doc = {"displayTimeUnit": "ns", "records": kind, "origin": [{"host": "host", "pid": pid, "rank": rank, "rank_known": True}],
           "traceEvents": events}
    h.write_file("%s/%s/%s_%d_rank_%d.json" % (source, kind, kind, pid, rank), json.dumps(doc, separators=(",", ":")))


def evidence(source):
    got, _ = result("localize", source)
    h.check_equal([d["objectId"] for d in got["abnormalDetail"]], [str(LATE)], "accused")
    return got["abnormalDetail"][0]["evidence"]


def test_slow_file():
    source = job(h.tmpdir(), late=LATE, steps=80)
    put_io(source, LATE, 90, range(30, 80))
    got = evidence(source)
    h.check_equal((got["cause"], got["cause_detail"], "next" in got), ("file I/O", "/data/shard-7.bin", False), "cause")
    h.check(0.8 < got["sources"][0]["share"] <= 1, "share: %s" % got)
    done = h.run([h.SYSTRACE, "localize", "--input", source, "--output", h.tmpdir()]).ok()
    h.check("Cause: file I/O (/data/shard-7.bin)" in done.out, done.out)


def test_recorded_for_a_while():
    """Ten of the slow steps were recorded: the time per step counts, not their sum."""
    source = job(h.tmpdir(), late=LATE, steps=80)
    put_io(source, LATE, 90, range(40, 50))
    got = evidence(source)
    h.check_equal(got["cause"], "file I/O", "cause")
    h.check(0.8 < got["sources"][0]["share"] <= 1, "share: %s" % got)


def test_too_little_is_no_cause():
    source = job(h.tmpdir(), late=LATE, steps=80)
    put_io(source, LATE, 25, range(30, 80))
    got = evidence(source)
    h.check_equal((got["cause"], got["sources"][0]["source"]), ("cannot tell", "file I/O"), "a quarter of the loss")
    h.check("sysTrace_cli enable CPU" in got["next"], got["next"])


def test_peers_do_the_same():
    """What all ranks do is not why one of them is slow."""
    source = job(h.tmpdir(), late=LATE, steps=80)
    for rank in range(4):
        put_io(source, rank, 90, range(30, 80))
    got = evidence(source)
    h.check_equal((got["cause"], got["sources"]), ("cannot tell", []), "cause")


def test_interpreter_lock():
    source = job(h.tmpdir(), late=LATE, steps=80)
    pid = 100 + LATE
    slices = []
    for begin in steps_of(source, LATE)[30:]:
        slices += [("GIL wait", pid, begin + 20000, 80), ("GIL hold", pid + 5, begin + 15000, 85), ("GIL hold", pid, begin + 100000, 5),
                   ("GIL wait", pid + 5, begin + 100000, 90)]
    put_trace(source, "GIL", LATE, slices)
    got = evidence(source)
    h.check_equal((got["cause"], got["cause_detail"]), ("waiting for the interpreter lock", "pin_memory"), "cause and holder")
    h.check(0.7 < got["sources"][0]["share"] < 0.9, "only the main thread's waits: %s" % got)


def varint(value):
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def message(fields):
    """Protobuf: {number: int, bytes or text}."""
    out = b""
    for number, value in fields:
        if isinstance(value, int):
            out += varint(number << 3) + varint(value)
        else:
            value = value.encode() if isinstance(value, str) else value
            out += varint(number << 3 | 2) + varint(len(value)) + value
    return out


OFFCPU = 4


def put_cpu(source, rank, spans):
    """The probe's part of os_trace: (thread id, begin us, off ms, of that runnable ms, who ran instead)."""
    pid = 100 + rank
    data = b""
    for tid, begin_us, off_ms, delay_ms, taker in spans:
        data += message([(1, message([(1, tid), (2, int(begin_us)), (3, int(off_ms * 1000)), (5, OFFCPU), (6, rank), (7, "python3"),
                                      (8, taker), (9, 4242), (23, int(delay_ms * 1e6)), (24, 1000000)]))])
    h.write_file("%s/osprobe/os_trace_20260101_00_rank_%d_%d.probe.pb" % (source, rank, pid), data)


def test_cpu_taken_away():
    """The thread that lost most counts; sleeping is not a loss."""
    source = job(h.tmpdir(), late=LATE, steps=80)
    spans = []
    for begin in steps_of(source, LATE)[30:]:
        spans += [(101, begin + 20000, 60, 55, "stress"), (101, begin + 90000, 40, 30, "stress"), (101, begin + 140000, 100, 1, "swapper/0"),
                  (105, begin + 20000, 40, 40, "cc1")]
    put_cpu(source, LATE, spans)
    got = evidence(source)
    h.check_equal((got["cause"], got["cause_detail"]), ("no CPU", "stress 4242"), "cause")
    h.check(0.75 < got["sources"][0]["share"] < 0.95, "86 of 99 ms: %s" % got)


def test_locks_need_peers():
    """A wait for a lock may be idleness: it is a cause only beyond what peers wait."""
    source = job(h.tmpdir(), late=LATE, steps=80)
    waits = {r: [("pthread_mutex_lock", 100 + r, begin + 20000, 90 if r == LATE else 2) for begin in steps_of(source, r)[30:]] for r in range(4)}
    put_trace(source, "Mutex", LATE, waits[LATE])
    h.check_equal(evidence(source)["cause"], "cannot tell", "no peer was recorded")
    for r in range(4):
        put_trace(source, "Mutex", r, waits[r])
    got = evidence(source)
    h.check_equal((got["cause"], got["cause_detail"]), ("waiting for locks", "pthread_mutex_lock"), "with peers")


def test_next_layer():
    """What was recorded and does not explain it is not asked for again."""
    source = job(h.tmpdir(), late=LATE, steps=80)
    h.check("enable CPU" in evidence(source)["next"], "nothing recorded")
    loader = job(h.tmpdir(), steps=80)
    path = loader + "/timeline/host--00002.timeline"
    doc = json.loads(h.read_file(path))
    for n, stage in enumerate(doc["pytorch_stages"]):
        if n >= 30:
            stage["end_us"] += 200000
    h.write_file(path, json.dumps(doc))
    got, _ = result("localize", loader)
    entry = [d for d in got["abnormalDetail"] if d["kpiId"] == "Dataloader"]
    h.check_equal([d["objectId"] for d in entry], ["2"], "loader")
    h.check("enable IO" in entry[0]["evidence"]["next"], entry)
    put_io(loader, 2, 1, range(30, 80))
    got, _ = result("localize", loader)
    entry = [d for d in got["abnormalDetail"] if d["kpiId"] == "Dataloader"]
    h.check("enable CPU" in entry[0]["evidence"]["next"], entry)


def test_service_collects_by_itself():
    """auto_collect: the command that the finding asks for is run, and what it recorded is in the next result."""
    t500.EPOCH = int(time.time() * 1000 - 80 * 600) * t500.MS
    source, out, place = t500.job(h.tmpdir(), late=LATE, steps=80, factor=1.6), h.tmpdir(), h.tmpdir()
    shutil.copy(os.path.join(h.BUILD, "systrace-failslow"), place)
    asked, put = place + "/asked", place + "/put"
    put_io(source, LATE, 150, range(40, 60))
    os.rename(source + "/io_trace", put)
    # stands for agents
    h.write_file(place + "/sysTrace_cli", "#!/bin/sh\necho \"$@\" >>%s\ncp -r %s %s/io_trace\n" % (asked, put, source))
    os.chmod(place + "/sysTrace_cli", 0o755)
    config = h.write_file(h.tmpdir() + "/model_config.json", json.dumps({"auto_collect": True}))
    service = Service("--input", source, "--output", out, "--config", config, "--interval", "1",
                      program=place + "/systrace-failslow")
    service.wait_log("event=auto_collect")
    service.wait_log("slow_node_result", 2)
    service.stop()
    lines = h.read_file(asked).splitlines()
    h.check("enable CPU duration=10" in lines[0], lines)
    results = sorted(glob.glob(out + "/slow_node*"), key=os.path.getmtime)
    causes = [json.loads(h.read_file(p))["abnormalDetail"][0]["evidence"]["cause"] for p in results]
    h.check_equal((causes[0], causes[-1]), ("cannot tell", "file I/O"), "causes: %s" % causes)


if __name__ == "__main__":
    h.require(h.SYSTRACE)
    h.main(test_slow_file, test_recorded_for_a_while, test_too_little_is_no_cause, test_peers_do_the_same, test_interpreter_lock, test_cpu_taken_away,
           test_locks_need_peers, test_next_layer, test_service_collects_by_itself)
