#!/usr/bin/env python3
# SPDX-License-Identifier: MulanPSL-2.0
"""Mistakes that tools of this kind have made, and that must be absent here: each test is one of them, for both algorithms
where both could make it."""

import glob
import json
import os

import harness as h
from t500_failslow_localize import job, result, run

BOTH = ("robust", "documented")


def steps_file(times, checkpoints=()):
    """A timeline of one rank whose steps take these ms; some end with a checkpoint of half a step more."""
    stages, begin = [], 1760000000 * 1000
    for number, ms in enumerate(times):
        stages.append({"stage_id": number, "stage_type": "dataloader", "start_us": int(begin * 1000), "end_us": int(begin * 1000) + 1000})
        if number in checkpoints:
            stages.append({"stage_id": number, "stage_type": "SaveCkpt", "start_us": int((begin + ms) * 1000),
                           "end_us": int((begin + 1.5 * ms) * 1000)})
            begin += 0.5 * ms
        begin += ms
    path = h.tmpdir() + "/host--00000.timeline"
    return h.write_file(path, json.dumps({"rank": 0, "step_id": 1, "comm": "python3", "pytorch_stages": stages}))


def even(count):
    return [1000 + (n * 7919 % 11) for n in range(count)]


def regroup(source, size):
    """Give each run of ranks a group of its own."""
    for path in glob.glob(source + "/mspti/*.csv"):
        rank = int(path.rsplit("-", 1)[1][:-4])
        h.write_file(path, h.read_file(path).replace("_60000_0_1", "_60000_%d_1" % (rank // size)))
    return source


def accused(source, algorithm, *more):
    got, _ = result("localize", source, "--algorithm", algorithm, *more)
    return sorted({int(d["objectId"]) for d in got["abnormalDetail"]})


def test_small_differences_are_no_anomaly():
    """Some ms against a baseline of a second; checkpoints, which recur."""
    for algorithm in BOTH:
        h.check_equal(result("failslow", steps_file(even(120)), "--algorithm", algorithm)[0]["anomaly_type"], "normal", algorithm)
    got = result("failslow", steps_file(even(120), range(9, 120, 10)))[0]
    h.check_equal(got["anomaly_type"], "normal", "checkpoints")


def test_a_lasting_fault_does_not_become_the_normal():
    for algorithm in BOTH:
        got, _ = result("failslow", steps_file(even(60) + [1.3 * ms for ms in even(240)]), "--algorithm", algorithm)
        h.check_equal(got["anomaly_type"], "failSlow", algorithm)
        h.check(got["anomaly_count_times"] >= 235, "%s: %d of 240" % (algorithm, got["anomaly_count_times"]))
        h.check_equal(got["recovered"], False, algorithm)


def test_a_spike_does_not_hide_the_next_fault():
    for algorithm in BOTH:
        times = even(60) + [9000] + even(8) + [1.5 * ms for ms in even(40)]
        got, _ = result("failslow", steps_file(times), "--algorithm", algorithm)
        steps = {a["training_step"] for a in got["anomaly_info"]}
        h.check(len(steps & set(range(69, 109))) >= 35, "%s: %s" % (algorithm, sorted(steps)))


def test_the_step_is_the_step_and_the_last_one_counts():
    for algorithm in BOTH:
        got, _ = result("failslow", steps_file(even(60) + [2000] * 11), "--algorithm", algorithm)
        steps = [a["training_step"] for a in got["anomaly_info"]]
        h.check_equal((steps[0], got["onset_step"]), (60, 60), algorithm)
        h.check(steps[-1] >= 69, "%s: the end of the data is judged, too: %s" % (algorithm, steps))


def test_healthy_pairs_accuse_nobody():
    """Eight ranks in groups of two: no rank's number makes it slow."""
    source = regroup(job(h.tmpdir(), ranks=8, steps=80), 2)
    for algorithm in BOTH:
        h.check_equal(accused(source, algorithm), [], algorithm)


def test_pairs_are_compared():
    """Groups of fewer than four ranks are judged, and the one that is waited for is named."""
    source = regroup(job(h.tmpdir(), ranks=8, steps=80, late=4, factor=1.5), 2)
    h.check_equal(accused(source, "robust"), [4], "robust")


def test_ranks_of_different_lengths():
    """A rank that ends earlier, one that hangs in a call, one with no call at all: a verdict, and the late one."""
    for algorithm in BOTH:
        source = job(h.tmpdir(), ranks=6, steps=80, late=2, factor=1.5)
        for rank, keep in ((3, 0.7), (4, 0)):
            path = "%s/mspti/mspti-marker-10.0.0.1-%d.csv" % (source, rank)
            lines = h.read_file(path).splitlines(True)
            h.write_file(path, "".join(lines[:1 + int(keep * (len(lines) - 1))]))
        h.check_equal(accused(source, algorithm), [2], algorithm)


def test_many_more_events_on_one_rank():
    """Ten times as many markers of its own on a healthy rank."""
    source = job(h.tmpdir(), ranks=4, steps=80, late=1, factor=1.6)
    path = source + "/mspti/mspti-marker-10.0.0.1-3.csv"
    text = h.read_file(path)
    more = "".join("2,%d,1,mine,0,%d,9,9,9,9\n4,%d,1,,0,%d,9,9,9,9\n" % (10**6 + n, 1760000000 * 10**9 + n * 10**6, 10**6 + n,
                                                                    1760000000 * 10**9 + n * 10**6 + 1000) for n in range(15000))
    h.write_file(path, text + more)
    for algorithm in BOTH:
        h.check_equal(accused(source, algorithm), [1], algorithm)


def test_ends_before_begins():
    """Negative durations, as clocks that were set leave them, of one rank's calls here and there."""
    source = job(h.tmpdir(), ranks=4, steps=60, late=1, factor=1.4)
    path = source + "/mspti/mspti-marker-10.0.0.1-2.csv"
    lines = h.read_file(path).splitlines(True)
    for n in range(50, len(lines), 97):
        columns = lines[n].split(",")
        if columns[0] == "32":
            columns[5] = str(int(columns[5]) - 10**9)
            lines[n] = ",".join(columns)
    h.write_file(path, "".join(lines))
    h.check_equal(accused(source, "robust"), [1], "accused")


def test_duplicate_files():
    """The same rank's markers twice, as copies of a directory leave them."""
    source = job(h.tmpdir(), ranks=4, steps=60, late=1, factor=1.4)
    text = h.read_file(source + "/mspti/mspti-marker-10.0.0.1-0.csv")
    h.write_file(source + "/copy/mspti-marker-10.0.0.1-0.csv", text)
    h.check_equal(accused(source, "robust"), [1], "accused")


def test_spelling_of_operations():
    """The observation point HcclAllGather is met by every spelling that sources use."""
    for spelling in ("HcclAllgather", "hcclAllGather", "all_gather", "ncclAllGather"):
        source = job(h.tmpdir(), ranks=4, steps=80, late=1, factor=1.6)
        for path in glob.glob(source + "/mspti/*.csv"):
            h.write_file(path, h.read_file(path).replace("HcclAllGather", spelling))
        h.check_equal(accused(source, "documented"), [1], spelling)


def test_input_is_left_alone():
    """No file is written beside the records."""
    source = job(h.tmpdir(), ranks=4, steps=60, late=1)

    def listing():
        return sorted((p, os.stat(p).st_mtime_ns) for p in glob.glob(source + "/**", recursive=True))

    before = listing()
    for command in ("failslow", "localize"):
        for algorithm in BOTH:
            run(command, "--input", source, "--output", h.tmpdir(), "--algorithm", algorithm).ok()
    h.check_equal(listing(), before, "files of the input")


if __name__ == "__main__":
    h.require(h.SYSTRACE)
    h.main(test_small_differences_are_no_anomaly, test_a_lasting_fault_does_not_become_the_normal,
           test_a_spike_does_not_hide_the_next_fault, test_the_step_is_the_step_and_the_last_one_counts,
           test_healthy_pairs_accuse_nobody, test_pairs_are_compared, test_ranks_of_different_lengths,
           test_many_more_events_on_one_rank, test_ends_before_begins, test_duplicate_files, test_spelling_of_operations,
           test_input_is_left_alone)
