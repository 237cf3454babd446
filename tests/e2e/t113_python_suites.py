#!/usr/bin/env python3
# SPDX-License-Identifier: MulanPSL-2.0
# runner: full
# runner: timeout 1200
"""CPython's own test suites while some 500 functions of the modules under test are traced: whatever a hook breaks in the
behaviour of Python code of any shape shows here. Interpreters without the package `test` are left out.
"""

import os
import re

import harness
import python_host

TMP = harness.tmpdir()
HOST = python_host.build(TMP)

SETS = (
    ("argparse ast calendar configparser contextlib copy csv dataclasses difflib enum fractions functools",
     "test_argparse test_calendar test_configparser test_contextlib test_copy test_csv test_dataclasses test_difflib "
     "test_enum test_fractions test_functools"),
    ("glob heapq html.parser inspect json.decoder json.encoder pprint queue random reprlib re sre_parse sre_compile "
     "re._parser re._compiler shlex statistics string",
     "test_glob test_heapq test_htmlparser test_json test_pprint test_queue test_random test_reprlib test_re test_shlex "
     "test_statistics test_string"),
    ("textwrap tokenize traceback types typing unittest.case unittest.mock urllib.parse uuid weakref xml.dom.minidom",
     "test_textwrap test_tokenize test_traceback test_typing test_urlparse test_uuid test_weakref test_minidom"),
)


def failures(result):
    """Names of the suites that failed, from the summary of regrtest."""
    text = re.search(r"^\d+ tests? failed.*?:\n((?:    .*\n)+)", result.out, re.M)
    return set(text.group(1).split()) if text else set()


def run_suites(python, suites, listed):
    report = os.path.join(TMP, "report")
    if os.path.exists(report):
        os.unlink(report)
    env = python_host.env(HOST, FAKE_START="1", FAKE_LIST=listed, FAKE_REPORT=report, PYTHONPATH=None)
    traced = harness.run([python, "-m", "test", "-q", *suites.split()], env=env, timeout=600, cwd=TMP)
    failed = failures(traced)
    if traced.status != 0 or failed:  # suites that this machine fails anyway do not count
        env.pop("LD_PRELOAD")
        plain = harness.run([python, "-m", "test", "-q", *suites.split()], env=env, timeout=600, cwd=TMP)
        harness.check((plain.status, failures(plain)) == (traced.status, failed), "%s: with us %r failed, without %r; %r" % (
            python, failed, failures(plain), traced))
    rows = [line.split(" ", 3) for line in harness.read_file(report).splitlines()]
    attached, calls, still_open = max((int(r[0]), int(r[1]), int(r[2])) for r in rows)
    harness.check(attached > 50 and calls > 1000 and still_open == 0, "%s: %d functions, %d calls, %d still open" % (
        python, attached, calls, still_open))


def test_suites():
    tried = 0
    for version, python in harness.pythons().items():
        if harness.run([python, "-c", "import test.support, test.test_json"]).status != 0:
            continue
        tried += 1
        for modules, suites in SETS:
            rows = harness.run([python, os.path.join(python_host.GUEST_DIR, "list_stdlib.py"), *modules.split()]).ok().out
            run_suites(python, suites, harness.write_file(os.path.join(TMP, "list"), rows))
        print("CPython %d.%d" % version, flush=True)
    if not tried:
        harness.skip("no interpreter here has the package test")


if __name__ == "__main__":
    harness.main(test_suites)
