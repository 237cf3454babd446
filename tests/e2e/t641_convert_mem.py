# SPDX-License-Identifier: MulanPSL-2.0
"""`systrace convert mem`: published files in both forms, a planted leak that must be first in the report, flame graphs and
collapsed stacks whose sums are those of the tables, counters over time, damaged files, and the old entry point."""

import json
import os
import re
import subprocess
import sys
import xml.dom.minidom

import ctl
import harness as h
from t640_memory import Host

h.require(h.AGENT, h.SYSTRACE, "gcc")

# 1000 + 200 bytes stay, of 3500; addresses come twice, and threads (pid) free what others have allocated
ENTRIES = [("alloc", 0x1000, 1000, ("libx.so", 0x40, "main", 0x10)), ("alloc", 0x2000, 2000, ("libx.so", 0x44, "main", 0x10)),
           ("free", 0x2000), ("alloc", 0x2000, 200, ("libx.so", 0x40, "main", 0x10)), ("alloc", 0x3000, 300, ()),
           ("free", 0x3000), ("free", 0x9999)]
COLLAPSED = "main+0x10;libx.so+0x40 1200\n"
ALL = {"main+0x10;libx.so+0x40": 1200, "main+0x10;libx.so+0x44": 2000, "[no stack]": 300}


def convert(*args, status=0, **keys):
    return h.run([h.SYSTRACE, "convert", "mem", *args], **keys).ok(status)


def pairs(frames):
    return zip(frames[1::2], frames[::2])


def published_text():
    """The text form that protoc encodes: published fields only."""
    text = "pid: 77\n"
    for what, address, *rest in ENTRIES:
        if what == "free":
            text += "mem_free_stacks { alloc_ptr: %d stage_id: 1 stage_type: STAGE_FORWARD }\n" % address
            continue
        text += "mem_alloc_stacks { alloc_ptr: %d stage_id: 1 stage_type: STAGE_FORWARD mem_size: %d %s }\n" % (
            address, rest[0], "".join('stack_frames { address: %d so_name: "%s" }' % pair for pair in pairs(rest[1])))
    return text


def encode(path, text, message):
    h.require("protoc")
    data = subprocess.run(["protoc", "--proto_path=" + h.PROTO_DIR, "--encode=" + message, "systrace.proto"], check=True,
                          input=text.encode(), stdout=subprocess.PIPE).stdout
    with open(path, "wb") as f:
        f.write(data)
    return path


def check_published(path):
    out = os.path.join(os.path.dirname(path), "out.folded")
    convert("--input", path, "--output", out)
    h.check_equal(h.read_file(out), COLLAPSED, "in use of %s" % path)
    convert("--input", path, "--output", out, "--view", "allocated")
    got = dict(line.rsplit(" ", 1) for line in h.read_file(out).splitlines())
    h.check_equal({k: int(v) for k, v in got.items()}, ALL, "allocated in %s" % path)
    report = json.loads(convert("--input", path, "--json").out)
    h.check_equal([report[k] for k in ("inuse_bytes", "inuse_blocks", "allocated_bytes", "allocated_blocks", "lost")],
                  [1200, 2, 3500, 4, 0], "sums of %s" % path)
    h.check_equal(report["inuse"][0]["stack"], ["libx.so+0x40", "main+0x10"], "the first stack")


def test_published_files():
    tmp = h.tmpdir()
    text = published_text()
    # protobuf writes fields in order of their numbers: a chunk for each entry keeps theirs
    chunks = b""
    for line in text.splitlines()[1:]:
        with open(encode(os.path.join(tmp, "chunk"), "pid: %d\n" % (77 + len(chunks)) + line, "ProcMem"), "rb") as f:
            chunks += f.read()
    path = os.path.join(tmp, "hbm_trace_rank0_77.pb")
    with open(path, "wb") as f:
        f.write(chunks)
    check_published(path)
    check_published(encode(os.path.join(tmp, "mem.pb"), "".join("proc_mem { pid: %d %s }\n" % pair
                                                                for pair in enumerate(text.splitlines()[1:], 77)), "Mem"))
    rows = []
    for what, address, *rest in ENTRIES:
        row = {"alloc_ptr": address, "stage_id": 1, "stage_type": "STAGE_FORWARD"}
        if what == "alloc":
            row.update(mem_size=rest[0], stack_frames=[{"address": a, "so_name": s} for a, s in pairs(rest[1])])
        rows.append({"pid": 77 + len(rows), "mem_%s_stacks" % what: [row]})
    check_published(h.write_file(os.path.join(tmp, "hbm_trace_rank0_77.json"), json.dumps({"proc_mem": rows})))
    canonical = json.dumps({"procMem": rows}).replace("mem_alloc_stacks", "memAllocStacks").replace(
        "mem_free_stacks", "memFreeStacks").replace("alloc_ptr", "allocPtr").replace("mem_size", "memSize").replace(
        "stack_frames", "stackFrames").replace("so_name", "soName")
    canonical = re.sub(r'("allocPtr"|"memSize"|"address"): (\d+)', r'\1: "\2"', canonical)
    check_published(h.write_file(os.path.join(tmp, "canonical.json"), canonical))
    tool = os.path.join(h.ROOT, "compat/systrace/convert/convert_mem_to_flamegraph.py")
    for name in ("old.folded", "old.svg"):
        h.run([sys.executable, tool, "--input", path, "--output", os.path.join(tmp, name)],
              env=dict(os.environ, SYSTRACE_TOOL=h.SYSTRACE)).ok()
    h.check_equal(h.read_file(os.path.join(tmp, "old.folded")), COLLAPSED, "of the old entry point")
    h.check("<svg" in h.read_file(os.path.join(tmp, "old.svg")), "a picture where the name says so")


def recorded(form, **keys):
    """A capture in which nothing was lost: on a busy machine the pool may fill before the io thread gets to run, which is told."""
    for _ in range(5):
        host = Host(SYSTRACE_FORMAT=form)
        host.ask("enable", **keys)
        for word in ("work", "leak", "drop", "map"):
            host.do(word)
        host.ask("disable")
        lost = ctl.ask(host.sock, "status").get("dropped")
        host.quit()
        if lost == "0":
            break
        print("again: %s records were lost" % lost)
    return host


def check_report(host, exact):
    report = json.loads(convert("--input", host.tmp, "--json").out)
    first = report["inuse"][0]
    h.check_equal(first["kind"], "malloc", "kind of the leak")
    h.check(first["stack"] and "planted_leak" in first["stack"][0], "the leak: %s; lost: %s" % (first, report["lost"]))
    if exact:
        h.check_equal((first["bytes"], first["blocks"]), (40000000, 2000), "the planted leak is first, and whole")
    else: # 40 MB at 64 KiB: 600 hits, 4 %
        h.check(abs(first["bytes"] / 40e6 - 1) < 0.25, "the planted leak, estimated: %d" % first["bytes"])
    h.check_equal(report["processes"][0]["ended"], 1, "the process told what was in use")
    text = convert("--input", host.tmp).out
    h.check("In use at the end" in text and "40.0 MB" in text or not exact, text)
    return report


def test_a_leak_is_first():
    for form in ("pb", "json"):
        host = recorded(form, sample_bytes="1")
        report = check_report(host, True)
        folded, svg = os.path.join(host.tmp, "out.folded"), os.path.join(host.tmp, "out.svg")
        convert("--input", host.tmp, "--output", folded)
        lines = h.read_file(folded).splitlines()
        h.check_equal(sum(int(line.rsplit(" ", 1)[1]) for line in lines), report["inuse_bytes"], "collapsed stacks")
        h.check(lines[0].endswith(" 40000000"), lines[0])
        h.check(any(re.search(r";\[mmap\] \d+$", line) for line in lines), "mappings say so")
        convert("--input", host.tmp, "--output", svg)
        boxes = [g for g in xml.dom.minidom.parse(svg).getElementsByTagName("g")]
        top = [float(g.getAttribute("data-w")) for g in boxes if g.getAttribute("data-d") == "1"]
        h.check(abs(sum(top) - 1) < 1e-3, "boxes of the first row fill the picture: %s" % top)
    check_report(recorded("pb", sample_bytes="65536"), False)


def test_counters():
    host = recorded("pb", sample_bytes="1")
    report = json.loads(convert("--input", host.tmp, "--json").out)
    out = os.path.join(host.tmp, "out.json")
    convert("--input", host.tmp, "--output", out)
    with open(out) as f:
        events = json.load(f)["traceEvents"]
    counters = {}
    for event in events:
        if event["ph"] == "C":
            counters.setdefault(event["name"], []).append((event["ts"], event["args"]["bytes"]))
    h.check_equal(sorted(counters), ["brk heap", "heap in use since the capture began", "mapped by the job since then",
                                     "resident memory"], "counters")
    for name, values in counters.items():
        h.check_equal(values, sorted(values, key=lambda v: v[0]), "times of %s" % name)
    last = {name: values[-1][1] for name, values in counters.items()}
    h.check_equal(last["heap in use since the capture began"] + last["mapped by the job since then"], report["inuse_bytes"],
                  "the last values")
    h.check(max(v for _, v in counters["heap in use since the capture began"]) >= 40000000, "the leak shows")
    convert("--input", host.tmp, "--output", os.path.join(host.tmp, "out.pftrace"))
    h.check(os.path.getsize(os.path.join(host.tmp, "out.pftrace")) > 500, "the Perfetto trace")


PYTHON = """
import sys
kept = []
def hoard(n):
    kept.append(bytearray(n))
print("ready", flush=True)
for line in sys.stdin:
    for i in range(300):
        hoard(50000)
        bytearray(70000)
    print("done", flush=True)
"""


def test_python_functions_are_named():
    tmp = h.tmpdir()
    env = h.preload_env(tmp, SYSTRACE_ENABLE="1", RANK="0", SYSTRACE_BUDGET_PCT="100")
    script = h.write_file(os.path.join(tmp, "job.py"), PYTHON)
    process = h.start([list(h.pythons().values())[-1], script], env=env, stdin=subprocess.PIPE)
    process.stdout.readline()
    sock = ctl.socket_of(env["SYSTRACE_SOCKET_DIR"], process.pid)
    h.wait_for(lambda: os.path.exists(sock), what="the control socket")
    h.check_equal(ctl.ask(sock, "enable", plugin="Memory", sample_bytes="1").code, 0, "enable")
    process.stdin.write(b"go\n")
    process.stdin.flush()
    process.stdout.readline()
    h.check_equal(ctl.ask(sock, "disable", plugin="Memory").code, 0, "disable")
    process.stdin.close()
    process.stdin = None
    h.finish(process).ok()
    first = json.loads(convert("--input", tmp, "--json").out)["inuse"][0]
    h.check_equal(first["blocks"], 300, "what is kept is first: %s" % first)
    h.check(first["bytes"] >= 300 * 50000, "bytes of %s" % first)
    h.check(any(frame.startswith("hoard@") and "job.py:" in frame for frame in first["stack"]), "who keeps it: %s" % first)


def test_damaged_files():
    host = recorded("pb", sample_bytes="4096")
    path = max(host.files("pb"), key=os.path.getsize)
    with open(path, "rb") as f:
        data = f.read()
    cut = os.path.join(host.tmp, "cut.pb")
    for size in (len(data) - 3, len(data) // 2, 400):
        with open(cut, "wb") as f:
            f.write(data[:size])
        got = h.run([h.SYSTRACE, "convert", "mem", "--input", cut])
        h.check(got.status in (0, 1, 3), "cut at %d: %s" % (size, got.err))
        h.check(size < 1000 or "cut" in got.err, "the cut is said: %s" % got.err)
    spoiled = bytearray(data)
    for at in range(300, len(spoiled), 97):
        spoiled[at] ^= 0x55
    with open(cut, "wb") as f:
        f.write(spoiled)
    got = h.run([h.SYSTRACE, "convert", "mem", "--input", cut])
    h.check(got.status in (0, 1, 3) and got.err, "damage is said: %d %s" % (got.status, got.err))
    text = h.write_file(os.path.join(host.tmp, "not.pb"), "no recording\n")
    h.check("not.pb" in convert("--input", text, status=1).err, "what is no recording")
    convert("--input", h.tmpdir(), status=3)
    convert("--input", path, "--format", "svg", status=2)
    convert("--input", path, "--output", "x.txt", "--format", "text", status=2)


if __name__ == "__main__":
    h.main(test_published_files, test_a_leak_is_first, test_counters, test_python_functions_are_named, test_damaged_files)
