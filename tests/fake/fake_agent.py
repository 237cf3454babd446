#!/usr/bin/env python3
# SPDX-License-Identifier: MulanPSL-2.0
"""Stand-ins for agents: processes that map a file named libsysTrace.so and answer, or mistreat, the control protocol.

usage: fake_agent.py DIR BEHAVIOUR [BEHAVIOUR ...]

Forks one process per behaviour, all listening in $SYSTRACE_SOCKET_DIR (default: DIR). Prints one line
`<pid> <behaviour>` for each once they listen, then waits until stdin is closed and ends them. DIR also gets the dummy
library. Behaviours: ok, ok:<text>, error:<text>, slow:<seconds>, silent, close, garbage, half, version:<n>, badverb,
badseq, badpayload, nocode, huge, dribble, dormant (no socket), stale (socket file, nobody listens), late:<seconds>
(listens so long after its socket is there), pid:<n> (socket
named for another pid), fork (with a forked child that has no socket), knows:<plugin>=<keys> (a
plugin table of its own).
"""

import mmap
import os
import signal
import socket
import struct
import sys
import time

MAGIC = 0x43725473
ANSWER = 0x8000
VERBS = {1: "enable", 2: "disable", 3: "status", 4: "list", 5: "plugins", 6: "flush", 7: "dump"}


def entry(key, value):
    key, value = key.encode(), value if isinstance(value, bytes) else str(value).encode()
    return struct.pack("<HI", len(key), len(value)) + key + value


def message(verb, seq, entries, version=1):
    payload = b"".join(entry(k, v) for k, v in entries)
    return struct.pack("<IHHII", MAGIC, version, verb, len(payload), seq) + payload


def parse(payload):
    out, at = [], 0
    while at < len(payload):
        klen, vlen = struct.unpack_from("<HI", payload, at)
        at += 6
        out.append((payload[at:at + klen].decode(), payload[at + klen:at + klen + vlen].decode()))
        at += klen + vlen
    return out


def receive(conn, count):
    data = b""
    while len(data) < count:
        part = conn.recv(count - len(data))
        if not part:
            raise ConnectionError
        data += part
    return data


def status_entries(index):
    return [("code", 0), ("pid", os.getpid()), ("state", "recording"), ("reason", "step"), ("rank", index),
            ("local_rank", index), ("world_size", 8), ("host", "node1"), ("run", "job-7"), ("version", "0.1.0"),
            ("dump_path", "/home/sysTrace"), ("format", "pb"), ("step", 100 + index), ("stage_id", 100 + index),
            ("stage", "FORWARD"), ("python", "on"), ("untraceable", 3), ("plugin", "IO"), ("plugin.io.state", "on"),
            ("plugin.io.text", "12 files"), ("plugin.io.cost_ns", 4200), ("plugin.io.dropped", 5),
            ("plugin", "Mutex"), ("plugin.mutex.state", "waiting"), ("records", 12345), ("dropped", 5),
            ("dropped.io", 5), ("cost_ns", 987654), ("cost_pct", "0.21"), ("pool_bytes", 524288),
            ("pool_shared", 0), ("file", "/home/sysTrace/timeline/node1--%05d.timeline" % index),
            ("file.0.bytes", 1234567), ("note", "not crash-safe: /dev/shm is full")]


def answer(index, behaviour, verb, seq, request):
    kind, _, arg = behaviour.partition(":")
    if kind == "error":
        return message(verb | ANSWER, seq, [("code", -95), ("text", arg)])
    if kind == "version":
        return message(verb | ANSWER, seq, [("code", 0)], version=int(arg))
    if kind == "badverb":
        return message(verb, seq, [("code", 0)])
    if kind == "badseq":
        return message(verb | ANSWER, seq + 1, [("code", 0)])
    if kind == "nocode":
        return message(verb | ANSWER, seq, [("text", "hello")])
    if kind == "badpayload":
        return struct.pack("<IHHII", MAGIC, 1, verb | ANSWER, 8, seq) + b"\xff" * 8
    if kind == "huge":
        return struct.pack("<IHHII", MAGIC, 1, verb | ANSWER, 0xffffffff, seq)
    if kind == "garbage":
        return b"HTTP/1.1 400 Bad Request\r\n\r\n"
    if kind == "half":
        return message(verb | ANSWER, seq, [("code", 0), ("text", "never complete")])[:-4]
    name = VERBS.get(verb, "")
    if kind == "knows" and name == "plugins":
        plugin, _, keys = arg.partition("=")
        return message(verb | ANSWER, seq, [("code", 0), ("plugin", plugin), ("plugin.%s.keys" % plugin.lower(), keys)])
    if name in ("status", "list"):
        return message(verb | ANSWER, seq, status_entries(index))
    text = arg if kind == "ok" else ""
    if arg == "echo" or kind == "knows":  # what arrived, so that tests see it
        text = " ".join("%s=%s" % pair for pair in request)
    return message(verb | ANSWER, seq, [("code", 0), ("text", text)])


def serve(index, behaviour, listener):
    kind, _, arg = behaviour.partition(":")
    while True:
        conn, _ = listener.accept()
        try:
            if kind == "close":
                conn.close()
                continue
            if kind == "silent":
                time.sleep(3600)
            _, _, verb, bytes_, seq = struct.unpack("<IHHII", receive(conn, 16))
            request = parse(receive(conn, bytes_))
            if kind == "slow":
                time.sleep(float(arg))
            data = answer(index, behaviour, verb, seq, request)
            if kind == "dribble":
                for i in range(len(data)):
                    conn.sendall(data[i:i + 1])
            else:
                conn.sendall(data)
            if kind == "half":
                time.sleep(3600)
        except (ConnectionError, BrokenPipeError, struct.error):
            pass
        finally:
            conn.close()


def child(directory, index, behaviour, ready):
    kind, _, arg = behaviour.partition(":")
    library = os.open(os.path.join(directory, "libsysTrace.so"), os.O_RDONLY)
    mapped = mmap.mmap(library, 4096, prot=mmap.PROT_READ)  # /proc/<pid>/maps shows it
    place = os.environ.get("SYSTRACE_SOCKET_DIR") or directory
    name = int(arg) if kind == "pid" else os.getpid()
    listener = None
    if kind != "dormant":
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(os.path.join(place, "sysTrace_%d.sock" % name))
        if kind != "late":
            listener.listen(4)
    if kind == "stale":
        listener.close()
        listener = None
    if kind == "fork" and os.fork() == 0:
        parent = os.getppid()
        while os.getppid() == parent:  # ends with its parent
            time.sleep(0.1)
        os._exit(0)
    os.write(ready, b"%d %s\n" % (os.getpid(), behaviour.encode()))
    if listener is None:
        time.sleep(3600)
    if kind == "late":
        time.sleep(float(arg))
        listener.listen(4)
    serve(index, behaviour, listener)
    del mapped


def main():
    directory, behaviours = sys.argv[1], sys.argv[2:]
    with open(os.path.join(directory, "libsysTrace.so"), "wb") as f:
        f.write(b"\0" * 4096)
    pids = []
    reader, writer = os.pipe()
    for index, behaviour in enumerate(behaviours):
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.close(reader)
            try:
                child(directory, index, behaviour, writer)
            finally:
                os._exit(1)
        pids.append(pid)
    os.close(writer)
    lines = b""
    while lines.count(b"\n") < len(pids):
        part = os.read(reader, 65536)
        if not part:
            sys.exit("a fake agent did not start")
        lines += part
    sys.stdout.write(lines.decode())
    sys.stdout.flush()
    try:
        sys.stdin.read()
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        for pid in pids:
            os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
