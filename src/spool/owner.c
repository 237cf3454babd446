/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Identity and death of processes; see owner.h. */
#include "spool/owner.h"
#include "safe/rawio.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define FIRST_PIDNS 0xeffffffcull /* PROC_PID_INIT_INO: the namespace that sees all processes */
#define START_FIELD 22

int owner_proc_start(uint32_t pid, uint64_t *start, char *state)
{
	char path[64], text[1024], *at;
	ssize_t n;
	int field;

	/* its first thread's, which is the same; an emulator, which makes up a process's own stat, leaves it alone */
	snprintf(path, sizeof(path), "/proc/%u/task/%u/stat", pid, pid);
	n = sys_read_file(path, text, sizeof(text));
	if (n < 0)
		return n == -ENOENT ? -ESRCH : (int)n;
	at = strrchr(text, ')'); /* the name before it may hold anything */
	if (!at || at[1] != ' ' || !at[2])
		return -EBADMSG;
	at += 2;
	if (state)
		*state = *at;
	for (field = 3; field < START_FIELD; field++) {
		at = strchr(at, ' ');
		if (!at)
			return -EBADMSG;
		at++;
	}
	*start = strtoull(at, NULL, 10);
	return 0;
}

static uint64_t inode_of(const char *path)
{
	struct stat st;

	return sys_stat(path, &st) ? 0 : (uint64_t)st.st_ino;
}

static void read_boot_id(char *text)
{
	char *end;

	sys_read_file("/proc/sys/kernel/random/boot_id", text, OWNER_BOOT_ID);
	end = strchr(text, '\n');
	if (end)
		*end = 0;
}

void owner_self(struct owner *self)
{
	memset(self, 0, sizeof(*self));
	self->pid = (uint32_t)getpid();
	self->pidns = inode_of("/proc/self/ns/pid");
	owner_proc_start(self->pid, &self->start, NULL);
	read_boot_id(self->boot_id);
}

static enum owner_life life_here(const struct owner *owner)
{
	uint64_t start;
	char state;
	int ret;

	if (kill((pid_t)owner->pid, 0) && errno == ESRCH)
		return OWNER_DEAD;
	ret = owner_proc_start(owner->pid, &start, &state);
	if (ret == -ESRCH)
		return kill((pid_t)owner->pid, 0) && errno == ESRCH ? OWNER_DEAD : OWNER_UNKNOWN; /* hidepid */
	if (ret < 0)
		return OWNER_UNKNOWN;
	/* times of a boot do not fall: a start other than noted is another process */
	if ((owner->start && start != owner->start) || state == 'Z' || state == 'X')
		return OWNER_DEAD;
	return OWNER_ALIVE;
}

/* The pid that process @pid (ours) has in its own, innermost namespace; 0 when it can't be read. */
static uint32_t innermost_pid(uint32_t pid)
{
	char path[48], text[4096], *line, *end, *last;

	snprintf(path, sizeof(path), "/proc/%u/status", pid);
	if (sys_read_file(path, text, sizeof(text)) < 0)
		return 0;
	line = strstr(text, "\nNSpid:");
	if (!line)
		return 0;
	line++;
	end = strchr(line, '\n');
	if (end)
		*end = 0;
	last = strrchr(line, '\t');
	return last ? (uint32_t)strtoul(last + 1, NULL, 10) : 0;
}

static bool is_this_one(uint32_t pid, const struct owner *owner)
{
	uint64_t start;
	char path[48], state;

	snprintf(path, sizeof(path), "/proc/%u/ns/pid", pid);
	if (inode_of(path) != owner->pidns || innermost_pid(pid) != owner->pid)
		return false;
	if (owner_proc_start(pid, &start, &state) < 0 || state == 'Z' || state == 'X')
		return false;
	snprintf(path, sizeof(path), "/proc/%u/ns/time", pid);
	/* another time namespace shows another start time: the pid alone must do */
	return start == owner->start || inode_of(path) != inode_of("/proc/self/ns/time");
}

static int look_for(void *ctx, const char *name, uint64_t inode)
{
	uint32_t pid = (uint32_t)strtoul(name, NULL, 10);

	(void)inode;
	return pid && is_this_one(pid, ctx);
}

/* All processes, for a root that sees them all. */
static enum owner_life life_elsewhere(const struct owner *owner)
{
	struct owner copy = *owner;
	int fd, ret;

	fd = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return OWNER_UNKNOWN;
	ret = sys_dir_each(fd, look_for, &copy);
	close(fd);
	return ret > 0 ? OWNER_ALIVE : ret == 0 ? OWNER_DEAD : OWNER_UNKNOWN;
}

enum owner_life owner_life(const struct owner *owner)
{
	char boot_id[OWNER_BOOT_ID];
	uint64_t here = inode_of("/proc/self/ns/pid");

	read_boot_id(boot_id);
	if (owner->boot_id[0] && boot_id[0] && strcmp(owner->boot_id, boot_id) != 0)
		return OWNER_DEAD; /* from before this boot */
	if (!owner->pid || !owner->pidns || !here)
		return OWNER_UNKNOWN;
	if (owner->pidns == here)
		return life_here(owner);
	if (here == FIRST_PIDNS && geteuid() == 0)
		return life_elsewhere(owner);
	return OWNER_UNKNOWN;
}
