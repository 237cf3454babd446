# SPDX-License-Identifier: MulanPSL-2.0
"""Design: an interpreter alone is dormant, with no thread, socket, file or pool, on every CPython at hand; os.fork does
not warn (3.12+ does when it counts a second native thread); old or foreign interpreters are left alone."""

import os

import ctl
import harness as h
import jobs

h.require(h.AGENT)

CODE = """
import os, sys, json, subprocess
print(len(os.listdir('/proc/self/task')), sorted(os.listdir('/proc/self/fd')) == sorted(os.listdir('/proc/self/fd')))
sys.stdout.flush()
pid = os.fork()
if pid == 0:
    os._exit(7)
print(os.waitpid(pid, 0)[1] >> 8)
subprocess.run([sys.executable, '-c', 'print(5)'], check=True)
"""


def test_every_interpreter():
    for version, python in h.pythons((3, 6)).items():
        dump = h.tmpdir()
        plain = h.tool_env(dump)
        want = h.run([python, "-W", "error", "-c", CODE], env=plain)
        got = h.run([python, "-W", "error", "-c", CODE], env=h.preload_env(dump))
        h.check_equal((got.status, got.out, got.err), (want.status, want.out, want.err), "CPython %d.%d" % version)
        h.check(got.out.startswith("1 "), "CPython %d.%d has a second thread: %r" % (version + (got,)))
        files = [os.path.join(d, f) for d, _, fs in os.walk(dump) for f in fs]
        h.check_equal(files, [], "files of a dormant CPython %d.%d" % version)


def test_framework_wakes():
    """The import of a framework starts threads and socket, nothing is written yet, and they go with the process."""
    for version, python in h.pythons().items():
        dump = h.tmpdir()
        job = jobs.Job(python, h.preload_env(dump))
        h.wait_for(lambda: os.path.exists(job.sock), what="the control socket under CPython %d.%d" % version)
        names = job.threads()
        h.check("systrace/io" in names and "systrace/ctl" in names, "threads: %s" % names)
        answer = job.ask("list")
        h.check_equal((answer.get("pid"), answer.get("state"), answer.get("reason")),
                      (str(job.pid), "ready", "framework"), "list under CPython %d.%d" % version)
        h.check(not os.path.exists(os.path.join(dump, "timeline")), "a file was written without a record")
        h.check_equal(oct(os.stat(job.sock).st_mode & 0o777), "0o600", "mode of the socket")
        job.quit().ok()
        h.check(not os.path.exists(job.sock), "the socket stayed behind")
        left = [d for d, _, fs in os.walk(os.path.join(dump, "spool")) if "pool" in fs]
        h.check_equal(left, [], "spool directories left")


def test_threads_are_apart():
    """Our threads: all signals blocked, nice 10, every CPU, no descriptor of the job's."""
    dump = h.tmpdir()
    env = h.preload_env(dump)
    job = jobs.Job(list(h.pythons().values())[-1], env)
    job.do("f = open('/dev/null'); os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})")
    h.wait_for(lambda: os.path.exists(job.sock), what="the control socket")
    for tid in os.listdir("/proc/%d/task" % job.pid):
        task = "/proc/%d/task/%s/" % (job.pid, tid)
        name = h.read_file(task + "comm").strip()
        if name not in ("systrace/io", "systrace/ctl"):
            continue
        blocked = [x for x in h.read_file(task + "status").splitlines() if x.startswith("SigBlk")][0].split()[1]
        # all but KILL, STOP and the two that the C library keeps for itself
        h.check_equal(int(blocked, 16) | 0x180040100, 0xffffffffffffffff, "%s blocks" % name)
        h.check_equal(h.read_file(task + "stat").rsplit(")", 1)[1].split()[16], "10", "nice of " + name)
        links = [os.readlink(task + "fd/" + fd) for fd in os.listdir(task + "fd")]
        h.check(not [x for x in links if x.startswith("pipe")], "%s holds the job's pipes: %s" % (name, links))
        h.check_equal(sorted(links)[:3], ["/dev/null"] * 3, "descriptors 0 to 2 of " + name)
    job.quit().ok()


def test_forced():
    """SYSTRACE_ENABLE=1 starts at once, in any program."""
    dump = h.tmpdir()
    env = h.preload_env(dump, SYSTRACE_ENABLE="1")
    out = h.run(["sh", "-c", "cat /proc/$$/task/*/comm; ls %s" % env["SYSTRACE_SOCKET_DIR"]], env=env).ok().out
    h.check("systrace/io" in out and "sysTrace_" in out, "forced into sh: %r" % out)
    for version, python in h.pythons().items():
        out = h.run([python, "-c", "import os; print(open('/proc/self/task/%d/comm' % max(map(int, "
                                   "os.listdir('/proc/self/task')))).read())"], env=env).ok().out
        h.check("systrace/" in out, "forced into CPython %d.%d: %r" % (version + (out,)))


def test_device_runtime():
    """A C program linked with a device runtime is a job: recording at once, without an interpreter."""
    h.require("gcc")
    dump = h.tmpdir()
    library = os.path.join(dump, "libcudart.so")
    h.compile_c("int cudaRuntimeGetVersion(int *v)\n{\n\t*v = 12000;\n\treturn 0;\n}\n", library, "-shared", "-fPIC")
    program = h.compile_c("#include <stdio.h>\nint cudaRuntimeGetVersion(int *);\nint main(void)\n{\n\tint v;\n"
                          "\tcudaRuntimeGetVersion(&v);\n\treturn getchar() == 'q' ? 0 : 1;\n}\n",
                          os.path.join(dump, "job"), library, "-Wl,-rpath," + dump)
    env = h.preload_env(dump)
    process = h.start([program], env=env, stdin=-1)
    sock = ctl.socket_of(env["SYSTRACE_SOCKET_DIR"], process.pid)
    h.wait_for(lambda: os.path.exists(sock), what="the control socket")
    answer = ctl.ask(sock, "list")
    h.check_equal((answer.get("state"), answer.get("reason")), ("recording", "runtime"), "state")
    process.stdin.write(b"q")
    process.stdin.close()
    process.stdin = None
    h.finish(process).ok()
    h.check(not os.path.exists(sock), "the socket stayed behind")


h.main(test_every_interpreter, test_framework_wakes, test_threads_are_apart, test_forced,
       test_device_runtime)
