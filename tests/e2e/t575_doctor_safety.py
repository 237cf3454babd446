#!/usr/bin/env python3
# SPDX-License-Identifier: MulanPSL-2.0
"""`systrace doctor` on what jobs are protected from (docs/safety.md): it tries each thing, so that what a filter, a full or
taken spool or an open socket directory take away is said, with what follows from it."""

import ctypes
import errno
import json
import os
import platform
import shutil
import struct
import subprocess

import harness as h

h.require(h.SYSTRACE)
SECTION = "What jobs are protected from here"
NUMBERS = {"close_range": 436, "openat2": 437, "process_vm_readv": {"x86_64": 310, "aarch64": 270}[platform.machine()],
           "unshare": {"x86_64": 272, "aarch64": 97}[platform.machine()],
           "madvise": {"x86_64": 28, "aarch64": 233}[platform.machine()]}


def refuse(*names):
    """For preexec_fn: these system calls fail with EPERM from here on, as below a container's filter."""
    program = [(0x20, 0, 0, 0)]  # load the number
    for name in names:
        program += [(0x15, 0, 1, NUMBERS[name]), (0x06, 0, 0, 0x00050000 | errno.EPERM)]
    program.append((0x06, 0, 0, 0x7fff0000))
    code = b"".join(struct.pack("<HBBI", *line) for line in program)
    buffer = ctypes.create_string_buffer(code, len(code))
    header = struct.pack("<HxxxxxxQ", len(program), ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)

    def install():
        if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, ctypes.c_char_p(header), 0, 0):
            os._exit(126)
    install.keep = buffer
    return install


def findings(env=None, prefix=(), refused=()):
    done = subprocess.run([*prefix, h.SYSTRACE, "doctor", "--json"], stdout=subprocess.PIPE, timeout=100,
                          env=dict(os.environ, **(env or {}), PATH="/nowhere"),
                          preexec_fn=refuse(*refused) if refused else None)
    h.check_equal(done.returncode, 0, "doctor's status")
    return {f["name"]: (f["level"], f["text"]) for f in json.loads(done.stdout)["findings"] if f["section"] == SECTION}


def test_every_promise_has_a_finding():
    found = findings()
    h.check_equal(set(found) - {"seccomp", "open files"}, {"descriptors", "forked children", "killed jobs", "recovery",
                                                           "containers", "sockets", "late environment"}, "findings")


def test_a_filter_takes_away():
    found = findings(refused=["close_range"])
    h.check(found["descriptors"][0] == "ok" and "by hand" in found["descriptors"][1], repr(found["descriptors"]))
    h.check("seccomp" in found, "the filter is not mentioned: %r" % found)
    found = findings(refused=["close_range", "unshare", "openat2", "process_vm_readv", "madvise"])
    levels = {name: found[name][0] for name in ("descriptors", "containers", "late environment", "forked children")}
    h.check_equal(set(levels.values()), {"limited"}, "%r" % found)
    h.check("run sysTrace_cli inside" in found["containers"][1], repr(found["containers"]))


def test_a_taken_spool():
    base = h.tmpdir()
    os.mkdir("%s/sysTrace.%d" % (base, os.geteuid()))
    os.chmod("%s/sysTrace.%d" % (base, os.geteuid()), 0o777)
    level, text = findings({"SYSTRACE_SPOOL_PATH": base})["killed jobs"]
    h.check(level == "limited" and "mode 777" in text and "lose their last records" in text, repr((level, text)))
    h.check_equal(os.listdir(base), ["sysTrace.%d" % os.geteuid()], "doctor left files")


def test_a_full_spool():
    h.require("unshare")
    base = h.tmpdir()
    mount = [shutil.which("unshare"), "--mount"] + ([] if os.geteuid() == 0 else ["--user", "--map-root-user"])
    script = 'mount -t tmpfs -o size=64k none %s || exit 77; exec "$@"' % base
    if h.run([*mount, "sh", "-c", script, "sh", "true"]).status != 0:
        h.skip("no mount namespace here")
    level, text = findings({"SYSTRACE_SPOOL_PATH": base}, [*mount, "/bin/sh", "-c", "PATH=/usr/sbin:/usr/bin:/sbin:/bin; " + script,
                                                         "sh"])["killed jobs"]
    h.check(level == "limited" and "No space left" in text, repr((level, text)))


def test_an_open_socket_directory():
    base = h.tmpdir()
    os.chmod(base, 0o777)
    level, text = findings({"SYSTRACE_SOCKET_DIR": base})["sockets"]
    h.check(level == "limited" and "chmod +t" in text, repr((level, text)))


def test_few_descriptors():
    found = findings(prefix=["/bin/sh", "-c", 'ulimit -n 32; exec "$@"', "sh"])
    h.check("at most 32" in found.get("open files", ("", ""))[1], repr(found))


h.main(test_every_promise_has_a_finding, test_a_filter_takes_away, test_a_taken_spool, test_a_full_spool,
       test_an_open_socket_directory, test_few_descriptors)
