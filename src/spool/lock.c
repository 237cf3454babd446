/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Locks of file names; see lock.h. Content: "<pidns> <pid> <start> <boot id> <flock|plain>\n". */
#include "spool/lock.h"
#include "base/fault.h"
#include "safe/rawio.h"
#include "spool/owner.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#define LOCK_TEXT 160
#define TAKE_TRIES 10

static uint64_t name_hash(const char *path)
{
	uint64_t hash = 14695981039346656037ull; /* FNV-1a */

	for (; *path; path++)
		hash = (hash ^ (uint8_t)*path) * 1099511628211ull;
	return hash;
}

/* Open the lock file and flock it; -EAGAIN when it was unlinked meanwhile. */
static int open_locked(const char *lock)
{
	struct stat here, there;
	int fd;

	fd = FAULT("lock.open") ? -1 : sys_open_apart(lock, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0)
		return -errno;
	if (flock(fd, LOCK_EX | LOCK_NB)) {
		int ret = errno == EWOULDBLOCK ? -EBUSY : -errno;

		close(fd);
		return ret;
	}
	if (sys_fstat(fd, &here) || sys_lstat(lock, &there) || here.st_ino != there.st_ino) {
		close(fd);
		return -EAGAIN;
	}
	return fd;
}

static bool same_process(const struct owner *a, const struct owner *b)
{
	return a->pidns == b->pidns && a->pid == b->pid && a->start == b->start && !strcmp(a->boot_id, b->boot_id);
}

/* May the flocked file @fd be taken? Its content names the last owner, empty: none. */
static bool is_free(int fd, const struct owner *self)
{
	struct owner last = { 0 };
	char text[LOCK_TEXT], how[8] = "";
	ssize_t n = sys_pread_all(fd, text, sizeof(text) - 1, 0);

	if (n <= 0)
		return n == 0;
	text[n] = 0;
	if (sscanf(text, "%" SCNu64 " %" SCNu32 " %" SCNu64 " %39s %7s", &last.pidns, &last.pid, &last.start,
		   last.boot_id, how) != 5)
		return true; /* cut by a full disk: nobody wrote with it */
	if (!strcmp(last.boot_id, "-"))
		last.boot_id[0] = 0;
	if (!strcmp(how, "flock") || same_process(&last, self))
		return true; /* a live owner would still hold the flock that we got */
	return owner_life(&last) == OWNER_DEAD;
}

static int write_owner(int fd, const struct owner *self, bool hold)
{
	char text[LOCK_TEXT];
	int n = snprintf(text, sizeof(text), "%" PRIu64 " %" PRIu32 " %" PRIu64 " %s %s\n", self->pidns, self->pid,
			 self->start, self->boot_id[0] ? self->boot_id : "-", hold ? "flock" : "plain");

	if (ftruncate(fd, 0))
		return -errno;
	return FAULT("lock.write") ? -errno : sys_pwrite_all(fd, text, (size_t)n, 0);
}

int lock_take(const char *base, const char *path, bool hold, char *lock, size_t room, int *fd)
{
	struct owner self;
	int i, ret;

	*fd = -1;
	if (snprintf(lock, room, "%s/locks", base) >= (int)room)
		return -ENAMETOOLONG;
	mkdir(lock, 0700);
	if (snprintf(lock, room, "%s/locks/%016" PRIx64, base, name_hash(path)) >= (int)room)
		return -ENAMETOOLONG;
	owner_self(&self);
	for (i = 0, ret = -EAGAIN; i < TAKE_TRIES && ret == -EAGAIN; i++)
		ret = open_locked(lock);
	if (ret < 0) {
		lock[0] = 0;
		return ret == -EAGAIN ? -EBUSY : ret;
	}
	*fd = ret;
	ret = is_free(*fd, &self) ? write_owner(*fd, &self, hold) : -EBUSY;
	if (ret < 0 || !hold) {
		close(*fd);
		*fd = -1;
	}
	if (ret < 0)
		lock[0] = 0;
	return ret;
}

void lock_drop(const char *lock, int fd)
{
	if (lock[0])
		unlink(lock);
	if (fd >= 0)
		close(fd);
}
