#!/usr/bin/env python3
# SPDX-License-Identifier: MulanPSL-2.0
"""What a client may do to an agent (docs/safety.md, 10): frames of every wrong kind, a thousand clients that say nothing,
descriptors sent along, no descriptor left. The agent goes on answering, keeps nothing, and the job does not notice."""

import array
import os
import random
import resource
import select
import socket
import struct

import ctl
import harness as h
import jobs

h.require(h.AGENT, h.CLI)
h.own_pid_namespace()
PYTHON = list(h.pythons().values())[-1]
ROUNDS = int(os.environ.get("ST_ABUSE_ROUNDS", "1500"))


def job_here(**extra):
    job = jobs.Job(PYTHON, h.preload_env(h.tmpdir(), **extra))
    h.wait_for(lambda: os.path.exists(job.sock), what="the control socket")
    return job


def ctl_tid(job):
    for tid in os.listdir("/proc/%d/task" % job.pid):
        if h.read_file("/proc/%d/task/%s/comm" % (job.pid, tid)).strip() == "systrace/ctl":
            return tid
    raise h.CheckFailed("no thread systrace/ctl")


def open_files(job):
    """What the control thread has open; it has a descriptor table of its own."""
    place = "/proc/%d/task/%s/fd" % (job.pid, ctl_tid(job))
    found = []
    for fd in os.listdir(place):
        try:
            found.append(os.readlink(os.path.join(place, fd)))
        except OSError:
            pass
    return sorted(found)


def quiet_files(job, want):
    """Wait until the control thread has nothing open but this (connections of before are gone)."""
    h.wait_for(lambda: open_files(job) == want, what="the end of all connections: %s, not %s" % (want, open_files(job)))


def closed_elsewhere(fd):
    """Does the reading end of a pipe see its end, that is: has nobody the writing end any more?"""
    return bool(select.select([fd], [], [], 10)[0]) and os.read(fd, 1) == b""


def send_with_pipe(conn, data):
    """Send bytes with the writing end of a pipe; returns the reading end."""
    reader, writer = os.pipe()
    conn.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [writer] * 4))])
    os.close(writer)
    return reader


def test_unasked_descriptors_are_closed():
    """With a whole request, with half of one, byte by byte, with garbage: the pipe's end is nowhere, no number is used up."""
    job = job_here()
    before = open_files(job)
    with ctl.connect(job.sock) as conn:
        reader = send_with_pipe(conn, ctl.frame("list"))
        h.check_equal(ctl.receive(conn).code, 0, "a request with descriptors")
        h.check(closed_elsewhere(reader), "the agent keeps a descriptor of a whole request")
    with ctl.connect(job.sock) as conn:
        reader = send_with_pipe(conn, ctl.frame("list")[:9])
        h.check(closed_elsewhere(reader), "the agent keeps a descriptor of half a request")
        more = [send_with_pipe(conn, bytes([b])) for b in ctl.frame("list")[9:]]
        h.check_equal(ctl.receive(conn).code, 0, "a request byte by byte, each with descriptors")
        h.check(all(closed_elsewhere(r) for r in more), "the agent keeps descriptors of single bytes")
    with ctl.connect(job.sock) as conn:
        reader = send_with_pipe(conn, b"\xff" * 64)
        h.check(closed_elsewhere(reader), "the agent keeps a descriptor of garbage")
    quiet_files(job, before)
    job.quit().ok()


def test_unasked_descriptors_go_with_the_client():
    """Sent behind a request that is being served, they wait in the socket; hanging up ends them."""
    job = job_here()
    with ctl.connect(job.sock) as conn:
        conn.sendall(ctl.frame("flush"))
        reader = send_with_pipe(conn, ctl.frame("list"))
        h.check_equal(ctl.receive(conn).code, 0, "flush")
        h.check_equal(ctl.receive(conn).code, 0, "list")
    h.check(closed_elsewhere(reader), "a descriptor outlived its connection")
    job.quit().ok()


def test_a_thousand_idle_clients():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 1200:
        h.skip("only %d descriptors may be open here" % hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1200), hard))
    job = job_here()
    before = open_files(job)
    idle = []
    for i in range(1000):
        idle.append(ctl.connect(job.sock))
        if i % 2:
            try:
                idle[-1].sendall(ctl.frame("status")[:i % 16])
            except OSError:
                pass  # has made room for another already
        if i % 100 == 0:
            h.check_equal(job.ask("list").code, 0, "list beside %d idle clients" % i)
    h.check_equal(h.run([h.CLI, "list", "--json", "--pid", str(job.pid)]).status, 0, "sysTrace_cli beside 1 000 idle clients")
    h.check(len(open_files(job)) <= len(before) + 16, "more than 16 clients are open: %s" % open_files(job))
    job.train(3)
    for conn in idle:
        conn.close()
    quiet_files(job, before)
    job.quit().ok()


def test_no_descriptor_left_for_clients():
    """The host's limit of open files is nearly reached: an idle client makes room, it is not waited for."""
    job = job_here()
    own = len(open_files(job))
    soft, hard = resource.prlimit(job.pid, resource.RLIMIT_NOFILE)
    # numbers of its own table: 0 to 2, the listening socket, and three clients
    resource.prlimit(job.pid, resource.RLIMIT_NOFILE, (own + 3, hard))
    idle = [ctl.connect(job.sock) for _ in range(6)]
    h.check_equal(job.ask("list").code, 0, "list with no descriptor left")
    h.check(not hung_up(idle[-1]), "answered only after the idle clients had timed out")
    resource.prlimit(job.pid, resource.RLIMIT_NOFILE, (soft, hard))
    for conn in idle:
        conn.close()
    job.quit().ok()


def hung_up(conn):
    conn.settimeout(0.01)
    try:
        return conn.recv(1) == b""
    except socket.timeout:
        return False
    except ConnectionError:
        return True


def test_lengths_that_lie():
    """Every boundary of the frame's and the entries' lengths, in one piece, cut, and with the rest sent twice."""
    job = job_here()
    before = open_files(job)
    limits = [0, 1, 5, 6, 7, 4079, 4080, 4081, 262143, 262144, 262145, 0x7fffffff, 0x80000000, 0xfffffff0, 0xffffffff]
    entry = struct.pack("<HI", 6, 5) + b"plugin" + b"MSPTI"
    frames = [struct.pack("<IHHII", ctl.MAGIC, 1, verb, size, 7) + body for size in limits for verb in (1, 3, 0xffff)
              for body in (b"", entry, entry * 500)]
    frames += [ctl.frame(1, [])[:8] + struct.pack("<II", 6 + 6 + 5, 7) + struct.pack("<HI", key, value) + b"pluginMSPTI"
               for key in (0, 1, 6, 11, 12, 255, 256, 65535) for value in (0, 5, 6, 0x7fffffff, 0xffffffff)]
    for data in frames:
        exchange(job, data)
    h.check_equal(job.ask("list").code, 0, "list")
    quiet_files(job, before)
    job.quit().ok()


def exchange(job, data, cut=None):
    """Send bytes, in one piece or two, say that there is no more, take what comes; returns that."""
    got = b""
    with ctl.connect(job.sock) as conn:
        try:
            for part in ([data] if cut is None else [data[:cut], data[cut:]]):
                conn.sendall(part)
            conn.shutdown(socket.SHUT_WR)
            while True:
                more = conn.recv(65536)
                if not more:
                    break
                got += more
        except (ConnectionError, socket.timeout) as e:
            h.check(not isinstance(e, socket.timeout), "the agent neither answers nor hangs up on %r" % data[:64])
    return got


def check_answers(data):
    """What the agent sends is whole, well-formed answers, whatever it was asked."""
    at = 0
    while at < len(data):
        h.check(len(data) - at >= 16, "half a header: %r" % data[at:])
        magic, version, verb, size, _ = struct.unpack_from("<IHHII", data, at)
        h.check(magic == ctl.MAGIC and version == ctl.VERSION and verb & ctl.ANSWER and size <= 262144 and
                at + 16 + size <= len(data), "a broken answer: %r" % data[at:at + 64])
        h.check(ctl.Answer(data[at + 16:at + 16 + size], verb).get("code") is not None, "an answer without a code")
        at += 16 + size


def mutated(rnd, seeds):
    data = bytearray(rnd.choice(seeds))
    for _ in range(rnd.choice((1, 1, 2, 4, 16))):
        kind = rnd.randrange(4)
        at = rnd.randrange(len(data))
        if kind == 0:
            data[at] = rnd.randrange(256)
        elif kind == 1:
            data[at] ^= 1 << rnd.randrange(8)
        elif kind == 2:
            del data[at:at + rnd.randrange(1, 9)]
        else:
            data[at:at] = rnd.choice(seeds)[:rnd.randrange(1, 64)]
        if not data:
            data = bytearray(b"\0")
    return bytes(data)


def test_fuzzed_requests_to_a_living_job():
    """Changed requests, several in one piece, cut anywhere, while the job trains: answers stay whole, nothing is left over."""
    job = job_here()
    before = open_files(job)
    seed = int(os.environ.get("ST_SEED", "20"))
    rnd = random.Random(seed)
    seeds = [ctl.frame(verb) for verb in ("status", "list", "plugins", "flush", "debug", 99)]
    seeds += [ctl.frame("enable", [("plugin", "MSPTI"), ("event", "marker"), ("duration", "0.1")]),
              ctl.frame("enable", [("plugin", "MSPTI"), ("start_step", "1000000000"), ("steps", "2")]),
              ctl.frame("enable", [("plugin", "stages")]), ctl.frame("disable", [("plugin", "MSPTI"), ("sync", "1")]),
              ctl.frame("enable", [("at", "99999999999.5"), ("plugin", "mspti")])]
    for i in range(ROUNDS):
        data = b"".join(mutated(rnd, seeds) for _ in range(rnd.choice((1, 1, 1, 3))))
        check_answers(exchange(job, data, rnd.choice((None, rnd.randrange(len(data) + 1)))))
        if i % 250 == 0:
            job.train(1)
    print("%d changed requests, ST_SEED=%d" % (ROUNDS, seed))
    h.check_equal(job.ask("disable", plugin="MSPTI").code, 0, "disable after it all")
    quiet_files(job, before)
    job.quit().ok()


def test_answers_of_a_lying_agent_cost_the_cli_nothing():
    """An agent that sends descriptors with its answer: the CLI takes the answer only."""
    place = h.tmpdir()
    with open(os.path.join(place, "libsysTrace.so"), "wb") as f:
        f.write(b"\0" * 4096)
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            lying_agent(place, writer)
        finally:
            os._exit(1)
    os.close(writer)
    sock = ctl.socket_of(place, pid)
    try:
        h.wait_for(lambda: os.path.exists(sock), what="the lying agent")
        got = h.run([h.CLI, "enable", "IO", "--pid", str(pid)]).ok()
        h.check("SUCCESS" in got.out, repr(got))
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
    h.check(closed_elsewhere(reader), "a descriptor of the answer is still open")
    os.close(reader)


def lying_agent(place, writer):
    os.environ["SYSTRACE_SOCKET_DIR"] = place
    # /proc/<pid>/environ shows the environment of the last exec
    code = ("import array, mmap, os, socket, sys; sys.path.insert(0, %r); import ctl\n"
            "lib = open(%r, 'rb'); m = mmap.mmap(lib.fileno(), 4096, prot=mmap.PROT_READ)\n"
            "s = socket.socket(socket.AF_UNIX); s.bind(ctl.socket_of(%r, os.getpid())); s.listen(4)\n"
            "while 1:\n"
            "    c = s.accept()[0]\n"
            "    try: data = ctl.receive_all(c, 16)\n"
            "    except EOFError: continue\n"
            "    import struct\n"
            "    head = struct.unpack('<IHHII', data); ctl.receive_all(c, head[3])\n"
            "    out = struct.pack('<HI', 4, 1) + b'code0'\n"
            "    out = struct.pack('<IHHII', head[0], head[1], head[2] | 0x8000, len(out), head[4]) + out\n"
            "    for i in range(len(out)):\n"
            "        c.sendmsg([out[i:i+1]], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [%d]))])\n" % (
                os.path.join(h.ROOT, "tests", "e2e"), os.path.join(place, "libsysTrace.so"), place, writer))
    os.set_inheritable(writer, True)
    os.execv(PYTHON, [PYTHON, "-c", code])


if __name__ == "__main__":
    h.main(test_unasked_descriptors_are_closed, test_unasked_descriptors_go_with_the_client, test_a_thousand_idle_clients,
           test_no_descriptor_left_for_clients, test_lengths_that_lie, test_fuzzed_requests_to_a_living_job,
           test_answers_of_a_lying_agent_cost_the_cli_nothing)
