#!/usr/bin/env python3
# SPDX-License-Identifier: MulanPSL-2.0
"""What the agent writes, in protobuf and in JSON, converts to a valid trace with the steps that the job made."""

import json
import os

import jobs
from harness import AGENT, SYSTRACE, check, check_equal, main, preload_env, python_with, require, run, tmpdir

STEPS = 12


def convert_recorded(form):
    d = tmpdir()
    job = jobs.Job(python_with("json"), preload_env(d, SYSTRACE_ENABLE="1", SYSTRACE_FORMAT=form, RANK="3", WORLD_SIZE="8"))
    job.wait_attached()
    job.train(STEPS)
    job.quit().ok()
    out = os.path.join(d, "out.json")
    summary = json.loads(run([SYSTRACE, "convert", "timeline", "--input", d, "--output", out, "--json"]).ok().out)
    check_equal(summary["ranks"], 1, "ranks")
    check_equal(summary["torn"], False, "torn")
    check(summary["steps"] >= STEPS, "steps: %s" % summary)
    with open(out) as f:
        trace = json.load(f)
    names = {e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name"}
    check(len(names) == 1 and next(iter(names)).startswith("rank 3"), "processes: %s" % names)
    steps = {e["args"]["step"] for e in trace["traceEvents"] if e["ph"] == "B" and e["cat"] == "step"}
    check(set(range(1, STEPS + 1)) <= steps, "steps in the trace: %s" % sorted(steps))
    stages = [e for e in trace["traceEvents"] if e["ph"] == "X" and e["cat"] == "stage"]
    check(stages, "no stage in the trace")


def protobuf():
    convert_recorded("pb")


def json_with_companion():
    convert_recorded("json")


require(SYSTRACE, AGENT)
main(protobuf, json_with_companion)
