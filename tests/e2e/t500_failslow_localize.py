#!/usr/bin/env python3
# SPDX-License-Identifier: MulanPSL-2.0
"""failslow and localize on jobs made here: the published timeline and marker forms, a training log, result files as
documented, bad input. Where the cluster generator is at hand (../shared/tools/gen_cluster.py) also on its scenarios."""

import glob
import json
import os
import random
import re
import subprocess

import harness as h

MS = 1000000
EPOCH = 1760000000 * 1000 * MS
HEADER = ("Flag,Id,Kind,Name,SourceKind,Timestamp,msptiObjectId_Ds_DeviceId,msptiObjectId_Ds_StreamId,"
          "msptiObjectId_Pt_ProcessId,msptiObjectId_Pt_ThreadId\n")
GENERATOR = os.path.join(os.environ.get("ST_SHARED", os.path.join(os.path.dirname(h.ROOT), "shared")), "tools", "gen_cluster.py")


def job(directory, ranks=4, steps=60, late=None, fault_from=30, factor=1.3, markers=True, ip="10.0.0.1"):
    """A synchronous job: per step a loader call and 12 all-gathers, long and short ways in turn."""
    rng = random.Random(1)
    now = EPOCH
    rows, stages = [[] for _ in range(ranks)], [[] for _ in range(ranks)]
    serial = 1
    for step in range(steps):
        begin = now
        ready = []
        for r in range(ranks):
            load = int(10 * MS * rng.uniform(0.99, 1.01))
            stages[r].append({"stage_id": step, "stage_type": "dataloader", "start_us": begin // 1000,
                              "end_us": (begin + load) // 1000})
            ready.append(begin + load)
        for call in range(12):
            ways = [int((5 if call % 2 else 50) * MS * rng.uniform(0.99, 1.01)) for _ in range(ranks)]
            if late is not None and step >= fault_from:
                ways[late] = int(ways[late] * factor)
            starts = [a + b for a, b in zip(ready, ways)]
            end = max(starts) + MS
            for r in range(ranks):
                rows[r] += ["16,%d,1,comm:HcclAllGather!10.0.0.1%%eth0_60000_0_1!fp32!%d,1,%d,%d,2,%d,2\n" % (
                    serial, 4096 + call, starts[r], r, r), "32,%d,1,,1,%d,%d,2,%d,2\n" % (serial, end, r, r)]
            ready = [end] * ranks
            serial += 1
        now = end
    for r in range(ranks):
        h.write_file("%s/timeline/host--%05d.timeline" % (directory, r), json.dumps(
            {"rank": r, "step_id": steps, "comm": "python3", "pytorch_stages": stages[r]}))
        if markers:
            h.write_file("%s/mspti/mspti-marker-%s-%d.csv" % (directory, ip, r), HEADER + "".join(rows[r]))
    return directory


def run(command, *args):
    return h.run([h.SYSTRACE, command, *args])


def result(command, source, *more):
    """Run on source; the result file, checked to be the one that --json prints."""
    out = h.tmpdir()
    done = run(command, "--input", source, "--output", out, "--json", *more).ok()
    files = glob.glob(out + "/*")
    h.check_equal(len(files), 1, "result files")
    h.check_equal(h.read_file(files[0]), done.out, "the file against --json")
    return json.loads(done.out), os.path.basename(files[0])


def test_failslow_fields():
    source = job(h.tmpdir(), late=1)
    for algorithm in ("robust", "documented"):
        got, name = result("failslow", source, "--algorithm", algorithm)
        h.check(re.fullmatch(r"fail_slow_perception_result_failSlow_\d{10}\.json", name), name)
        h.check_equal(list(got)[:6], ["is_anomaly", "anomaly_count_times", "anomaly_info", "anomaly_type", "start_time",
                                      "end_time"], "documented fields")
        h.check_equal((got["is_anomaly"], got["anomaly_type"], got["onset_step"]), (True, "failSlow", 30), "verdict")
        h.check_equal(got["anomaly_count_times"], len(got["anomaly_info"]), "entries")
        entry = got["anomaly_info"][0]
        h.check_equal(list(entry)[:5], ["training_step", "anomaly_time", "anomaly_degree", "anomaly_training_time",
                                        "normal_training_time"], "documented fields of an entry")
        h.check_equal(entry["training_step"], 30, "training_step")
        h.check(re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", entry["anomaly_time"]), entry["anomaly_time"])
        slow, normal = (float(entry[k][:-2]) for k in ("anomaly_training_time", "normal_training_time"))
        h.check(entry["anomaly_training_time"].endswith("ms") and 1.2 < slow / normal < 1.35, "times: %s" % entry)
        h.check(abs(entry["anomaly_degree"] - (slow - normal) / normal) < 0.001, "degree: %s" % entry)


def test_failslow_normal_also_writes():
    got, name = result("failslow", job(h.tmpdir(), markers=False))
    h.check(re.fullmatch(r"fail_slow_perception_result_normal_\d+\.json", name), name)
    h.check_equal((got["is_anomaly"], got["anomaly_count_times"], got["anomaly_info"]), (False, 0, []), "nothing found")


def test_no_result_is_overwritten():
    """Names have whole seconds; five results within one are five files."""
    source, out = job(h.tmpdir(), steps=40, markers=False), h.tmpdir()
    for _ in range(5):
        run("failslow", "--input", source, "--output", out).ok()
    h.check_equal(len(glob.glob(out + "/fail_slow_perception_result_normal_*.json")), 5, "files")


def test_failslow_words():
    done = run("failslow", "--input", job(h.tmpdir(), late=1, factor=1.5), "--output", h.tmpdir()).ok()
    h.check("became slow at step 30" in done.out and "1.4" in done.out, done.out)


def test_training_log():
    lines = []
    for step in range(1, 81):
        ms = 250 if step > 50 else 100
        lines.append("[2025-06-12 19:%02d:%02d] iteration %d/ 500 | elapsed time per iteration (ms): %.1f | lr 0.1\n" % (
            30 + step // 60, step % 60, step, ms + step % 3))
    path = h.write_file(h.tmpdir() + "/train.log", "".join(lines))
    got, _ = result("failslow", path)
    h.check_equal((got["onset_step"], got["steps"]), (51, 80), "onset and steps")
    h.check_equal(got["anomaly_info"][0]["anomaly_time"][:13], "2025-06-12 19", "time of the line")

    path = h.write_file(h.tmpdir() + "/short.log", "".join("per_step_time: %dms\n" % (100 + i % 3) for i in range(40)))
    got, _ = result("failslow", path, "--algorithm", "documented")
    h.check_equal((got["anomaly_type"], got["steps"]), ("normal", 40), "verdict and steps")


def test_localize_fields():
    got, name = result("localize", job(h.tmpdir(), late=2))
    h.check(re.fullmatch(r"slow_node_result_\d{10}\.json", name), name)
    h.check_equal(list(got)[:8], ["resultCode", "compute", "network", "storage", "abnormalDetail", "normalDetail",
                                  "errorMsg", "timestamp"], "documented fields")
    h.check_equal((got["resultCode"], got["compute"], got["network"], got["storage"]), (201, True, False, False), "flags")
    h.check_equal(len(got["abnormalDetail"]), 1, "accused")
    entry = got["abnormalDetail"][0]
    want = {"objectId": "2", "serverIp": "10.0.0.1", "deviceInfo": "rank_2", "kpiId": "HcclAllGather",
            "methodType": "SPACE", "kpiData": [], "relaIds": [0, 1, 3], "omittedDevices": []}
    h.check_equal({k: entry[k] for k in want}, want, "entry")
    h.check_equal(entry["onset_step"], 30, "onset")
    h.check_equal(entry["evidence"]["waited"], [0, 1, 3], "who waited")
    h.check_equal([d["objectId"] for d in got["normalDetail"]], ["0", "1", "3"], "normal ones")
    h.check(EPOCH // 10**9 < got["timestamp"] < EPOCH // 10**9 + 60, "timestamp %d" % got["timestamp"])


def test_localize_healthy_and_cannot_tell():
    got, _ = result("localize", job(h.tmpdir()))
    h.check_equal((got["resultCode"], got["verdict"], got["abnormalDetail"]), (200, "healthy", []), "healthy")
    got, _ = result("localize", job(h.tmpdir(), ranks=1))
    h.check_equal((got["resultCode"], got["verdict"]), (200, "cannot tell"), "one rank")
    h.check(got["errorMsg"], "no reason given")
    got, _ = result("localize", job(h.tmpdir(), markers=False))
    h.check_equal(got["verdict"], "cannot tell", "no collectives")


def test_localize_range():
    source = job(h.tmpdir(), late=2)
    h.check_equal(result("localize", source, "--to", "29")[0]["verdict"], "healthy", "before the fault")
    h.check_equal(result("localize", source, "--from", "20")[0]["verdict"], "found", "around the fault")
    h.check_equal(run("localize", "--input", source, "--from", "noon").status, 2, "a range that is none")


def test_nothing_to_judge():
    empty = h.tmpdir()
    for command in ("failslow", "localize"):
        done = run(command, "--input", empty, "--output", h.tmpdir()).ok(3)
        h.check("timeline" in done.err, done.err)
        h.check_equal(run(command, "--input", empty + "/absent").status, 1, "no such directory")
        nowhere = dict(os.environ, SYSTRACE_DUMP_PATH=empty + "/absent")
        h.check_equal(h.run([h.SYSTRACE, command], env=nowhere).status, 2, "no input")
    short = job(h.tmpdir(), steps=5, markers=False)
    h.check("too few" in run("failslow", "--input", short, "--output", h.tmpdir()).ok(3).err, "five steps")


def test_bad_bytes():
    """Torn, empty and random files beside good ones: a remark, and the verdict all the same."""
    source = job(h.tmpdir(), ranks=8, late=2)
    rng = random.Random(3)
    h.write_file(source + "/mspti/mspti-marker-10.0.0.1-9.csv", "")
    h.write_file(source + "/timeline/host--00009.timeline", rng.randbytes(5000))
    h.write_file(source + "/timeline/noise.bin", rng.randbytes(70000))
    for name, cut in (("timeline/host--00006.timeline", 0.9), ("mspti/mspti-marker-10.0.0.1-5.csv", 0.8)):
        path = os.path.join(source, name)
        text = h.read_file(path)
        h.write_file(path, text[:int(len(text) * cut)])
    h.check_equal([d["objectId"] for d in result("localize", source)[0]["abnormalDetail"]], ["2"], "accused")
    h.check_equal(result("failslow", source)[0]["onset_step"], 30, "onset")
    for size in (1, 100, 4000):
        path = h.write_file(h.tmpdir() + "/x", rng.randbytes(size))
        for command in ("failslow", "localize"):
            done = run(command, "--input", path, "--output", h.tmpdir())
            h.check(done.status in (1, 3) and done.err, repr(done))


def test_configuration():
    source = job(h.tmpdir(), late=1)
    out = h.tmpdir()
    config = h.write_file(h.tmpdir() + "/model_config.json", json.dumps({
        "training_log": source, "fail_slow_perception_path": out + "/x/name.json", "anomaly_degree_thr": 0.9,
        "algorithm": "documented", "save_image": "null", "look_back": 20}))
    got = json.loads(run("failslow", "--config", config, "--json").ok().out)
    h.check_equal((got["anomaly_type"], got["algorithm"]), ("normal", "documented"), "threshold 0.9")
    h.check_equal(len(glob.glob(out + "/x/fail_slow_perception_result_normal_*.json")), 1, "result files")
    for text, key in (('{"k_sigma": "three"}', "k_sigma"), ('{"steps_window_size": 0}', "steps_window_size"),
                      ('{"max_data_queue_steps": 1.5}', "max_data_queue_steps"), ('{"algorithm": "magic"}', "magic"),
                      ('{"robust_detect_type": {"speed": true}}', "robust_detect_type"), ("[1,2", "model_config"),
                      ("[]", "model_config")):
        h.write_file(config, text)
        done = run("failslow", "--config", config, "--input", source, "--output", out).ok(1)
        h.check(key in done.err, "%s: %s" % (text, done.err))
    h.check("nobody" in run("failslow", "--config", "/nobody/x.json", "--input", source).ok(1).err, "absent file")


def test_default_input():
    """A configured path that does not exist: the dump path is read, and that is said (contract 26)."""
    config = h.write_file(h.tmpdir() + "/model_config.json", '{"root_path": "/nobody/here"}')
    env = dict(os.environ, SYSTRACE_DUMP_PATH=job(h.tmpdir(), late=2))
    done = h.run([h.SYSTRACE, "localize", "--config", config, "--output", h.tmpdir()], env=env).ok()
    h.check("Rank 2" in done.out and "/nobody/here does not exist" in done.err, repr(done))


def test_old_entry_points():
    """The scripts of the published tool, with their configuration as the only input."""
    source, out = job(h.tmpdir(), late=1), h.tmpdir()
    config = h.write_file(h.tmpdir() + "/model_config.json", json.dumps({
        "training_log": source + "/timeline/host--00000.timeline", "fail_slow_perception_path": out, "root_path": source,
        "slow_node_detection_path": out}))
    env = dict(os.environ, SYSTRACE_TOOL=h.SYSTRACE)
    for script, pattern in (("fail_slow_detection.py", "fail_slow_perception_result_failSlow_*.json"),
                            ("main.py", "slow_node_result_*.json")):
        h.run([os.path.join(h.ROOT, "compat", "failslow", script), "--config", config], env=env).ok()
        h.check_equal(len(glob.glob(os.path.join(out, pattern))), 1, pattern)


def test_generated_clusters():
    h.require(GENERATOR)
    python = h.python_with("numpy")
    scenarios = (("healthy", ["--ranks", "16", "--tp", "4", "--dp", "2", "--pp", "2"]),
                 ("tp", ["--ranks", "8", "--tp", "4", "--dp", "2", "--pp", "1", "--fault", "compute:3:0.3:50"]),
                 ("dp", ["--ranks", "8", "--tp", "1", "--dp", "8", "--pp", "1", "--fault", "compute:6:0.3:50"]),
                 ("link", ["--ranks", "16", "--tp", "4", "--dp", "1", "--pp", "4", "--fault", "comm:1+5:40:50"]),
                 ("loss", ["--ranks", "16", "--tp", "4", "--dp", "2", "--pp", "2", "--fault", "launch:9:0.3:50",
                           "--noise", "loss ragged"]),
                 ("hang", ["--ranks", "8", "--tp", "4", "--dp", "2", "--pp", "1", "--fault", "hang:5:1:60"]))
    corpus, results = h.tmpdir(), h.tmpdir()
    for name, args in scenarios:
        done = subprocess.run([python, GENERATOR, "one", "--out", corpus + "/" + name, "--name", name, "--steps", "90",
                               "--seed", "77", *args], stdout=subprocess.DEVNULL)
        h.check_equal(done.returncode, 0, "generator")
        for command in ("failslow", "localize"):
            run(command, "--input", corpus + "/" + name, "--output", results + "/" + name).ok()
    score = subprocess.run([python, GENERATOR, "score", "--corpus", corpus, "--results", results], text=True,
                           stdout=subprocess.PIPE).stdout
    h.check("WRONG" not in score and score.count(" ok\n") == len(scenarios), score)


if __name__ == "__main__":
    h.require(h.SYSTRACE)
    h.main(test_failslow_fields, test_failslow_normal_also_writes, test_no_result_is_overwritten, test_failslow_words, test_training_log,
           test_localize_fields, test_localize_healthy_and_cannot_tell, test_localize_range, test_nothing_to_judge,
           test_bad_bytes, test_configuration, test_default_input, test_old_entry_points, test_generated_clusters)
