# SPDX-License-Identifier: MulanPSL-2.0
"""What guest scripts use to ask the preload tests/fake/python_host.c what it saw; runs on every CPython from 3.8 on."""

import ctypes
import time

_lib = ctypes.PyDLL(None)  # PyDLL: counts are kept under the GIL
_free = ctypes.CDLL(None)  # waits without it
ENTERS, LEAVES, RAISED, ARGS, KWARGS, DEEPEST = range(6)


def count(spec, what=ENTERS):
    return _lib.fake_count(spec.encode(), what)


def attached(spec):
    return _lib.fake_attached(spec.encode())


def gc_count():
    return _lib.fake_gc_count()


def starts():
    return _lib.fake_starts()


def switch(on, ms=5000):
    return _free.fake_switch(int(on), ms)


def stop(ms=5000):
    return _free.fake_stop(ms)


def status():
    text = ctypes.create_string_buffer(16384)
    _lib.fake_status(text, len(text))
    return text.value.decode()


def until(condition, what, seconds=20):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "%s did not come true; %s" % (what, status())
        time.sleep(0.01)


def until_attached(*specs):
    for spec in specs:
        until(lambda: attached(spec), "attaching " + spec)


class seen:
    """with seen(spec, calls, raised=0): the body makes exactly so many calls, and each one ends."""

    def __init__(self, spec, calls, raised=0):
        self.spec, self.calls, self.raised = spec, calls, raised

    def __enter__(self):
        self.before = [count(self.spec, i) for i in range(6)]

    def __exit__(self, kind, value, tb):
        if kind:
            return
        now = [count(self.spec, i) for i in range(6)]
        got = [b - a for a, b in zip(self.before, now)][:3]
        want = [self.calls, self.calls, self.raised]
        assert got == want, "%s: entered, left, raised %r, want %r" % (self.spec, got, want)
