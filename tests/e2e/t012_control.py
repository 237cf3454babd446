# SPDX-License-Identifier: MulanPSL-2.0
"""The control socket: what enable, disable, status, list, plugins and flush answer (contract 11, 12, docs/formats/ctl.md),
and that no client can block or break the agent: garbage, lies about lengths, half requests, answers nobody reads."""

import errno
import os
import random
import socket
import struct
import time

import ctl
import harness as h
import jobs

h.require(h.AGENT)
PYTHON = list(h.pythons().values())[-1]


def job_here(**extra):
    job = jobs.Job(PYTHON, h.preload_env(h.tmpdir(), **extra))
    h.wait_for(lambda: os.path.exists(job.sock), what="the control socket")
    return job


def test_identity():
    job = job_here(RANK="3", LOCAL_RANK="1", WORLD_SIZE="8", SYSTRACE_RUN_ID="night shift")
    h.check_equal(job.ask("list").get("rank"), None, "rank before a record")
    job.wait_attached()
    job.train(3)
    h.wait_for(lambda: job.ask("list").get("rank"), what="the rank")
    answer = job.ask("list")
    got = [answer.get(k) for k in ("rank", "local_rank", "world_size", "run", "state", "host", "format", "dump_path")]
    h.check_equal(got, ["3", "1", "8", "night shift", "recording", socket.gethostname(), "pb", job.dump], "list")
    h.check(answer.get("pids").split()[-1] == str(job.pid), "pids: %s" % answer.get("pids"))
    job.quit().ok()


def test_status():
    job = job_here()
    job.wait_attached()
    job.train(5)
    status = h.wait_for(lambda: job.status().get("records") not in (None, "0") and job.status(), what="records")
    h.check_equal([status.get(k) for k in ("step", "dropped", "python", "pool_shared")], ["5", "0", "on", "1"], "status")
    h.check(status.get("file", "").startswith(job.dump + "/timeline/"), "files: %s" % status.all("file"))
    h.check(int(status.get("thread.io.cpu_ns")) > 0 and float(status.get("cost_pct")) >= 0, "own cost: %r" % status)
    job.quit().ok()


def test_enable_and_disable():
    job = job_here()
    answer = job.ask("disable", plugin="MSPTI")
    h.check_equal((answer.code, answer.text), (0, "was off"), "disable of what is off")
    h.check_equal(job.ask("enable", plugin="mspti", event="marker").code, 0, "enable")
    h.check_equal(job.status().get("plugin.mspti.state"), "on", "state")
    h.check_equal(job.status().get("state"), "recording", "a command makes it record")
    h.check_equal(job.ask("enable", plugin="MSPTI", event="marker", duration="100").code, 0, "enable again")
    h.check(95 <= int(job.status().get("plugin.mspti.left_s")) <= 100, "time left: %r" % job.status())
    h.check_equal(job.ask("disable", plugin="MSPTI", sync="1").code, 0, "disable")
    h.check_equal(job.status().get("plugin.mspti.state"), "off", "state after disable")
    h.check_equal(job.ask("flush").code, 0, "flush")
    job.quit().ok()


def test_duration_ends_it():
    job = job_here()
    h.check_equal(job.ask("enable", plugin="MSPTI", duration="0.2").code, 0, "enable")
    h.wait_for(lambda: job.status().get("plugin.mspti.state") == "off", what="the end of the duration")
    job.quit().ok()


def test_refusals():
    job = job_here()
    for want, entries in ((-errno.ENOENT, {"plugin": "Nothing"}), (-errno.ENOENT, {"plugin": "MSPTI", "colour": "red"}),
                          (-errno.EINVAL, {"plugin": "MSPTI", "duration": "soon"}), (-errno.EINVAL, {}),
                          (-errno.ENOTSUP, {"plugin": "CPU"}), (-errno.ERANGE, {"plugin": "MSPTI", "at": "1000000000"})):
        answer = job.ask("enable", **entries)
        h.check_equal(answer.code, want, "enable %s (%s)" % (entries, answer.text))
        h.check(len(answer.text) > 15, "no reason given: %r" % answer)
    h.check_equal(job.ask(99).code, -errno.EOPNOTSUPP, "unknown verb")
    job.quit().ok()


def test_start_step():
    """start_step and steps: on from that step on, for so many steps."""
    job = job_here()
    job.wait_attached()
    job.train(2)
    h.check_equal(job.status().get("step"), "2", "step")
    answer = job.ask("enable", plugin="MSPTI", start_step="5", steps="2")
    h.check(answer.code == 0 and answer.text.startswith("armed: starts at step 5"), "enable: %r" % answer)
    h.check_equal(job.status().get("plugin.mspti.state"), "waiting", "state before the step")
    job.train(1)
    h.check_equal(job.status().get("plugin.mspti.state"), "waiting", "state one step before")
    job.train(1)
    h.wait_for(lambda: job.status().get("plugin.mspti.state") == "on", what="the start with step 5, after four")
    job.train(2)
    h.wait_for(lambda: job.status().get("plugin.mspti.state") == "off", what="the end after two steps")
    h.check_equal(job.ask("enable", plugin="MSPTI", start_step="4").code, -errno.ERANGE, "a step that has passed")
    job.quit().ok()


def test_at():
    job = job_here()
    h.check_equal(job.ask("enable", plugin="MSPTI", at="%.3f" % (time.time() + 1)).code, 0, "enable at")
    h.check_equal(job.status().get("plugin.mspti.state"), "waiting", "state")
    h.wait_for(lambda: job.status().get("plugin.mspti.state") == "on", what="the start at a wall clock time")
    job.ask("enable", plugin="MSPTI", at="%d" % (time.time() + 1000))
    h.check_equal(job.status().get("plugin.mspti.state"), "waiting", "moved to later")
    h.check_equal(job.ask("disable", plugin="MSPTI").text, "was waiting for its start", "disable while waiting")
    job.quit().ok()


def test_from_the_environment():
    job = job_here(SYSTRACE_PLUGINS="NoSuch; MSPTI event=marker duration=100", SYSTRACE_LOG_LEVEL="WARN")
    h.wait_for(lambda: job.status().get("plugin.mspti.state") == "on", what="MSPTI from SYSTRACE_PLUGINS")
    h.wait_for(lambda: "NoSuch" in h.agent_log(job.dump), what="the log line about NoSuch")
    job.quit().ok()


def check_alive(job):
    h.check_equal(job.ask("list").code, 0, "list")


def test_garbage():
    job = job_here()
    rnd = random.Random(5)
    good = ctl.frame("enable", [("plugin", "MSPTI")])
    frames = [b"\0" * 16, b"GET / HTTP/1.0\r\n\r\n", good[:10], good[:-1],
              ctl.frame("list", magic=1), ctl.frame("list", version=9),
              struct.pack("<IHHII", ctl.MAGIC, 1, 4, 0xffffffff, 7), struct.pack("<IHHII", ctl.MAGIC, 1, 4, 256 * 1024, 7),
              struct.pack("<IHHII", ctl.MAGIC, 1, 1, 6, 7) + struct.pack("<HI", 60000, 0xfffffff0),
              ctl.frame("enable", [("plugin", b"MS\0PTI")]), ctl.frame("enable", [("plugin", "x" * 9000)]),
              ctl.frame("enable", [("plugin", "MSPTI")] + [("duration", "1")] * 100),
              ctl.frame("enable", [("event", "m" * 200000), ("plugin", "MSPTI")]),
              ctl.frame("status", [("x", "")] * 5000)]
    for _ in range(60):
        data = bytearray(good)
        for _ in range(rnd.randint(1, 4)):
            data[rnd.randrange(4, len(data))] = rnd.randrange(256)
        frames.append(bytes(data))
    for data in frames:
        with ctl.connect(job.sock) as conn:
            try:
                conn.sendall(data)
                conn.shutdown(socket.SHUT_WR)
                while conn.recv(65536):
                    pass
            except OSError:
                pass
        check_alive(job)
    answer = None
    with ctl.connect(job.sock) as conn:
        conn.sendall(ctl.frame("list", version=9))
        answer = ctl.receive(conn)
    h.check_equal(answer.code, -errno.EPROTONOSUPPORT, "another version")
    job.quit().ok()


def test_neighbouring_versions():
    job = job_here()
    for version in (0, 2):
        with ctl.connect(job.sock) as conn:
            conn.sendall(ctl.frame("list", version=version))
            h.check_equal(ctl.receive(conn).code, 0, "protocol version %d" % version)
    job.quit().ok()


def test_stalling_clients():
    """Forty that say half a request or nothing, one that sends byte by byte, one that never reads: others are served meanwhile."""
    job = job_here()
    stalled = [ctl.connect(job.sock) for _ in range(20)]
    for conn in stalled:
        try:
            conn.sendall(ctl.frame("status")[:9])
        except BrokenPipeError:
            pass  # there are 16 places: the first four had to make room
    check_alive(job)
    deaf = ctl.connect(job.sock)
    deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    deaf.setblocking(False)
    try:
        for _ in range(3000):
            deaf.send(ctl.frame("status"))
    except BlockingIOError:
        pass
    except ConnectionError:
        pass
    check_alive(job)
    with ctl.connect(job.sock) as slow:
        for byte in ctl.frame("list"):
            slow.sendall(bytes([byte]))
        h.check_equal(ctl.receive(slow).code, 0, "request sent byte by byte")
    more = [ctl.connect(job.sock) for _ in range(20)]
    check_alive(job)
    # a half request is hung up on, whatever the client does
    h.wait_for(lambda: hung_up(stalled[-1]), what="the end of a stalling client")
    for conn in stalled + more + [deaf]:
        conn.close()
    job.train(2)
    job.quit().ok()


def hung_up(conn):
    conn.settimeout(0.01)
    try:
        return conn.recv(1) == b""
    except socket.timeout:
        return False
    except ConnectionError:
        return True


def test_stale_socket():
    """A socket that a dead process of this pid left is replaced; somebody's file of that name is not touched."""
    directory = h.tmpdir()
    env = h.preload_env(directory)
    leave = ("import os, socket, sys\n"
             "p = '%s/sysTrace_%%d.sock' %% os.getpid()\n" % env["SYSTRACE_SOCKET_DIR"])
    job = jobs.Job(PYTHON, env, leave + "s = socket.socket(socket.AF_UNIX); s.bind(p); s.close()\n" + jobs.LOOP)
    h.wait_for(lambda: answers(job), what="an answer over the replaced socket")
    job.quit().ok()
    h.check(not os.path.exists(job.sock), "the socket stayed")
    job = jobs.Job(PYTHON, env, leave + "open(p, 'w').write('mine')\n" + jobs.LOOP)
    other = h.wait_for(lambda: [f for f in os.listdir(env["SYSTRACE_SOCKET_DIR"]) if f.startswith(
        "sysTrace_%d-" % job.pid)], what="the socket's other name")
    h.check_equal(ctl.ask(os.path.join(env["SYSTRACE_SOCKET_DIR"], other[0]), "list").code, 0, "list")
    job.quit().ok()
    h.check_equal(h.read_file(job.sock), "mine", "the file that was there")


def answers(job):
    try:
        return job.ask("list").code == 0
    except OSError:
        return False


def test_removed_socket_dir_is_made():
    directory = h.tmpdir()
    env = h.preload_env(directory, SYSTRACE_SOCKET_DIR=os.path.join(directory, "new"))
    job = jobs.Job(PYTHON, env)
    h.wait_for(lambda: os.path.exists(job.sock), what="the socket in a new directory")
    job.quit().ok()
    long = os.path.join(directory, "l" * 120)
    os.mkdir(long)
    job = jobs.Job(PYTHON, h.preload_env(directory, sock_dir=long))
    h.wait_for(lambda: os.path.exists(job.sock), what="the socket below a path longer than 108 bytes")
    job.quit().ok()
    h.check(not os.path.exists(job.sock), "the socket with the long path stayed")


h.main(test_identity, test_status, test_enable_and_disable, test_duration_ends_it, test_refusals, test_start_step, test_at,
       test_from_the_environment, test_garbage, test_neighbouring_versions, test_stalling_clients, test_stale_socket,
       test_removed_socket_dir_is_made)
