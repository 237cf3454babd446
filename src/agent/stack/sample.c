/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Registers and stacks of other threads; see sample.h. */
#include "agent/stack/sample.h"

#include "agent/stack/memory.h"
#include "safe/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/perf_event.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define RING_PAGES 32u
#define PAGE 4096u
#define STACK_BYTES 32768u /* of a record, which has 64 KiB at most */
#define PERIOD_NS 1000000u
#define POLL_NS 1000000

/* A small file of /proc/self/task/<tid>, terminated. Return: bytes, or -errno. */
static int read_file(uint32_t tid, const char *name, char *text, size_t room)
{
	char path[64];
	ssize_t len;
	int fd;

	snprintf(path, sizeof(path), "/proc/self/task/%u/%s", tid, name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	len = read(fd, text, room - 1);
	if (len < 0)
		len = -errno;
	close(fd);
	text[len > 0 ? len : 0] = 0;
	return (int)len;
}

bool sample_look(uint32_t tid, struct sample *s)
{
	char text[512], *name, *end;

	s->state = 0;
	s->runs = 0;
	if (read_file(tid, "stat", text, sizeof(text)) <= 0)
		return false;
	name = strchr(text, '(');
	end = strrchr(text, ')');
	if (!name || !end || end - name < 1 || end[1] != ' ')
		return false;
	snprintf(s->name, sizeof(s->name), "%.*s", (int)(end - name - 1), name + 1);
	s->state = end[2];
	/* time on, time waiting for, how often given a processor */
	if (read_file(tid, "schedstat", text, sizeof(text)) > 0)
		sscanf(text, "%*s %*s %llu", (unsigned long long *)&s->runs);
	return s->state != 'Z' && s->state != 'X';
}

int sample_waiting(uint32_t tid, struct sample *s)
{
	char text[256], *pc, *sp;
	int len = read_file(tid, "syscall", text, sizeof(text));

	if (len <= 0)
		return len ? len : -EAGAIN;
	if (!strncmp(text, "running", 7))
		return -EAGAIN;
	/* the last two numbers of the line */
	pc = strrchr(text, ' ');
	if (!pc)
		return -EIO;
	*pc++ = 0;
	sp = strrchr(text, ' ');
	if (!sp)
		return -EIO;
	s->regs = (struct unwind_regs){ .pc = strtoull(pc, NULL, 16), .sp = strtoull(sp + 1, NULL, 16) };
	if (!s->regs.pc || !s->regs.sp)
		return -EAGAIN;
	s->low = s->regs.sp & ~(uintptr_t)7;
	s->high = s->low + (memory_copy_some(s->words, s->low, SAMPLE_BYTES_MAX - PAGE) & ~(size_t)7);
	return s->high > s->low ? 0 : -EFAULT;
}

/* --- perf events ----------------------------------------------------------------------------------------------------------- */

#if defined(__x86_64__)
#define REGS_MASK (1ull << 6 | 1ull << 7 | 1ull << 8) /* bp, sp, ip: in this order */
enum { REG_FP, REG_SP, REG_PC, REGS };
#else
#define REGS_MASK (1ull << 29 | 1ull << 30 | 1ull << 31 | 1ull << 32) /* x29, lr, sp, pc */
enum { REG_FP, REG_LR, REG_SP, REG_PC, REGS };
#endif

struct record {
	struct perf_event_header head;
	uint64_t abi;
	uint64_t regs[REGS];
	uint64_t stack_bytes;
	uint8_t stack[]; /* then: how many of them are real */
};

static int open_event(uint32_t tid)
{
	struct perf_event_attr attr = {
		.type = PERF_TYPE_SOFTWARE,
		.size = sizeof(attr),
		.config = PERF_COUNT_SW_CPU_CLOCK,
		.sample_period = PERIOD_NS,
		.sample_type = PERF_SAMPLE_REGS_USER | PERF_SAMPLE_STACK_USER,
		.sample_regs_user = REGS_MASK,
		.sample_stack_user = STACK_BYTES,
		.disabled = 1,
		.exclude_kernel = 1,
		.exclude_hv = 1,
	};
	int fd = (int)syscall(SYS_perf_event_open, &attr, tid, -1, -1, PERF_FLAG_FD_CLOEXEC);

	return fd < 0 ? -errno : fd;
}

static int take_record(const struct perf_event_mmap_page *page, struct sample *s)
{
	const struct record *r = (const void *)((const uint8_t *)page + PAGE);
	uint64_t real;

	/* the first record begins the ring, and is whole: the ring is longer than a record can be */
	if (r->head.type != PERF_RECORD_SAMPLE || !r->abi || !r->stack_bytes || r->stack_bytes > STACK_BYTES)
		return -EIO;
	memcpy(&real, r->stack + r->stack_bytes, sizeof(real));
	if (real > r->stack_bytes)
		return -EIO;
	s->regs = (struct unwind_regs){
		.pc = r->regs[REG_PC], .sp = r->regs[REG_SP], .fp = r->regs[REG_FP], .fp_known = true
	};
#if defined(__aarch64__)
	s->regs.lr = r->regs[REG_LR];
#endif
	s->low = s->regs.sp & ~(uintptr_t)7;
	s->high = s->low + (real & ~(uint64_t)7);
	memcpy(s->words, r->stack, real);
	return real ? 0 : -EIO;
}

int sample_running(uint32_t tid, struct sample *s, uint64_t deadline_ns)
{
	const struct timespec pause = { .tv_nsec = POLL_NS };
	struct perf_event_mmap_page *page;
	int fd = open_event(tid), ret = -ETIMEDOUT;

	if (fd < 0)
		return fd;
	/* writable: otherwise the kernel goes round and overwrites the first record */
	page = mmap(NULL, (RING_PAGES + 1) * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (page == MAP_FAILED) {
		ret = -errno;
		close(fd);
		return ret;
	}
	ioctl(fd, PERF_EVENT_IOC_REFRESH, 1); /* one sample, then it is off again */
	while (clock_mono_ns() < deadline_ns) {
		nanosleep(&pause, NULL);
		if (!__atomic_load_n(&page->data_head, __ATOMIC_ACQUIRE))
			continue;
		ret = take_record(page, s);
		break;
	}
	ioctl(fd, PERF_EVENT_IOC_DISABLE, 0);
	munmap(page, (RING_PAGES + 1) * PAGE);
	close(fd);
	return ret;
}
