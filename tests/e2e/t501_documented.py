#!/usr/bin/env python3
# SPDX-License-Identifier: MulanPSL-2.0
"""The documented algorithms: the guide's samples (5.2.4, 5.3.4) field for field from input made for them, both
configuration files, series in results, plots, debug files, windows."""

import datetime
import json
import os
import shutil

import harness as h
from t500_failslow_localize import EPOCH, MS, job, result, run


def config(text, metrics=None):
    directory = h.tmpdir()
    h.write_file(directory + "/model_config.json", json.dumps(text))
    if metrics is not None:
        h.write_file(directory + "/metric_config.json", json.dumps(metrics))
    return directory


def test_guide_5_2_4():
    """Step 16 took 69435 ms where 2566.6 ms were normal."""
    lines, end = [], datetime.datetime(2025, 6, 12, 19, 39, 24) - datetime.timedelta(seconds=15 * 2.6)
    for step in range(1, 31):
        ms = 69435 if step == 16 else (2566, 2567, 2566, 2567, 2567)[step % 5]
        if step == 16:
            end = datetime.datetime(2025, 6, 12, 19, 39, 25)
        end += datetime.timedelta(milliseconds=ms)  # a log's line is written when the step is done
        lines.append("[%s] iteration %d/ 500 | elapsed time per iteration (ms): %.1f |\n" % (
            end.strftime("%Y-%m-%d %H:%M:%S"), step, ms))
    path = h.write_file(h.tmpdir() + "/train.log", "".join(lines))
    got, _ = result("failslow", path, "--algorithm", "documented")
    h.check_equal({k: got[k] for k in ("is_anomaly", "anomaly_count_times", "anomaly_type")},
                  {"is_anomaly": True, "anomaly_count_times": 1, "anomaly_type": "failSlow"}, "verdict")
    entry = got["anomaly_info"][0]
    want = {"training_step": 16, "anomaly_time": "2025-06-12 19:39:24", "anomaly_degree": 26.053,
            "anomaly_training_time": "69435ms", "normal_training_time": "2566.6ms"}
    h.check_equal({k: entry[k] for k in want}, want, "the guide's entry")


def test_guide_5_3_4():
    """Rank 3 of 8 on one server."""
    source = job(h.tmpdir(), ranks=8, steps=80, late=3, ip="9.13.100.7")
    got, _ = result("localize", source, "--algorithm", "documented")
    h.check_equal([got[k] for k in ("resultCode", "compute", "network", "storage", "errorMsg")],
                  [201, True, False, False, ""], "verdict")
    entry = {"objectId": "3", "serverIp": "9.13.100.7", "deviceInfo": "rank_3", "kpiId": "HcclAllGather",
             "methodType": "SPACE", "kpiData": [], "relaIds": [0, 1, 2, 4, 5, 6, 7], "omittedDevices": []}
    h.check_equal(len(got["abnormalDetail"]), 1, "accused")
    h.check_equal({k: got["abnormalDetail"][0][k] for k in entry}, entry, "the guide's entry")
    entry.update(objectId="0", deviceInfo="rank_0", relaIds=[])
    h.check_equal(got["normalDetail"][0], entry, "the guide's normal entry")
    h.check_equal(len(got["normalDetail"]), 7, "normal ones")


def test_healthy_accuses_nobody():
    """Also a tp of two, where the published code named ranks 5 and 7 whatever the data."""
    for ranks in (2, 4, 8):
        got, _ = result("localize", job(h.tmpdir(), ranks=ranks, steps=80), "--algorithm", "documented")
        h.check_equal((got["verdict"], got["abnormalDetail"]), ("healthy", []), "%d ranks" % ranks)


def test_series_plots_and_debug_files():
    source, out = job(h.tmpdir(), ranks=4, steps=80, late=1), h.tmpdir()
    where = config({"algorithm": "documented", "record_kpi": True, "use_plot": True, "save_image": out + "/image",
                    "debug_data": True, "max_num_normal_results": 2})
    got = json.loads(run("localize", "-i", source, "-o", out, "--config", where, "--json").ok().out)
    h.check_equal([d["objectId"] for d in got["abnormalDetail"]], ["1"], "accused")
    h.check_equal([d["objectId"] for d in got["normalDetail"]], ["0", "2"], "two normal ones")
    late, other = got["abnormalDetail"][0]["kpiData"], got["normalDetail"][0]["kpiData"]
    h.check(len(late) == len(other) > 5, "points: %d and %d" % (len(late), len(other)))
    h.check_equal(late[0]["timestamp"] // 10000, EPOCH // MS // 10000, "time of the first point")
    h.check(late[-1]["value"] < 0.5 * other[-1]["value"], "the late rank waits least: %s %s" % (late[-1], other[-1]))
    plot = h.read_file(out + "/image/compute.svg")
    h.check_equal((plot.count("<polyline"), plot.count("#c00")), (4, 1), "lines of the plot")
    rows = h.read_file(out + "/debug/rank_1_execution.csv").splitlines()
    h.check_equal((rows[0], len(rows)), ("metric,step,time_ns,ms", 1 + 80 * 12), "debug file")
    where = config({"record_kpi": True})
    got = json.loads(run("localize", "-i", source, "-o", out, "--config", where, "--json").ok().out)
    h.check_equal(len(got["abnormalDetail"][0]["kpiData"]), 80, "steps of the robust localiser")


def test_metric_config():
    source = job(h.tmpdir(), ranks=4, steps=80, late=1)
    strict = {"HcclAllGather": {"space_detector": {"cv_threshold": 5}}}
    got, _ = result("localize", source, "--config", config({"algorithm": "documented"}, strict))
    h.check_equal(got["verdict"], "healthy", "a threshold that nothing reaches")
    broken = {"HcclAllGather": {"space_detector": {"epsilon": 5}}}
    done = run("localize", "-i", source, "--config", config({}, broken)).ok(1)
    h.check("HcclAllGather.space_detector.epsilon" in done.err and "eps" in done.err, done.err)
    done = run("localize", "-i", source, "--config", config({"algorithm": "documented", "fail_slow_ops": {
        "cal_slow": "HcclNothing"}})).ok(1)
    h.check("HcclNothing" in done.err, done.err)
    own = {"HcclAllGather": {
        "aggregation": {"during_s": 0.3, "funcs": [{"func": "mean"}]}, "space_detector": None,
        "time_detector": {"type": "SlidingWindowKSigmaDetector", "preprocess_eps": 1, "n_sigma_method": {
            "detect_type": "lower_bound", "bias": 0, "min_std_val": 0.01}}}}
    source = job(h.tmpdir(), ranks=4, steps=160, late=1, fault_from=80, factor=1.5)
    got, _ = result("localize", source, "--config", config({"algorithm": "documented"}, own))
    h.check_equal([(d["objectId"], d["methodType"]) for d in got["abnormalDetail"]], [("1", "TIME")], "own history")


def test_windows():
    source = job(h.tmpdir(), ranks=4, steps=80, late=1)
    begin = EPOCH // (1000 * MS)
    got, _ = result("localize", source, "--config", config({"slow_node_detection_range_times": [begin, begin + 8]}))
    h.check_equal(got["verdict"], "healthy", "before the fault")
    done = run("localize", "-i", source, "-o", h.tmpdir(), "--config", config({"with_fail_slow": True})).ok()
    h.check("Rank 1" in done.out and "steps from 30 on" in done.out, done.out)
    got, _ = result("localize", source, "--config", config({"slow_node_detection_time_span_hours": 0.002}))
    h.check(got["verdict"] == "found", "the last seconds: %s" % got["verdict"])


def test_domains():
    """Ranks of two domains are compared within them, though all meet in one group."""
    source = job(h.tmpdir(), ranks=4, steps=80, late=1)
    got, _ = result("localize", source, "--config", config({"algorithm": "documented", "hccl_domain": {
        "tp": [[0, 1], [2, 3]]}, "fail_slow_ops": {"cal_slow": "HcclAllGather"}},
        {"HcclAllGather": {"space_detector": {"type": "OuterDataDetector"}}}))
    h.check_equal([(d["objectId"], d["relaIds"]) for d in got["abnormalDetail"]], [("1", [0])], "accused")


def test_rank_restarted_lacking_and_clocks():
    """A rank without markers is lacking, not slow; hosts minutes apart do not matter."""
    source = job(h.tmpdir(), ranks=8, steps=80, late=3)
    os.unlink(source + "/mspti/mspti-marker-10.0.0.1-6.csv")
    for name in ("mspti/mspti-marker-10.0.0.1-5.csv",):
        rows = h.read_file(source + "/" + name).splitlines()
        shifted = [rows[0]] + [",".join(c[:5] + [str(int(c[5]) + 300 * 10**9)] + c[6:])
                               for c in (r.split(",") for r in rows[1:])]
        h.write_file(source + "/" + name, "\n".join(shifted) + "\n")
        path = source + "/timeline/host--00005.timeline"
        doc = json.loads(h.read_file(path))
        for stage in doc["pytorch_stages"]:
            stage["start_us"] += 300 * 10**6
            stage["end_us"] += 300 * 10**6
        h.write_file(path, json.dumps(doc))
    for algorithm in ("robust", "documented"):
        got, _ = result("localize", source, "--algorithm", algorithm)
        h.check_equal([d["objectId"] for d in got["abnormalDetail"]], ["3"], algorithm)


def test_markers_alone():
    """Without any timeline, and with one of a single rank: steps are found in the markers."""
    source = job(h.tmpdir(), ranks=4, steps=80, late=1)
    shutil.rmtree(source + "/timeline")
    for algorithm in ("robust", "documented"):
        got, _ = result("localize", source, "--algorithm", algorithm)
        h.check_equal([d["objectId"] for d in got["abnormalDetail"]], ["1"], algorithm)
    got, _ = result("failslow", source)
    h.check_equal(got["anomaly_type"], "failSlow", "verdict")
    h.check(29 <= got["onset_step"] <= 31, "onset %d" % got["onset_step"])
    source = job(h.tmpdir(), ranks=4, steps=80, late=1)
    for rank in (1, 2, 3):
        os.unlink(source + "/timeline/host--%05d.timeline" % rank)
    got, _ = result("localize", source)
    h.check_equal([d["objectId"] for d in got["abnormalDetail"]], ["1"], "one timeline")
    h.check(29 <= got["abnormalDetail"][0]["onset_step"] <= 31, "onset of one timeline")
    got, _ = result("localize", job_without(h.tmpdir()))
    h.check_equal(got["verdict"], "healthy", "a healthy job")


def test_evidence():
    """Garbage collection that explains the loss is named; without it the answer is what to switch on."""
    source = job(h.tmpdir(), ranks=4, steps=80, late=1)
    evidence = result("localize", source)[0]["abnormalDetail"][0]["evidence"]
    h.check_equal((evidence["sources"], evidence["cause"]), ([], "cannot tell"), "nothing recorded")
    h.check("sysTrace_cli enable CPU" in evidence["next"], evidence["next"])
    path = source + "/timeline/host--00001.timeline"
    doc = json.loads(h.read_file(path))
    for stage in doc["pytorch_stages"][30:]:
        begin = stage["end_us"] + 1000
        doc["pytorch_stages"].append({"stage_id": stage["stage_id"], "stage_type": "GC", "start_us": begin,
                                      "end_us": begin + 90000})
    h.write_file(path, json.dumps(doc))
    evidence = result("localize", source)[0]["abnormalDetail"][0]["evidence"]
    h.check_equal(evidence["cause"], "gc", "cause: %s" % evidence)
    h.check(0.8 < evidence["sources"][0]["share"] <= 1, "share: %s" % evidence)
    h.check_equal("next" in evidence, False, "nothing more to record")


def job_without(directory):
    job(directory, ranks=4, steps=80)
    shutil.rmtree(directory + "/timeline")
    return directory


if __name__ == "__main__":
    h.require(h.SYSTRACE)
    h.main(test_guide_5_2_4, test_guide_5_3_4, test_healthy_accuses_nobody, test_series_plots_and_debug_files,
           test_metric_config, test_windows, test_domains, test_rank_restarted_lacking_and_clocks, test_markers_alone, test_evidence)
