#!/usr/bin/env python3
# SPDX-License-Identifier: MulanPSL-2.0
"""systrace-failslow: one verdict with --once; watching a growing timeline: first verdict at once, a file per change, a
lasting fault stays one finding until it ends; reload, status, the command on a finding, bad input."""

import glob
import json
import os
import signal
import subprocess
import time

import harness as h
import t500_failslow_localize as t500
from t500_failslow_localize import job

SERVICE = os.path.join(h.BUILD, "systrace-failslow")


def steps(times, begin=None):
    begin = int(time.time() * 1000) - 100000 if begin is None else begin
    out = []
    for number, ms in enumerate(times):
        out.append({"stage_id": number, "stage_type": "dataloader", "start_us": begin * 1000, "end_us": begin * 1000 + 1000})
        begin += ms
    return out


def put(source, times, begin=None):
    path = source + "/timeline/host--00000.timeline"
    h.write_file(path + ".new", json.dumps({"rank": 0, "step_id": 1, "comm": "python3", "pytorch_stages": steps(times, begin)}))
    os.rename(path + ".new", path)


class Service:
    def __init__(self, *args, env=None, program=SERVICE):
        self.runtime = h.tmpdir()
        self.log = h.tmpdir() + "/log"
        self.env = dict(os.environ, XDG_RUNTIME_DIR=self.runtime, **(env or {}))
        with open(self.log, "w", encoding="utf-8") as log:
            self.process = subprocess.Popen([program, *args], stderr=log, stdout=subprocess.DEVNULL, env=self.env)

    def wait_log(self, text, count=1):
        for _ in range(600):
            if h.read_file(self.log).count(text) >= count:
                return
            time.sleep(0.05)
        raise h.CheckFailed("no %d x %r in the log:\n%s" % (count, text, h.read_file(self.log)))

    def status(self):
        done = subprocess.run([SERVICE, "--status", "--json"], env=self.env, stdout=subprocess.PIPE, text=True, check=False)
        return done.returncode, json.loads(done.stdout)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        h.check_equal(self.process.wait(30), 0, "exit status")


def kinds(out):
    return sorted(os.path.basename(p).rsplit("_", 1)[0].replace("fail_slow_perception_result_", "")
                  for p in glob.glob(out + "/*.json"))


def test_once():
    out = h.tmpdir()
    h.run([SERVICE, "--once", "--input", job(h.tmpdir(), late=2), "--output", out]).ok()
    h.check_equal(kinds(out), ["failSlow", "slow_node_result"], "files")
    got = json.loads(h.read_file(glob.glob(out + "/slow_node*")[0]))
    h.check_equal([d["objectId"] for d in got["abnormalDetail"]], ["2"], "accused")
    out = h.tmpdir()
    h.run([SERVICE, "--once", "--input", job(h.tmpdir()), "--output", out]).ok()
    h.check_equal(kinds(out), ["normal"], "a healthy job")
    h.run([SERVICE, "--once", "--input", h.tmpdir(), "--output", out]).ok(3)


def test_watches_growth():
    source, out = h.tmpdir(), h.tmpdir()
    os.mkdir(source + "/timeline")
    begin = int(time.time() * 1000) - 600000
    even = [1000 + n % 7 for n in range(40)]
    put(source, even, begin)
    service = Service("--input", source, "--output", out, "--interval", "0.1")
    service.wait_log("event=pass")
    h.check_equal(kinds(out), ["normal"], "first verdict")
    put(source, even + [1500] * 20, begin)
    service.wait_log("failSlow_")
    passes = h.read_file(service.log).count("event=pass")
    put(source, even + [1500] * 60, begin)
    service.wait_log("event=pass", passes + 4)
    h.check_equal(kinds(out), ["failSlow", "normal"], "a lasting fault is one finding")
    code, status = service.status()
    h.check_equal((code, status["verdict"], status["running"]), (0, "failSlow", True), "status")
    put(source, even + [1500] * 60 + [1000] * 30, begin)
    service.wait_log("failSlow_", 2)
    newest = json.loads(h.read_file(service.status()[1]["last_result"]))
    h.check_equal(newest["recovered"], True, "the end of the fault")
    service.stop()
    h.check_equal(service.status()[0], 3, "status of a stopped service")


def varint(value):
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def pb_steps(times, begin_ms):
    """Timeline as protobuf: the rank, then a loader stage a step."""
    out, pieces = begin_ms, [varint(2 << 3) + varint(0)]
    for number, ms in enumerate(times):
        stage = b""
        for field, value in ((1, number), (3, out * 1000), (4, out * 1000 + 1000)):
            stage += varint(field << 3) + varint(value)
        stage += varint(2 << 3 | 2) + varint(10) + b"dataloader"
        pieces.append(varint(1 << 3 | 2) + varint(len(stage)) + stage)
        out += ms
    return pieces


def test_reads_only_what_was_added():
    """A protobuf timeline that grows, cut in the middle of a record; a part of it is read once; replaced it is read anew."""
    source, out = h.tmpdir(), h.tmpdir()
    os.mkdir(source + "/timeline")
    path = source + "/timeline/host--00000.timeline"
    begin = int(time.time() * 1000) - 600000
    pieces = pb_steps([1000 + n % 7 for n in range(300)] + [1500] * 40, begin)
    whole = b"".join(pieces)
    first = len(b"".join(pieces[:200])) + 5
    h.write_file(path, whole[:first])
    service = Service("--input", source, "--output", out, "--interval", "0.1")
    service.wait_log("steps=198 ")
    service.wait_log("steps=198 read_bytes=0")
    with open(path, "ab") as f:
        f.write(whole[first:])
    service.wait_log("failSlow_")
    passes = [line for line in h.read_file(service.log).splitlines() if "event=pass" in line and "steps=339 " in line]
    read = int(passes[0].split("read_bytes=")[1].split()[0])
    h.check_equal(read, len(whole) - len(b"".join(pieces[:200])), "bytes: what was added, and the record that was cut")
    once = json.loads(h.run([h.SYSTRACE, "failslow", "--input", source, "--output", h.tmpdir(), "--json"]).ok().out)
    got = json.loads(h.read_file(glob.glob(out + "/*failSlow_*")[0]))
    same = ("anomaly_count_times", "onset_step", "steps", "slowdown")
    h.check_equal([got[k] for k in same], [once[k] for k in same], "the same as reading all of it at once")
    h.write_file(path + ".new", b"".join(pb_steps([1000 + n % 7 for n in range(100)], begin)))
    os.rename(path + ".new", path)
    service.wait_log("steps=99 ")
    service.stop()


def test_hang_and_hook():
    source, out, mark = h.tmpdir(), h.tmpdir(), h.tmpdir() + "/mark"
    os.mkdir(source + "/timeline")
    put(source, [1000] * 40, int(time.time() * 1000) - 41000 - 30 * 60000)
    config = h.write_file(h.tmpdir() + "/model_config.json", json.dumps(
        {"on_finding": "cp \"$1\" %s" % mark, "hang_times_mins_thr": 10}))
    service = Service("--input", source, "--output", out, "--config", config, "--interval", "0.1")
    service.wait_log("hang_")
    service.wait_log("event=pass", 4)
    h.check_equal(kinds(out).count("hang"), 1, "said once")
    h.check_equal(json.loads(h.read_file(mark))["anomaly_type"], "hang", "the command got the file")
    service.stop()


def test_hang_long_before_the_limit():
    """Ranks in a collective that one of them never began: a hang after a minute, though the limit is half an hour."""
    before, t500.EPOCH = t500.EPOCH, int((time.time() - 60 * 0.4 - 180) * 1e9)
    source, out = job(h.tmpdir(), ranks=4, steps=60), h.tmpdir()
    t500.EPOCH = before
    for rank in range(4):
        path = "%s/mspti/mspti-marker-10.0.0.1-%d.csv" % (source, rank)
        lines = h.read_file(path).splitlines(True)
        # of the last step's calls the last five are gone; the others are in the next one
        h.write_file(path, "".join(lines[:-10] + ([] if rank == 2 else lines[-10:-9])))
    service = Service("--input", source, "--output", out, "--interval", "0.1")
    service.wait_log("slow_node_result")
    service.wait_log("event=pass", 3)
    h.check_equal(kinds(out), ["hang", "slow_node_result"], "files")
    got = json.loads(h.read_file(glob.glob(out + "/slow_node*")[0]))
    h.check_equal([(d["objectId"], d["kpiId"]) for d in got["abnormalDetail"]], [("2", "Hang")], "who")
    evidence = got["abnormalDetail"][0]["evidence"]
    h.check_equal((evidence["last_operation"], evidence["last_operation_id"], evidence["waiting_ranks"]), ("HcclAllGather", 715, 3),
                  "60 x 12 calls less five: the last one that it began, and who is in the next")
    service.stop()


def test_reload():
    source, out = h.tmpdir(), h.tmpdir()
    os.mkdir(source + "/timeline")
    put(source, [1000 + n % 7 for n in range(40)])
    config = h.write_file(h.tmpdir() + "/model_config.json", "{}")
    service = Service("--input", source, "--output", out, "--config", config, "--interval", "1000")
    service.wait_log("event=pass")
    h.write_file(config, '{"k_sigma": "x"}')
    service.process.send_signal(signal.SIGHUP)
    service.wait_log("k_sigma is")
    service.wait_log("event=pass", 2)
    h.write_file(config, '{"k_sigma": 4}')
    service.process.send_signal(signal.SIGHUP)
    service.wait_log("event=reload")
    service.wait_log("event=pass", 3)
    service.stop()


def test_waits_for_data():
    source, out = h.tmpdir(), h.tmpdir()
    service = Service("--input", source, "--output", out, "--interval", "0.1")
    service.wait_log("verdict=waiting")
    os.mkdir(source + "/timeline")
    put(source, [1000 + n % 7 for n in range(40)])
    service.wait_log("verdict=normal")
    service.stop()
    h.check_equal(kinds(out), ["normal"], "files")


if __name__ == "__main__":
    h.require(SERVICE)
    h.main(test_once, test_watches_growth, test_reads_only_what_was_added, test_hang_and_hook, test_hang_long_before_the_limit, test_reload, test_waits_for_data)
