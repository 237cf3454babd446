#!/usr/bin/env python3
# SPDX-License-Identifier: MulanPSL-2.0
"""Upgrades (docs/safety.md, 13): a new library is installed over the old one while jobs run, agents and sysTrace_cli of
neighbouring protocol versions work together and others say what to do, a second copy of the library stays inert."""

import glob
import json
import os
import re
import shutil

import ctl
import harness as h
import jobs
import safe_host as s

h.require(h.AGENT, h.CLI, h.SYSTRACE, "ninja", "gcc", os.path.join(h.BUILD, "build.ninja"))
h.own_pid_namespace()
s.PYTHON = list(h.pythons().values())[-1]


# --- builds of another version -----------------------------------------------------------------------------------------

def link_command(product):
    """The command that links a product of the build directory, and the objects and libraries of ours in it."""
    lines = h.run(["ninja", "-C", h.BUILD, "-t", "commands", product]).ok().out.splitlines()
    return lines[-1], lines


def neighbour(product, version):
    """A copy of a product that speaks another protocol version: what depends on the number is compiled again."""
    place = h.tmpdir()
    link, lines = link_command(product)
    known = [line for line in lines if " -c " in line]
    objects = []
    for line in known:
        words = line.split()
        source, target = words[words.index("-c") + 1], words[words.index("-o") + 1]
        text = h.read_file(source)
        if '"wire/ctl.h"' not in text and "/ctl_answer.h" not in text and "/ctl_client.h" not in text:
            continue
        out = os.path.join(place, os.path.basename(target))
        command = re.sub(r" -MD -MT \S+ -MF \S+", "", line.replace("-o " + target, "-o " + out))
        h.run(["sh", "-c", command + " -DCTL_VERSION=%d" % version], cwd=h.BUILD).ok()
        objects.append((target, out))
    h.check(objects, "nothing of %s knows the protocol version" % product)
    output = os.path.join(place, os.path.basename(product))
    if product.endswith(".so"):
        for target, out in objects:
            link = link.replace(" " + target + " ", " " + out + " ")
    else:  # objects come before the static libraries, whose members of that name are then not taken
        first = link.split(" -o ")[0]
        link = link.replace(first, first + " " + " ".join(out for target, out in objects if
                                                        "st_" in target or not in_link(link, target)), 1)
        for target, out in objects:
            link = link.replace(" " + target + " ", " " + out + " ")
    link = link.replace("-o " + product, "-o " + output)
    h.run(["sh", "-c", link], cwd=h.BUILD).ok()
    return output


def in_link(link, target):
    return " %s " % target in link


def host_with(library, **extra):
    base = s.open_place()
    return s.Host(base, preload=library, PYTHONPATH=jobs.FAKE_TORCH, **extra).go().wait_socket()


def call_cli(cli, host, *words):
    return h.run([cli, *words, "--pid", str(host.pid)], env=host.env)


def test_agent_one_version_ahead():
    """All that sysTrace_cli can ask works with the agent of the next version, which says its own number."""
    host = host_with(neighbour("libsysTrace.so", ctl.VERSION + 1))
    h.check_equal(host.ask("list").get("protocol"), str(ctl.VERSION + 1), "its protocol version")
    for words in (("enable", "MSPTI"), ("status", "--json"), ("list", "--json"), ("flush",), ("dump",), ("disable", "MSPTI")):
        got = call_cli(h.CLI, host, *words)
        h.check_equal(got.status, 0, "%s: %r" % (words, got))
    host.quit().ok()


def test_cli_one_version_ahead():
    cli = neighbour("sysTrace_cli", ctl.VERSION + 1)
    host = host_with(h.AGENT)
    for words in (("enable", "MSPTI"), ("status", "--json"), ("list", "--json"), ("flush",), ("dump",), ("disable", "MSPTI")):
        got = call_cli(cli, host, *words)
        h.check_equal(got.status, 0, "%s: %r" % (words, got))
    host.quit().ok()


def test_two_versions_apart_say_so():
    """Neither side guesses: the job goes on, the message names both numbers and what to use."""
    for agent, cli in ((neighbour("libsysTrace.so", ctl.VERSION + 2), h.CLI),
                       (h.AGENT, neighbour("sysTrace_cli", ctl.VERSION + 2))):
        base = s.open_place()
        host = s.Host(base, preload=agent).go()
        h.wait_for(lambda: os.path.exists(host.sock), what="the socket")
        got = call_cli(cli, host, "enable", "MSPTI")
        h.check_equal(got.status, 1, repr(got))
        h.check("protocol version" in got.out and "use the sysTrace_cli of the release" in got.out, got.out)
        host.do("pass")
        host.quit().ok()


# --- a newer library while jobs run ------------------------------------------------------------------------------------

def install_over(library):
    """As build.sh install does: a new file beside the old one, renamed over it. Its bytes are others."""
    part = library + ".part"
    shutil.copy(h.AGENT, part)
    with open(part, "ab") as f:
        f.write(b"newer")
    os.rename(part, library)


def test_a_newer_library_is_installed_under_running_jobs():
    """The old mapping shows as deleted: list, status, enable, records, forked children and recovery go on."""
    base = s.open_place()
    library = base + "/libsysTrace.so"
    host = s.Host(base, PYTHONPATH=jobs.FAKE_TORCH, RANK="0").go().wait_socket()
    host.train(3)
    install_over(library)
    h.check("libsysTrace.so (deleted)" in h.read_file("/proc/%d/maps" % host.pid), "the old library is not mapped any more")
    found = json.loads(call_cli(h.CLI, host, "list", "--json").ok().out)["agents"]
    h.check_equal([a["pid"] for a in found], [host.pid], "list")
    h.check("SUCCESS" in call_cli(h.CLI, host, "enable", "MSPTI").ok().out, "enable")
    got = h.run([h.SYSTRACE, "doctor", "--pid", str(host.pid)], env=host.env).ok()
    h.check("replaced since the process started" in got.out, got.out)
    host.train(4)
    # a child by fork has the old one, a program that it starts the new one
    host.do("import subprocess; pid = os.fork()\nif 0: pass".split("\n")[0] + "; pid or os._exit(7); assert "
            "os.waitpid(pid, 0)[1] >> 8 == 7")
    host.do("assert subprocess.run(['true']).returncode == 0")
    newer = s.Host(base, PYTHONPATH=jobs.FAKE_TORCH, RANK="1").go().wait_socket()
    both = json.loads(h.run([h.CLI, "list", "--json"], env=host.env).ok().out)["agents"]
    h.check_equal(sorted(a["pid"] for a in both), sorted((host.pid, newer.pid)), "old and new together")
    h.run([h.CLI, "enable", "MSPTI"], env=host.env).ok()
    newer.quit().ok()
    host.process.kill()
    host.process.wait()
    h.run([h.SYSTRACE, "recover", "--spool", base + "/spool"]).ok()
    path = h.find_one(base + "/dump", "timeline/*--00000.timeline")
    h.check_equal(jobs.steps_in(path), list(range(1, 8)), "steps of the old library's job, recovered by the new tools")


def test_build_sh_installs_by_renaming():
    """The installed file is a new inode: what a job has mapped keeps its contents."""
    if not os.path.exists(os.path.join(h.ROOT, "build", "cmake_install.cmake")):
        h.skip("build/ is not configured")
    prefix = h.tmpdir()
    old = {}
    for _ in range(2):
        h.run(["bash", os.path.join(h.ROOT, "build.sh"), "install", "--no-deps", "--prefix", prefix],
              timeout=170).ok()
        path = h.find_one(prefix, "**/libsysTrace.so")
        if old:
            h.check(os.stat(path).st_ino != old["inode"], "the library was written in place")
            h.check_equal(os.pread(old["fd"], 4, 0), b"\x7fELF", "the old contents")
            h.check_equal(os.fstat(old["fd"]).st_nlink, 0, "links of the old file")
        old = {"inode": os.stat(path).st_ino, "fd": os.open(path, os.O_RDONLY)}


# --- a second copy -----------------------------------------------------------------------------------------------------

def sockets(host):
    return sorted(os.path.basename(p) for p in glob.glob(host.env["SYSTRACE_SOCKET_DIR"] + "/*"))


def own_threads(host):
    return sorted(h.read_file("/proc/%d/task/%s/comm" % (host.pid, tid)).strip()
                  for tid in os.listdir("/proc/%d/task" % host.pid)
                  if h.read_file("/proc/%d/task/%s/comm" % (host.pid, tid)).startswith("systrace/"))


def check_single(host, what):
    host.wait_socket()
    h.check_equal(sockets(host), [os.path.basename(host.sock)], what + ": sockets")
    h.check_equal(own_threads(host), ["systrace/ctl", "systrace/io", "systrace/py"], what + ": threads")
    pools = glob.glob(host.base + "/spool/*/*")
    h.check_equal(len([p for p in pools if os.path.basename(p) != "locks"]), 1, what + ": pools %s" % pools)
    h.check_equal(host.ask("enable", plugin="MSPTI").code, 0, what + ": enable")


def test_second_copy_is_inert():
    """Preloaded twice from two places, this and another version in either order, and loaded later in every way."""
    other = neighbour("libsysTrace.so", ctl.VERSION + 1)
    for first, second, protocol in ((h.AGENT, other, ctl.VERSION), (other, h.AGENT, ctl.VERSION + 1)):
        base = s.open_place()
        host = s.Host(base, preload="%s:%s" % (first, second)).go()
        check_single(host, "preloaded twice")
        h.check_equal(host.ask("list").get("protocol"), str(protocol), "the first one is the agent: its protocol")
        host.quit().ok()
    for how in ("RTLD_NOW", "RTLD_NOW | os.RTLD_GLOBAL", "RTLD_NOW | os.RTLD_DEEPBIND"):
        base = s.open_place()
        host = s.Host(base).go().wait_socket()
        host.do("import ctypes; second = ctypes.CDLL(%r, os.%s)" % (other, how))
        check_single(host, "loaded later with " + how)
        h.check_equal(host.ask("list").get("protocol"), str(ctl.VERSION), "protocol")
        host.quit().ok()


h.main(test_agent_one_version_ahead, test_cli_one_version_ahead, test_two_versions_apart_say_so,
       test_a_newer_library_is_installed_under_running_jobs, test_build_sh_installs_by_renaming, test_second_copy_is_inert)
