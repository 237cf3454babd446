# SPDX-License-Identifier: MulanPSL-2.0
"""A small file system in memory that can stop answering, like an NFS server that is gone: raw FUSE in a process of its
own (no library needed). It does not know FLUSH, as many do not: the kernel would send it at each close() and wait for the
answer whatever happens, where a hard-mounted NFS lets a killed process go. Needs root and /dev/fuse; skips where either is missing.

    with hang_fs.Mounted() as fs:
        ... files below fs.path ...
        fs.hang()               # from here on no request is answered
        h.wait_for(fs.asked)    # one waits
"""

import ctypes
import os
import select
import signal
import stat
import struct
import subprocess
import sys
import time

import harness as h

MS_NOSUID_NODEV = 6
MNT_DETACH = 2
ROOT = 1
ENOENT, EEXIST, ENOSYS = 2, 17, 38
HEAD = struct.Struct("<IIQQIIIi")  # len opcode unique nodeid uid gid pid padding

libc = ctypes.CDLL(None, use_errno=True)


class Node:
    def __init__(self, mode):
        self.mode, self.data, self.names = mode, bytearray(), {}


class Server:
    """Answers requests until the device is gone."""

    def __init__(self, fd):
        self.fd = fd
        self.nodes = {ROOT: Node(stat.S_IFDIR | 0o777)}

    def attr(self, ino):
        node = self.nodes[ino]
        now = int(time.time())
        return struct.pack("<QQQQQQIIIIIIIIII", ino, len(node.data), len(node.data) // 512 + 1, now, now, now, 0, 0, 0,
                           node.mode, 1, 0, 0, 0, 4096, 0)

    def entry(self, ino):
        return struct.pack("<QQQQII", ino, 0, 0, 0, 0, 0) + self.attr(ino)

    def make(self, parent, name, mode):
        if name in self.nodes[parent].names:
            return self.nodes[parent].names[name]
        ino = len(self.nodes) + 1
        self.nodes[ino] = Node(mode)
        self.nodes[parent].names[name] = ino
        return ino

    def child(self, parent, name):
        ino = self.nodes[parent].names.get(name)
        return -ENOENT if ino is None else ino

    # each: (node, body) -> bytes, or -errno
    def init(self, ino, body):
        return struct.pack("<IIIIHHI", 7, 19, 0x20000, 0x20, 16, 12, 65536)

    def lookup(self, ino, body):
        found = self.child(ino, body.rstrip(b"\0"))
        return found if found < 0 else self.entry(found)

    def getattr(self, ino, body):
        return struct.pack("<QII", 0, 0, 0) + self.attr(ino)

    def setattr(self, ino, body):
        valid, _, _, size = struct.unpack_from("<IIQQ", body)
        if valid & 8:
            data = self.nodes[ino].data
            del data[size:]
            data.extend(bytes(size - len(data)))
        return self.getattr(ino, body)

    def mkdir(self, ino, body):
        name = body[8:].rstrip(b"\0")
        if name in self.nodes[ino].names:
            return -EEXIST
        return self.entry(self.make(ino, name, stat.S_IFDIR | 0o755))

    def create(self, ino, body):
        name = body[16:].rstrip(b"\0")
        return self.entry(self.make(ino, name, stat.S_IFREG | 0o644)) + self.open(ino, body)

    def open(self, ino, body):
        return struct.pack("<QII", 0, 1, 0)  # direct I/O: each write is a request

    def read(self, ino, body):
        _, offset, size = struct.unpack_from("<QQI", body)
        return bytes(self.nodes[ino].data[offset:offset + size])

    def write(self, ino, body):
        _, offset, size = struct.unpack_from("<QQI", body)
        data = self.nodes[ino].data
        if len(data) < offset:
            data.extend(bytes(offset - len(data)))
        data[offset:offset + size] = body[40:40 + size]
        return struct.pack("<II", size, 0)

    def rename(self, ino, body, head=8):
        to = struct.unpack_from("<Q", body)[0]
        old, new = body[head:].split(b"\0")[:2]
        if self.child(ino, old) < 0:
            return -ENOENT
        self.nodes[to].names[new] = self.nodes[ino].names.pop(old)
        return b""

    def rename2(self, ino, body):
        return self.rename(ino, body, 16)

    def remove(self, ino, body):
        return b"" if self.nodes[ino].names.pop(body.rstrip(b"\0"), 0) else -ENOENT

    def statfs(self, ino, body):
        return struct.pack("<QQQQQIIII", 1 << 30, 1 << 29, 1 << 29, 1 << 20, 1 << 19, 4096, 255, 4096, 0) + bytes(24)

    def readdir(self, ino, body):
        offset = struct.unpack_from("<QQ", body)[1]
        out = b""
        for n, (name, child) in enumerate(sorted(self.nodes[ino].names.items()), 1):
            if n > offset:
                out += struct.pack("<QQII", child, n, len(name), 0) + name + bytes(-len(name) % 8)
        return out[:4096]

    def done(self, ino, body):
        return b""

    CALLS = {1: lookup, 3: getattr, 4: setattr, 9: mkdir, 10: remove, 11: remove, 12: rename, 14: open, 15: read,
             16: write, 17: statfs, 18: done, 20: done, 26: init, 27: open, 28: readdir, 29: done, 34: done,
             35: create, 45: rename2}

    def serve(self):
        while True:
            try:
                request = os.read(self.fd, 1 << 18)
            except InterruptedError:
                continue
            except OSError:
                return
            length, opcode, unique, ino, _, _, _, _ = HEAD.unpack_from(request)
            if opcode in (2, 36, 42):  # forget, interrupt, batch forget: no answer
                continue
            call = self.CALLS.get(opcode)
            answer = call(self, ino, request[HEAD.size:length]) if call else -ENOSYS
            error, data = (answer, b"") if isinstance(answer, int) else (0, answer)
            try:
                os.write(self.fd, struct.pack("<IiQ", 16 + len(data), error, unique) + data)
            except OSError:
                pass  # the one who asked is gone


class Mounted:
    def __init__(self, for_all=False):
        """for_all: every user may use it, not root alone."""
        h.require_root()
        h.require("/dev/fuse")
        self.path = h.tmpdir()
        self.fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        options = b"fd=%d,rootmode=40000,user_id=0,group_id=0%s" % (self.fd, b",allow_other" if for_all else b"")
        if libc.mount(b"hang", self.path.encode(), b"fuse", MS_NOSUID_NODEV, options):
            h.skip("mount: %s" % os.strerror(ctypes.get_errno()))
        self.process = subprocess.Popen([sys.executable, __file__, str(self.fd)], pass_fds=[self.fd],
                                        cwd=os.path.dirname(os.path.abspath(__file__)))

    def hang(self):
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self):
        self.process.send_signal(signal.SIGCONT)

    def asked(self):
        """Does a request wait to be read?"""
        return bool(select.select([self.fd], [], [], 0)[0])

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.process.kill()
        self.process.wait()
        os.close(self.fd)  # the last one: every request that still waits fails, and umount does not wait for one
        libc.umount2(self.path.encode(), MNT_DETACH)


if __name__ == "__main__":
    Server(int(sys.argv[1])).serve()
