# SPDX-License-Identifier: MulanPSL-2.0
"""A file system in user space, spoken to over /dev/fuse without libfuse: an empty, read-only root directory that counts as
remote. Told to be silent it answers nothing any more, as a server that is gone. For tests, in a mount namespace of their
own (harness.own_mounts).
"""

import ctypes
import errno
import os
import select
import struct
import threading
import time

import harness as h

INIT, GETATTR, STATFS, OPENDIR, FORGET, BATCH_FORGET, INTERRUPT, ACCESS = 26, 3, 17, 27, 2, 42, 36, 34


class Server:
    """Mounted at .place; answers on a thread of its own until silence() is called."""

    def __init__(self):
        self.place = h.tmpdir()
        self.silent = threading.Event()
        self.asked = False  # did a request come while it was silent?
        try:
            self.fd = os.open("/dev/fuse", os.O_RDWR)
        except OSError as e:
            h.skip("no /dev/fuse: %s" % e)
        libc = ctypes.CDLL(None, use_errno=True)
        options = "fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other" % self.fd
        if libc.mount(b"fuse-test", self.place.encode(), b"fuse", 0, options.encode()):
            h.skip("cannot mount fuse: %s" % os.strerror(ctypes.get_errno()))
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()
        h.atexit.register(libc.umount2, self.place.encode(), 2)

    def silence(self):
        self.silent.set()

    def _serve(self):
        while True:
            # silent: not even read, for a process that waits for a request which was read can't be killed
            waiting = select.select([self.fd], [], [], 0.02)[0]
            if self.silent.is_set():
                self.asked = self.asked or bool(waiting)
                time.sleep(0.02)
                continue
            if not waiting:
                continue
            try:
                request = os.read(self.fd, 1 << 20)
            except OSError as e:
                if e.errno in (errno.EINTR, errno.EAGAIN, errno.ENOENT):
                    continue
                return
            _, opcode, unique, node = struct.unpack_from("<IIQQ", request)
            self._answer(opcode, unique, node)

    def _answer(self, opcode, unique, node):
        if opcode in (FORGET, BATCH_FORGET, INTERRUPT):
            return
        attr = struct.pack("<QQQQQQIIIIIIIIII", 1, 0, 0, 0, 0, 0, 0, 0, 0, 0o40755, 2, 0, 0, 0, 4096, 0)
        body, error = b"", 0
        if opcode == INIT:
            body = struct.pack("<IIIIHHIIHHI", 7, 19, 0, 0, 16, 12, 4096, 1, 0, 0, 0) + b"\0" * 28
            body = body[:24]  # the length of protocol 7.19
        elif opcode == GETATTR:
            body = struct.pack("<QII", 1, 0, 0) + attr
        elif opcode == STATFS:
            body = struct.pack("<QQQQQIIII", 1000, 1000, 1000, 100, 100, 4096, 255, 4096, 0) + b"\0" * 24
        elif opcode == OPENDIR:
            body = struct.pack("<QII", 0, 0, 0)
        elif opcode == ACCESS:
            error = -errno.ENOSYS
        else:
            error = -errno.EROFS if opcode in (9, 8, 35) else -errno.ENOENT  # mkdir, mknod, create
        try:
            os.write(self.fd, struct.pack("<IiQ", 16 + len(body), error, unique) + body)
        except OSError:
            pass  # the request was interrupted meanwhile
