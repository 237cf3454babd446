# SPDX-License-Identifier: MulanPSL-2.0
"""Makes timeline files and marker CSVs for tests of readers and converters, with an encoder that shares nothing with the
product: protobuf's wire format from the numbers of src/wire/proto/systrace.proto, and JSON of the same records.
"""

import gzip
import json
import os

from harness import write_file

FIELDS = {
    "origin": {"run": 1, "host": 2, "boot_id": 3, "rank": 6, "rank_known": 7, "world_size": 9, "job": 10,
               "wall_minus_mono_ns": 13, "segment": 14, "pid": 17, "run_start_us": 18},
    "stage": {"stage_id": 1, "stage_type": 2, "start_us": 3, "end_us": 4, "stack_frames": 5, "gc_debug": 6, "start_ns": 20,
              "dur_ns": 21, "step": 22, "kind": 23, "pid": 24, "tid": 25, "flags": 26, "gen": 27},
    "gc_debug": {"collected": 1, "uncollectable": 2},
    "comm_sum": {"op": 1, "group": 2, "calls": 3, "total_ns": 4, "max_ns": 5, "last_start_ns": 6, "elements": 7,
                 "last_seq": 8, "start_ns": 20, "step": 22},
    "step": {"source": 1, "microbatches": 2, "renumbered_from": 3, "start_ns": 20, "dur_ns": 21, "step": 22},
    "note": {"text": 1, "start_ns": 20, "step": 22},
    "thread": {"pid": 1, "tid": 2, "comm": 3},
    "drop": {"source": 1, "count": 2, "from_ns": 3, "to_ns": 4},
}
TOP = {"stage": (1, "pytorch_stages"), "comm_sum": (30, "comm_sums"), "step": (31, "steps"), "note": (32, "notes"),
       "thread": (33, "threads"), "origin": (100, "origin"), "drop": (101, "drops")}
HEADER = ("Flag,Id,Kind,Name,SourceKind,Timestamp,msptiObjectId_Ds_DeviceId,msptiObjectId_Ds_StreamId,"
          "msptiObjectId_Pt_ProcessId,msptiObjectId_Pt_ThreadId\n")
WALL = 1_760_000_000_000_000_000          # wall clock minus CLOCK_MONOTONIC of the made-up host


def varint(value):
    value &= 2 ** 64 - 1
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def field(number, value):
    if isinstance(value, (bytes, str)):
        value = value.encode() if isinstance(value, str) else value
        return varint(number << 3 | 2) + varint(len(value)) + value
    return varint(number << 3) + varint(int(value))


def message(kind, record):
    out = b""
    for name, value in record.items():
        number = FIELDS[kind][name]
        if isinstance(value, dict):
            out += field(number, message(name, value))
        else:
            for one in value if isinstance(value, list) else [value]:
                out += field(number, one)
    return out


def protobuf(records):
    """records: list of (kind, dict)."""
    return b"".join(field(TOP[kind][0], message(kind, record)) for kind, record in records)


def as_json(records, canonical=False):
    out = {}
    for kind, record in records:
        out.setdefault(TOP[kind][1], []).append(record)
    if canonical:
        out = camel(out)
    return json.dumps(out)


def camel(value):
    """proto3's canonical JSON: lowerCamelCase, 64-bit numbers as text."""
    if isinstance(value, dict):
        out = {}
        for key, one in value.items():
            first, *rest = key.split("_")
            out[first + "".join(word.capitalize() for word in rest)] = camel(one)
            if key.endswith(("_ns", "_us", "elements", "count")):
                out[first + "".join(word.capitalize() for word in rest)] = str(one)
        return out
    return [camel(one) for one in value] if isinstance(value, list) else value


def rank_records(rank, steps, run="run-a", start_us=1, host="node0", drops=0, segment=0, first_step=1, wall=WALL):
    """One rank's records: a step of 100 ms with a loader, forward with a nested part, backward, GC, a collective's sum."""
    pid = 1000 + rank
    out = [("origin", {"run": run, "host": host, "boot_id": "b", "rank": rank, "rank_known": True, "world_size": 4,
                       "job": "train.py", "wall_minus_mono_ns": wall, "segment": segment, "pid": pid,
                       "run_start_us": start_us}),
           ("thread", {"pid": pid, "tid": pid, "comm": "python3"}),
           ("thread", {"pid": pid, "tid": pid + 50, "comm": "pt_autograd_0"})]
    ms = 1_000_000
    for step in range(first_step, first_step + steps):
        t = 50_000_000_000 + step * 100 * ms + rank * 7

        def stage(name, kind, begin, dur, **more):
            start = t + int(begin * ms)
            out.append(("stage", dict({"stage_id": step, "stage_type": name, "start_us": (start + wall) // 1000,
                                       "end_us": (start + int(dur * ms) + wall) // 1000, "start_ns": start,
                                       "dur_ns": int(dur * ms), "step": step, "kind": kind}, **more)))
        stage("dataset@next", 1, 0, 9)
        stage("dataset@decode", 1, -20, 15, pid=2000 + rank, flags=4)
        stage("attention@forward", 2, 12, 5.5, stack_frames=["attend@model.py:7", "run@train.py:3"])
        stage("model@forward", 2, 10, 30)
        stage("engine@run", 3, 41, 20, tid=pid + 50)
        stage("GC", 5, 42, 0.25, gen=2, gc_debug={"collected": 17, "uncollectable": 0})
        stage("model@backward", 3, 40, 40, flags=1 if step % 5 == 0 else 0)
        out.append(("comm_sum", {"op": "all_reduce", "group": "dp", "calls": 3, "total_ns": 6 * ms, "max_ns": 3 * ms,
                                 "last_start_ns": t + 75 * ms, "elements": 4096, "last_seq": 3 * step,
                                 "start_ns": t + 45 * ms, "step": step}))
        out.append(("comm_sum", {"op": "all_gather", "group": "tp", "calls": 9, "total_ns": 6 * ms, "max_ns": ms,
                                 "last_start_ns": t + 80 * ms, "elements": 512, "last_seq": 9 * step,
                                 "start_ns": t + 12 * ms, "step": step}))
        out.append(("comm_sum", {"op": "GC", "calls": 12, "total_ns": ms, "max_ns": ms // 4, "last_start_ns": t + 90 * ms,
                                 "elements": 40, "start_ns": t + ms, "step": step}))     # no group: no collective
        out.append(("step", {"source": 1, "microbatches": 2, "start_ns": t, "dur_ns": 100 * ms, "step": step}))
    if drops:
        out.append(("note", {"text": "stages: min_us raised to 50", "start_ns": t, "step": step}))
        out.append(("drop", {"source": "pool", "count": drops, "from_ns": t, "to_ns": t + ms}))
    return out


def old_records(steps):
    """The published schema alone."""
    return [("stage", {"stage_id": s, "stage_type": name, "start_us": WALL // 1000 + s * 1000 + at,
                       "end_us": WALL // 1000 + s * 1000 + at + dur})
            for s in range(1, steps + 1) for name, at, dur in (("dataloader", 0, 100), ("forward", 100, 400), ("GC", 200, 9))]


def marker_rows(rank, ops, start=WALL + 50_000_000_000, cut=False):
    """Host and device sides of collectives; a lost end, an overlapping second stream."""
    rows = []
    for i in range(1, ops + 1):
        t = start + i * 10_000_000
        stream = 9 if i % 3 else 11
        name = "comm:Hccl%s!10.0.0.1%%eth0_60000_0_1!bfp16!%d" % ("AllReduce" if i % 2 else "AllGather", 1024 * i)
        host, device = "%d,%d,%d,%d" % ((1000 + rank, 1000 + rank) * 2), "%d,%d,%d,%d" % ((rank, stream) * 2)
        rows.append((t, "16,%d,1,%s,0,%d,%s" % (i, name, t, host)))
        rows.append((t + 50_000, "32,%d,1,,0,%d,%s" % (i, t + 50_000, host)))
        rows.append((t + 90_000, "16,%d,1,%s,1,%d,%s" % (i, name, t + 90_000, device)))
        if i != 5:
            rows.append((t + 14_000_000, "32,%d,1,,1,%d,%s" % (i, t + 14_000_000, device)))
        if i % 4 == 0:
            rows.append((t, "1,%d,1,step %d,0,%d,%s" % (10 ** 6 + i, i, t, host)))
    text = HEADER + "".join(row + "\n" for _, row in sorted(rows))
    return text[:-9] if cut else text


def dump_directory(path, ranks=4, steps=6, packed=True):
    """A dump directory as a job leaves it: pb, JSON, segments, gz, CSV with and without sidecar, an older run."""
    timeline = os.path.join(path, "timeline")
    for rank in range(ranks):
        name = os.path.join(timeline, "node0--%05d.timeline" % rank)
        if rank == 1:                                       # two segments
            write_file(name + ".1", protobuf(rank_records(rank, steps // 2)))
            write_file(name, protobuf(rank_records(rank, steps - steps // 2, first_step=steps // 2 + 1, segment=1)))
        elif rank == 2:
            data = as_json(rank_records(rank, steps, drops=31)).encode()
            write_file(name + ".gz" if packed else name, gzip.compress(data) if packed else data)
        else:
            write_file(name, protobuf(rank_records(rank, steps, drops=12 if rank == 3 else 0)))
    write_file(os.path.join(timeline, "node0--00000.timeline.1600000000"),
               protobuf(rank_records(0, 2, run="run-old", start_us=0)))
    write_file(os.path.join(path, "mspti", "mspti-marker-10.0.0.1-0.csv"), marker_rows(0, 20))
    write_file(os.path.join(path, "mspti", "mspti-marker-10.0.0.1-1.csv"), marker_rows(1, 20, cut=True))
    for rank in range(2):
        write_file(os.path.join(path, "mspti", "mspti-marker-10.0.0.1-%d.csv.meta.json" % rank), json.dumps(
            {"origin": dict(rank_records(rank, 0)[0][1]), "drops": [{"source": "markers", "count": 5 * rank,
                                                                     "from_ns": 50_000_000_000, "to_ns": 50_000_000_001}]}))
    write_file(os.path.join(path, "Trace", "trace.dat"), b"\x17\x08\x44tracing6")
    return path
