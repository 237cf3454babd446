# SPDX-License-Identifier: MulanPSL-2.0
"""Memory (docs/safety.md 5): a small, full or absent /dev/shm, address space and file size limits, a memory cgroup, a sandbox
without close_range, a thousand threads. The job ends as it would have; `status` says what was given up."""

import glob
import os
import re

import harness as h
import jobs

h.own_mounts()
h.require(h.AGENT)
PYTHON = list(h.pythons().values())[-1]
MB = 1 << 20


def shm(size):
    """A tmpfs of that size for the spool."""
    place = h.tmpdir()
    h.mount("-t", "tmpfs", "-o", "size=%d" % size, "none", place)
    return place


def steps_of(dump):
    return [n for p in sorted(glob.glob(os.path.join(dump, "timeline", "*"))) for n in jobs.steps_in(p)]


def check_complete(job, steps):
    job.quit().ok()
    h.check_equal(sorted(steps_of(job.dump)), list(range(1, steps + 1)), "steps")


def fill(place):
    """Leave no byte free."""
    with open(os.path.join(place, "ballast"), "wb", buffering=0) as f:
        for block in (65536, 4096, 512):
            try:
                while True:
                    f.write(b"x" * block)
            except OSError:
                pass


def test_small_shm():
    """1 MiB: an eighth of it is no pool. 64 MiB: one of the documented size, and no SIGBUS when others fill the rest."""
    for size, shared in ((MB, "0"), (64 * MB, "1")):
        place = shm(size)
        job = jobs.Job(PYTHON, h.preload_env(h.tmpdir(), SYSTRACE_SPOOL_PATH=place))
        job.wait_attached()
        status = job.status()
        h.check_equal(status.get("pool_shared"), shared, "crash-safe with %d bytes: %s" % (size, status.all("note")))
        h.check_equal(any("not crash-safe" in n for n in status.all("note")), shared == "0", "notes")
        job.train(20)
        fill(place)
        h.check_equal(job.ask("enable", plugin="MSPTI").code, 0, "enable on a full /dev/shm")
        job.train(200)
        job.ask("flush")
        notes = job.status().all("note")
        h.check_equal(any("pool" in n and "free" in n for n in notes), shared == "1", "what was given up: %s" % notes)
        check_complete(job, 220)


def test_absent_shm():
    job = jobs.Job(PYTHON, h.preload_env(h.tmpdir(), SYSTRACE_SPOOL_PATH="/proc/nowhere"))
    job.wait_attached()
    h.check(any("not crash-safe" in n for n in job.status().all("note")), "notes: %s" % job.status().all("note"))
    h.check_equal(job.ask("enable", plugin="MSPTI").code, 0, "enable")
    job.train(50)
    check_complete(job, 50)


# what torch needs itself is there before the limit
LIMITED = jobs.LOOP.replace("import torch\n", """
import collections, contextlib, enum, functools, io, pickle, resource, struct, threading
size = int(open("/proc/self/statm").read().split()[0]) * 4096
resource.setrlimit(resource.RLIMIT_AS, (size + %d, size + %d))
import torch
""", 1)


def test_address_space():
    """RLIMIT_AS just before the agent starts: with no room for the pool, with room for that but not for threads, with both."""
    for room in (MB // 2, 3 * MB, 9 * MB + MB // 2, 11 * MB, 64 * MB):
        job = jobs.Job(PYTHON, h.preload_env(h.tmpdir()), LIMITED % (room, room))
        if room == 64 * MB:
            job.wait_attached()
        job.train(20)
        result = job.quit().ok()
        h.check_equal(result.err, "", "stderr with %d bytes" % room)
    h.check(steps_of(job.dump), "nothing was recorded with 64 MiB of room: %s" % h.agent_log(job.dump))


def test_file_size():
    """RLIMIT_FSIZE: the kernel's SIGXFSZ reaches no thread of the job; files go on as segments below the limit."""
    program = jobs.LOOP.replace("import torch\n", "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (%d, %d))\n"
                                "import torch\n" % (65536, 65536), 1)
    job = jobs.Job(PYTHON, h.preload_env(h.tmpdir()), program)
    job.wait_attached()
    h.check(any("not crash-safe" in n for n in job.status().all("note")), "notes: %s" % job.status().all("note"))
    for _ in range(8):
        job.train(150)
        h.check_equal(job.ask("flush").code, 0, "flush")
    check_complete(job, 1200)
    sizes = [os.path.getsize(p) for p in glob.glob(os.path.join(job.dump, "timeline", "*"))]
    h.check(len(sizes) > 1 and max(sizes) <= 65536, "sizes of the segments: %s" % sizes)


def memory_cgroup(limit):
    """A memory cgroup with that limit (v1 or v2) as (its directory, file of OOM counts), removed at the end."""
    for base, name, events in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.oom_control"),
                               ("/sys/fs/cgroup", "memory.max", "memory.events")):
        path = os.path.join(base, "st-%d" % os.getpid())
        try:
            os.mkdir(path)
        except OSError:
            continue
        h.atexit.register(os.rmdir, path)
        try:
            h.write_file(os.path.join(path, name), str(limit))
            return path, os.path.join(path, events)
        except OSError:
            continue
    h.skip("no memory cgroup can be made here")


def test_eight_ranks_in_one_cgroup():
    """The pools of all ranks are charged to the group: they fit, grow no further than asked, and nobody is killed."""
    group, events = memory_cgroup(320 * MB)
    dump = h.tmpdir()
    spool = shm(64 * MB)
    program = "import os\nopen(%r, 'w').write(str(os.getpid()))\n" % os.path.join(group, "cgroup.procs") + jobs.LOOP
    ranks = [jobs.Job(PYTHON, h.preload_env(dump, RANK=n, SYSTRACE_SPOOL_PATH=spool), program) for n in range(8)]
    for job in ranks:
        job.wait_attached()
        h.check_equal(job.ask("enable", plugin="MSPTI").code, 0, "enable")
    for job in ranks:
        job.train(100)
    shared = [job.status().get("pool_shared") for job in ranks]
    h.check(shared.count("1") >= 6, "crash-safe pools in 64 MiB: %s" % shared)
    for n, job in enumerate(ranks):
        job.quit().ok()
        found = jobs.steps_in(h.find_one(dump, "timeline/*--%05d.timeline" % n))
        h.check_equal(found, list(range(1, 101)), "steps of rank %d" % n)
    killed = re.findall(r"^oom_kill (\d+)", h.read_file(events), re.M)
    h.check_equal(killed, ["0"], "processes killed for memory")


SANDBOX = r"""
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
#ifndef SYS_close_range
#define SYS_close_range 436
#endif
/* Refuses what strict profiles refuse: memfd_create, close_range, unshare, process_vm_readv. Then exec. */
int main(int argc, char **argv)
{
#define REFUSE(nr) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, nr, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM)
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		REFUSE(SYS_memfd_create),
		REFUSE(SYS_close_range),
		REFUSE(SYS_unshare),
		REFUSE(SYS_process_vm_readv),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { sizeof(code) / sizeof(code[0]), code };

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
		return 77;
	execv(argv[1], argv + 1);
	return 1;
}
"""


TAKE_NUMBERS = r"""
def take(path, count):
    kept = []
    for n in range(count):
        while True:
            try:
                kept.append(open(path + str(n), "w"))
                break
            except OSError:
                pass
    return kept

def drop(files):
    for f in files:
        try:
            f.close()
        except OSError:
            pass
"""


def test_sandbox():
    """A seccomp profile without close_range and unshare: files are opened for each write, and `status` says so."""
    directory = h.tmpdir()
    tool = h.compile_c(SANDBOX, os.path.join(directory, "sandbox"))
    if h.run([tool, "/bin/true"]).status == 77:
        h.skip("seccomp filters are not allowed here")
    starter = h.write_file(os.path.join(directory, "python"), "#!/bin/sh\nexec %s %s \"$@\"\n" % (tool, PYTHON))
    os.chmod(starter, 0o755)
    job = jobs.Job(starter, h.preload_env(directory, RANK="3"))
    job.wait_attached()
    job.train(5)
    notes = job.status().all("note")
    h.check(any("shared with the job" in n for n in notes), "notes: %s" % notes)
    # the host closes everything and reuses the numbers: not a byte of ours in its files
    # one of our threads that has just opened a file closes its number, which may be the host's by then: the host opens again
    job.do("exec(%r)" % TAKE_NUMBERS)
    job.do("os.closerange(3, 4096); keep = take(%r, 20)" % os.path.join(directory, "own"))
    job.train(50)
    h.wait_for(lambda: steps_of(job.dump) == list(range(1, 56)), what="all steps in the file")
    for n in range(20):
        h.check_equal(os.path.getsize(os.path.join(directory, "own%d" % n)), 0, "bytes in the host's file")
    job.do("drop(keep)")
    check_complete(job, 55)
    h.find_one(job.dump, "timeline/*--00003.timeline")


def test_thousand_threads():
    """1 000 threads that all record: the pool does not grow with them, and says what it had to drop."""
    count = 1000 if h.FULL else 300
    job = jobs.Job(PYTHON, h.preload_env(h.tmpdir(), SYSTRACE_SPOOL_MB="2"))
    job.wait_attached()
    job.train(2)
    before = int(job.status().get("pool_bytes"))
    job.do("import threading; threading.stack_size(65536); gate = threading.Barrier(%d); go = threading.Event(); "
           "work = lambda: (gate.wait(), [torch.autograd.backward(1) for _ in range(20)], go.wait()); "
           "threads = [threading.Thread(target=work) for _ in range(%d)]; [t.start() for t in threads]; gate.wait()"
           % (count + 1, count))
    job.train(5)
    status = job.status()
    after = int(status.get("pool_bytes"))
    h.check(after - before <= 2 * MB, "the pool grew from %d to %d bytes" % (before, after))
    job.do("go.set(); [t.join() for t in threads]")
    h.check_equal(job.ask("flush").code, 0, "flush")
    text = h.decode_pb(h.find_one(job.dump, "timeline/*.timeline"))
    written = text.count('stage_type: "torch@autograd@backward"')
    told = sum(int(n) for n in re.findall(r'^drops \{\n  source: "stage"\n  count: (\d+)', text, re.M))
    lost = int(job.status().get("dropped.stage", "0"))
    h.check_equal(told, lost, "drops told in the file")
    print("threads %d: %d stages written, %d dropped, pool %d KiB" % (count, written, lost, after >> 10))
    h.check(len(set(re.findall(r"^  tid: (\d+)", text, re.M))) > 50, "threads in the file")
    job.quit().ok()


h.main(test_small_shm, test_absent_shm, test_address_space, test_file_size, test_eight_ranks_in_one_cgroup, test_sandbox,
       test_thousand_threads)
