# SPDX-License-Identifier: MulanPSL-2.0
"""An allocator that is preloaded before or after the agent (as jemalloc and tcmalloc often are) serves the whole job, our hooks
included: plugins with native hooks on, threads that allocate, forks (docs/safety.md, property 1)."""

import ctypes.util
import os

import harness as h
import jobs

h.require(h.AGENT, "gcc")
PYTHON = list(h.pythons().values())[-1]
TMP = h.tmpdir()

# Takes the place of the C library's: blocks of powers of two under one lock, held over fork, counted.
ALLOCATOR = r"""
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#define LEAST 6
#define CLASSES 40
struct block { struct block *next; size_t size; };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct block *idle[CLASSES];
static char *at, *end;
unsigned long allocator_calls;

static void before(void) { pthread_mutex_lock(&lock); }
static void after(void) { pthread_mutex_unlock(&lock); }
__attribute__((constructor)) static void watch(void) { pthread_atfork(before, after, after); }

static int class_of(size_t bytes)
{
	int c = LEAST;
	while (((size_t)1 << c) < bytes)
		c++;
	return c;
}

static void *take(size_t bytes)
{
	int c = class_of(bytes + sizeof(struct block));
	size_t size = (size_t)1 << c;
	struct block *b;

	if (c >= CLASSES)
		return NULL;
	b = idle[c];
	if (b) {
		idle[c] = b->next;
	} else {
		if ((size_t)(end - at) < size) {
			size_t more = size > (1u << 24) ? size : 1u << 24;
			at = mmap(NULL, more, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
			if (at == MAP_FAILED)
				return at = end = NULL;
			end = at + more;
		}
		b = (struct block *)at;
		at += size;
	}
	b->size = size - sizeof(*b);
	return b + 1;
}

void *malloc(size_t bytes)
{
	void *p;
	pthread_mutex_lock(&lock);
	allocator_calls++;
	p = take(bytes);
	pthread_mutex_unlock(&lock);
	if (!p)
		errno = ENOMEM;
	return p;
}

void free(void *p)
{
	struct block *b = (struct block *)p - 1;
	int c;
	if (!p)
		return;
	if (b->next == (void *)-1) /* aligned: the real block is noted */
		b = (struct block *)b->size;
	c = class_of(b->size + sizeof(*b));
	pthread_mutex_lock(&lock);
	b->next = idle[c];
	idle[c] = b;
	pthread_mutex_unlock(&lock);
}

void *calloc(size_t n, size_t each)
{
	size_t bytes;
	void *p = __builtin_mul_overflow(n, each, &bytes) ? NULL : malloc(bytes);
	if (p)
		memset(p, 0, bytes);
	return p;
}

size_t malloc_usable_size(void *p)
{
	struct block *b = (struct block *)p - 1;
	if (!p)
		return 0;
	if (b->next != (void *)-1)
		return b->size;
	return (size_t)((char *)((struct block *)b->size + 1) + ((struct block *)b->size)->size - (char *)p);
}

void *realloc(void *p, size_t bytes)
{
	size_t old = malloc_usable_size(p);
	void *q;
	if (p && bytes <= old)
		return p;
	q = malloc(bytes);
	if (q && p) {
		memcpy(q, p, old);
		free(p);
	}
	return q;
}

void *memalign(size_t align, size_t bytes)
{
	char *p = align <= 16 ? malloc(bytes) : malloc(bytes + align + sizeof(struct block));
	struct block *real = (struct block *)p - 1, *b;
	uintptr_t to;
	if (align <= 16 || !p)
		return p;
	to = ((uintptr_t)p + sizeof(struct block) + align - 1) / align * align;
	b = (struct block *)to - 1;
	b->next = (void *)-1;
	b->size = (size_t)real;
	return (void *)to;
}
void *aligned_alloc(size_t align, size_t bytes) { return memalign(align, bytes); }
void *valloc(size_t bytes) { return memalign(4096, bytes); }
void *pvalloc(size_t bytes) { return memalign(4096, (bytes + 4095) / 4096 * 4096); }
int posix_memalign(void **p, size_t align, size_t bytes) { return (*p = memalign(align, bytes)) ? 0 : ENOMEM; }
"""

PROGRAM = r"""
import ctypes, threading
def storm(threads, rounds):
    def allocate():
        for i in range(rounds):
            blocks = [bytearray(n) for n in (10, 3000, 70000, 1 << 20)]
            with open(os.devnull, "wb") as f:
                f.write(blocks[1])
    started = [threading.Thread(target=allocate) for _ in range(threads)]
    [t.start() for t in started]
    for i in range(10):
        pid = os.fork()
        if pid == 0:
            allocate()
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
    [t.join() for t in started]
def calls():
    say("calls", ctypes.c_ulong.in_dll(ctypes.CDLL(None), "allocator_calls").value)
"""


def train_with(preload, counted):
    job = jobs.Job(PYTHON, h.preload_env(h.tmpdir(), LD_PRELOAD=preload, PYTHONMALLOC="malloc",
                                        PYTHONWARNINGS="ignore"), PROGRAM + jobs.LOOP)
    job.wait_attached()
    job.train(5)
    for plugin in ("IO", "Mutex", "GIL", "Memory"):
        answer = job.ask("enable", plugin=plugin)
        h.check(answer.code == 0 or plugin == "Memory", "enable %s with %s: %r" % (plugin, preload, answer))
    job.do("storm(4, 20)")
    job.train(5)
    if counted:
        job.process.stdin.write(b"calls()\n")
        job.process.stdin.flush()
        h.check(int(job.expect("calls").split()[1]) > 1000, "the allocator was not used")
        job.expect("done")
    for plugin in ("IO", "Mutex", "GIL", "Memory"):
        job.ask("disable", plugin=plugin)
    job.do("storm(2, 5)")
    job.train(5)
    result = job.quit().ok()
    h.check_equal(result.err, "", "what the job says with " + preload)
    h.check_equal(jobs.steps_in(h.find_one(job.dump, "timeline/*")), list(range(1, 16)), "steps with " + preload)


def test_our_own():
    ours = h.compile_c(ALLOCATOR, os.path.join(TMP, "liballocator.so"), "-shared", "-fPIC", "-lpthread", "-fno-builtin")
    train_with("%s:%s" % (ours, h.AGENT), True)
    train_with("%s:%s" % (h.AGENT, ours), True)


def test_jemalloc():
    name = ctypes.util.find_library("jemalloc")
    if not name:
        h.skip("libjemalloc is not installed")
    train_with("%s:%s" % (name, h.AGENT), False)
    train_with("%s:%s" % (h.AGENT, name), False)


if __name__ == "__main__":
    h.main(test_our_own, test_jemalloc)
