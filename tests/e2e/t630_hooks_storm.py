# SPDX-License-Identifier: MulanPSL-2.0
"""Native hooks while everything moves: libraries come and go, threads start and end, children are forked (also by a bare
clone), signal handlers write, and IO and Mutex are switched on and off. The program checks its own results; it must end as
it would have without us. Objects that are loaded while a plugin is on are seen."""

import json
import os
import shutil
import subprocess

import ctl
import harness as h

h.require(h.AGENT, h.CLI, h.SYSTRACE, "gcc")

LIBRARIES = 40

LIBRARY = r"""
#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

static pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;

int ask(const char *path)
{
	int fd = open(path, O_WRONLY | O_CREAT, 0600);
	int ok;

	pthread_mutex_lock(&m);
	ok = write(fd, "12345", 5) == 5;
	pthread_mutex_unlock(&m);
	return ok && close(fd) == 0;
}
"""

PROGRAM = r"""
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile int go = 1;
static const char *dir;
static unsigned long loads, forks, threads, signals, waited;
static __thread volatile int may_allocate; /* in signal handlers: nothing that they interrupt does */
static sem_t posted;

#define MUST(what) do { if (!(what)) { fprintf(stderr, "line %d: %s: %s\n", __LINE__, #what, strerror(errno)); abort(); } } while (0)

static int ask(const char *name)
{
	char path[512], file[512];
	int (*function)(const char *);
	void *handle;
	int ok;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	snprintf(file, sizeof(file), "%s/%s.out", dir, name);
	handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	MUST(handle);
	*(void **)&function = dlsym(handle, "ask");
	ok = function(file);
	dlclose(handle);
	return ok;
}

static void *load(void *unused)
{
	char name[32];

	for (; go; loads++) {
		snprintf(name, sizeof(name), "lib%lu.so", loads % 40);
		MUST(ask(name));
	}
	return NULL;
}

static void *fork_all(void *unused)
{
	for (; go; forks++) {
		pid_t pid = forks % 2 ? fork() : (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
		int status;

		if (!pid) {
			write(1, "", 0);
			_exit(7);
		}
		MUST(waitpid(pid, &status, 0) == pid || errno == EINTR);
	}
	return NULL;
}

static void *nothing(void *unused)
{
	write(1, "", 0);
	return NULL;
}

static void *start_all(void *unused)
{
	pthread_t thread;

	for (; go; threads++) {
		MUST(!pthread_create(&thread, NULL, nothing, NULL));
		pthread_join(thread, NULL);
	}
	return NULL;
}

/* No allocation of its own: signals may allocate here. */
static void *wait_all(void *unused)
{
	sigset_t alarm;

	sigemptyset(&alarm);
	sigaddset(&alarm, SIGALRM);
	pthread_sigmask(SIG_UNBLOCK, &alarm, NULL);
	may_allocate = 1;
	for (; go; waited++) {
		while (sem_wait(&posted) && errno == EINTR)
			;
		write(1, "", 0);
	}
	return NULL;
}

static void on_alarm(int number)
{
	int saved = errno;
	void *room;

	write(1, "", 0);
	sem_post(&posted);
	if (may_allocate) {
		room = malloc(100 + signals % 1000);
		memset(room, 1, 100);
		free(room);
	}
	signals++;
	errno = saved;
}

int main(int argc, char **argv)
{
	void *(*const bodies[])(void *) = { load, fork_all, start_all, wait_all };
	struct sigaction act = { .sa_handler = on_alarm, .sa_flags = SA_RESTART };
	pthread_t running[4];
	char line[64];
	int i;

	dir = argv[1];
	sem_init(&posted, 0, 0);
	sigaction(SIGALRM, &act, NULL);
	for (i = 0; i < 4; i++)
		MUST(!pthread_create(&running[i], NULL, bodies[i], NULL));
	puts("ready");
	fflush(stdout);
	ualarm(1000, 1000);
	while (fgets(line, sizeof(line), stdin) && strcmp(line, "end\n"))
		;
	ualarm(0, 0);
	go = 0;
	sem_post(&posted);
	for (i = 0; i < 4; i++)
		pthread_join(running[i], NULL);
	printf("%lu %lu %lu %lu %lu\n", loads, forks, threads, signals, waited);
	return 0;
}
"""


def test_storm():
    tmp = h.tmpdir()
    first = h.compile_c(LIBRARY, os.path.join(tmp, "lib0.so"), "-shared", "-fPIC", "-pthread", "-Wl,-z,now,-z,relro")
    for i in range(1, LIBRARIES):
        shutil.copy(first, os.path.join(tmp, "lib%d.so" % i))
    program = h.compile_c(PROGRAM, os.path.join(tmp, "program"), "-pthread", "-w", "-ldl")
    env = h.preload_env(tmp, SYSTRACE_ENABLE="1", SYSTRACE_BUDGET_PCT="100")
    process = h.start([program, tmp], env=env, stdin=subprocess.PIPE)
    h.check_equal(process.stdout.readline(), b"ready\n", "the program said")
    sock = ctl.socket_of(env["SYSTRACE_SOCKET_DIR"], process.pid)
    h.wait_for(lambda: os.path.exists(sock), what="the control socket")
    for i in range(60):
        for plugin in ("IO", "Mutex"):
            answer = ctl.ask(sock, "enable" if i % 2 == 0 else "disable", plugin=plugin)
            h.check_equal(answer.code, 0, "switch %d of %s: %s" % (i, plugin, answer.text))
        h.check_equal(process.poll(), None, "the program's status after switch %d" % i)
    process.stdin.write(b"end\n")
    process.stdin.flush()
    result = h.finish(process).ok()
    counts = [int(n) for n in result.out.split()]
    h.check(all(n > 0 for n in counts), "loads, forks, threads, signals, waits: %s" % counts)
    h.check_equal(result.err, "", "stderr")


GUEST = r"""
#include <pthread.h>
#include <unistd.h>

static pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;

static void *take(void *arg)
{
	pthread_mutex_lock(&m);
	pthread_mutex_unlock(&m);
	return arg;
}

int contend(void)
{
	pthread_t threads[2];
	int i, left = 2;

	pthread_mutex_lock(&m);
	for (i = 0; i < 2; i++)
		left -= !pthread_create(&threads[i], NULL, take, NULL);
	usleep(20000);
	pthread_mutex_unlock(&m);
	for (i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	return left;
}
"""

HOST_OF_GUEST = r"""
import ctypes, sys, _ctypes
print("ready", flush=True)
for line in sys.stdin:
    guest = ctypes.CDLL(sys.argv[1])
    print(guest.contend(), flush=True)
    _ctypes.dlclose(guest._handle)
"""


def test_a_lock_whose_library_goes():
    """A lock was waited for, and the library that holds it is gone before the records are written and looked at."""
    tmp = h.tmpdir()
    guest = h.compile_c(GUEST, os.path.join(tmp, "guest.so"), "-shared", "-fPIC", "-pthread")
    python = list(h.pythons().values())[-1]
    env = h.preload_env(tmp, SYSTRACE_ENABLE="1", SYSTRACE_BUDGET_PCT="100")
    process = h.start([python, "-c", HOST_OF_GUEST, guest], env=env, stdin=subprocess.PIPE)
    h.check_equal(process.stdout.readline(), b"ready\n", "the program said")
    sock = ctl.socket_of(env["SYSTRACE_SOCKET_DIR"], process.pid)
    h.wait_for(lambda: os.path.exists(sock), what="the control socket")
    for _ in range(10):
        h.check_equal(ctl.ask(sock, "enable", plugin="Mutex", min_us="0").code, 0, "enable")
        for _ in range(3):
            process.stdin.write(b"again\n")
            process.stdin.flush()
            h.check_equal(process.stdout.readline(), b"0\n", "the guest's answer")
        h.wait_for(lambda: "guest.so" not in h.read_file("/proc/%d/maps" % process.pid), what="the library's end")
        h.check_equal(ctl.ask(sock, "disable", plugin="Mutex").code, 0, "disable")
    process.stdin.close()
    process.stdin = None
    h.finish(process).ok()
    out = h.run([h.SYSTRACE, "convert", "mutex", "--input", tmp, "--json"], env=h.tool_env(tmp)).ok().out
    h.check(json.loads(out)["functions"], "functions: %s" % out)


def test_bad_input():
    """Said in words, with what to do; nothing is switched."""
    tmp = h.tmpdir()
    python = list(h.pythons().values())[-1]
    env = h.preload_env(tmp, SYSTRACE_ENABLE="1")
    process = h.start([python, "-c", "import sys; print('ready', flush=True); sys.stdin.read()"], env=env, stdin=subprocess.PIPE)
    h.check_equal(process.stdout.readline(), b"ready\n", "the program said")
    sock = ctl.socket_of(env["SYSTRACE_SOCKET_DIR"], process.pid)
    h.wait_for(lambda: os.path.exists(sock), what="the control socket")
    for plugin, key, value, want in (("Mutex", "min_us", "abc", "min_us=abc is not valid; it must be a whole number"),
                                     ("IO", "min_us", "-1", "min_us=-1 is not valid"), ("IO", "min_us", "", "has no value"),
                                     ("IO", "minus", "1", "did you mean min_us?"), ("GIL", "colour", "red", "GIL has no parameter"),
                                     ("GIL", "aggregate", "perhaps", "it must be 1, 0, true, false"),
                                     ("IO", "rank", "x-y", "rank=x-y is not valid"),
                                     ("IO", "path", "x" * 300, "at most 255 bytes"), ("Mutex", "duration", "-5", "duration=-5")):
        with ctl.connect(sock) as conn:
            conn.sendall(ctl.frame("enable", [("plugin", plugin), (key, value)]))
            answer = ctl.receive(conn)
        h.check(answer.code < 0 and want in answer.text, "%s %s=%s: %s" % (plugin, key, value, answer.text))
        h.check_equal(ctl.ask(sock, "status").get("plugin.%s.state" % plugin.lower()), "off", "state of " + plugin)
    tool = h.tool_env(tmp)
    for words, status, want in ((("enable", "Mutex", "min_us=abc"), 2, "min_us=abc is not valid"),
                                (("enable", "IO", "colour=red"), 2, "IO has no parameter 'colour'")):
        result = h.run([h.CLI, *words, "--pid", str(process.pid)], env=tool).ok(status)
        h.check(want in result.err, "%r" % result)
    process.stdin.close()
    process.stdin = None
    h.finish(process).ok()
    gone = h.run([h.CLI, "enable", "GIL", "--pid", str(process.pid)], env=tool).ok(1)
    h.check("there is no" in gone.out, "a process that is gone: %r" % gone)


def test_new_objects_are_seen():
    tmp = h.tmpdir()
    h.compile_c(LIBRARY, os.path.join(tmp, "late.so"), "-shared", "-fPIC", "-pthread")
    python = list(h.pythons().values())[-1]
    env = h.preload_env(tmp, SYSTRACE_ENABLE="1", SYSTRACE_BUDGET_PCT="100")
    process = h.start([python, "-ic", "import ctypes, sys; sys.ps1 = sys.ps2 = ''; print('ready', flush=True)"], env=env,
                      stdin=subprocess.PIPE)
    h.check_equal(process.stdout.readline(), b"ready\n", "the program said")
    sock = ctl.socket_of(env["SYSTRACE_SOCKET_DIR"], process.pid)
    h.wait_for(lambda: os.path.exists(sock), what="the control socket")
    h.check_equal(ctl.ask(sock, "enable", plugin="IO").code, 0, "enable")
    late = os.path.join(tmp, "late.so")

    def say(text):
        process.stdin.write(text.encode() + b"\n")
        process.stdin.flush()
    say("late = ctypes.CDLL(%r)" % late)
    h.wait_for(lambda: any(o.startswith(late) for o in ctl.ask(sock, "status").all("hook.object")), what="hooks in it")
    say("print(late.ask(%r), flush=True)" % os.path.join(tmp, "late.out").encode())
    h.check_equal(process.stdout.readline(), b"1\n", "the call")
    h.check_equal(ctl.ask(sock, "disable", plugin="IO").code, 0, "disable")
    text = h.decode_pb(h.find_one(tmp, "io_trace/*_%d.pb" % process.pid), "IO")
    process.stdin.close()
    process.stdin = None
    h.finish(process).ok()
    h.check_equal(text.count('file_name: "%s"' % os.path.join(tmp, "late.out")), 3, "open, write and close in the library")


if __name__ == "__main__":
    h.main(test_storm, test_a_lock_whose_library_goes, test_bad_input, test_new_objects_are_seen)
