# SPDX-License-Identifier: MulanPSL-2.0
"""Descriptors: programs that close everything, take every number, run at their limit or lock their files never find a byte
of ours in them and lose none, also where the kernel gives our threads no descriptor table of their own (docs/safety.md,
property 4). More in t014."""

import glob
import os


import harness as h
import jobs

h.require(h.AGENT, "gcc")
TMP = h.tmpdir()
HOST = h.compile_c(os.path.join(h.ROOT, "tests", "fake", "ends_host.c"), os.path.join(TMP, "host"), "-ldl", "-lpthread")
PYTHON = list(h.pythons().values())[-1]

# Refuses close_range and unshare, as an old kernel or a strict sandbox does, then runs the rest of its command line.
SANDBOX = h.compile_c(r"""
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
int main(int argc, char **argv)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 436, 1, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_unshare, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { sizeof(code) / sizeof(code[0]), code };
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
		return 77;
	setenv("LD_PRELOAD", getenv("PRELOAD_LATER"), 1);
	execv(argv[1], argv + 1);
	return 1;
}
""", os.path.join(TMP, "sandbox"))


def same(args, env, sandbox=False):
    """The program's result, which must be the one that it has without the agent."""
    env = dict(env)
    preload = env.pop("LD_PRELOAD")
    want = h.run(args, env=env)
    if sandbox:
        got = h.run([SANDBOX, *args], env=dict(env, PRELOAD_LATER=preload))
        if got.status == 77:
            h.skip("no seccomp here")
    else:
        got = h.run(args, env=dict(env, LD_PRELOAD=preload))
    h.check_equal((got.status, got.out, got.err), (want.status, want.out, want.err), " ".join(args[1:2]))
    return got


def both_tables(name, status, *args):
    for sandbox in (False, True):
        env = h.preload_env(h.tmpdir(), SYSTRACE_ENABLE="1", HOST_WAIT_MS="200")
        if sandbox:
            env["HOST_SHARED_TABLE"] = "1"
        got = same([HOST, name, *args], env, sandbox)
        h.check_equal(got.status, status, name)
        yield got


def test_every_number_reused():
    """20 rounds: close 3 to 1023, open 200 files under the numbers that were free, look whether they were left alone."""
    for got in both_tables("reuse", 31, h.tmpdir()):
        h.check_equal(got.out, "in place, 0 lost, 0 bytes\n", "the program's files")


def test_at_the_limit():
    """As many descriptors as without the agent, where it has a table of its own."""
    same([HOST, "limit"], h.preload_env(h.tmpdir(), SYSTRACE_ENABLE="1", HOST_WAIT_MS="200"))


def test_locks():
    """POSIX locks go when any descriptor of the file is closed: none of ours is ever one of theirs."""
    for got in both_tables("locks", 33, os.path.join(h.tmpdir(), "locked")):
        h.check_equal(got.out, "0 times lost\n", "locks")


def test_server():
    """In a shared table the program's listening socket takes the number of ours: its clients are its own."""
    for got in both_tables("server", 34, "systrace-test-%d" % os.getpid()):
        h.check_equal(got.out, "30 served\n", "clients")


SHARED = r"""

def reuse(directory):
    os.closerange(3, 256)
    return [os.open(directory + "/own%d" % i, os.O_CREAT | os.O_RDWR) for i in range(100)]
"""


def test_job_in_a_sandbox():
    """Shared table: files are opened for each write. The job closes everything again and again; both keep their own."""
    dump = h.tmpdir()
    env = h.preload_env(dump)
    env["PRELOAD_LATER"] = env.pop("LD_PRELOAD")
    own = h.tmpdir()
    env["PYTHONPATH"] = jobs.FAKE_TORCH
    job = jobs.Job.__new__(jobs.Job)
    job.process = h.start([SANDBOX, PYTHON, "-c", SHARED + jobs.LOOP], env=env, stdin=-1)
    job.pid, job.functions, job.dump = job.process.pid, 7, dump
    job.expect("pid")
    job.sock = jobs.ctl.socket_of(env["SYSTRACE_SOCKET_DIR"], job.pid)
    job.wait_attached()
    notes = job.status().all("note")
    h.check(any("descriptors are shared" in n for n in notes), "notes: %s" % notes)
    for _ in range(5):
        job.do("fds = reuse(%r)" % own)
        job.train(3)
        h.wait_for(lambda: answers(job), what="an answer on a new socket")
    h.check_equal(job.ask("flush").code, 0, "flush")
    job.do("assert all(os.fstat(f).st_size == 0 for f in fds)")
    job.quit().ok()
    h.check_equal(sum(os.path.getsize(p) for p in glob.glob(own + "/own*")), 0, "bytes in the job's files")
    h.check_equal(jobs.steps_in(h.find_one(dump, "timeline/*")), list(range(1, 16)), "steps")


def answers(job):
    try:
        return job.ask("list").code == 0
    except (OSError, EOFError):
        return False


FULL = r"""
import os, resource
def fill():
    limit = len(os.listdir("/proc/self/fd")) + 20
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    fds = []
    try:
        while True:
            fds.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        return fds
"""


def test_job_at_its_limit():
    """With not one number free the agent goes on writing, and answers."""
    job = jobs.Job(PYTHON, h.preload_env(h.tmpdir()), FULL + jobs.LOOP)
    job.wait_attached()
    job.do("fds = fill()")
    job.train(4)
    h.check_equal(job.ask("flush").code, 0, "flush")
    h.check_equal(jobs.steps_in(h.find_one(job.dump, "timeline/*")), [1, 2, 3, 4], "steps")
    job.quit().ok()


def test_start_at_the_limit():
    """The agent starts in a process that has no number left: no thread of the job notices, the steps are recorded."""
    program = FULL + "fds = fill()\nfds and [os.close(f) for f in fds[:12]]\n" + jobs.LOOP
    job = jobs.Job(PYTHON, h.preload_env(h.tmpdir()), program)
    job.wait_attached()
    job.train(3)
    job.quit().ok()
    h.check_equal(jobs.steps_in(h.find_one(job.dump, "timeline/*")), [1, 2, 3], "steps")


h.main(test_every_number_reused, test_at_the_limit, test_locks, test_server, test_job_in_a_sandbox, test_job_at_its_limit,
       test_start_at_the_limit)
