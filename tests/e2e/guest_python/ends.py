# SPDX-License-Identifier: MulanPSL-2.0
"""Ways for a traced process to end; t111_python_ends.py runs each and looks at status and stderr."""

import atexit
import os
import random
import signal
import sys
import threading
import time

import guest
import sample


def busy():
    while True:
        sample.t_loop(10)
        sample.Base().method(1)


def at_exit():
    assert sample.t_plain(1, 2) == 10  # hooks go on after ours has closed the door to new turns
    print("at exit", flush=True)


def plain():
    atexit.register(at_exit)
    guest.until_attached("sample@t_plain")
    sample.t_plain(1, 2)


def daemon_threads():
    guest.until_attached("sample@t_loop", "sample@Base@method")
    for _ in range(4):
        threading.Thread(target=busy, daemon=True).start()
    time.sleep(0.05)


def while_importing():
    """Ends in the middle of turns: each import makes the thread look again."""
    def imports():
        for name in ("json", "csv", "decimal", "email.message", "http.client", "xml.dom.minidom", "unittest", "asyncio",
                     "concurrent.futures", "multiprocessing", "logging.config", "sqlite3", "ctypes.util", "difflib"):
            try:
                __import__(name)
            except (ImportError, RuntimeError):
                pass
    threading.Thread(target=imports, daemon=True).start()
    time.sleep(random.random() / 10)


def holds_gil():
    """Ends at once while the thread still waits for its first turn."""
    sum(range(2000000))


def status_3():
    guest.until_attached("sample@t_plain")
    sys.exit(3)


def os_exit():
    threading.Thread(target=busy, daemon=True).start()
    guest.until_attached("sample@t_loop")
    os._exit(4)


def uncaught():
    if not os.environ.get("GUEST_NO_WAIT"):
        guest.until_attached("sample@t_raise")
    sample.t_raise(KeyError)


def killed():
    guest.until_attached("sample@t_plain")
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(10)


def stopped_first():
    """The agent's own end: no turn after it, hooks pass on."""
    guest.until_attached("sample@t_plain")
    assert guest.stop() == 0
    with guest.seen("sample@t_plain", 1):
        sample.t_plain(1, 2)
    assert guest.switch(False, 100) == -3  # -ESRCH: the thread is gone


def forks():
    """A child of os.fork ends normally: the thread does not exist there."""
    guest.until_attached("sample@t_plain")
    pid = os.fork()
    if pid == 0:
        sample.t_plain(1, 2)
        sys.exit(0)
    assert os.waitpid(pid, 0)[1] == 0


globals()[sys.argv[1]]()
