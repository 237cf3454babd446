# SPDX-License-Identifier: MulanPSL-2.0
"""Plugin IO: a program does known calls, and every one of them is in the file with its bytes, errno, offset and path; the
tables of systrace convert io say so too. Filters, sockets, forked children, descriptors that were open before."""

import json
import os
import re
import subprocess

import ctl
import harness as h

h.require(h.AGENT, h.CLI, "gcc")

PROGRAM = r"""
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static int early, pair[2];
static char buf[1 << 16];

static void work(void)
{
	struct iovec iov[2] = { { buf, 100 }, { buf, 200 } };
	struct stat st;
	FILE *file;
	DIR *dir;
	int fd, i;

	fd = open("data.bin", O_RDWR | O_CREAT | O_TRUNC, 0640);
	fstat(fd, &st);
	if ((st.st_mode & 07777) != 0640)
		abort(); /* the mode got through */
	for (i = 0; i < 10; i++)
		if (write(fd, buf, 1000) != 1000)
			abort();
	pwrite(fd, buf, 500, 20000);
	pread(fd, buf, 300, 10);
	pread(fd, buf, 300, 20480);
	writev(fd, iov, 2);
	fsync(fd);
	lseek(fd, 0, SEEK_SET);
	while (read(fd, buf, 4096) > 0)
		;
	close(fd);
	errno = 0;
	if (read(fd, buf, 10) != -1 || errno != EBADF)
		abort();
	if (open("/nowhere/at/all", O_RDONLY) != -1 || errno != ENOENT)
		abort();
	if (open((char *)8, O_RDONLY) != -1 || errno != EFAULT)
		abort();
	write(early, "0123456789", 10);
	file = fopen("text.txt", "w");
	fwrite("abcdef", 2, 3, file);
	fflush(file);
	fclose(file);
	mkdir("sub", 0755);
	dir = opendir("sub");
	fd = openat(dirfd(dir), "inner", O_CREAT | O_WRONLY, 0600);
	write(fd, "x", 1);
	close(fd);
	closedir(dir);
	rename("text.txt", "renamed.txt");
	unlink("sub/inner");
	rmdir("sub");
	remove("renamed.txt");
	send(pair[0], buf, 77, 0);
	recv(pair[1], buf, 100, 0);
}

static void child(void)
{
	pid_t pid = fork();

	if (!pid) {
		int fd = open("child.bin", O_RDWR | O_CREAT, 0600);

		write(fd, buf, 4321);
		_exit(0);
	}
	waitpid(pid, NULL, 0);
}

int main(void)
{
	char line[64];

	early = open("early.log", O_WRONLY | O_CREAT | O_APPEND, 0600);
	socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
	if (write(1, "ready\n", 6) != 6)
		return 1;
	while (fgets(line, sizeof(line), stdin)) {
		if (!strcmp(line, "work\n"))
			work();
		if (!strcmp(line, "child\n"))
			child();
		if (write(1, "done\n", 5) != 5)
			return 1;
	}
	return 0;
}
"""


class Host:
    """The program, with the agent in it."""

    def __init__(self, **extra):
        self.tmp = h.tmpdir()
        self.cwd = os.path.join(self.tmp, "cwd")
        os.mkdir(self.cwd)
        self.env = h.preload_env(self.tmp, SYSTRACE_ENABLE="1", SYSTRACE_BUDGET_PCT="100", **extra)
        program = h.compile_c(PROGRAM, os.path.join(self.tmp, "program"), "-O2", "-D_FORTIFY_SOURCE=2", "-w")
        self.process = h.start([program], env=self.env, cwd=self.cwd, stdin=subprocess.PIPE)
        self.expect("ready")
        self.sock = ctl.socket_of(self.env["SYSTRACE_SOCKET_DIR"], self.process.pid)
        h.wait_for(lambda: os.path.exists(self.sock), what="the control socket")

    def expect(self, word):
        line = self.process.stdout.readline().decode().strip()
        h.check_equal(line, word, "the program said")

    def do(self, word):
        self.process.stdin.write(word.encode() + b"\n")
        self.process.stdin.flush()
        self.expect("done")

    def enable(self, **keys):
        with ctl.connect(self.sock) as conn:
            conn.sendall(ctl.frame("enable", [("plugin", "IO"), *keys.items()]))
            answer = ctl.receive(conn)
        h.check_equal(answer.code, 0, "enable: %s" % answer.text)
        return answer

    def disable(self):
        h.check_equal(ctl.ask(self.sock, "disable", plugin="IO").code, 0, "disable")

    def quit(self):
        self.process.stdin.close()
        self.process.stdin = None
        h.finish(self.process).ok()

    def entries(self):
        """Entries of the file: dictionaries of text."""
        path = h.find_one(self.tmp, "io_trace/io_trace_rank*_%d.pb" % self.process.pid)
        text = h.decode_pb(path, "IO")
        entries = []
        for block in re.findall(r"^IO_entries \{\n(.*?)^\}", text, re.S | re.M):
            entry = dict(re.findall(r'^  (\w+): "?(.*?)"?$', block, re.M))
            entry["n"] = int(entry.get("bytes", 0))
            entry["call"] = entry.get("io_type", "IO_UNKNOWN")[3:].lower()
            entry["base"] = os.path.basename(entry.get("file_name", ""))
            entries.append(entry)
        return entries


def pick(entries, call, base=None):
    return [e for e in entries if e["call"] == call and (base is None or e["base"] == base)]


def sums(entries, call, base=None):
    chosen = pick(entries, call, base)
    return len(chosen), sum(e["n"] for e in chosen if e["n"] > 0)


def test_every_call():
    host = Host(RANK="2")
    host.do("work")  # nothing is on: not recorded
    host.enable()
    host.do("work")
    host.do("work")
    host.disable()
    host.do("work")
    entries = host.entries()
    host.quit()
    for call, base, want in (
            ("open", "data.bin", (2, 0)), ("write", "data.bin", (20, 20000)), ("pwrite", "data.bin", (2, 1000)),
            ("pread", "data.bin", (4, 640)), ("writev", "data.bin", (2, 600)), ("fsync", "data.bin", (2, 0)),
            ("read", "data.bin", (14, 41000)), ("close", "data.bin", (2, 0)), ("write", "early.log", (2, 20)),
            ("fopen", "text.txt", (2, 0)), ("fwrite", "text.txt", (2, 12)), ("fflush", "text.txt", (2, 0)),
            ("fclose", "text.txt", (2, 0)), ("mkdir", "sub", (2, 0)), ("opendir", "sub", (2, 0)), ("open", "inner", (2, 0)),
            ("write", "inner", (2, 2)), ("closedir", "sub", (2, 0)), ("rename", "text.txt", (2, 0)),
            ("unlink", "inner", (2, 0)), ("rmdir", "sub", (2, 0)), ("remove", "renamed.txt", (2, 0)),
            ("send", None, (2, 154)), ("recv", None, (2, 154))):
        h.check_equal(sums(entries, call, base), want, "%s of %s: calls, bytes" % (call, base))
    h.check_equal({e["file_name"] for e in pick(entries, "write", "data.bin")}, {os.path.join(host.cwd, "data.bin")},
                  "the path")
    h.check_equal({e["file_name"] for e in pick(entries, "open", "inner")}, {os.path.join(host.cwd, "sub/inner")},
                  "a path below a directory's descriptor")
    h.check_equal([(e["n"], e.get("file_name")) for e in pick(entries, "open", "all")], [(-2, "/nowhere/at/all")] * 2,
                  "ENOENT")
    h.check_equal([e["n"] for e in pick(entries, "open", "")], [-14] * 2, "EFAULT")
    h.check_equal([e["n"] for e in pick(entries, "read", "") if e["n"] < 0], [-9] * 2, "EBADF")
    h.check_equal(sorted(e.get("offset", "0") for e in pick(entries, "pread")), ["10", "10", "20480", "20480"], "offsets")
    h.check_equal({(e.get("rank"), e.get("step")) for e in entries}, {("2", "1")}, "rank and step")
    h.check(all(e.get("is_socket") == "true" for e in pick(entries, "send")), "sockets are marked: %s" % pick(entries, "send"))


def test_hooks_come_and_go():
    host = Host()
    host.enable()
    status = ctl.ask(host.sock, "status")
    h.check(int(status.get("hooks.slots")) >= 20 and int(status.get("hooks.refused")) == 0, "hooks: %r" % status)
    h.check(any(o.startswith("(program): ") for o in status.all("hook.object")), "objects: %s" % status.all("hook.object"))
    doctor = h.run([h.SYSTRACE, "doctor", "--pid", str(host.process.pid)], env=h.tool_env(host.tmp))
    h.check("(program): " in doctor.out, "doctor: %r" % doctor)
    host.disable()
    h.check_equal(ctl.ask(host.sock, "status").get("hooks.slots"), "0", "slots after disable")
    for _ in range(50):
        host.enable()
        host.do("work")
        host.disable()
    h.check_equal(sums(host.entries(), "write", "data.bin"), (500, 500000), "fifty times")
    threads = [h.read_file("/proc/%d/task/%s/comm" % (host.process.pid, t)).strip()
               for t in os.listdir("/proc/%d/task" % host.process.pid)]
    h.wait_for(lambda: "systrace/hook" not in [
        h.read_file("/proc/%d/task/%s/comm" % (host.process.pid, t)).strip()
        for t in os.listdir("/proc/%d/task" % host.process.pid)], what="the end of systrace/hook (%s)" % threads)
    host.quit()


def test_filters():
    host = Host(RANK="1")
    host.enable(path="*data.b?n")
    host.do("work")
    host.enable(path=host.cwd + "/sub")
    host.do("work")
    host.enable(min_us="60000000")
    host.do("work")
    h.check("rank" in host.enable(rank="4-7").text, "a rank that is not in the list says so")
    host.do("work")
    host.disable()
    entries = host.entries()
    host.quit()
    h.check_equal({e["base"] for e in entries}, {"data.bin", "sub", "inner"}, "files")
    h.check_equal(sums(entries, "write", "data.bin"), (10, 10000), "once")
    h.check_equal(len(pick(entries, "mkdir", "sub")), 1, "a directory and what is below")


def test_children():
    host = Host()
    host.enable()
    host.do("child")
    host.disable()
    chosen = [e for e in host.entries() if e["base"] == "child.bin"]
    host.quit()
    h.check_equal(sums(chosen, "write"), (1, 4321), "the child's write")
    h.check(all(e.get("worker") == "true" and int(e["pid"]) != host.process.pid for e in chosen), "marked: %s" % chosen)


def test_json():
    host = Host(SYSTRACE_FORMAT="json")
    host.enable()
    host.do("work")
    host.disable()
    host.quit()
    with open(h.find_one(host.tmp, "io_trace/io_trace_rank0_%d.json" % host.process.pid)) as f:
        data = json.load(f)
    h.check_equal(data["dropped"], 0, "lost records")
    writes = [e for e in data["IO_entries"] if e["io_type"] == "IO_WRITE" and e["file_name"].endswith("/data.bin")]
    h.check_equal((len(writes), sum(e["bytes"] for e in writes)), (10, 10000), "calls and bytes")
    h.check_equal({e["stage_type"] for e in writes}, {"STAGE_UNKNOWN"}, "enums by name")
    tables = json.loads(h.run([h.SYSTRACE, "convert", "io", "--input", host.tmp, "--json"], env=h.tool_env(host.tmp)).ok().out)
    row, = [r for r in tables["by_call"] if r["name"] == "pwrite"]
    h.check_equal((row["calls"], row["errors"], row["bytes"]), (1, 0, 500), "pwrite, by the converter")
    h.check_equal(tables["calls"], len(data["IO_entries"]), "calls, by the converter")


def test_convert():
    host = Host(RANK="1")
    host.enable()
    host.do("work")
    host.disable()
    host.quit()
    out = h.run([h.SYSTRACE, "convert", "io", "--input", host.tmp], env=h.tool_env(host.tmp)).ok().out
    rows = {line.split()[-1]: line.split() for line in out.splitlines() if len(line.split()) == 9}
    h.check_equal(rows["pread"][:3], ["2", "0", "320"], "calls, errors, bytes of pread: %s" % out)
    h.check_equal(rows["open"][:2], ["4", "2"], "calls and errors of open")
    data = rows[os.path.join(host.cwd, "data.bin")]
    h.check_equal(data[2], str(10000 + 500 + 320 + 300 + 20500), "bytes of a file")
    trace = os.path.join(host.tmp, "io.json")
    h.run([h.SYSTRACE, "convert", "io", "--input", host.tmp, "--output", trace], env=h.tool_env(host.tmp)).ok()
    with open(trace) as f:
        events = json.load(f)["traceEvents"]
    tracks = {e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    slices = [(e["name"], tracks[e["tid"]].split()[0], e["args"]) for e in events if e["ph"] == "X"]
    h.check_equal({track for name, track, _ in slices if name == "pwrite"}, {"files"}, "tracks of pwrite")
    h.check_equal({track for name, track, _ in slices if name == "send"}, {"sockets"}, "tracks of send")
    h.check([args for name, _, args in slices if name == "pwrite" and args["bytes"] == 500 and args["offset"] == 20000],
            "arguments of pwrite: %s" % [s for s in slices if s[0] == "pwrite"])


if __name__ == "__main__":
    h.main(test_every_call, test_hooks_come_and_go, test_filters, test_children, test_json, test_convert)
