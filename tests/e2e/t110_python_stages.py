#!/usr/bin/env python3
# SPDX-License-Identifier: MulanPSL-2.0
# runner: timeout 300
"""Python stages on every CPython at hand, against the agent's Python side alone (tests/fake/python_host.c): class methods,
decorated functions that share one code object, recursion depth, exceptions, generators and coroutines, functions that are
replaced, late imports, threads, sub-interpreters, fork, and that an introspector sees no difference (design §6).
"""

import harness
import python_host

HOST = python_host.build(harness.tmpdir())


def interpreters():
    found = list(harness.pythons().items())
    if ((3, 11), "/usr/bin/python3") not in found and harness.python_version("/usr/bin/python3"):
        found.append((harness.python_version("/usr/bin/python3"), "/usr/bin/python3"))
    return found


def test_scenarios():
    found = interpreters()
    for version, python in found:
        result = python_host.run(HOST, python, "scenarios.py", timeout=120, FAKE_START="1", FAKE_OFF="1",
                                 FAKE_LIST=python_host.GUEST_DIR + "/sample.list")
        harness.check(result.status == 0 and result.out.endswith("all ok\n"), "CPython %d.%d (%s): %r" % (
            *version, python, result))
        harness.check(result.err == "", "CPython %d.%d wrote to stderr: %s" % (*version, result.err))


if __name__ == "__main__":
    harness.main(test_scenarios)
