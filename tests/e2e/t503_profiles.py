#!/usr/bin/env python3
# SPDX-License-Identifier: MulanPSL-2.0
"""failslow and localize on Chrome traces of other programs: PyTorch profiler traces made here, one a rank, and timelines of
whole jobs; where they are at hand (../shared/data) also real ones."""

import glob
import gzip
import json
import os
import random

import harness as h

DATA = os.path.join(os.environ.get("ST_SHARED", os.path.join(os.path.dirname(h.ROOT), "shared")), "data")
EPOCH_US = 1760000000 * 1000000


def kineto(directory, ranks=4, steps=40, late=None, factor=1.3, host_only=False):
    """A synchronous job, 12 collectives a step in a group of all; two spellings of numbers and of the file's order."""
    rng = random.Random(5)
    events = [[] for _ in range(ranks)]
    now = 0.0
    for step in range(steps):
        begins, ready = now, [now + 5000 * rng.uniform(0.99, 1.01) for _ in range(ranks)]
        for call in range(12):
            ways = [(500 if call % 2 else 5000) * rng.uniform(0.99, 1.01) * (factor if r == late and step >= 20 else 1)
                    for r in range(ranks)]
            starts = [a + b for a, b in zip(ready, ways)]
            end = max(starts) + 100
            for r in range(ranks):
                args = {"Process Group Name": "7", "Process Group Ranks": "[0, 1, 2, 3]", "In msg nelems": 4096 + call,
                        "dtype": "Float", "stream": 20, "device": r, "Collective name": "allreduce", "Seq": step * 12 + call}
                ts = starts[r] + (0 if r % 2 else EPOCH_US)
                events[r].append({"ph": "X", "cat": "user_annotation", "name": "nccl:all_reduce" if not host_only else
                                  "gloo:all_reduce", "pid": 10, "tid": 10, "ts": ts if host_only else ts - 40,
                                  "dur": (end - starts[r]) if host_only else 20,
                                  "args": {"Process Group Name": "7", "Process Group Ranks": "[0, 1, 2, 3]"}})
                if not host_only:
                    events[r].append({"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)",
                                      "pid": r, "tid": 20, "ts": ts if r else str(ts), "dur": end - starts[r], "args": args})
            ready = [end] * ranks
        now = max(ready)
        for r in range(ranks):
            events[r].append({"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#%d" % (100 + step), "pid": 10, "tid": 10,
                              "ts": begins + (0 if r % 2 else EPOCH_US), "dur": now - begins})
    for r in range(ranks):
        trace = {"schemaVersion": 1, "distributedInfo": {"backend": "nccl", "rank": r, "world_size": ranks}, "traceEvents": events[r]}
        if r % 2:
            trace["baseTimeNanoseconds"] = EPOCH_US * 1000  # behind the events, as the profiler writes it
        text = json.dumps(trace).encode()
        h.write_file("%s/worker_rank%d.pt.trace.json%s" % (directory, r, ".gz" if r == 2 else ""),
                     gzip.compress(text) if r == 2 else text)
    return directory


def result(command, source, *more):
    out = h.tmpdir()
    return json.loads(h.run([h.SYSTRACE, command, "--input", source, "--output", out, "--json", *more]).ok().out)


def accused(got):
    return [d["objectId"] for d in got["abnormalDetail"]]


def test_kineto_late_rank():
    got = result("localize", kineto(h.tmpdir(), late=2))
    h.check_equal((accused(got), got["abnormalDetail"][0]["kpiId"], got["abnormalDetail"][0]["onset_step"]),
                  (["2"], "allreduce", 120), "who, in what, since when")
    h.check_equal(got["abnormalDetail"][0]["relaIds"], [0, 1, 3], "the group")
    slow = result("failslow", kineto(h.tmpdir(), late=2, factor=1.6))
    h.check_equal((slow["anomaly_type"], slow["onset_step"]), ("failSlow", 120), "steps")


def test_kineto_healthy():
    got = result("localize", kineto(h.tmpdir()))
    h.check_equal((got["verdict"], accused(got)), ("healthy", []), "verdict")


def test_host_side_alone():
    got = result("localize", kineto(h.tmpdir(), late=1, host_only=True))
    h.check_equal(accused(got), ["1"], "accused")


def test_cut_and_odd_files():
    source = kineto(h.tmpdir(), late=2)
    path = source + "/worker_rank3.pt.trace.json"
    text = h.read_file(path)
    h.write_file(path, text[:int(len(text) * 0.8)])
    h.write_file(source + "/other.json", '{"schemaVersion": 1, "deviceProperties": [], "traceEvents": [{"ph": "X", "ts": "noon"}]}')
    done = h.run([h.SYSTRACE, "localize", "--input", source, "--output", h.tmpdir()]).ok()
    h.check("Rank 2" in done.out, done.out)
    h.check("worker_rank3" in done.err and "cut" in done.err, done.err)


def job_timeline(directory, slow=None, steps=30):
    """Two replicas of a pipeline of two stages, of which the second has more work; shared embeddings link the stages."""
    rng = random.Random(3)
    events = []
    for pp in range(2):
        for dp in range(2):
            for lane in range(2):
                tid = 4 * pp + 2 * dp + lane
                events.append({"ph": "M", "name": "thread_name", "pid": dp, "tid": tid, "args": {"name": "PP rank %d, TP rank 0, x" % pp}})
    events += [{"ph": "M", "name": "process_name", "pid": dp, "args": {"name": "DP rank [%d]" % dp}} for dp in range(2)]
    slices = []
    now = 0.0
    for step in range(steps):
        ends = []
        for pp in range(2):
            for dp in range(2):
                at = now
                tid = 4 * pp + 2 * dp
                for name, us in (("forward-compute", 40000), ("backward-compute", 80000)):
                    us *= (1.5 if pp else 1) * rng.uniform(0.995, 1.005)
                    if (pp, dp) == slow and step >= 12:
                        us *= 1.2
                    slices.append({"ph": "X", "name": name, "cat": name, "pid": dp, "tid": tid, "ts": at, "dur": us, "args": {"step": step}})
                    at += us
                    slices.append({"ph": "X", "name": "forward-send" if pp == 0 else "forward-recv", "pid": dp, "tid": tid + 1,
                                   "ts": at, "dur": 100, "args": {"step": step}})
                ends.append((at, pp, dp))
        last = max(e[0] for e in ends)
        for at, pp, dp in ends:
            for name in ("grads-reduce-scatter", "embedding-grads-all-reduce", "params-all-gather"):
                slices.append({"ph": "X", "name": name, "pid": dp, "tid": 4 * pp + 2 * dp + 1, "ts": at, "dur": last - at + 500,
                               "args": {"step": step}})
        now = last + 1000
    h.write_file(directory + "/timeline.json", json.dumps(slices + events))
    return directory + "/timeline.json"


def test_job_timeline():
    got = result("localize", job_timeline(h.tmpdir()))
    h.check_equal((got["verdict"], accused(got), got["ranks"]), ("healthy", [], 4), "unequal stages are nobody's fault")
    got = result("localize", job_timeline(h.tmpdir(), slow=(1, 0)))
    h.check_equal((accused(got), got["abnormalDetail"][0]["onset_step"], got["compute"]), (["2"], 12, True), "a slow worker")
    steps = result("failslow", job_timeline(h.tmpdir(), slow=(1, 0)))
    h.check_equal(steps["steps"], 30, "steps")


def test_real_job_timeline():
    """Slow by the way its stages were cut, and no worker is to blame."""
    h.require(DATA + "/straggler/timeline-ST.json.gz")
    got = result("localize", DATA + "/straggler", "--from", "1")
    h.check_equal((accused(got), got["ranks"], got["last_step"]), ([], 8, 31), "accused")


def test_real_profiles():
    """Two steps of two of 128 ranks: too little to tell, and no crash on any of the other kinds."""
    h.require(DATA + "/kineto")
    source = h.tmpdir()
    for path in glob.glob(DATA + "/kineto/sampled_rank-*"):
        os.symlink(path, source + "/" + os.path.basename(path))
    got = result("localize", source)
    h.check_equal((got["verdict"], accused(got), got["ranks"]), ("cannot tell", [], 2), "verdict")
    for path in glob.glob(DATA + "/kineto/*"):
        done = h.run([h.SYSTRACE, "localize", "--input", path, "--output", h.tmpdir()])
        h.check(done.status in (0, 3), repr(done))


if __name__ == "__main__":
    h.require(h.SYSTRACE)
    h.main(test_kineto_late_rank, test_kineto_healthy, test_host_side_alone, test_cut_and_odd_files, test_job_timeline,
           test_real_job_timeline, test_real_profiles)
