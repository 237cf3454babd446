/* SPDX-License-Identifier: MulanPSL-2.0 */
/* The agent's log; see siglog.h. A slot goes EMPTY -> WRITING (one writer, by compare-and-swap) -> READY -> EMPTY. */
#include "safe/siglog.h"

#include "safe/clock.h"
#include "safe/rawio.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SLOTS 64
#define SLOT_BYTES 448
#define LOG_MAX_BYTES (4u << 20)
#define LOG_PATH_BYTES 512

enum slot_state { SLOT_EMPTY, SLOT_WRITING, SLOT_READY };

struct slot {
	_Atomic int state;
	int len;
	uint64_t order; /* written in this order */
	char text[SLOT_BYTES];
};

static struct {
	char path[2][LOG_PATH_BYTES]; /* wanted, fallback */
	enum siglog_level lowest;
	_Atomic bool direct;
	_Atomic uint64_t next;
	_Atomic uint64_t lost;
	_Atomic uint64_t bytes; /* written so far; several threads write while there is no drainer */
	const char *_Atomic used; /* which of path */
	_Atomic uint64_t ino; /* of the file that this process made or first took */
	struct slot slot[SLOTS];
} log_state = { .direct = true };

static void copy_path(char *to, const char *from)
{
	size_t len = from ? strlen(from) : 0;

	if (len >= LOG_PATH_BYTES)
		len = 0;
	if (len)
		memcpy(to, from, len);
	to[len] = 0;
}

void siglog_setup(const char *path, const char *fallback, enum siglog_level lowest)
{
	copy_path(log_state.path[0], path);
	copy_path(log_state.path[1], fallback);
	log_state.lowest = lowest;
	atomic_store_explicit(&log_state.used, NULL, memory_order_relaxed);
	atomic_store_explicit(&log_state.ino, 0, memory_order_relaxed);
	atomic_store_explicit(&log_state.bytes, 0, memory_order_relaxed);
}

bool siglog_on(enum siglog_level level)
{
	return level >= log_state.lowest && (log_state.path[0][0] || log_state.path[1][0]);
}

const char *siglog_path(void)
{
	const char *used = atomic_load_explicit(&log_state.used, memory_order_relaxed);

	return used ? used : "";
}

/* Make the directories above @path; failures show when the file is opened. */
static void make_parents(const char *path)
{
	char dir[LOG_PATH_BYTES];
	char *p;

	copy_path(dir, path);
	for (p = dir + 1; *p; p++) {
		if (*p != '/')
			continue;
		*p = 0;
		mkdir(dir, 0755);
		*p = '/';
	}
}

/*
 * A log directory may be open to others, and the name is easy to guess: a new file, or an old one that is plainly ours
 * (no link, no pipe, no second name for somebody's file). What this process made itself stays good also where a server
 * changes owners.
 */
static int open_ours(const char *path)
{
	const int flags = O_WRONLY | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY;
	bool made = true;
	struct stat st;
	int fd = sys_open_apart(path, flags | O_CREAT | O_EXCL, 0640);

	if (fd < 0 && (errno == EEXIST || errno == EBADF)) {
		made = false;
		fd = sys_open_apart(path, flags, 0);
	}
	if (fd < 0)
		return -1;
	if (sys_fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) ||
	    (!made && st.st_ino != atomic_load_explicit(&log_state.ino, memory_order_relaxed) &&
	     (st.st_uid != geteuid() || st.st_nlink != 1))) {
		close(fd);
		errno = EPERM;
		return -1;
	}
	atomic_store_explicit(&log_state.ino, st.st_ino, memory_order_relaxed);
	return fd;
}

static int log_open(void)
{
	const char *used = atomic_load_explicit(&log_state.used, memory_order_relaxed);
	int i, fd;

	if (used)
		return open_ours(used);
	for (i = 0; i < 2; i++) {
		const char *path = log_state.path[i];

		if (!*path)
			continue;
		fd = open_ours(path);
		if (fd < 0 && errno == ENOENT) {
			make_parents(path);
			fd = open_ours(path);
		}
		if (fd < 0)
			continue;
		atomic_store_explicit(&log_state.used, path, memory_order_relaxed);
		return fd;
	}
	return -1;
}

/* "2026-01-31T12:34:56.789Z WARN  1234 pool: " - UTC by arithmetic: localtime_r reads the host's TZ under a lock */
static int format_head(char *out, size_t room, enum siglog_level level, const char *tag)
{
	static const char *const names[] = { "DEBUG", "INFO", "WARN", "ERROR", "FATAL" };
	uint64_t now_ns = clock_ns(CLOCK_REALTIME);
	uint64_t secs = now_ns / 1000000000u;
	uint32_t day_secs = (uint32_t)(secs % 86400);
	/* days since 1 March of year 0, then the usual 400-year arithmetic */
	uint32_t days = (uint32_t)(secs / 86400) + 719468;
	uint32_t era = days / 146097, doe = days % 146097;
	uint32_t yoe = (doe - doe / 1460 + doe / 36524 - doe / 146096) / 365;
	uint32_t doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
	uint32_t mp = (5 * doy + 2) / 153;
	uint32_t month = mp < 10 ? mp + 3 : mp - 9;
	uint32_t year = yoe + era * 400 + (month <= 2);

	return snprintf(out, room, "%04u-%02u-%02uT%02u:%02u:%02u.%03uZ %-5s %d %s: ", year, month,
			doy - (153 * mp + 2) / 5 + 1, day_secs / 3600, day_secs / 60 % 60, day_secs % 60,
			(uint32_t)(now_ns / 1000000u % 1000), names[level], (int)syscall(SYS_gettid), tag);
}

static int format_line(char *out, enum siglog_level level, const char *tag, const char *format, va_list args)
{
	int len = format_head(out, SLOT_BYTES, level, tag);
	int more = vsnprintf(out + len, (size_t)(SLOT_BYTES - 1 - len), format, args);

	if (more > 0)
		len += more < SLOT_BYTES - 1 - len ? more : SLOT_BYTES - 2 - len;
	out[len++] = '\n';
	return len;
}

static void put_line(int fd, const char *text, int len)
{
	if (atomic_load_explicit(&log_state.bytes, memory_order_relaxed) + (uint64_t)len > LOG_MAX_BYTES ||
	    write(fd, text, (size_t)len) != len)
		atomic_fetch_add_explicit(&log_state.lost, 1, memory_order_relaxed);
	else
		atomic_fetch_add_explicit(&log_state.bytes, (uint64_t)len, memory_order_relaxed);
}

static void queue_line(const char *text, int len)
{
	uint64_t n = atomic_fetch_add_explicit(&log_state.next, 1, memory_order_relaxed);
	struct slot *slot = &log_state.slot[n % SLOTS];
	int empty = SLOT_EMPTY;

	if (!atomic_compare_exchange_strong_explicit(&slot->state, &empty, SLOT_WRITING, memory_order_acquire,
						     memory_order_relaxed)) {
		atomic_fetch_add_explicit(&log_state.lost, 1, memory_order_relaxed);
		return;
	}
	memcpy(slot->text, text, (size_t)len);
	slot->len = len;
	slot->order = n;
	/* release: the drainer that sees READY sees the text */
	atomic_store_explicit(&slot->state, SLOT_READY, memory_order_release);
}

void siglog(enum siglog_level level, const char *tag, const char *format, ...)
{
	char text[SLOT_BYTES];
	int saved = errno;
	va_list args;
	int len, fd;

	if (!siglog_on(level))
		return;
	va_start(args, format);
	len = format_line(text, level, tag, format, args);
	va_end(args);
	if (!atomic_load_explicit(&log_state.direct, memory_order_relaxed)) {
		queue_line(text, len);
	} else {
		fd = log_open();
		if (fd >= 0) {
			put_line(fd, text, len);
			close(fd);
		}
	}
	errno = saved;
}

void siglog_direct(bool direct)
{
	atomic_store_explicit(&log_state.direct, direct, memory_order_relaxed);
}

/* The oldest ready slot, NULL when there is none. */
static struct slot *oldest_ready(void)
{
	struct slot *best = NULL;
	int i;

	for (i = 0; i < SLOTS; i++) {
		struct slot *slot = &log_state.slot[i];

		if (atomic_load_explicit(&slot->state, memory_order_acquire) != SLOT_READY)
			continue;
		if (!best || slot->order < best->order)
			best = slot;
	}
	return best;
}

void siglog_drain(void)
{
	struct slot *slot = oldest_ready();
	char text[SLOT_BYTES];
	uint64_t lost;
	int fd;

	if (!slot)
		return;
	fd = log_open();
	for (; slot; slot = oldest_ready()) {
		if (fd >= 0)
			put_line(fd, slot->text, slot->len);
		atomic_store_explicit(&slot->state, SLOT_EMPTY, memory_order_release);
	}
	if (fd < 0)
		return;
	lost = atomic_exchange_explicit(&log_state.lost, 0, memory_order_relaxed);
	if (lost && atomic_load_explicit(&log_state.bytes, memory_order_relaxed) < LOG_MAX_BYTES) {
		int len = format_head(text, sizeof(text), SIGLOG_WARN, "log");

		len += snprintf(text + len, sizeof(text) - (size_t)len, "%llu messages lost\n",
				(unsigned long long)lost);
		put_line(fd, text, len);
	}
	close(fd);
}
