# SPDX-License-Identifier: MulanPSL-2.0
"""Jobs of several ranks for end-to-end tests, and what they left: markers, records of the timeline."""

import csv
import glob
import os
import re

import harness as h

PYTHON = None
COLUMNS = ("Flag,Id,Kind,Name,SourceKind,Timestamp,msptiObjectId_Ds_DeviceId,msptiObjectId_Ds_StreamId,"
           "msptiObjectId_Pt_ProcessId,msptiObjectId_Pt_ThreadId").split(",")


def python():
    """An interpreter with torch, or the script is skipped."""
    global PYTHON
    h.require(h.AGENT)
    PYTHON = PYTHON or h.python_with("torch")
    return PYTHON


def start(dump_dir, nproc, script, *args, **env):
    """Start a job; more keyword arguments become environment variables."""
    launcher = os.path.join(h.ROOT, "examples", "launch.py")
    job_env = h.preload_env(dump_dir, LD_PRELOAD=None, SYSTRACE_HOST_IP="10.0.0.7", **env)
    return h.start([python(), launcher, "-n", nproc, "--preload", h.AGENT, script, *args], env=job_env)


def run(dump_dir, nproc, script, *args, timeout=120, **env):
    return h.finish(start(dump_dir, nproc, script, *args, **env), timeout).ok()


class Marker:
    def __init__(self, name, start_ns, pid, tid):
        self.name, self.start_ns, self.end_ns, self.pid, self.tid = name, start_ns, None, pid, tid
        h.check(name.startswith("comm:"), "a marker named %r" % name)
        self.op, self.group, self.dtype, self.count = name[5:].split("!")
        self.count = int(self.count)

    def __repr__(self):
        return self.name


def markers(dump_dir, rank):
    """Markers of a rank in file order; end_ns is None where there is no end row."""
    path = h.find_one(dump_dir, "**/mspti/mspti-marker-10.0.0.7-%d.csv" % rank)
    found, by_id = [], {}
    with open(path, newline="") as f:
        rows = list(csv.reader(f))
    h.check_equal(rows[0], COLUMNS, "header")
    for flag, ident, kind, name, source, stamp, device, stream, pid, tid in rows[1:]:
        h.check_equal((kind, source), ("1", "0"), "kind and source of a host marker")
        h.check_equal((device, stream), (pid, tid), "host rows repeat process and thread")
        if name:
            by_id[ident] = Marker(name, int(stamp), int(pid), int(tid))
            found.append(by_id[ident])
        else:
            by_id[ident].end_ns = int(stamp)
            h.check(by_id[ident].end_ns >= by_id[ident].start_ns, "a marker ends before it begins")
    return found


def parse_text(text):
    """protoc's text form as a list of (field, value or list of pairs)."""
    stack = [[]]
    for line in text.splitlines():
        line = line.strip()
        if line.endswith("{"):
            stack.append([])
            stack[-2].append((line[:-1].strip(), stack[-1]))
        elif line == "}":
            stack.pop()
        elif line:
            key, _, value = line.partition(": ")
            stack[-1].append((key, value[1:-1] if value.startswith('"') else
                              int(value) if re.fullmatch(r"-?\d+", value) else value))
    return stack[0]


class Timeline:
    """Decoded timeline of one rank: stages, steps, sums, notes, each a list of dicts in file order."""

    def __init__(self, dump_dir, rank):
        self.path = h.find_one(dump_dir, "**/timeline/*--%05d.timeline" % rank)
        pairs = parse_text(h.decode_pb(self.path))
        self.stages, self.steps, self.sums, self.notes, self.drops = (
            [dict(v) for k, v in pairs if k == name]
            for name in ("pytorch_stages", "steps", "comm_sums", "notes", "drops"))
        self.rank = dict((k, v) for k, v in pairs if not isinstance(v, list)).get("rank", 0)

    def stages_of(self, name):
        return [s for s in self.stages if s["stage_type"] == name]


def last_count(steps):
    """Steps from the last renumbering on."""
    at = max((i for i, s in enumerate(steps) if s.get("renumbered_from")), default=0)
    return steps[at:]


def timelines(dump_dir):
    return glob.glob(os.path.join(dump_dir, "timeline", "*.timeline"))
