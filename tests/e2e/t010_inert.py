# SPDX-License-Identifier: MulanPSL-2.0
"""Contract: a process without interpreter and device runtime does not notice the library. Same output, same
descriptors, same maps but for the library's own, no system call besides those of loading it, nothing written."""

import os
import re

import harness as h

h.require(h.AGENT)


def left_behind(directory):
    return [os.path.join(d, f) for d, _, files in os.walk(directory) for f in files]


def both(args):
    """Results of a command without and with the library."""
    dump = h.tmpdir()
    env = h.preload_env(dump)
    plain = dict(env)
    del plain["LD_PRELOAD"]
    a, b = h.run(args, env=plain), h.run(args, env=env)
    h.check_equal(left_behind(dump), [], "files written")
    return a, b


def test_same_output():
    for args in (["sh", "-c", "echo hello; exit 3"], ["git", "--version"], ["cat", "/proc/self/limits"]):
        a, b = both(args)
        h.check_equal((b.status, b.out, b.err), (a.status, a.out, a.err), args[0])


def test_same_descriptors():
    a, b = both(["sh", "-c", "cd /proc/$$/fd; echo *; cd ../task; set *; echo $#; readlink ../fd/0"])
    h.check_equal(b.out, a.out, "descriptors and threads")


def test_same_environment():
    a, b = both(["env"])
    drop = lambda text: sorted(x for x in text.splitlines() if not x.startswith(("LD_PRELOAD=", "_=")))
    h.check_equal(drop(b.out), drop(a.out), "environment")


def test_no_memory_of_its_own():
    a, b = both(["cat", "/proc/self/maps"])
    names = lambda text: [x.split()[5] if len(x.split()) > 5 else "anonymous" for x in text.splitlines()]
    extra = list(names(b.out))
    for name in names(a.out):
        if name in extra:
            extra.remove(name)
    extra = [x for x in extra if not x.endswith("libsysTrace.so")]
    # .bss of the library itself is the one anonymous mapping
    h.check(len(extra) <= 1 and set(extra) <= {"anonymous"}, "mappings that are not the library's: %s" % extra)


def calls(env, args):
    """Names of the system calls after the program was loaded, in order."""
    log = os.path.join(h.tmpdir(), "strace")
    h.run(["strace", "-f", "-o", log, *args], env=env).ok()
    names = re.findall(r"^\d+ +(\w+)\(", h.read_file(log), re.M)
    return names, h.read_file(log)


def test_no_system_call():
    h.require("strace")
    env = h.preload_env(h.tmpdir())
    preload = env.pop("LD_PRELOAD")
    if h.run(["strace", "-o", "/dev/null", "true"], env=env).status != 0:
        h.skip("strace is not allowed here")
    plain, _ = calls(env, ["sh", "-c", "echo hello"])
    with_it, log = calls(env, ["env", "LD_PRELOAD=" + preload, "sh", "-c", "echo hello"])
    # env itself runs first, without the library
    with_it = with_it[len(with_it) - 1 - with_it[::-1].index("execve"):]
    # loading: open, read, fstat, one mmap for each of at most six segments, close, RELRO
    loading = ["openat", "read", "newfstatat", "fstat", "mmap", "close", "mprotect"]
    for name in set(with_it) | set(plain):
        extra = with_it.count(name) - plain.count(name)
        if name in loading:
            h.check(extra <= 7, "%d more calls of %s than loading a library takes:\n%s" % (extra, name, log))
        else:
            h.check(extra == 0, "%+d calls of %s:\n%s" % (extra, name, log))


def test_forbidden():
    """SYSTRACE_ENABLE=0 keeps an interpreter inert, too."""
    dump = h.tmpdir()
    code = "import os; print(len(os.listdir('/proc/self/task')))"
    env = h.preload_env(dump, SYSTRACE_ENABLE="0", SYSTRACE_PLUGINS="IO")
    h.check_equal(h.run([list(h.pythons().values())[-1], "-c", code], env=env).ok().out, "1\n", "threads")
    h.check_equal(left_behind(dump), [], "files written")


def test_second_copy():
    """A second copy of the library finds the first and stays inert."""
    directory = h.tmpdir()
    other = os.path.join(directory, "libother.so")
    h.write_file(other, open(h.AGENT, "rb").read())
    env = h.preload_env(directory, SYSTRACE_ENABLE="1")
    for order in ("%s:%s" % (h.AGENT, other), "%s:%s" % (other, h.AGENT)):
        env["LD_PRELOAD"] = order
        out = h.run(["sh", "-c", "cat /proc/$$/task/*/comm"], env=env).ok().out.split()
        h.check_equal(sorted(out), ["sh", "systrace/ctl", "systrace/io"], "threads with two copies")


h.main(test_same_output, test_same_descriptors, test_same_environment, test_no_memory_of_its_own, test_no_system_call,
       test_forbidden, test_second_copy)
