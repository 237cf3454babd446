# SPDX-License-Identifier: MulanPSL-2.0
"""SIGKILL at random moments (docs/safety.md 6): under load, while segments are closed, while recover is at work, and recover
seen from another user, another pid namespace, twice at once. Every committed record is there exactly once, files parse."""

import glob
import json
import os
import random
import re
import signal
import struct
import subprocess
import time

import harness as h
import jobs

h.require(h.AGENT, h.SYSTRACE)
PYTHON = list(h.pythons().values())[-1]
ROUNDS = 50 if h.FULL else 5  # of each format
NOBODY, OTHER = 65534, 65533

# The job says in shared memory which step it has completed, for as long as it lives.
BUSY = jobs.LOOP.replace("class Model:", r"""
import mmap, struct
progress = mmap.mmap(os.open(os.environ["PROGRESS"], os.O_RDWR), 4096)
say_step = lambda n: struct.pack_into("<Q", progress, 0, n)

class Model:""").replace("            optimizer.step()\n", "            optimizer.step()\n            say_step(batch + 1)\n")


def progress_file():
    return h.write_file(os.path.join(h.tmpdir(), "progress"), b"\0" * 4096)


def done_steps(path):
    with open(path, "rb") as f:
        return struct.unpack("<Q", f.read(8))[0]


def recover(spool, *options, **more):
    return h.run([h.SYSTRACE, "recover", "--spool", spool, *options], **more)


def pools(spool):
    return glob.glob(os.path.join(spool, "*", "*", "pool"))


def steps_of(dump, text):
    """All steps in the files, which must parse: by protoc, by json."""
    found = []
    for path in glob.glob(os.path.join(dump, "timeline", "*")):
        if not text:
            found += jobs.steps_in(path)
            continue
        data = json.loads(h.read_file(path))
        found += [s["step"] for message in data.get("ext", []) for s in message.get("steps", [])]
    return sorted(found)


def stages_once(dump, text):
    """No stage is there twice: (thread, start) names one."""
    seen = []
    for path in glob.glob(os.path.join(dump, "timeline", "*")):
        if text:
            seen += [(s.get("tid"), s["start_ns"], s["stage_type"]) for s in
                     json.loads(h.read_file(path)).get("pytorch_stages", [])]
        else:
            for block in re.findall(r"^pytorch_stages \{\n(.*?)^\}", h.decode_pb(path), re.S | re.M):
                seen.append((re.findall(r"^  tid: (\d+)", block, re.M), re.search(r"start_ns: (\d+)", block).group(1),
                             re.search(r'stage_type: "(.*)"', block).group(1)))
    h.check_equal(len(seen), len({str(s) for s in seen}), "stages that are there twice")
    return len(seen)


def killed_round(number, text):
    """Kill a job that makes steps as fast as it can, in segments; every second time recover is killed as well."""
    rng = random.Random(number)
    dump, path = h.tmpdir(), progress_file()
    job = jobs.Job(PYTHON, h.preload_env(dump, PROGRESS=path, SYSTRACE_MAX_MB="160" if text else "48",
                                         SYSTRACE_FORMAT="json" if text else "pb"), BUSY)
    job.wait_attached()
    job.process.stdin.write(b"model.train(10**7)\n")
    job.process.stdin.flush()
    h.wait_for(lambda: done_steps(path) > 50, what="steps")
    time.sleep(rng.uniform(0, 0.6))
    job.process.send_signal(signal.SIGKILL)
    job.process.wait()
    steps = done_steps(path)
    spool = os.path.join(dump, "spool")
    if number % 2:
        first = h.start([h.SYSTRACE, "recover", "--spool", spool])
        time.sleep(rng.uniform(0, 0.02))
        h.stop(first, signal.SIGKILL)
    recover(spool)
    h.check_equal(pools(spool), [], "pools after recovery")
    found = steps_of(dump, text)
    lost = dropped(dump, text, "step")
    h.check_equal(len(found), len(set(found)), "steps that are there twice")
    # the one that was being completed may be there or not
    h.check(steps <= len(found) + lost <= steps + 1, "%d steps in the files, %d told as dropped, the job had completed %d" % (
        len(found), lost, steps))
    stages_once(dump, text)
    return steps, lost


def dropped(dump, text, source):
    """Records of a source that the files tell were lost, because the pool was full."""
    total = 0
    for path in glob.glob(os.path.join(dump, "timeline", "*")):
        if text:
            total += sum(d["count"] for m in json.loads(h.read_file(path)).get("ext", []) for d in m.get("drops", [])
                         if d["source"] == source)
        else:
            total += sum(int(n) for n in re.findall(r'^drops \{\n  source: "%s"\n  count: (\d+)' % source,
                                                    h.decode_pb(path), re.M))
    return total


def test_random_moments_pb():
    results = [killed_round(n, False) for n in range(ROUNDS)]
    print("steps and drops: %s" % results)


def test_random_moments_json():
    results = [killed_round(100 + n, True) for n in range(ROUNDS)]
    print("steps and drops: %s" % results)


def killed_job(env, program=jobs.LOOP, steps=20, **more):
    job = jobs.Job(PYTHON, env, program, **more)
    job.wait_attached()
    job.train(1)
    h.wait_for(lambda: glob.glob(os.path.join(job.dump, "timeline", "*")), what="the first flush")
    job.train(steps - 1)
    job.process.send_signal(signal.SIGKILL)
    job.process.wait()
    return job


def test_killed_before_the_first_pass():
    """The io thread is held up by its first write: what was recorded by then is recovered, and whose it was is known."""
    dump = h.tmpdir()
    job = jobs.Job(PYTHON, h.preload_env(dump, RANK="6"))
    job.wait_attached()
    tid = next(t for t in os.listdir("/proc/%d/task" % job.pid)
               if h.read_file("/proc/%d/task/%s/comm" % (job.pid, t)).strip() == "systrace/io")
    h.require("strace")
    tracer = h.start(["strace", "-o", "/dev/null", "-p", tid, "--inject=futex:delay_exit=60000000"])
    h.wait_for(lambda: "TracerPid:\t%d" % tracer.pid in h.read_file("/proc/%d/task/%s/status" % (job.pid, tid)) or
               tracer.poll() is not None, what="strace")
    if tracer.poll() is not None:
        h.skip("strace is not allowed here")
    time.sleep(0.3)  # until the thread is in a wait that strace has seen
    job.train(20)
    h.check_equal(glob.glob(os.path.join(dump, "timeline", "*")), [], "files before the first pass")
    job.process.send_signal(signal.SIGKILL)
    h.stop(tracer, signal.SIGKILL)
    job.process.wait()
    recover(os.path.join(dump, "spool")).ok()
    h.check_equal(jobs.steps_in(h.find_one(dump, "timeline/*--00006.timeline")), list(range(1, 21)), "steps")


# The first thread that is made, and that is systrace/io, does not get to run.
LATE_THREAD = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

static void *(*body)(void *);

static void *late(void *arg)
{
	sleep(600);
	return body(arg);
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*start)(void *), void *arg)
{
	int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);

	*(void **)&real = dlsym(RTLD_NEXT, "pthread_create");
	if (body)
		return real(thread, attr, start, arg);
	body = start;
	return real(thread, attr, late, arg);
}
"""


def test_killed_before_the_io_thread_ran():
    """A busy machine lets a new thread wait: whose records these are is known before it has run at all."""
    library = h.compile_c(LATE_THREAD, os.path.join(h.tmpdir(), "late.so"), "-shared", "-fPIC", "-ldl")
    dump = h.tmpdir()
    env = h.preload_env(dump, RANK="6")
    job = jobs.Job(PYTHON, dict(env, LD_PRELOAD="%s %s" % (library, h.AGENT)))
    job.wait_attached()
    names = job.threads()
    h.check("systrace/ctl" in names and "systrace/io" not in names, "threads %s" % names)
    job.train(20)
    job.process.send_signal(signal.SIGKILL)
    job.process.wait()
    told = recover(os.path.join(dump, "spool")).ok().out
    h.check_equal(jobs.steps_in(h.find_one(dump, "timeline/*--00006.timeline")), list(range(1, 21)), "steps")
    h.check("into 1 files" in told, told)


def test_ready_only():
    """A process that never recorded leaves nothing, killed or not."""
    dump = h.tmpdir()
    job = jobs.Job(PYTHON, h.preload_env(dump))
    job.wait_attached()
    job.do("torch.autograd.backward(1)")
    job.process.send_signal(signal.SIGKILL)
    job.process.wait()
    recover(os.path.join(dump, "spool"))
    h.check_equal(glob.glob(os.path.join(dump, "timeline", "*")), [], "files")
    h.check_equal(pools(os.path.join(dump, "spool")), [], "pools")


def as_user(uid, command, env=None):
    return h.run(["setpriv", "--reuid=%d" % uid, "--regid=%d" % uid, "--clear-groups", *command], env=env)


def test_another_user():
    """Another user neither sees nor touches it; root finishes it as its owner."""
    h.require_root()
    h.require("setpriv")
    dump = h.tmpdir()
    os.chmod(dump, 0o711)
    env = h.preload_env(dump)
    for name in os.listdir(dump):
        os.chown(os.path.join(dump, name), NOBODY, NOBODY)
    os.chown(dump, NOBODY, NOBODY)
    spool = os.path.join(dump, "spool")
    os.chmod(spool, 0o1777)
    starter = h.write_file(os.path.join(h.tmpdir(), "python"),
                           "#!/bin/sh\nexec setpriv --reuid=%d --regid=%d --clear-groups %s \"$@\"\n" % (
                               NOBODY, NOBODY, "/usr/bin/python3"))
    os.chmod(starter, 0o755)
    os.chmod(os.path.dirname(starter), 0o755)
    if as_user(NOBODY, ["test", "-r", h.AGENT, "-a", "-r", jobs.FAKE_TORCH]).status:
        h.skip("the build directory is not readable for other users")
    job = jobs.Job(starter, env)
    job.wait_attached()
    job.train(20)
    job.process.send_signal(signal.SIGKILL)
    job.process.wait()
    before = pools(spool)
    h.check_equal(len(before), 1, "pools")
    as_user(OTHER, [h.SYSTRACE, "recover", "--spool", spool]).ok(3)
    h.check_equal(pools(spool), before, "pools after another user's recover")
    recover(spool).ok()
    path = h.find_one(dump, "timeline/*.timeline")
    h.check_equal(jobs.steps_in(path), list(range(1, 21)), "steps")
    h.check_equal(os.stat(path).st_uid, NOBODY, "owner of the file")
    h.check_equal(pools(spool), [], "pools")


def in_pid_namespace(*command):
    args = ["unshare", "--pid", "--fork", "--mount-proc"]
    if os.geteuid() != 0:
        args += ["--user", "--map-root-user"]
    if subprocess.run(args + ["true"], stderr=subprocess.DEVNULL).returncode != 0:
        h.skip("no pid namespace: unshare --pid is not permitted here")
    return args + list(command)


def test_other_pid_namespace():
    """Seen from a namespace where a process of that pid lives, and the other way round: pids of others prove nothing."""
    env = h.preload_env(h.tmpdir())
    job = killed_job(env)
    spool = os.path.join(job.dump, "spool")
    pid = job.pid
    # a namespace in which process number <pid> lives: the kernel gives the number that is asked for next
    script = ("echo %d > /proc/sys/kernel/ns_last_pid; sleep 30 & test -d /proc/%d || exit 9; "
              "%s recover --json --spool %s; true" % (pid - 1, pid, h.SYSTRACE, spool))
    seen = h.run(in_pid_namespace("sh", "-c", script))
    if seen.status == 9:
        print("note: no process could be given the same pid")
    else:
        h.check("unknown" in seen.out, repr(seen))
        h.check_equal(len(pools(spool)), 1, "pools after a recover that can't judge")
    recover(spool).ok()
    h.check_equal(steps_of(job.dump, False), list(range(1, 21)), "steps")


def test_container_with_a_low_pid():
    """A killed rank of a container has pid 2 or so there; on the host a process of that number lives. Root sees through it."""
    h.require_root()
    with open("/proc/self/ns/pid", "rb"):
        first = os.readlink("/proc/self/ns/pid") == "pid:[4026531836]"
    if not first:
        h.skip("needs the first pid namespace, to see all processes")
    dump = h.tmpdir()
    env = dict(h.preload_env(dump), PYTHONPATH=jobs.FAKE_TORCH)
    script = h.write_file(os.path.join(dump, "run.sh"), "#!/bin/sh\n%s -c \"$PROGRAM\" & wait\n" % PYTHON)
    outside = h.start(in_pid_namespace("--kill-child", "sh", script), env=dict(env, PROGRAM=jobs.LOOP.replace('sys.stdin', '["time.sleep(60)"]')),
                      stdin=subprocess.PIPE)
    spool = os.path.join(dump, "spool")
    h.wait_for(lambda: pools(spool) or outside.poll() is not None, timeout=20, what="a pool")
    inside = int(os.path.basename(os.path.dirname(pools(spool)[0])).split("-")[1])
    h.check(inside < 50 and os.path.exists("/proc/%d" % inside), "process %d of the host lives, too" % inside)
    h.check('"alive"' in recover(spool, "--json").out, "the verdict while it lives")
    h.stop(outside, signal.SIGKILL)
    h.wait_for(lambda: recover(spool) and not pools(spool), what="recovery once the container is gone")


def test_twice_at_once():
    for _ in range(10 if h.FULL else 3):
        job = killed_job(h.preload_env(h.tmpdir(), SYSTRACE_FORMAT="json"))
        spool = os.path.join(job.dump, "spool")
        many = [h.start([h.SYSTRACE, "recover", "--spool", spool]) for _ in range(4)]
        for one in many:
            h.check(h.finish(one).status in (0, 3), "status of one of four recovers")
        h.check_equal(steps_of(job.dump, True), list(range(1, 21)), "steps")
        h.check_equal(pools(spool), [], "pools")


h.main(test_random_moments_pb, test_random_moments_json, test_killed_before_the_first_pass,
       test_killed_before_the_io_thread_ran, test_ready_only, test_another_user, test_other_pid_namespace,
       test_container_with_a_low_pid, test_twice_at_once)
