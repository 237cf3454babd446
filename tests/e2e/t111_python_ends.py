#!/usr/bin/env python3
# SPDX-License-Identifier: MulanPSL-2.0
"""A traced Python process ends as it would have without us, and a plain one stays alone until a framework comes
(tests/fake/python_host.c; design §2 dormant, §3 threads).
"""

import os
import signal
import sys

import harness
import python_host

TMP = harness.tmpdir()
HOST = python_host.build(TMP)
LIST = python_host.GUEST_DIR + "/sample.list"
ENDS = {  # way: (exit status, stdout, last line of stderr)
    "plain": (0, "at exit\n", ""),
    "daemon_threads": (0, "", ""),
    "while_importing": (0, "", ""),
    "holds_gil": (0, "", ""),
    "status_3": (3, "", ""),
    "os_exit": (4, "", ""),
    "uncaught": (1, "", "KeyError: 1"),
    "killed": (-signal.SIGTERM, "", ""),
    "stopped_first": (0, "", ""),
    "forks": (0, "", ""),
}


def run_end(python, way):
    got = python_host.run(HOST, python, "ends.py", way, timeout=30, FAKE_START="1", FAKE_LIST=LIST)
    status, out, err = ENDS[way]
    last = (got.err.strip().splitlines() or [""])[-1]
    harness.check((got.status, got.out, last) == (status, out, err), "%s under %s: %r" % (way, python, got))
    if not err:
        harness.check(got.err == "", "%s under %s wrote to stderr: %s" % (way, python, got.err))
    return got


def test_ends():
    for python in harness.pythons().values():
        for way in ENDS:
            for _ in range(4 if way in ("while_importing", "daemon_threads") else 1):
                run_end(python, way)


def test_too_late_for_a_turn():
    for python in harness.pythons(lowest=(3, 9)).values():
        for _ in range(5):
            got = python_host.run(HOST, python, "ends_in_c.py", timeout=30, FAKE_START="1", FAKE_LIST=LIST)
            harness.check((got.status, got.out, got.err) == (0, "", ""), "under %s: %r" % (python, got))


def test_traceback_is_the_same():
    for python in harness.pythons().values():
        traced = run_end(python, "uncaught").err
        plain = python_host.run(HOST, python, "ends.py", "uncaught", FAKE_START="1", FAKE_LIST=LIST, FAKE_OFF="1",
                                GUEST_NO_WAIT="1").err
        harness.check_equal(traced, plain, "traceback under " + python)


DORMANT = """
import os, sys, json, decimal
import guest
def threads():
    return len(os.listdir("/proc/self/task"))
assert guest.starts() == 0 and threads() == 1, (guest.starts(), threads())
import %s
assert guest.starts() == %d, guest.starts()
import csv, torch
assert guest.starts() == 1
guest.until(lambda: threads() == 2, "the thread")
"""


def test_a_framework_starts_the_agent():
    fake = os.path.join(TMP, "frameworks")
    for name in ("torch", "mindspore", "torchlike"):
        harness.write_file(os.path.join(fake, name, "__init__.py"), "")
    for python in harness.pythons().values():
        for name, starts in (("torch", 1), ("mindspore", 1), ("torchlike", 0)):
            env = python_host.env(HOST, FAKE_LIST=LIST, PYTHONPATH=python_host.GUEST_DIR + ":" + fake)
            result = harness.run([python, "-c", DORMANT % (name, starts)], env=env)
            harness.check(result.status == 0 and not result.err, "%s, import %s: %r" % (python, name, result))


def test_an_unknown_interpreter_is_left_alone():
    """One below 3.8, where there is one: nothing happens and the reason is told."""
    old = [v for v in ((3, 6), (3, 7)) if harness.pythons(lowest=v, highest=v)]
    if not old:
        harness.skip("no interpreter older than 3.8 here")
    code = ("import ctypes, time; lib = ctypes.CDLL(None); b = ctypes.create_string_buffer(4096); time.sleep(0.3); "
            "lib.fake_status(b, 4096); print(b.value.decode())")
    for version in old:
        python = harness.pythons(lowest=version, highest=version)[version]
        result = harness.run([python, "-c", code], env=python_host.env(HOST, FAKE_START="1", FAKE_LIST=LIST)).ok()
        harness.check(result.out.startswith("Python stages off: "), result)


if __name__ == "__main__":
    sys.exit(harness.main(test_ends, test_too_late_for_a_turn, test_traceback_is_the_same, test_a_framework_starts_the_agent,
                          test_an_unknown_interpreter_is_left_alone))
