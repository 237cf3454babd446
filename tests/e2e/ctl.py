# SPDX-License-Identifier: MulanPSL-2.0
"""The control protocol from the outside, for end-to-end tests: written from docs/formats/ctl.md alone, it shares no code
with src/wire/ctl.c. Used where a test must send what sysTrace_cli would not, or needs the agent without it.
"""

import os
import socket
import struct
import time

MAGIC = 0x43725473
VERSION = 1
ANSWER = 0x8000
VERBS = {"enable": 1, "disable": 2, "status": 3, "list": 4, "plugins": 5, "flush": 6, "dump": 7, "debug": 8, "stacks": 9}


def frame(verb, entries=(), version=VERSION, magic=MAGIC, sequence=7):
    """A request as bytes; verb: name or number, entries: (key, value) pairs."""
    payload = b""
    for key, value in entries:
        key, value = key.encode(), value if isinstance(value, bytes) else str(value).encode()
        payload += struct.pack("<HI", len(key), len(value)) + key + value
    return struct.pack("<IHHII", magic, version, VERBS.get(verb, verb), len(payload), sequence) + payload


def receive_all(conn, count):
    data = b""
    while len(data) < count:
        more = conn.recv(count - len(data))
        if not more:
            raise EOFError("the agent closed the connection after %d of %d bytes" % (len(data), count))
        data += more
    return data


class Answer:
    """What came back: code, text, get(key) and all(key)."""

    def __init__(self, data, verb):
        self.verb, self.entries, at = verb, [], 0
        while at < len(data):
            key_len, value_len = struct.unpack_from("<HI", data, at)
            at += 6
            # a refusal repeats what it was sent, whatever bytes that were
            self.entries.append((data[at:at + key_len].decode(),
                                 data[at + key_len:at + key_len + value_len].decode(errors="replace")))
            at += key_len + value_len
        self.code = int(self.get("code", "-999"))
        self.text = self.get("text", "")

    def get(self, key, default=None):
        return next((v for k, v in self.entries if k == key), default)

    def all(self, key):
        return [v for k, v in self.entries if k == key]

    def __repr__(self):
        return "code %d, %s" % (self.code, self.entries)


def receive(conn):
    magic, _version, verb, size, sequence = struct.unpack("<IHHII", receive_all(conn, 16))
    if magic != MAGIC or not verb & ANSWER or sequence != 7:
        raise ValueError("not an answer: magic %#x verb %#x sequence %d" % (magic, verb, sequence))
    return Answer(receive_all(conn, size), verb & ~ANSWER)


def connect(path, timeout=20):
    """A connection. The socket's name is there a moment before it listens: refusals are tried again for a while."""
    deadline = time.monotonic() + 5
    while True:
        conn = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        conn.settimeout(timeout)
        try:
            conn.connect(path)
            return conn
        except ConnectionRefusedError:
            conn.close()
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def ask(path, verb, timeout=20, **entries):
    """One request, one answer."""
    with connect(path, timeout) as conn:
        conn.sendall(frame(verb, entries.items()))
        return receive(conn)


def socket_of(directory, pid):
    return os.path.join(directory, "sysTrace_%d.sock" % pid)
