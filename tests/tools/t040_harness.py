# SPDX-License-Identifier: MulanPSL-2.0
"""The helpers that end-to-end scripts trust: verdicts, masks, golden files, processes that do not outlive a script."""

import os
import sys

E2E = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e")
sys.path.insert(0, E2E)
import harness
from harness import CheckFailed, check, check_equal, main, mask, preload_env, run, tmpdir, write_file


def script(text, status, *texts, **extra):
    """Run a script that uses the harness; its status and output are looked at."""
    path = write_file(os.path.join(tmpdir(), "t001_x.py"), "from harness import *\n" + text)
    result = run([sys.executable, path], env=dict(os.environ, PYTHONPATH=E2E, PYTHONDONTWRITEBYTECODE="1", **extra))
    result.ok(status)
    for want in texts:
        check(want in result.out, "want %r in %r" % (want, result))
    return result


def fails(function, *args, **kwargs):
    try:
        function(*args, **kwargs)
    except CheckFailed as e:
        return str(e)
    raise CheckFailed("%s%r passed" % (function.__name__, args))


def verdicts():
    script("def a():\n\tpass\nmain(a)\n", 0, "[       OK ] a")
    script("def a():\n\tpass\ndef b():\n\tcheck(1 > 2, 'why')\nmain(a, b)\n", 1, "b: why", "[  FAILED  ] b")
    script("def a():\n\traise OSError('x')\nmain(a)\n", 1, "OSError: x", "[  FAILED  ] a")
    script("def a():\n\tskip('no moon')\nmain(a)\n", 77, "skip: no moon")
    script("def a():\n\tskip('no moon')\ndef b():\n\tpass\nmain(a, b)\n", 0, "[  SKIPPED ] a", "[       OK ] b")
    script("main()\n", 1)
    script("require('/no/such/file')\n", 77, "is not there")


def masks():
    check_equal(mask('{"pid": 12, "ts": 1.5, "name": "x", "addr": "0x7ffabc0123", "start_us": 4}'),
                '{"pid": <pid>, "ts": <time>, "name": "x", "addr": "<addr>", "start_us": <time>}')
    check_equal(mask("2025-01-02 03:04:05,678 tid=9 calls=9 speed=3"), "<date> tid=<pid> calls=9 speed=3")
    check_equal(mask("rank 7", (r"rank \d+", "rank N")), "rank N")


def golden():
    harness.GOLDEN_DIR = tmpdir()
    check("is missing" in fails(harness.check_golden, "a.txt", "pid: 1\n"), "a missing golden file is a failure")
    os.environ["ST_UPDATE_GOLDEN"] = "1"
    harness.check_golden("a.txt", "pid: 1 b\n")
    del os.environ["ST_UPDATE_GOLDEN"]
    harness.check_golden("a.txt", "pid: 2 b\n")
    check("-pid: <pid> b" in fails(harness.check_golden, "a.txt", "pid: 2 c\n"), "the difference is shown")
    harness.check_golden("a.txt", "pid: 2 b\n", sort=True)


def processes_end_with_the_script():
    result = script("p = start(['sleep', '300'])\nprint(p.pid)\n", 0)
    pid = int(result.out.split()[0])
    check(not os.path.exists("/proc/%d" % pid), "process %d is gone" % pid)
    check("did not end within" in fails(run, ["sleep", "300"], timeout=0.2), "a command has a limit")
    check_equal(run(["cat"], input="x\n").ok().out, "x\n")
    check_equal(run(["sh", "-c", "kill -9 $$"]).status, -9)


def temporary_directories_are_removed():
    path = script("print(tmpdir())\n", 0).out.strip()
    check(path and not os.path.exists(path), "%s is gone" % path)


def agent_environment_is_private():
    directory = tmpdir()
    os.environ["SYSTRACE_PLUGINS"] = "IO"
    env = preload_env(directory, SYSTRACE_FORMAT="json", PATH=None)
    check("SYSTRACE_PLUGINS" not in env and "PATH" not in env, "inherited settings are dropped")
    check_equal((env["SYSTRACE_FORMAT"], env["LD_PRELOAD"]), ("json", harness.AGENT))
    for name, value in env.items():
        if name.endswith(("_PATH", "_DIR")) and name.startswith("SYSTRACE_"):
            check(value.startswith(directory) and os.path.isdir(value), "%s=%s lies in the test's directory" % (name, value))


if __name__ == "__main__":
    main(verdicts, masks, golden, processes_end_with_the_script, temporary_directories_are_removed,
         agent_environment_is_private)
