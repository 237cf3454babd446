#!/usr/bin/env python3
# SPDX-License-Identifier: MulanPSL-2.0
# runner: needs-root
# runner: alone
"""KernelShark's library (libkshark) opens what the native recorder writes, packed or not, and finds the same events as
trace-cmd report: as many of each name. Without the library: skipped (Debian: libkshark2)."""

import collections
import ctypes
import json
import os
import sys

import ftrace_state as ft
from harness import SYSTRACE, check_equal, main, require, require_root, run, skip, tmpdir

# run apart: the library prints, and keeps one context per process
READ = r"""
import collections, ctypes, json, sys
lib = ctypes.CDLL("libkshark.so.2")
context, rows = ctypes.c_void_p(), ctypes.POINTER(ctypes.c_void_p)()
assert lib.kshark_instance(ctypes.byref(context))
lib.kshark_open.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
lib.kshark_load_entries.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]
lib.kshark_load_entries.restype = ctypes.c_ssize_t
lib.kshark_get_event_name.argtypes = [ctypes.c_void_p]
lib.kshark_get_event_name.restype = ctypes.c_char_p
stream = lib.kshark_open(context, sys.argv[1].encode())
count = lib.kshark_load_entries(context, stream, ctypes.byref(rows))
print(json.dumps(collections.Counter(lib.kshark_get_event_name(rows[i]).decode() for i in range(count))))
"""

require_root()
require(SYSTRACE, "trace-cmd")
try:
    ctypes.CDLL("libkshark.so.2")
except OSError as error:
    skip("KernelShark's library is not here: %s" % error)
DIR = tmpdir()


def same_events(compress):
    name = os.path.join(DIR, compress + ".dat")
    run([SYSTRACE, "record", "--backend=native", "--record-time=0.5", "--compress=" + compress, "--output=" + name]).ok()
    want = collections.Counter(ft.event_name(line) for line in ft.report(name))
    out = run([sys.executable, "-c", READ, name]).ok().out
    got = collections.Counter({key.split("/")[-1]: n for key, n in json.loads(out.splitlines()[-1]).items()})
    check_equal(got, want, "events")


def test_zstd():
    same_events("zstd")


def test_raw_pages():
    same_events("none")


main(test_zstd, test_raw_pages)
