#!/usr/bin/env python3
# SPDX-License-Identifier: MulanPSL-2.0
"""Agents in containers and of other users: found and reached, but never by following a path they control."""

import json
import os
import shutil
import subprocess

import harness as h

h.require(h.CLI, "/usr/bin/python3", "setpriv")
h.require_root()
h.own_pid_namespace()

NOBODY = 65534
PYTHON = "/usr/bin/python3"  # readable by every user


def place():
    """A directory that every user may enter, with copies of the fake agent and of sysTrace_cli."""
    path = h.tmpdir()
    os.chmod(path, 0o755)
    for source in (os.path.join(h.ROOT, "tests", "fake", "fake_agent.py"), h.CLI):
        shutil.copy(source, path)
        os.chmod(os.path.join(path, os.path.basename(source)), 0o755)
    return path


class Job:
    """Fake agents started by a prefix command (a container, another user); a with-block, .pids as they see themselves."""

    def __init__(self, prefix, directory, socket_dir, *behaviours, before=""):
        script = "%s exec %s %s %s %s" % (before, PYTHON, os.path.join(os.path.dirname(directory), "fake_agent.py"),
                                          directory, " ".join(behaviours))
        env = {"PATH": os.environ["PATH"], "SYSTRACE_SOCKET_DIR": socket_dir}
        self.count = len(behaviours)
        self.process = subprocess.Popen([*prefix, "sh", "-c", script], env=env, text=True, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE)

    def __enter__(self):
        lines = [self.process.stdout.readline().split() for _ in range(self.count)]
        h.check(all(lines), "the fake agents did not start")
        self.pids = [int(line[0]) for line in lines]
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait(20)
        self.process.stdout.close()


CONTAINER = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]


def test_container_is_reached_through_its_root():
    base = place()
    inside = os.path.join(base, "inside")
    os.mkdir(inside)
    with Job(CONTAINER, inside, inside, "ok", before="mount -t tmpfs none %s &&" % inside) as job:
        h.check_equal(os.listdir(inside), [], "the container's files as seen from the host")
        agents = json.loads(h.run([h.CLI, "list", "--json"]).ok().out)["agents"]
        h.check_equal(len(agents), 1, "agents")
        agent = agents[0]
        h.check_equal((agent["inner_pid"], agent["container"]), (job.pids[0], True), "identity")
        h.check(agent["pid"] != job.pids[0], "host pid and inner pid are the same")
        shown = "/proc/%d/root%s/sysTrace_%d.sock" % (agent["pid"], inside, job.pids[0])
        h.check_equal(h.run([h.CLI, "enable", "IO"]).ok().out, "[ACK] %s: SUCCESS\n" % shown, "line")
        h.check_equal(h.run([h.CLI, "disable", "IO", "--pid", str(agent["pid"])]).ok().out, "[ACK] %s: SUCCESS\n" % shown,
                      "line by host pid")


def test_container_symlink_is_not_followed():
    """The container's socket directory is a link to a directory of the host in which another agent listens."""
    base = place()
    inside, trap = os.path.join(base, "inside"), os.path.join(base, "inside", "link")
    os.mkdir(inside)
    before = "mount -t tmpfs none %s && mkdir %s/real && ln -s real %s &&" % (inside, inside, trap)
    with Job(CONTAINER, inside, trap, "ok", before=before):
        got = h.run([h.CLI, "enable", "IO"]).ok(1)
        h.check("FAILED: its socket path contains a symbolic link, which root does not follow" in got.out, got.out)


def test_absolute_symlink_stays_below_the_container():
    base = place()
    inside, outside = os.path.join(base, "inside"), os.path.join(base, "outside")
    os.mkdir(inside)
    os.mkdir(outside)
    before = "mount -t tmpfs none %s && ln -s %s %s/link &&" % (inside, outside, inside)
    with Job(CONTAINER, inside, os.path.join(inside, "link"), "ok", before=before):
        got = h.run([h.CLI, "enable", "IO"]).ok(1)
        h.check("symbolic link" in got.out, got.out)


def other_user_prefix():
    return ["setpriv", "--reuid=%d" % NOBODY, "--regid=%d" % NOBODY, "--clear-groups"]


def test_root_reaches_other_users():
    base = place()
    theirs = os.path.join(base, "theirs")
    os.mkdir(theirs)
    os.chown(theirs, NOBODY, NOBODY)
    with Job(other_user_prefix(), theirs, theirs, "ok") as job:
        got = h.run([h.CLI, "enable", "IO"]).ok()
        h.check_equal(got.out, "[ACK] %s/sysTrace_%d.sock: SUCCESS\n" % (theirs, job.pids[0]), "line")
        data = json.loads(h.run([h.CLI, "status", "--json"]).ok().out)
        h.check_equal(data["agents"][0]["uid"], NOBODY, "uid")


def test_root_follows_no_link_of_another_user():
    base = place()
    theirs = os.path.join(base, "theirs")
    os.mkdir(theirs)
    os.mkdir(os.path.join(theirs, "real"))
    os.symlink("real", os.path.join(theirs, "link"))
    for path in (theirs, os.path.join(theirs, "real")):
        os.chown(path, NOBODY, NOBODY)
    with Job(other_user_prefix(), theirs, os.path.join(theirs, "link"), "ok"):
        got = h.run([h.CLI, "enable", "IO"]).ok(1)
        h.check("symbolic link" in got.out and "as the job's user" in got.out, got.out)
        # that user may follow its own links
        h.run([*other_user_prefix(), os.path.join(base, "sysTrace_cli"), "enable", "IO"]).ok()


def test_root_does_not_talk_to_another_user_in_an_agents_place():
    """Its own agent is gone from the socket; another process of that user listens there instead."""
    base = place()
    theirs = os.path.join(base, "theirs")
    os.mkdir(theirs)
    os.chown(theirs, NOBODY, NOBODY)
    with Job(other_user_prefix(), theirs, theirs, "dormant") as job:
        with Job(other_user_prefix(), theirs, theirs, "pid:%d" % job.pids[0]) as impostor:
            got = h.run([h.CLI, "enable", "IO", "--pid", str(job.pids[0])]).ok(1)
            h.check("the socket belongs to process %d of user %d, not to process %d" % (
                impostor.pids[0], NOBODY, job.pids[0]) in got.out, got.out)


def test_other_users_see_nothing_of_root():
    base = place()
    ours = os.path.join(base, "ours")
    os.mkdir(ours)
    with Job([], ours, ours, "ok") as job:
        h.run([h.CLI, "enable", "IO"]).ok()
        got = h.run([*other_user_prefix(), os.path.join(base, "sysTrace_cli"), "enable", "IO"]).ok(3)
        h.check("could not be looked at" in got.err and "run as root" in got.err, got.err)
        got = h.run([*other_user_prefix(), os.path.join(base, "sysTrace_cli"), "enable", "IO", "--pid",
                     str(job.pids[0])]).ok(1)
        h.check("or the process belongs to another user" in got.out, got.out)


h.main(test_container_is_reached_through_its_root, test_container_symlink_is_not_followed,
       test_absolute_symlink_stays_below_the_container, test_root_reaches_other_users,
       test_root_follows_no_link_of_another_user, test_root_does_not_talk_to_another_user_in_an_agents_place,
       test_other_users_see_nothing_of_root)
