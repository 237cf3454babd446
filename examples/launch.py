#!/usr/bin/env python3
# SPDX-License-Identifier: MulanPSL-2.0
"""Start the ranks of a job on this host, each with sysTrace loaded.

    python3 examples/launch.py -n 4 examples/train_ddp.py --steps 100
    python3 examples/launch.py -n 2 --no-preload --cpus 1:0 examples/train_ddp.py

Sets RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT and LD_PRELOAD, as torchrun with LD_PRELOAD would. When a
rank fails the others are ended; the exit status is the first failure's. Output lines are passed through as they come,
with the rank in front.
"""

import argparse
import os
import signal
import socket
import subprocess
import sys
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def find_library():
    for path in (os.path.join(ROOT, "build", "libsysTrace.so"), "/usr/local/lib/libsysTrace.so",
                 "/usr/lib/libsysTrace.so", "/usr/lib64/libsysTrace.so"):
        if os.path.exists(path):
            return path
    sys.exit("launch.py: libsysTrace.so not found; build it, name it with --preload, or use --no-preload")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def parse_cpus(pairs):
    """['1:0,2'] -> {1: {0, 2}}"""
    cpus = {}
    for pair in pairs:
        rank, _, cpu_list = pair.partition(":")
        cpus[int(rank)] = {int(c) for c in cpu_list.split(",")}
    return cpus


def pass_through(rank, stream):
    for line in stream:
        sys.stdout.write("[%d] %s" % (rank, line))
        sys.stdout.flush()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("-n", "--nproc", type=int, default=2, help="ranks to start (2)")
    parser.add_argument("--preload", help="path of libsysTrace.so (default: the build's, else the installed one)")
    parser.add_argument("--no-preload", action="store_true", help="start without sysTrace")
    parser.add_argument("--port", type=int, default=0, help="MASTER_PORT (default: a free one)")
    parser.add_argument("--cpus", action="append", default=[], metavar="RANK:CPU[,CPU]", help="CPUs of one rank")
    parser.add_argument("script")
    parser.add_argument("args", nargs=argparse.REMAINDER)
    options = parser.parse_args()

    port = options.port or free_port()
    cpus = parse_cpus(options.cpus)
    ranks, readers = [], []
    for rank in range(options.nproc):
        env = dict(os.environ, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(options.nproc),
                   MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), PYTHONUNBUFFERED="1")
        env.setdefault("GLOO_SOCKET_IFNAME", "lo")
        env.setdefault("OMP_NUM_THREADS", "1")
        if not options.no_preload:
            env["LD_PRELOAD"] = options.preload or find_library()
        # the CPUs are set around Popen, in this process: a preexec function would run Python in the child
        before = os.sched_getaffinity(0)
        if rank in cpus:
            os.sched_setaffinity(0, cpus[rank])
        process = subprocess.Popen([sys.executable, options.script] + options.args, env=env, text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        os.sched_setaffinity(0, before)
        reader = threading.Thread(target=pass_through, args=(rank, process.stdout), daemon=True)
        reader.start()
        ranks.append(process)
        readers.append(reader)

    status = 0
    try:
        while not status and any(p.poll() is None for p in ranks):
            time.sleep(0.05)
            status = next((p.returncode for p in ranks if p.returncode), 0)
    except KeyboardInterrupt:
        status = 128 + signal.SIGINT
    for process in ranks:
        if process.poll() is None:
            process.terminate()
    for process in ranks:
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
        status = status or process.returncode
    for reader in readers:
        reader.join(1)
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main())
