#!/usr/bin/env python3
# SPDX-License-Identifier: MulanPSL-2.0
# runner: alone
# runner: needs-root
"""Other users in the agent's places (docs/safety.md, 10): whatever they put under the names of its socket, pool, log and
output, nothing of theirs is written, opened or believed, the job goes on, and it can still be controlled."""

import glob
import json
import os
import socket
import stat
import threading

import harness as h
import jobs
import safe_host as s

h.require(h.AGENT, h.CLI, h.SYSTRACE, s.PYTHON, "setpriv")
h.require_root()
h.own_pid_namespace()


def list_of(host):
    found = json.loads(h.run([h.CLI, "list", "--json"], env=host.env).out or '{"agents": []}')["agents"]
    return [a for a in found if a["pid"] == host.pid]


def check_controlled(host, what):
    """The CLI reaches this very process, although somebody sits on its usual name."""
    def other():
        return [f for f in os.listdir(host.env["SYSTRACE_SOCKET_DIR"])
                if f.startswith("sysTrace_%d-" % host.pid)]
    name = h.wait_for(other, what="%s: the socket's other name" % what)[0]
    host.sock = os.path.join(host.env["SYSTRACE_SOCKET_DIR"], name)
    host.wait_socket()
    got = h.run([h.CLI, "enable", "MSPTI", "--pid", str(host.pid)], env=host.env).ok()
    h.check_equal(got.out, "[ACK] %s: SUCCESS\n" % host.sock, what)
    h.check_equal([a["state"] for a in list_of(host)], ["recording"], what)


def test_socket_name_taken_by_a_listener():
    host = s.Host(s.open_place())
    squatter = s.Listener(host.sock)
    host.go()
    check_controlled(host, "a listener of another user")
    h.check_equal(squatter.heard(), [], "bytes sent to the squatter")
    host.quit().ok()
    h.check(os.path.exists(host.base + "/sock/sysTrace_%d.sock" % host.pid), "the squatter's socket was removed")


def test_both_socket_names_taken():
    """Then it cannot be controlled; the job goes on, the CLI names the squatter and sends nothing."""
    host = s.Host(s.open_place())
    inode = os.stat("/proc/%d/ns/pid" % host.pid).st_ino
    squatters = [s.Listener(host.sock), s.Listener(host.sock[:-5] + "-%d.sock" % inode)]
    host.go()
    host.do("pass")
    h.wait_for(lambda: "no control socket" in h.read_file(find_log(host)), what="the log line")
    got = h.run([h.CLI, "enable", "MSPTI", "--pid", str(host.pid)], env=host.env).ok(1)
    h.check("the socket belongs to process" in got.out, got.out)
    h.check_equal([q.heard() for q in squatters], [[], []], "bytes sent to squatters")
    host.quit().ok()


def find_log(host):
    return h.wait_for(lambda: glob.glob(host.base + "/*/sysTrace/log/*%d.log" % host.pid) or
                      glob.glob(host.base + "/log/*-%d.log" % host.pid), what="the log")[0]


def test_socket_name_taken_by_other_things():
    """A link to a file, a link to nothing, a link to a live socket, a directory, a pipe, a dead socket of another user."""
    outside = h.tmpdir()
    precious = h.write_file(os.path.join(outside, "precious"), "precious")
    trap = os.path.join(outside, "trap.sock")
    os.chmod(outside, 0o777)
    listener = s.Listener(trap)
    plants = {
        "link to a file": "os.symlink(%r, p)" % precious,
        "link to nothing": "os.symlink(%r, p)" % os.path.join(outside, "nothing"),
        "link to a socket": "os.symlink(%r, p)" % trap,
        "directory": "os.mkdir(p)",
        "pipe": "os.mkfifo(p)",
        "dead socket": "import socket; socket.socket(socket.AF_UNIX).bind(p)",
    }
    before = os.stat(precious)
    for what, code in plants.items():
        host = s.Host(s.open_place())
        s.as_nobody("import os, sys; p = sys.argv[1]; " + code, host.sock)
        planted = os.lstat(host.sock)
        host.go()
        check_controlled(host, what)
        host.quit().ok()
        now = os.lstat(os.path.join(host.base, "sock", "sysTrace_%d.sock" % host.pid))
        h.check_equal((now.st_ino, now.st_mode, now.st_uid), (planted.st_ino, planted.st_mode, planted.st_uid), what)
    after = os.stat(precious)
    h.check_equal((after.st_mode, after.st_ino, h.read_file(precious)), (before.st_mode, before.st_ino, "precious"),
                  "the file a link led to")
    h.check(not os.path.exists(os.path.join(outside, "nothing")), "a file was made through a link")
    h.check_equal(listener.heard(), [], "bytes sent through a link")


def test_replaced_socket_is_noticed_and_made_again():
    """In a directory without the sticky bit its socket is moved away and another process listens instead."""
    base = s.open_place()
    os.chmod(base + "/sock", 0o777)
    host = s.Host(base).go().wait_socket()
    s.as_nobody("import os, sys; os.rename(sys.argv[1], sys.argv[1] + '.old')", host.sock)
    squatter = s.Listener(host.sock)
    got = h.run([h.CLI, "enable", "MSPTI", "--pid", str(host.pid)], env=host.env).ok(1)
    h.check("the socket belongs to process" in got.out, got.out)
    check_controlled(host, "after a replaced socket")
    h.check_equal(squatter.heard(), [], "bytes sent to the replacement")
    host.quit().ok()


def test_socket_file_is_0600_from_its_first_moment():
    """No chmod by name, which a replaced name would turn against another file; whatever the job's umask is."""
    base = s.open_place()
    shim = h.compile_c(r"""
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
static void note(const char *what, const char *path, unsigned mode)
{
	FILE *f = fopen(getenv("SHIM_NOTES"), "a");
	fprintf(f, "%s %s %o\n", what, path, mode);
	fclose(f);
}
int bind(int fd, const struct sockaddr *addr, socklen_t len)
{
	int (*real)(int, const struct sockaddr *, socklen_t) = dlsym(RTLD_NEXT, "bind");
	const struct sockaddr_un *un = (const void *)addr;
	int ret = real(fd, addr, len);
	struct stat st;
	if (!ret && un->sun_family == AF_UNIX && !lstat(un->sun_path, &st))
		note("bind", un->sun_path, st.st_mode & 07777);
	return ret;
}
int chmod(const char *path, mode_t mode)
{
	int (*real)(const char *, mode_t) = dlsym(RTLD_NEXT, "chmod");
	note("chmod", path, mode);
	return real(path, mode);
}
""", base + "/shim.so", "-shared", "-fPIC", "-ldl")
    for umask in ("0000", "0077", "0777"):
        notes = base + "/notes-" + umask
        host = s.Host(base, preload="%s:%s/libsysTrace.so" % (shim, base), wrapper="umask %s; " % umask,
                      SHIM_NOTES=notes).go().wait_socket()
        h.check_equal(stat.S_IMODE(os.stat(host.sock).st_mode), 0o600, "mode with umask " + umask)
        lines = h.read_file(notes).splitlines()
        h.check_equal(lines[0], "bind %s %o" % (host.sock, 0o600 & ~int(umask, 8)), "the first note")
        h.check(not [x for x in lines if x.startswith("chmod /") and not x.startswith("chmod /proc/")],
                "a chmod by name: %s" % lines)
        host.quit().ok()


def ours_in_shm():
    return sorted(name for name in os.listdir("/dev/shm") if name.startswith("sysTrace"))


def test_spool_taken_by_another_user():
    """A directory, an open directory of root's, or a link in the place of <spool>/sysTrace.0: private memory, said so."""
    for what, code in (("directory", "os.mkdir(p, 0o700)"), ("open directory", "os.mkdir(p); os.chmod(p, 0o777)"),
                       ("link", "os.symlink('/dev/shm', p)"), ("file", "open(p, 'w')")):
        base = s.open_place()
        spool = base + "/spool/sysTrace.0"
        s.as_nobody("import os, sys; p = sys.argv[1]; " + code, spool)
        before = ours_in_shm()
        host = s.Host(base).go().wait_socket()
        status = host.ask("status")
        h.check_equal(status.get("pool_shared"), "0", what)
        h.check(any("not crash-safe" in note for note in status.all("note")), "%s: %r" % (what, status))
        got = h.run([h.SYSTRACE, "recover", "--spool", base + "/spool"])
        h.check(got.status in (1, 3), "%s: %r" % (what, got))
        if os.path.isdir(spool) and not os.path.islink(spool):
            h.check_equal(os.listdir(spool), [], "%s: made in somebody's directory" % what)
        h.check_equal(ours_in_shm(), before, what + ": made behind a link")
        host.quit().ok()


def test_log_name_taken():
    """A link, a second name for a file of root's, a pipe, a file of nobody's: the log goes to the user's own directory."""
    base = s.open_place()
    precious = h.write_file(base + "/precious", "precious")
    log = base + "/log/systrace-%s-%%d.log" % socket.gethostname()
    plants = {
        "link": lambda p: s.as_nobody("import os, sys; os.symlink(*sys.argv[1:])", precious, p),
        "second name": lambda p: os.link(precious, p),
        "pipe": lambda p: s.as_nobody("import os, sys; os.mkfifo(sys.argv[1])", p),
        "pipe with a reader": with_reader,
        "file": lambda p: s.as_nobody("import sys; open(sys.argv[1], 'w')", p),
    }
    for what, plant in plants.items():
        host = s.Host(base)
        plant(log % host.pid)
        host.go().wait_socket()
        mine = base + "/state/sysTrace/log/systrace-%s-%d.log" % (socket.gethostname(), host.pid)
        h.wait_for(lambda: os.path.exists(mine), what="%s: the log in its other place" % what)
        h.wait_for(lambda: host.ask("status").get("log") == mine, what="%s: the log in status" % what)
        host.quit().ok()
        h.check_equal(h.read_file(precious), "precious", what)
        if what == "file":
            h.check_equal(os.path.getsize(log % host.pid), 0, "written into another user's file: bytes")


def with_reader(path):
    os.mkfifo(path)
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    threading.Thread(target=lambda: os.read(fd, 1), daemon=True).start()


def test_output_names_taken():
    """Empty files of another user under the output's names, links under the meta file's: moved aside or left alone."""
    base = s.open_place()
    precious = h.write_file(base + "/precious", "precious")
    host = s.Host(base, RANK="3", SYSTRACE_RUN_ID="r1", PYTHONPATH=jobs.FAKE_TORCH)
    name = base + "/dump/timeline/%s--00003.timeline" % socket.gethostname()
    meta = base + "/dump/meta/r1/%s--3--%d.json" % (socket.gethostname(), host.pid)
    s.as_nobody("import os, sys\n"
              "for p in sys.argv[1:3]: os.makedirs(os.path.dirname(p), 0o777); os.chmod(os.path.dirname(p), 0o777)\n"
              "os.chmod(os.path.dirname(os.path.dirname(sys.argv[2])), 0o777)\n"
              "open(sys.argv[1], 'w').close()\n"
              "os.utime(sys.argv[1], (1e9, 1e9))\n"  # a fresh one may be that of a process which is just beginning
              "os.mkfifo(sys.argv[1] + '.meta.json')\n"
              "os.symlink(sys.argv[3], sys.argv[2])\n", name, meta, precious)
    os.link(precious, meta + ".part")
    host.go().wait_socket()
    h.check_equal(host.ask("enable", plugin="MSPTI").code, 0, "enable")
    host.train(3)
    h.wait_for(lambda: host.ask("status").get("file"), what="an output file")
    host.quit().ok()
    h.check_equal(h.read_file(precious), "precious", "the file behind the names")
    h.check(os.path.getsize(name) > 0 and not os.path.islink(meta), "not written under the documented names")
    h.check_equal([os.stat(p).st_uid for p in (name, meta)], [0, 0], "owners of the output")
    aside = glob.glob(name + ".[0-9]*")
    h.check(sorted(os.path.getsize(p) for p in aside if not p.endswith(".meta.json")) == [0], "set aside: %s" % aside)


def test_wrong_uid_gets_no_word():
    """Also where somebody has opened up the socket's mode."""
    host = s.Host(s.open_place()).go().wait_socket()
    knock = ("import socket, sys\n"
             "sys.path.insert(0, %r)\n"
             "import ctl\n"
             "try:\n    print('answer', ctl.ask(sys.argv[1], 'list').code)\n"
             "except PermissionError:\n    print('refused')\n"
             "except (EOFError, ConnectionError):\n    print('closed')\n" % os.path.join(h.ROOT, "tests", "e2e"))
    h.check_equal(s.as_nobody(knock, host.sock).out, "refused\n", "another user")
    os.chmod(host.sock, 0o666)
    h.check_equal(s.as_nobody(knock, host.sock).out, "closed\n", "another user at an open door")
    h.check_equal(host.ask("list").code, 0, "root")
    host.quit().ok()


def test_texts_of_a_hostile_job_are_clean():
    """Its socket directory, its spool's names and what its pool says reach root's terminal without control characters."""
    base = s.open_place()
    evil = base + "/sock/\x1b[31mred\x07"
    os.mkdir(evil)
    os.chmod(evil, 0o777)
    host = s.Host(base, prefix=s.AS_NOBODY, SYSTRACE_SOCKET_DIR=evil, SYSTRACE_RUN_ID="\x1b]0;run\x07").go()
    h.wait_for(lambda: os.path.exists(host.sock), what="the socket")
    for command in ("list", "status", "enable MSPTI"):
        got = h.run([h.CLI, *command.split()], env=dict(host.env, SYSTRACE_SPOOL_PATH="/nonexistent")).ok()
        h.check(not set(got.out + got.err) & set("\x1b\x07\r\b"), "%s: %r" % (command, got))
    host.quit().ok()
    place = base + "/spool/sysTrace.%d/1-999999-1\x1b[31m" % s.NOBODY
    s.as_nobody("import os, sys; os.makedirs(sys.argv[1], 0o700); os.chmod(os.path.dirname(sys.argv[1]), 0o700)\n"
              "open(sys.argv[1] + '/pool', 'wb').write(b'STPOOL01' + b'\\xff' * 300000)", place)
    got = h.run([h.SYSTRACE, "recover", "--spool", base + "/spool"])
    h.check("999999" in got.out and not set(got.out + got.err) & set("\x1b\x07\r\b"), repr(got))


h.main(test_socket_name_taken_by_a_listener, test_both_socket_names_taken, test_socket_name_taken_by_other_things,
       test_replaced_socket_is_noticed_and_made_again, test_socket_file_is_0600_from_its_first_moment,
       test_spool_taken_by_another_user, test_log_name_taken, test_output_names_taken, test_wrong_uid_gets_no_word,
       test_texts_of_a_hostile_job_are_clean)
