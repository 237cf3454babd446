#!/usr/bin/env python3
# SPDX-License-Identifier: MulanPSL-2.0
# runner: needs-root
"""Root's tools at what other users and containers made (docs/safety.md, 10): agents in user, pid and mount namespaces are
reached, no path of theirs leads out of their root, and their files are read and written with their own rights."""

import json
import os
import signal
import stat

import hang_fs
import harness as h
import jobs
import safe_host as s

h.require(h.AGENT, h.CLI, h.SYSTRACE, s.PYTHON, "setpriv", "unshare")
h.require_root()
h.own_pid_namespace()

CONTAINER = [*s.AS_NOBODY, "unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "--kill-child",
             "--mount-proc"]
if h.run([*CONTAINER, "true"]).status != 0:
    h.skip("other users may not make user namespaces here")


class Container(s.Host):
    """A host in namespaces of its own, made by nobody; there it is root and pid 1. outer: its pid here."""

    def go(self):
        super().go()
        self.outer = self.process.pid
        while True:  # setpriv and unshare, then what they started
            children = h.read_file("/proc/%d/task/%d/children" % (self.outer, self.outer)).split()
            if not children:
                return self
            self.outer = int(children[0])


def enable(container, status=0):
    return h.run([h.CLI, "enable", "MSPTI", "--pid", str(container.outer)], env=container.env).ok(status).out


def shown(container, name):
    return "/proc/%d/root%s/%s" % (container.outer, container.env["SYSTRACE_SOCKET_DIR"], name)


def test_root_reaches_an_agent_whose_namespace_does_not_know_root():
    container = Container(s.open_place(), prefix=CONTAINER).go().wait_socket()
    h.check_equal(container.pid, 1, "pid inside")
    h.check_equal(enable(container), "[ACK] %s: SUCCESS\n" % shown(container, "sysTrace_1.sock"), "line")
    found = json.loads(h.run([h.CLI, "list", "--json"], env=container.env).ok().out)["agents"]
    h.check_equal([(a["pid"], a["inner_pid"], a["uid"], a["container"]) for a in found],
                  [(container.outer, 1, s.NOBODY, True)], "list")
    container.quit().ok()


def test_two_containers_share_a_socket_directory():
    """Both are pid 1; the second one's socket has another name, and each answer is the right one's."""
    base = s.open_place()
    first = Container(base, prefix=CONTAINER).go().wait_socket()
    second = Container(base, prefix=CONTAINER).go()
    name = "sysTrace_1-%d.sock" % os.stat("/proc/%d/ns/pid" % second.outer).st_ino
    second.sock = os.path.join(base, "sock", name)
    second.wait_socket()
    h.check_equal(enable(first), "[ACK] %s: SUCCESS\n" % shown(first, "sysTrace_1.sock"), "the first")
    h.check_equal(enable(second), "[ACK] %s: SUCCESS\n" % shown(second, name), "the second")
    first.quit().ok()
    h.check_equal(enable(second), "[ACK] %s: SUCCESS\n" % shown(second, name), "the second, alone")
    second.quit().ok()


def test_links_out_of_a_container_are_not_followed():
    """In the socket's place, in its directory's, and through /proc: every one leads to a socket that hears nothing."""
    outside = h.tmpdir()
    os.chmod(outside, 0o777)
    trap = os.path.join(outside, "sysTrace_1.sock")
    listener = s.Listener(trap)
    for what, before, directory in (
            ("absolute link as socket", "ln -s %s %%s/sysTrace_1.sock; " % trap, "%s"),
            ("relative link as socket", "ln -s ../../../../../../..%s %%s/sysTrace_1.sock; " % trap, "%s"),
            ("link as directory", "ln -s %s %%s/d; " % outside, "%s/d"),
            ("magic link", "", "/proc/self/root" + outside),
            ("dots", "", "/../../../proc/self/root/.." + outside)):
        base = s.open_place()
        inside = base + "/sock"
        wrapper = "mount -t tmpfs none %s; chmod 777 %s; %s" % (inside, inside, before % inside if before else "")
        place = directory % inside if "%s" in directory else directory
        container = Container(base, prefix=CONTAINER, wrapper=wrapper, SYSTRACE_SOCKET_DIR=place).go()
        h.wait_for(lambda: container.do("pass") or True)
        got = h.run([h.CLI, "enable", "MSPTI", "--pid", str(container.outer)], env=container.env)
        reached = "[ACK] /proc/%d/root" % container.outer in got.out and "-%d.sock: SUCCESS" % os.stat(
            "/proc/%d/ns/pid" % container.outer).st_ino in got.out
        h.check(reached or got.status == 1, "%s: %r" % (what, got))
        container.quit().ok()
    h.check_equal(listener.heard(), [], "bytes sent through a link out of the container")


def killed_job(base, prefix=s.AS_NOBODY):
    """A job of nobody's with output, killed in the middle; the path of its timeline."""
    host = s.Host(base, prefix=prefix, PYTHONPATH=jobs.FAKE_TORCH, RANK="0").go().wait_socket()
    host.train(5)
    h.wait_for(lambda: host.ask("status").get("file"), what="an output file")
    host.do("exec('for batch in DataLoader(list(range(5))):\\n  torch.autograd.backward(batch); optimizer.step()')")
    host.process.send_signal(signal.SIGKILL)
    host.process.wait()
    return h.find_one(base + "/dump", "timeline/*.timeline")


def test_recover_by_root_has_the_users_rights_only():
    """A file that the user may not write (as one it got root's tool to open by a trick) stays as it is."""
    base = s.open_place()
    path = killed_job(base)
    os.chown(path, 0, 0)
    os.chmod(path, 0o644)
    before = h.read_file(path)
    got = h.run([h.SYSTRACE, "recover", "--spool", base + "/spool"]).ok(1)
    h.check("failed" in got.out, repr(got))
    h.check_equal(h.read_file(path), before, "the file")
    os.chown(path, s.NOBODY, s.NOBODY)
    h.run([h.SYSTRACE, "recover", "--spool", base + "/spool"]).ok()
    h.check(len(h.read_file(path)) > len(before), "nothing was recovered in the end")
    h.check_equal(os.stat(path).st_uid, s.NOBODY, "owner")


def test_recover_by_root_follows_no_link_of_the_user():
    base = s.open_place()
    path = killed_job(base)
    precious = h.write_file(base + "/precious", "precious" * 10000)
    os.chmod(precious, 0o600)
    s.as_nobody("import os, sys; os.rename(sys.argv[1], sys.argv[1] + '.x'); os.symlink(sys.argv[2], sys.argv[1])",
              path, precious)
    h.run([h.SYSTRACE, "recover", "--spool", base + "/spool"])
    h.check_equal(h.read_file(precious), "precious" * 10000, "the file behind the link")


def test_recover_by_root_leaves_wrong_spools_alone():
    """A directory of root's name that is nobody's, of nobody's name that is a link, names that are no numbers of users."""
    base = s.open_place()
    victim = os.path.join(base, "victim")
    os.makedirs(victim + "/1-1-1")
    h.write_file(victim + "/1-1-1/pool", "")
    s.as_nobody("import os, sys; os.chdir(sys.argv[1]); os.makedirs('sysTrace.0/1-1-1', 0o700)\n"
              "os.symlink(sys.argv[2], 'sysTrace.%d'); os.mkdir('sysTrace.4294967296'); os.mkdir('sysTrace.-1')\n"
              "os.mkdir('sysTrace.1x'); os.symlink('sysTrace.0', 'sysTrace.1')" % s.NOBODY, base + "/spool", victim)
    h.run([h.SYSTRACE, "recover", "--spool", base + "/spool"]).ok(3)
    h.check(os.path.exists(victim + "/1-1-1/pool"), "a pool behind a link was removed")
    h.check(os.path.isdir(base + "/spool/sysTrace.0/1-1-1"), "a directory of another user was taken for root's")


def test_recover_by_root_waits_for_no_user_for_ever():
    """One user's file system does not answer: that user's recovery is given up, the other's is done; later it is made up for."""
    base = s.open_place()
    other = ["setpriv", "--reuid=65533", "--regid=65533", "--clear-groups"]
    with hang_fs.Mounted(for_all=True) as fs:
        host = s.Host(base, prefix=s.AS_NOBODY, PYTHONPATH=jobs.FAKE_TORCH, RANK="0", SYSTRACE_DUMP_PATH=fs.path)
        host.go().wait_socket().train(5)
        h.check_equal(host.ask("flush").code, 0, "flush")
        host.do("exec('for batch in DataLoader(list(range(5))):\\n  torch.autograd.backward(batch); optimizer.step()')")
        host.process.send_signal(signal.SIGKILL)
        host.process.wait()
        killed_job(base, prefix=other)
        fs.hang()
        got = h.run([h.SYSTRACE, "recover", "--spool", base + "/spool", "--timeout", "3"]).ok(1)
        h.check("user %d has not ended in 3 s" % s.NOBODY in got.err, repr(got))
        h.check_equal(got.out.count(": recovered, "), 1, "pools of the other user recovered: %r" % got)
        fs.go_on()
        h.wait_for(lambda: h.run([h.SYSTRACE, "recover", "--spool", base + "/spool"]).status == 0, what="the recovery")
        h.check_equal(jobs.steps_in(h.find_one(fs.path, "timeline/*.timeline")), list(range(1, 11)), "steps")


def test_a_sparse_pool_on_a_full_file_system():
    """Whoever recovers it, root or the io thread of a job, is not ended by SIGBUS."""
    base = s.open_place()
    killed_job(base, ())
    pool = h.find_one(base + "/spool", "sysTrace.0/*/pool")
    script = ("umask 077; mkdir $1; mount -t tmpfs -o size=$2 none $1; mkdir -p $1/$3; cp --sparse=always $4 $1/$3/pool\n"
              "dd if=/dev/zero of=$1/rest bs=4k 2>/dev/null || :\n"
              "test $(stat -c %b $1/$3/pool) -lt $(($(stat -c %s $1/$3/pool) / 512))\n"
              "exec $5 recover --spool $1\n")
    got = h.run(["unshare", "--mount", "sh", "-ec", script, "sh", base + "/small", os.path.getsize(pool) // 2,
                 os.path.relpath(os.path.dirname(pool), base + "/spool"), pool, h.SYSTRACE])
    h.check_equal(got.status, 1, repr(got))
    h.check("no memory for the holes" in got.out, repr(got))


def test_convert_by_root_has_the_users_rights_only():
    """Root converts a user's files: the result is the user's, a link planted as its .part or target is not written through."""
    base = s.open_place()
    path = killed_job(base)
    out = base + "/dump/job.json"
    got = h.run([h.SYSTRACE, "convert", "timeline", "--input", path, "--output", out]).ok()
    h.check("belongs to user %d" % s.NOBODY in got.err, repr(got))
    h.check_equal(os.stat(out).st_uid, s.NOBODY, "owner of the result")
    text = h.write_file(base + "/dump/trace.txt", "# tracer: nop\n"
                        "  a-1 [000] d..2. 1.000001: sched_switch: prev_comm=a prev_pid=1 prev_prio=120 prev_state=S ==> "
                        "next_comm=b next_pid=2 next_prio=120\n"
                        "  b-2 [000] d..2. 1.000101: sched_switch: prev_comm=b prev_pid=2 prev_prio=120 prev_state=S ==> "
                        "next_comm=a next_pid=1 next_prio=120\n")
    os.chown(text, s.NOBODY, s.NOBODY)
    got = h.run([h.SYSTRACE, "convert", "ftrace", "--input", text, "--output", base + "/dump/ftrace.json"]).ok()
    h.check("belongs to user %d" % s.NOBODY in got.err, repr(got))
    h.check_equal(os.stat(base + "/dump/ftrace.json").st_uid, s.NOBODY, "owner of the result")
    private = os.path.join(h.tmpdir(), "job.json")  # a directory of root's
    got = h.run([h.SYSTRACE, "convert", "timeline", "--input", base + "/dump", "--output", private]).ok(1)
    h.check("ermission denied" in got.err and not os.path.exists(private), repr(got))
    device = base + "/dump/link.json"
    target = h.write_file(base + "/precious", "precious")
    os.chmod(target, 0o600)
    s.as_nobody("import os, sys; os.symlink(*sys.argv[1:])", target, device)
    h.run([h.SYSTRACE, "convert", "timeline", "--input", path, "--output", device])
    h.check_equal((h.read_file(target), stat.S_IMODE(os.stat(target).st_mode)), ("precious", 0o600), "behind the link")


def test_diagnosis_by_root_reads_with_the_users_rights():
    """failslow and localize as root: a link in the user's directory leads to what that user may read only; results are root's."""
    base = s.open_place()
    host = s.Host(base, prefix=s.AS_NOBODY, RANK="0", PYTHONPATH=jobs.FAKE_TORCH).go().wait_socket()
    host.train(300)
    host.quit().ok()
    path = h.find_one(base + "/dump", "timeline/*.timeline")
    own = h.tmpdir()  # root's alone

    def diagnose(command, source, name):
        out = os.path.join(own, command + name)
        return h.run([h.SYSTRACE, command, "--input", source, "--output", out]), out

    for command in ("failslow", "localize"):
        got, out = diagnose(command, base + "/dump", "-own")
        got.ok()
        h.check_equal({os.stat(os.path.join(out, f)).st_uid for f in os.listdir(out)}, {0}, "owner of the results")
    secret = os.path.join(own, "secret.timeline")
    os.rename(path, secret)
    os.chown(secret, 0, 0)
    os.chmod(secret, 0o600)
    s.as_nobody("import os, sys; os.symlink(*sys.argv[1:])", secret, path)
    for command in ("failslow", "localize"):
        for source in (base + "/dump", path):
            got, out = diagnose(command, source, "-link")
            h.check(got.status in (1, 3) and not os.path.exists(out), "%s of %s: %r" % (command, source, got))


h.main(test_root_reaches_an_agent_whose_namespace_does_not_know_root, test_two_containers_share_a_socket_directory,
       test_links_out_of_a_container_are_not_followed, test_recover_by_root_has_the_users_rights_only,
       test_recover_by_root_waits_for_no_user_for_ever, test_recover_by_root_follows_no_link_of_the_user,
       test_recover_by_root_leaves_wrong_spools_alone,
       test_a_sparse_pool_on_a_full_file_system, test_convert_by_root_has_the_users_rights_only,
       test_diagnosis_by_root_reads_with_the_users_rights)
