/* SPDX-License-Identifier: MulanPSL-2.0 */
/* The rank that a worker belongs to; see parent.h. Called by life.c, the io thread, identity.c and steps.c. */
#include "agent/parent.h"

#include "agent/agent.h"
#include "agent/env.h"
#include "agent/identity.h"
#include "safe/rawio.h"
#include "safe/siglog.h"
#include "spool/dir.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define NAMES 16 /* of one process's spools: as many as dir.c makes */

static struct {
	_Atomic uint32_t pid;
	_Atomic bool left;
} parent;

enum started { BY_OTHERS, BY_SPAWN, BY_FORKSERVER };

/* How multiprocessing of CPython 3.8 to 3.13 calls the programs that it starts. */
static enum started how_started(void)
{
	static const char server[] = "from multiprocessing.forkserver import ";
	char text[4096], *arg;
	ssize_t n = sys_read_file("/proc/self/cmdline", text, sizeof(text));

	for (arg = text; n > 0 && arg < text + n; arg += strlen(arg) + 1) {
		if (!strcmp(arg, "--multiprocessing-fork"))
			return BY_SPAWN;
		if (!strncmp(arg, server, sizeof(server) - 1))
			return BY_FORKSERVER;
	}
	return BY_OTHERS;
}

static uint32_t parent_of(uint32_t pid)
{
	char path[48], text[1024];

	snprintf(path, sizeof(path), "/proc/%u/stat", pid);
	return sys_read_file(path, text, sizeof(text)) > 0 ? identity_parse_ppid(text) : 0;
}

/* Is this header complete, of our layout, and that very process's? */
static bool is_of(const struct pool_header *head, uint32_t pid, uint64_t start)
{
	return __atomic_load_n(&head->magic, __ATOMIC_ACQUIRE) == POOL_MAGIC && head->version == POOL_VERSION &&
	       head->header_bytes == sizeof(*head) && head->owner_pid == pid && head->owner_start == start &&
	       head->owner_pidns == identity.pidns;
}

/*
 * Map the header of a pool file. All of it is allocated memory (spool/dir.c) and nobody makes such a file shorter, so
 * that reading it can't raise SIGBUS; its owner is our own user, who could end us by simpler means.
 */
static const struct pool_header *map_header(int base, const char *name, uint32_t pid, uint64_t start)
{
	const struct pool_header *head;
	struct stat st;
	int dir, fd;

	dir = openat(base, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (dir < 0)
		return NULL;
	fd = openat(dir, "pool", O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
	close(dir);
	if (fd < 0)
		return NULL;
	head = MAP_FAILED;
	if (!sys_fstat(fd, &st) && S_ISREG(st.st_mode) && st.st_uid == geteuid() &&
	    (size_t)st.st_size >= pool_area_bytes(0) && (uint64_t)st.st_blocks * 512 >= sizeof(*head))
		head = mmap(NULL, sizeof(*head), PROT_READ, MAP_SHARED, fd, 0);
	close(fd);
	if (head == MAP_FAILED)
		return NULL;
	if (is_of(head, pid, start))
		return head;
	munmap((void *)head, sizeof(*head));
	return NULL;
}

/* The newest of its pools: a process that called exec has those of its earlier programs, too. */
static const struct pool_header *header_of(uint32_t pid)
{
	const struct pool_header *found = NULL, *head;
	char path[SPOOL_PATH_BYTES], name[96];
	struct st_err ignored;
	uint64_t start;
	int i, base;

	if (owner_proc_start(pid, &start, NULL) < 0)
		return NULL;
	base = spool_base_open(env.text[ENV_SPOOL_PATH], geteuid(), false, path, &ignored);
	if (base < 0)
		return NULL;
	for (i = 0; i < NAMES; i++) {
		int n = snprintf(name, sizeof(name), "%llu-%u-%llu", (unsigned long long)identity.pidns, pid,
				 (unsigned long long)start);

		if (i)
			snprintf(name + n, sizeof(name) - (size_t)n, "-%d", i);
		head = map_header(base, name, pid, start);
		if (!head)
			continue;
		if (found)
			munmap((void *)found, sizeof(*found));
		found = head;
	}
	close(base);
	return found;
}

void parent_find(void)
{
	enum started started;
	const struct pool_header *head;
	uint32_t pid = identity.pid;

	if (atomic_load_explicit(&parent.pid, memory_order_relaxed) || atomic_load(&parent.left))
		return;
	started = how_started();
	if (started == BY_OTHERS) {
		parent_leave();
		return;
	}
	pid = parent_of(pid);
	head = pid > 1 ? header_of(pid) : NULL;
	/* between a worker and its rank stands the server, a plain interpreter */
	if (!head && pid > 1 && started == BY_FORKSERVER) {
		pid = parent_of(pid);
		head = pid > 1 ? header_of(pid) : NULL;
	}
	if (!head)
		return;
	atomic_store_explicit(&parent.pid, pid, memory_order_relaxed);
	/* release: see agent_place() */
	atomic_store_explicit(&agent.rank, head, memory_order_release);
	if (atomic_load(&parent.left)) /* a hook was faster */
		parent_leave();
}

uint32_t parent_pid(void)
{
	return atomic_load_explicit(&parent.pid, memory_order_relaxed);
}

/* The header of the rank whose worker we are, NULL: we are no worker. */
static const struct pool_header *rank_head(void)
{
	const struct pool_header *head = agent_place();

	return head == agent.pool.head ? NULL : head;
}

bool parent_records(void)
{
	const struct pool_header *head = rank_head();

	return head && atomic_load_explicit(&head->recording, memory_order_relaxed) == POOL_RECORDS &&
	       atomic_load_explicit(&head->committed, memory_order_acquire);
}

bool parent_origin(uint8_t *bytes, struct msg_origin *origin)
{
	const struct pool_header *head = rank_head();
	uint32_t at = head ? __atomic_load_n(&head->origin_at, __ATOMIC_ACQUIRE) : 0;
	uint32_t offset = at >> 16, length = at & 0xffff;

	if (!at || offset + length > POOL_ORIGIN)
		return false;
	memcpy(bytes, head->origin + offset, length);
	/* a new one is written beside the old one: what was copied is whole unless there came two */
	if (__atomic_load_n(&head->origin_at, __ATOMIC_ACQUIRE) != at)
		return false;
	return msg_origin_read(origin, bytes, length) >= 0;
}

void parent_leave(void)
{
	atomic_store(&parent.left, true);
	/* the mapping stays: another thread may be reading it */
	atomic_store_explicit(&agent.rank, NULL, memory_order_release);
}
