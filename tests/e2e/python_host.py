# SPDX-License-Identifier: MulanPSL-2.0
"""Builds tests/fake/python_host.c, the preload that holds the agent's Python side alone, and runs guest scripts under it.
Used by the t11x_python_*.py tests and by bench/bench_pycall.py.
"""

import glob
import os

import harness

GUEST_DIR = os.path.join(harness.ROOT, "tests", "e2e", "guest_python")


def sources():
    root = harness.ROOT
    found = [os.path.join(root, "tests", "fake", "python_host.c"), os.path.join(root, "src", "base", "err.c")]
    for pattern in ("src/agent/python/*.c", "src/safe/*.c"):
        found += sorted(glob.glob(os.path.join(root, pattern)))
    return [path for path in found if not path.endswith("/comm.c")]  # collectives: what a call means, not a hook


def build(directory, *flags):
    """The preload, compiled into directory; skips the test without gcc."""
    harness.require("gcc")
    root = harness.ROOT
    first, *others = sources()
    listed = os.path.join(root, "src", "agent", "python", "default_list.list")
    return harness.compile_c(first, os.path.join(directory, "python_host.so"), *others, "-O2", "-fPIC", "-shared",
                             "-fno-strict-aliasing", "-I" + os.path.join(root, "src"),
                             '-DST_PYTHON_LIST="%s"' % listed, "-Wl,-z,now", "-Wl,-z,nodelete", "-lpthread", "-ldl",
                             *flags)


def env(host, **extra):
    """Environment of a guest; a variable set to None is removed."""
    result = {k: v for k, v in os.environ.items() if not k.startswith(("SYSTRACE_", "FAKE_", "PYTHON"))}
    result.update(LD_PRELOAD=host, PYTHONPATH=GUEST_DIR, PYTHONDONTWRITEBYTECODE="1", PYTHONWARNINGS="ignore::DeprecationWarning")
    for name, value in extra.items():
        result[name] = value
    return {k: v for k, v in result.items() if v is not None}


def run(host, python, script, *args, timeout=60, **extra):
    """Run guest_python/<script> under the preload and an interpreter; returns the harness's Result."""
    return harness.run([python, os.path.join(GUEST_DIR, script), *args], env=env(host, **extra), timeout=timeout)
