#!/usr/bin/env python3
# SPDX-License-Identifier: MulanPSL-2.0
"""systrace convert timeline and mspti: both formats pass the strict checkers, hold the same slices, count what is missing,
and no half of a file is ever left."""

import gzip
import json
import os
import subprocess
import sys

from harness import ROOT, SYSTRACE, check, check_equal, main, read_file, require, run, skip, tmpdir, write_file
import timeline_files as files

# beside the project, or beside the folder of its work trees
TOOLS = next((t for t in (os.path.join(ROOT, up, "shared", "tools") for up in ("..", "../..")) if os.path.isdir(t)),
             os.path.join(ROOT, "..", "shared", "tools"))
FORMATS = {"chrome": ".json", "perfetto": ".pftrace"}


def checker(output, fmt):
    """What the strict checker of the format says; the test is skipped without it."""
    script = os.path.join(TOOLS, "check_%s.py" % fmt)
    if not os.path.exists(script):
        skip("the checkers are not there (%s)" % os.path.basename(script))
    args = [sys.executable, script, output]
    if fmt == "chrome":
        args.append("--require-names")
    result = run(args)
    check(result.status == 0, "%s: %s" % (output, result))
    return json.loads(result.out.splitlines()[0])


def slices(output, fmt):
    """Set of (track, name, start ns, dur ns), times absolute."""
    shift = []
    if fmt == "chrome":
        with open(output) as f:
            shift = ["--shift-ns", json.load(f)["metadata"]["base_time_ns"]]
    out = run([sys.executable, os.path.join(TOOLS, "check_%s.py" % fmt), output, "--dump-slices", *shift]).ok().out
    return sorted(out.splitlines())


def convert(*args, kind="timeline", status=0):
    return run([SYSTRACE, "convert", kind, *args]).ok(status)


def whole_directory():
    """Four ranks, pb and JSON and gz, segments, drops, markers on one axis; contract 34."""
    d = files.dump_directory(tmpdir() + "/dump")
    got = {}
    for fmt, suffix in FORMATS.items():
        out = os.path.join(d, "..", "out" + suffix)
        result = convert("--input", d, "--output", out, "--format", fmt, "--json")
        summary = json.loads(result.out)
        check_equal(summary["ranks"], 4, "ranks")
        check_equal(summary["steps"], 24, "steps")
        check_equal(summary["lost"], 31 + 12 + 5, "lost")
        check_equal(summary["open"], 3, "open operations (a lost row each, and the cut one)")
        check_equal(summary["run"], "run-a", "run")
        check_equal(summary["bytes"], os.path.getsize(out), "bytes")
        check(700_000_000 <= summary["span_ns"] < 900_000_000, "span: %s ns" % summary["span_ns"])
        check("run-old" in result.err, "the other run is not named: %s" % result.err)
        check("the last row is cut" in result.err, "the cut CSV is not mentioned: %s" % result.err)
        check(not os.path.exists(out + ".part"), "%s.part is left" % out)
        report = checker(out, fmt)
        check_equal(report["violations"], 0, "violations")
        got[fmt] = slices(out, fmt)
        check_equal(len(got[fmt]), summary["slices"], "slices in the file")
    check_equal(got["chrome"], got["perfetto"], "slices of both formats")
    text = "\n".join(got["chrome"])
    for want in ("rank 3 (node0)/steps\tstep 6\t", "rank 1 (node0)/main thread 1001 (python3)\tmodel@forward",
                 "rank 2 (node0)/worker 2002\tdataset@decode", "/thread 1050 (pt_autograd_0)\tengine@run",
                 "rank 0 (node0)/collectives, device 0 stream 11\tHcclAllReduce",
                 "rank 0 (node0)/collectives (per step)\tall_gather", "rank 0 (node0)/short calls (per step)\tGC"):
        check(want in text, "no slice %r in\n%s" % (want, text))
    # a stage's begin is exact on the axis of CLOCK_MONOTONIC, and so is the wall-clock marker
    check("step 1\t%d\t100000000" % (50_100_000_000) in text, "step 1 of rank 0 is not at its time")
    check("HcclAllReduce\t%d\t50000" % 50_010_000_000 in text, "a host marker is not at its time")


def arguments_and_losses():
    d = files.dump_directory(tmpdir() + "/dump")
    out = os.path.join(d, "..", "o.json")
    convert("--input", d, "--output", out)
    with open(out) as f:
        trace = json.load(f)
    events = trace["traceEvents"]
    lost = [e for e in events if e["ph"] == "i" and e["name"] == "lost: pool"]
    check_equal(sorted(e["args"]["count"] for e in lost), [12, 31], "loss events")
    forward = [e for e in events if e["name"] == "attention@forward"][0]
    check_equal(forward["args"]["stack"], ["attend@model.py:7", "run@train.py:3"], "stack")
    check_equal((forward["args"]["step"], forward["args"]["stage_id"]), (1, 1), "step and stage_id")
    raised = [e for e in events if e["name"] == "model@backward" and "quality" in e["args"]]
    check_equal({(e["args"]["step"], e["args"]["quality"]) for e in raised}, {(5, "left by an exception")}, "exceptions")
    gc = [e for e in events if e["name"] == "GC" and "generation" in e["args"]][0]
    check_equal(gc["args"]["collected"], 17, "collected")
    check_equal({e["args"]["ms"] for e in events if e["ph"] == "C"}, {100.0}, "step time")
    check(all(isinstance(e["pid"], int) and isinstance(e["tid"], int) for e in events), "pids and tids are integers")
    check(any("records were lost while recording" in n for n in trace["metadata"]["notes"]), "no note about losses")
    device = [e for e in events if e["name"].startswith("Hccl") and "device" in e["args"]["side"]]
    check_equal({e["args"]["dtype"] for e in device}, {"bfp16"}, "dtype")


def runs_are_not_joined():
    d = files.dump_directory(tmpdir() + "/dump")
    out = os.path.join(d, "..", "o.json")
    old = json.loads(convert("--input", d, "--output", out, "--run", "run-old", "--json").out)
    check_equal((old["ranks"], old["steps"]), (1, 2), "ranks and steps of the older run")
    missing = convert("--input", d, "--output", out, "--run", "nosuch", status=1)
    check("run-a" in missing.err and "run-old" in missing.err, "the runs are not named: %s" % missing.err)


def same_from_every_form():
    """Protobuf, our JSON, canonical JSON, gz and zst of the same records give the same file."""
    d = tmpdir()
    records = files.rank_records(3, 5, drops=2)
    forms = {"a.pb": files.protobuf(records), "b.json": files.as_json(records), "c.json": files.as_json(records, True),
             "d.gz": gzip.compress(files.protobuf(records))}
    first = None
    for name, data in forms.items():
        path = write_file(os.path.join(d, name), data)
        out = os.path.join(d, "out.json")
        convert("--input", path, "--output", out)
        events = sorted(json.dumps(e, sort_keys=True) for e in json.loads(read_file(out))["traceEvents"])
        first = first or events
        check_equal(events, first, "events of %s" % name)


def old_files():
    """The published schema: wall-clock axis, rank from the name."""
    d = tmpdir()
    path = write_file(os.path.join(d, "host--00007.timeline"), files.protobuf(files.old_records(50)))
    for fmt, suffix in FORMATS.items():
        out = os.path.join(d, "o" + suffix)
        summary = json.loads(convert("--input", path, "--output", out, "--json").out)
        check_equal((summary["slices"], summary["ranks"]), (150, 1), "slices and ranks")
        report = checker(out, fmt)
        check_equal(report["violations"], 0, "violations")
        text = slices(out, fmt)
        check(any(line.startswith("rank 7/") and "\tforward\t%d\t400000" % (files.WALL + 1_100_000) in line for line in text),
              "forward of the first step: %s" % text[:5])


def markers_alone():
    d = tmpdir()
    path = write_file(os.path.join(d, "mspti-marker-10.0.0.9-5.csv"), files.marker_rows(5, 2000))
    for fmt, suffix in FORMATS.items():
        out = os.path.join(d, "o" + suffix)
        summary = json.loads(convert("--input", path, "--output", out, "--json", kind="mspti").out)
        check_equal((summary["slices"], summary["instants"], summary["open"]), (4000, 500, 1), "slices, instants, open")
        check_equal(checker(out, fmt)["violations"], 0, "violations")


def standard_output_and_input():
    d = tmpdir()
    path = write_file(os.path.join(d, "host--00007.timeline"), files.protobuf(files.rank_records(7, 3)))
    direct = os.path.join(d, "o.json")
    convert("--input", path, "--output", direct)
    with open(path, "rb") as stdin:
        done = subprocess.run([SYSTRACE, "convert", "timeline", "--input", "-", "--output", "-"], stdin=stdin,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)
    check_equal(done.returncode, 0, "status")
    check_equal(done.stdout.decode(), read_file(direct), "standard output")
    check("steps" in done.stderr.decode(), "no summary on stderr")
    full = subprocess.run([SYSTRACE, "convert", "timeline", path, "--output", "/dev/full"], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, timeout=60)
    check_equal(full.returncode, 1, "status on a full disk")
    check(b"No space left" in full.stderr, "message on a full disk: %r" % full.stderr)


def names_of_any_bytes():
    """Quotes, control characters, broken UTF-8 in names: both files stay valid."""
    d = tmpdir()
    names = [b'a"b\\c', b"tab\tnew\nline", b"\xff\xfe broken", "größe ✓".encode(), b"\xed\xa0\x80", b"nul\x00byte", b"\x7f"]
    records = files.rank_records(0, 1)
    data = files.protobuf(records)
    for i, name in enumerate(names):
        data += files.field(1, files.message("stage", {"stage_id": 1, "stage_type": name, "start_ns": 60_000_000_000 + i * 100,
                                                       "dur_ns": 50, "kind": 2}))
    path = write_file(os.path.join(d, "n--0.timeline"), data)
    for fmt, suffix in FORMATS.items():
        out = os.path.join(d, "o" + suffix)
        convert("--input", path, "--output", out)
        check_equal(checker(out, fmt)["violations"], 0, "violations")


def overlaps_go_to_lanes():
    """Stages of one thread that overlap, as no call stack can: none is lost, all lanes nest."""
    d = tmpdir()
    records = files.rank_records(0, 0)[:1]
    for i in range(200):
        records.append(("stage", {"stage_id": 1, "stage_type": "s%d" % i, "start_ns": 10 ** 9 + i * 10, "dur_ns": 75 + i % 3,
                                  "kind": 2}))
    path = write_file(os.path.join(d, "n--0.timeline"), files.protobuf(records))
    for fmt, suffix in FORMATS.items():
        out = os.path.join(d, "o" + suffix)
        convert("--input", path, "--output", out)
        check_equal(checker(out, fmt)["violations"], 0, "violations")
        got = slices(out, fmt)
        check_equal(len(got), 200, "slices")
        check_equal(len({line.split("\t")[0] for line in got}), 8, "lanes")


def what_goes_wrong():
    d = tmpdir()
    empty = write_file(os.path.join(d, "empty"), b"")
    odd = write_file(os.path.join(d, "odd.timeline"), b"\x7fELF" + bytes(100))
    out = os.path.join(d, "o.json")
    for args, status, want in (
            (["--input", empty, "--output", out], 1, "is empty"),
            (["--input", odd, "--output", out], 1, "7f 45 4c 46"),
            (["--input", os.path.join(d, "absent"), "--output", out], 1, "absent"),
            (["--input", d], 2, "--output is missing"),
            (["--output", out], 2, "--input is missing"),
            (["--input", tmpdir(), "--output", out], 3, "no file to convert")):
        result = convert(*args, status=status)
        check(want in result.err, "%s: want %r in %r" % (args, want, result.err))
        check(not os.path.exists(out), "%s left an output" % args)
    good = write_file(os.path.join(d, "h--1.timeline"), files.protobuf(files.rank_records(1, 3)))
    refused = convert("--input", good, "--output", os.path.join(d, "no", "dir", "o.json"), status=1)
    check("cannot create" in refused.err, refused.err)


require(SYSTRACE)
main(whole_directory, arguments_and_losses, runs_are_not_joined, same_from_every_form, old_files, markers_alone,
     standard_output_and_input, names_of_any_bytes, overlaps_go_to_lanes, what_goes_wrong)
