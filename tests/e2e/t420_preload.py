# SPDX-License-Identifier: MulanPSL-2.0
# runner: timeout 300
"""Preloaded into what a job starts all the time: compilers, git, pip, launchers, worker processes by the dozen, static,
setuid and musl programs, and together with other preloaded libraries. They do what they do without it, and plain Python
stays alone, also where a warning is an error (docs/safety.md, property 1). More in t010 and t011."""

import os
import subprocess

import harness as h

h.require(h.AGENT, "gcc")
TMP = h.tmpdir()
HELLO = "#include <stdio.h>\nint main(void)\n{\n\tputs(\"hello\");\n\treturn 12;\n}\n"


def written(env):
    """Files of ours; the spool's parent directory and others that the test made itself do not count."""
    top = env["SYSTRACE_DUMP_PATH"]
    return [os.path.join(d, f) for d, _, files in os.walk(top) for f in files]


def same(args, cwd=None, status=0, **extra):
    """Status, output and errors as without the library, and nothing written."""
    env = h.preload_env(h.tmpdir(), PYTHONDONTWRITEBYTECODE="1", **extra)
    plain = {k: v for k, v in env.items() if k != "LD_PRELOAD"}
    want = h.run(args, env=plain, cwd=cwd, timeout=120)
    got = h.run(args, env=env, cwd=cwd, timeout=120)
    h.check_equal((got.status, got.out, got.err), (want.status, want.out, want.err), " ".join(map(str, args))[:200])
    h.check_equal(got.status, status, " ".join(map(str, args))[:200] + got.err)
    h.check_equal(written(env), [], "files written by %s" % args[0])
    return got


def test_compilers():
    """The same object code, with preprocessor, assembler and linker as children."""
    source = h.write_file(os.path.join(TMP, "hello.c"), HELLO)
    outputs = []
    for preload in (None, h.AGENT):
        env = h.preload_env(h.tmpdir(), LD_PRELOAD=preload)
        h.run(["gcc", "-O2", "-c", "-o", os.path.join(TMP, "hello.o"), source], env=env).ok()
        h.run(["gcc", "-Wl,--build-id=none", "-o", os.path.join(TMP, "hello"), os.path.join(TMP, "hello.o")], env=env).ok()
        outputs.append([open(os.path.join(TMP, f), "rb").read() for f in ("hello.o", "hello")])
        h.check_equal(written(env), [], "files")
    h.check(outputs[0] == outputs[1], "the compiler's output differs")


def test_git_and_shell():
    h.require("git")
    script = "set -e; rm -rf r; git init -q r; cd r; echo a > a; git add a; git -c user.name=a -c user.email=a@b commit -qm a;" \
             "git log --format=%s; git status --short | wc -l; (sleep 0.01; echo $?) | cat; exit 3"
    same(["sh", "-c", script], cwd=TMP, status=3)


def test_pip_and_tools():
    for version, python in h.pythons().items():
        if h.run([python, "-m", "pip", "--version"]).status == 0:
            same([python, "-m", "pip", "--disable-pip-version-check", "check"], status=h.run(
                [python, "-m", "pip", "--disable-pip-version-check", "check"]).status)
            break
    same(["env", "python3", "-c", "import sys; print(sys.flags)"])


LAUNCHER = r"""
import os, subprocess, sys
for rank in range(4):
    env = dict(os.environ, RANK=str(rank))
    print(subprocess.run([sys.executable, "-c", "import os; print(os.environ['RANK'], len(os.listdir('/proc/self/task')), "
                          "len(os.listdir('/proc/self/fd')))"], env=env, stdout=subprocess.PIPE, check=True).stdout)
"""

WORKERS = r"""
import multiprocessing as mp, os, sys
from multiprocessing import shared_memory
def work(n):
    return n * n, len(os.listdir("/proc/self/task"))
if __name__ == "__main__":
    memory = shared_memory.SharedMemory(create=True, size=4096)    # starts the resource tracker
    with mp.get_context(sys.argv[1]).Pool(int(sys.argv[2])) as pool:
        print(pool.map(work, range(64), 1))
    memory.close()
    memory.unlink()
"""


def test_launcher():
    for python in h.pythons().values():
        same([python, "-W", "error", "-c", LAUNCHER])


def test_workers_and_resource_tracker():
    """32 spawned workers on one interpreter, two on each of the others; fork as well: no warning, nothing left."""
    script = h.write_file(os.path.join(TMP, "workers.py"), WORKERS)
    pythons = list(h.pythons().values())
    for python in pythons:
        for kind in ("spawn", "forkserver", "fork"):
            if kind == "fork" and h.python_version(python) >= (3, 12):
                continue  # Pool has threads of its own and warns without us, too
            same([python, "-W", "error::DeprecationWarning", script, kind, "2"])
    same([pythons[-1], script, "spawn", "32"])


FORKS = r"""
import os, multiprocessing as mp, sys
def f(): pass
for i in range(20):
    pid = os.fork()
    if not pid: os._exit(0)
    os.waitpid(pid, 0)
p = mp.get_context("fork").Process(target=f); p.start(); p.join()
pid, fd = os.forkpty()
if not pid: os._exit(0)
os.waitpid(pid, 0)
print(p.exitcode)
"""


def test_fork_warns_nobody():
    """CPython 3.12 and later count native threads at fork; a plain program has none of ours."""
    for python in h.pythons().values():
        same([python, "-W", "error::DeprecationWarning", "-c", FORKS])


SUBINTERPRETER = r"""
import sys
try:
    import _interpreters as sub
except ImportError:
    try:
        import _xxsubinterpreters as sub
    except ImportError:
        import sys; print("none"); sys.exit(0)
ids = [sub.create() for _ in range(3)]
for i in ids:
    sub.run_string(i, "import json, os, %s; print(len(os.listdir('/proc/self/task')) < 9, sys.getprofile())")
    sub.destroy(i)
print("ended")
"""


def test_subinterpreters():
    """Dormant and recording: code in them runs as ever."""
    fake = os.path.join(h.ROOT, "tests", "fake", "torch_pkg")
    for python in h.pythons().values():
        same([python, "-c", SUBINTERPRETER % "sys"])
        for extra in ("sys", "sys, torch"):
            env = h.preload_env(h.tmpdir(), PYTHONPATH=fake, PYTHONDONTWRITEBYTECODE="1")
            plain = {k: v for k, v in env.items() if k != "LD_PRELOAD"}
            code = "import torch\n" + SUBINTERPRETER % extra
            want, got = h.run([python, "-c", code], env=plain), h.run([python, "-c", code], env=env)
            h.check_equal((got.status, got.out, got.err), (want.status, want.out, want.err), "sub-interpreters of " + python)


def test_static_program():
    program = os.path.join(TMP, "static")
    if subprocess.run(["gcc", "-static", "-o", program, "-x", "c", "-"], input=HELLO.encode(),
                      stderr=subprocess.DEVNULL).returncode:
        h.skip("no static C library here")
    same([program], status=12)
    same([program], status=12, SYSTRACE_ENABLE="1")


def test_setuid_program():
    """The loader refuses preloads by path in secure mode: nothing of ours is in such a process."""
    h.require_root()
    h.require("setpriv")
    directory = h.tmpdir()
    os.chmod(directory, 0o755)
    program = h.compile_c("#include <stdio.h>\n#include <string.h>\n#include <unistd.h>\nint main(void)\n{\n\tchar line[4096];\n"
                          "\tFILE *f = fopen(\"/proc/self/maps\", \"r\");\n\tint found = 0;\n\twhile (f && fgets(line, sizeof(line)"
                          ", f))\n\t\tfound |= !!strstr(line, \"libsysTrace\");\n\tprintf(\"%d %d\\n\", geteuid() != getuid(), "
                          "found);\n\treturn 13;\n}\n", os.path.join(directory, "setuid"))
    os.chmod(program, 0o4755)
    env = h.preload_env(h.tmpdir(), SYSTRACE_ENABLE="1")
    command = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "env", "LD_PRELOAD=" + env.pop("LD_PRELOAD"),
               program]
    got = h.run(command, env=env)
    if got.out.startswith("0"):
        h.skip("setuid programs do not change user on this file system")
    h.check_equal((got.status, got.out), (13, "1 0\n"), "a setuid program")


def test_musl_program():
    """musl's loader cannot use a library of glibc's: the same end as with any other one, and none with the variable unset."""
    h.require("musl-gcc")
    program = os.path.join(TMP, "musl")
    source = h.write_file(os.path.join(TMP, "musl.c"), HELLO)
    h.run(["musl-gcc", "-o", program, source]).ok()
    h.run([program]).ok(12)
    other = h.compile_c("#include <stdio.h>\n#include <gnu/libc-version.h>\nvoid f(void)\n{\n\tputs(gnu_get_libc_version());\n}\n",
                        os.path.join(TMP, "libother.so"), "-shared", "-fPIC")
    ends = {}
    for library in (h.AGENT, other):
        result = h.run([program], env=h.preload_env(h.tmpdir(), LD_PRELOAD=library))
        ends[library] = result.status
        h.check(result.status == 12 or "Error" in result.err, repr(result))
    h.check_equal(ends[h.AGENT], ends[other], "status of a musl program with a glibc library preloaded")
    static = os.path.join(TMP, "musl-static")
    h.run(["musl-gcc", "-static", "-o", static, source]).ok()
    same([static], status=12)


INTERPOSER = r"""
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
/* Counts calls, as profilers and allocators that are preloaded do; the report is written at exit. */
static long writes, creates, forks;
ssize_t write(int fd, const void *data, size_t bytes)
{
	static ssize_t (*real)(int, const void *, size_t);
	if (!real)
		real = (ssize_t (*)(int, const void *, size_t))dlsym(RTLD_NEXT, "write");
	if (fd == 1)
		writes++;
	return real(fd, data, bytes);
}
int pthread_create(pthread_t *t, const pthread_attr_t *a, void *(*f)(void *), void *x)
{
	static int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
	if (!real)
		real = (int (*)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *))dlsym(RTLD_NEXT, "pthread_create");
	creates++;
	return real(t, a, f, x);
}
__attribute__((destructor)) static void report(void)
{
	char text[64];
	int n = snprintf(text, sizeof(text), "%ld writes, %ld threads\n", writes, creates);
	if (getenv("REPORT"))
		(void)!dprintf(2, "%.*s", n, text);
}
"""


def test_other_preloads():
    """A library that interposes the C library's functions, before and after ours: each does its work, in both orders."""
    other = h.compile_c(INTERPOSER, os.path.join(TMP, "libcount.so"), "-shared", "-fPIC", "-ldl")
    python = list(h.pythons().values())[-1]
    code = "import os, threading; t = threading.Thread(target=lambda: os.write(1, b'x\\n')); t.start(); t.join()"
    reports = []
    for preload in (other, "%s:%s" % (other, h.AGENT), "%s:%s" % (h.AGENT, other)):
        env = h.preload_env(h.tmpdir(), LD_PRELOAD=preload, REPORT="1")
        result = h.run([python, "-c", code], env=env)
        reports.append((result.status, result.out, result.err))
        h.check_equal(written(env), [], "files")
    h.check_equal(reports, [reports[0]] * 3, "with another preload")
    h.check("1 writes, 1 threads" in reports[0][2], repr(reports[0]))
    fake = os.path.join(h.ROOT, "tests", "fake", "torch_pkg")
    for preload in ("%s:%s" % (other, h.AGENT), "%s:%s" % (h.AGENT, other)):
        env = h.preload_env(h.tmpdir(), LD_PRELOAD=preload, PYTHONPATH=fake)
        result = h.run([python, "-c", "import torch, os; os.write(1, b'y\\n')"], env=env).ok()
        h.check_equal((result.out, result.err), ("y\n", ""), "a job with another preload")


h.main(test_compilers, test_git_and_shell, test_pip_and_tools, test_launcher, test_workers_and_resource_tracker,
       test_fork_warns_nobody, test_subinterpreters, test_static_program, test_setuid_program, test_musl_program,
       test_other_preloads)
