#!/usr/bin/env python3
# SPDX-License-Identifier: MulanPSL-2.0
"""A child between fork and exec is the host's alone: the agent in it allocates nothing, opens, reads, writes and logs nothing,
takes no lock (docs/safety.md, 12). A library before the agent counts the C library calls that come from the agent's code."""

import os

import harness as h
import jobs
import safe_host as s

h.require(h.AGENT, "gcc")
h.own_pid_namespace()
s.PYTHON = "/usr/bin/python3"

# Counts per process, in a file mapped by all: [0] in the first process, [1] in its children; names of the calls in children.
SPY = r"""
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

struct notes { atomic_int calls[2]; atomic_int used; char names[64][32]; };
static struct notes *notes;
static int first;
static char *from, *upto; /* the agent's code */

static void find_agent(void)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	char line[512];
	unsigned long a, b;

	while (maps && fgets(line, sizeof(line), maps))
		if (strstr(line, "libsysTrace.so") && strstr(line, "r-xp") && sscanf(line, "%lx-%lx", &a, &b) == 2) {
			from = (char *)a;
			upto = (char *)b;
		}
	if (maps)
		fclose(maps);
}

__attribute__((constructor)) static void begin(void)
{
	const char *path = getenv("SPY_NOTES");
	int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;

	first = getpid();
	if (fd >= 0) {
		void *at = mmap(NULL, sizeof(*notes), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		close(fd);
		find_agent();
		notes = at == MAP_FAILED ? NULL : at;
	}
}

static void called(const char *name, char *caller)
{
	int child;

	if (!notes || !from || caller < from || caller >= upto)
		return;
	child = syscall(SYS_getpid) != first;
	atomic_fetch_add(&notes->calls[child], 1);
	if (child) {
		int n = atomic_fetch_add(&notes->used, 1);
		if (n < 64)
			strncpy(notes->names[n], name, 31);
	}
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define HERE ((char *)__builtin_return_address(0))
int open(const char *path, int flags, ...)
{
	va_list ap;
	int mode;
	va_start(ap, flags);
	mode = va_arg(ap, int);
	va_end(ap);
	called("open", HERE);
	return REAL(open)(path, flags, mode);
}
ssize_t write(int fd, const void *data, size_t bytes) { called("write", HERE); return REAL(write)(fd, data, bytes); }
ssize_t read(int fd, void *data, size_t bytes) { called("read", HERE); return REAL(read)(fd, data, bytes); }
void *mmap(void *a, size_t b, int c, int d, int e, off_t f) { called("mmap", HERE); return (void *)syscall(SYS_mmap, a, b, c, d, e, f); }
int socket(int a, int b, int c) { called("socket", HERE); return REAL(socket)(a, b, c); }
int pthread_create(pthread_t *a, const pthread_attr_t *b, void *(*c)(void *), void *d)
{
	called("pthread_create", HERE);
	return REAL(pthread_create)(a, b, c, d);
}
int pthread_mutex_lock(pthread_mutex_t *m) { called("pthread_mutex_lock", HERE); return REAL(pthread_mutex_lock)(m); }
extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
void *malloc(size_t n) { called("malloc", HERE); return __libc_malloc(n); }
void *calloc(size_t n, size_t m) { called("calloc", HERE); return __libc_calloc(n, m); }
void *realloc(void *p, size_t n) { called("realloc", HERE); return __libc_realloc(p, n); }
"""


def spied_host(**extra):
    base = s.open_place()
    spy = h.compile_c(SPY, base + "/spy.so", "-shared", "-fPIC", "-ldl", "-Wno-nonnull")
    notes = h.write_file(base + "/notes", b"\0" * 8192)
    host = s.Host(base, preload="%s:%s/libsysTrace.so" % (spy, base), SPY_NOTES=notes, SYSTRACE_LOG_LEVEL="DEBUG",
                  PYTHONPATH=jobs.FAKE_TORCH, **extra).go().wait_socket()
    host.notes = notes
    return host


def seen(host):
    with open(host.notes, "rb") as f:
        data = f.read()
    parent, children, used = (int.from_bytes(data[i:i + 4], "little") for i in (0, 4, 8))
    return parent, children, [data[12 + 32 * i:44 + 32 * i].rstrip(b"\0").decode() for i in range(min(used, 64))]


def check_quiet(host, what):
    parent, children, names = seen(host)
    h.check(parent > 0, "%s: the spy saw nothing at all of the agent" % what)
    h.check_equal(children, 0, "%s: calls of the agent in children (%s)" % (what, names))


def test_fork_and_exec():
    host = spied_host()
    host.train(2)
    host.do("pid = os.fork(); pid or os.execv('/bin/true', ['true']); assert os.waitpid(pid, 0)[1] == 0")
    host.do("import subprocess; assert subprocess.run(['/bin/true']).returncode == 0")
    host.do("pid = os.posix_spawn('/bin/true', ['true'], {}); assert os.waitpid(pid, 0)[1] == 0")
    host.do("assert os.system('exit 3') >> 8 == 3")
    check_quiet(host, "fork and exec")
    host.quit().ok()


def test_a_child_that_runs_traced_functions_and_ends():
    """As a data-loader worker: its records go into the inherited pool, without a call into the C library's heap or files."""
    host = spied_host()
    host.train(2)
    host.do("pid = os.fork(); pid or ([torch.autograd.backward(1) for _ in range(500)], os._exit(5)); "
            "assert os.waitpid(pid, 0)[1] >> 8 == 5")
    check_quiet(host, "a worker")
    host.quit().ok()


def test_a_child_that_exits_as_usual():
    """Its exit handlers run: the parent's socket and spool stay."""
    host = spied_host()
    host.train(1)
    host.do("pid = os.fork(); pid or sys.exit(6); assert os.waitpid(pid, 0)[1] >> 8 == 6")
    check_quiet(host, "an exit")
    h.check_equal(host.ask("list").code, 0, "the parent's socket")
    h.check(os.path.isdir(host.ask("status").get("spool")), "the parent's spool")
    host.quit().ok()


h.main(test_fork_and_exec, test_a_child_that_runs_traced_functions_and_ends, test_a_child_that_exits_as_usual)
