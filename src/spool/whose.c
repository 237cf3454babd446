/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Origin of an existing file; see whose.h. */
#include "spool/whose.h"
#include "safe/pool.h"
#include "safe/clock.h"
#include "safe/rawio.h"
#include "spool/owner.h"
#include "wire/messages.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HEAD_BYTES (64u * 1024u)
#define META_HEAD "{\"meta\":" /* of a meta file: it names its process at the top */
#define QUIET_S 180 /* whoever writes a file writes at least a clock snapshot a minute */

static void copy_text(char *to, size_t room, struct msg_text text)
{
	size_t n = text.bytes < room ? text.bytes : room - 1;

	memcpy(to, text.at, n);
	to[n] = 0;
}

static void from_pb(const void *data, size_t bytes, struct whose *whose)
{
	struct pb_reader reader;
	struct pb_field field;
	struct msg_origin origin;

	pb_read(&reader, data, bytes);
	while (pb_next(&reader, &field) > 0) {
		if (field.number != MSG_PYTORCH_origin || field.wire != PB_BYTES ||
		    msg_origin_read(&origin, field.data, field.bytes) < 0)
			continue;
		copy_text(whose->host, sizeof(whose->host), origin.host);
		copy_text(whose->boot_id, sizeof(whose->boot_id), origin.boot_id);
		whose->pid = origin.pid;
		whose->proc_start = origin.proc_start;
		whose->pidns = origin.pid_namespace;
		whose->wall_minus_mono_ns = origin.wall_minus_mono_ns;
		whose->known = true;
		return;
	}
}

/* Value of a key as our own writer spells it; NULL when it is not there. */
static const char *json_find(const char *text, const char *key)
{
	const char *at = strstr(text, key);

	return at ? at + strlen(key) : NULL;
}

static void json_copy(const char *text, const char *key, char *to, size_t room)
{
	const char *at = json_find(text, key);
	const char *end = at ? strchr(at, '"') : NULL;

	if (end)
		copy_text(to, room, (struct msg_text){ at, (size_t)(end - at) });
}

static void from_json(const char *text, struct whose *whose)
{
	bool meta = !strncmp(text, META_HEAD, sizeof(META_HEAD) - 1);
	const char *pid, *start, *offset, *pidns;

	text = meta ? text : strstr(text, "\"origin\":[{");
	if (!text)
		return;
	pid = json_find(text, "\"pid\":");
	start = json_find(text, "\"proc_start\":");
	offset = json_find(text, "\"wall_minus_mono_ns\":");
	if (!pid || !start || (!offset && !meta))
		return;
	json_copy(text, "\"host\":\"", whose->host, sizeof(whose->host));
	json_copy(text, "\"boot_id\":\"", whose->boot_id, sizeof(whose->boot_id));
	whose->pid = (uint32_t)strtoul(pid, NULL, 10);
	whose->proc_start = strtoull(start, NULL, 10);
	pidns = json_find(text, "\"pid_namespace\":");
	whose->pidns = pidns ? strtoull(pidns, NULL, 10) : 0;
	whose->wall_minus_mono_ns = offset ? strtoll(offset, NULL, 10) : 0;
	whose->known = true;
}

/* A sidecar, as far as it fits; a link or a pipe in its place is left alone. */
static void read_sidecar(const char *path, char *text, size_t room)
{
	int fd = sys_open_apart(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0);
	struct stat st;
	ssize_t n = -1;

	if (fd >= 0 && !sys_fstat(fd, &st) && S_ISREG(st.st_mode))
		n = sys_pread_all(fd, text, room - 1, 0);
	if (fd >= 0)
		close(fd);
	text[n > 0 ? n : 0] = 0;
}

int whose_file(int fd, const char *path, struct whose *whose)
{
	static char head[HEAD_BYTES];
	char sidecar[POOL_PATH + 16];
	ssize_t n = sys_pread_all(fd, head, sizeof(head) - 1, 0);

	memset(whose, 0, sizeof(*whose));
	if (n < 0)
		return (int)n;
	head[n] = 0;
	if (head[0] == '{') {
		from_json(head, whose);
	} else if (!strncmp(head, "Flag,", 5)) {
		snprintf(sidecar, sizeof(sidecar), "%s.meta.json", path);
		read_sidecar(sidecar, head, sizeof(head));
		from_json(head, whose);
	} else {
		from_pb(head, (size_t)n, whose);
	}
	return 0;
}

bool whose_same(const struct whose *a, const struct whose *b)
{
	return a->known && b->known && a->pid == b->pid && a->proc_start == b->proc_start &&
	       !strcmp(a->boot_id, b->boot_id);
}

bool whose_fresh(const char *path, uint32_t seconds)
{
	struct stat st;

	return sys_lstat(path, &st) == 0 &&
	       (int64_t)(clock_ns(CLOCK_REALTIME) / 1000000000u) - st.st_mtim.tv_sec < (int64_t)seconds;
}

/* The companion counts when it is the same process's: it may be that of the one who asks. */
static bool companion_fresh(const char *path, const struct whose *whose)
{
	char companion[POOL_PATH + 16];
	struct whose its = { 0 };
	int fd;

	snprintf(companion, sizeof(companion), "%s.ext.json", path);
	fd = sys_open_apart(companion, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0);
	if (fd < 0)
		return false;
	whose_file(fd, companion, &its);
	close(fd);
	return whose_same(whose, &its) && whose_fresh(companion, QUIET_S);
}

bool whose_writes(const char *path, const struct whose *whose)
{
	struct owner owner = { .pidns = whose->pidns, .pid = whose->pid, .start = whose->proc_start };
	char sidecar[POOL_PATH + 16];
	struct owner self;

	snprintf(owner.boot_id, sizeof(owner.boot_id), "%s", whose->boot_id);
	owner_self(&self);
	if (whose->known && !strcmp(owner.boot_id, self.boot_id)) {
		enum owner_life life = owner_life(&owner);

		if (life != OWNER_UNKNOWN)
			return life == OWNER_ALIVE;
	}
	snprintf(sidecar, sizeof(sidecar), "%s.meta.json", path);
	return whose_fresh(path, QUIET_S) || whose_fresh(sidecar, QUIET_S) || companion_fresh(path, whose);
}
