/* SPDX-License-Identifier: MulanPSL-2.0 */
/* A target in an `enable` request: written by sysTrace_cli, read by the probe; see frame.h. */
#include "base/num.h"
#include "probe/frame.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TARGET "target"

/* Numbers and texts of a target by the name they have on the wire. */
enum field_type { NUMBER_U32, NUMBER_U64, YES_NO, TEXT };

static const struct field {
	const char *key;
	enum field_type type;
	size_t at;
} fields[] = {
	{ "start", NUMBER_U64, offsetof(struct probe_target, start) },
	{ "uid", NUMBER_U32, offsetof(struct probe_target, uid) },
	{ "gid", NUMBER_U32, offsetof(struct probe_target, gid) },
	{ "json", YES_NO, offsetof(struct probe_target, json) },
	{ "agent", YES_NO, offsetof(struct probe_target, has_agent) },
	{ "inner_pid", NUMBER_U32, offsetof(struct probe_target, inner_pid) },
	{ "rank", NUMBER_U32, offsetof(struct probe_target, origin.rank) },
	{ "rank_known", YES_NO, offsetof(struct probe_target, origin.rank_known) },
	{ "local_rank", NUMBER_U32, offsetof(struct probe_target, origin.local_rank) },
	{ "world_size", NUMBER_U32, offsetof(struct probe_target, origin.world_size) },
	{ "pid_namespace", NUMBER_U64, offsetof(struct probe_target, origin.pid_namespace) },
	{ "run", TEXT, offsetof(struct probe_target, origin.run) },
	{ "host", TEXT, offsetof(struct probe_target, origin.host) },
	{ "boot_id", TEXT, offsetof(struct probe_target, origin.boot_id) },
	{ "pids", TEXT, offsetof(struct probe_target, origin.pids) },
	{ "job", TEXT, offsetof(struct probe_target, origin.job) },
};
#define FIELDS (sizeof(fields) / sizeof(fields[0]))

void probe_target_put(struct ctl_msg *msg, const struct probe_target *target)
{
	char key[64];

	ctl_addf(msg, TARGET, "%d", (int)target->pid);
	for (size_t i = 0; i < FIELDS; i++) {
		const char *at = (const char *)target + fields[i].at;
		const struct msg_text *text = (const struct msg_text *)at;

		snprintf(key, sizeof(key), TARGET ".%s", fields[i].key);
		switch (fields[i].type) {
		case NUMBER_U32:
			ctl_add_u64(msg, key, *(const uint32_t *)at);
			break;
		case NUMBER_U64:
			ctl_add_u64(msg, key, *(const uint64_t *)at);
			break;
		case YES_NO:
			ctl_add(msg, key, *(const bool *)at ? "1" : "0");
			break;
		case TEXT:
			if (text->bytes)
				ctl_addf(msg, key, "%.*s", (int)text->bytes, text->at);
			break;
		}
	}
	ctl_add(msg, TARGET ".dump_path", target->dump_path);
	ctl_addf(msg, TARGET ".dir", "%d", target->dir_fd);
	if (target->pool_fd >= 0)
		ctl_addf(msg, TARGET ".pool", "%d", target->pool_fd);
}

/* Texts live in the target itself; one that no longer fits is left out. */
static struct msg_text keep_text(struct probe_target *target, const char *value, size_t bytes)
{
	size_t used = 0;

	while (used < sizeof(target->texts) && target->texts[used])
		used += strlen(target->texts + used) + 1;
	if (!bytes || used + bytes + 2 > sizeof(target->texts))
		return (struct msg_text){ 0 };
	memcpy(target->texts + used, value, bytes);
	return (struct msg_text){ target->texts + used, bytes };
}

static int keep_fd(const char *value, size_t bytes, const int *fds, size_t fd_count, int *fd)
{
	uint64_t index;

	if (*fd >= 0 || num_u64_n(value, bytes, &index) < 0 || index >= fd_count)
		return -EINVAL;
	*fd = fcntl(fds[index], F_DUPFD_CLOEXEC, 3);
	return *fd < 0 ? -errno : 0;
}

static int take_field(struct probe_target *target, const struct field *field, const struct ctl_entry *entry)
{
	char *at = (char *)target + field->at;
	uint64_t number = 0;

	if (field->type == TEXT) {
		*(struct msg_text *)at = keep_text(target, entry->value, entry->value_bytes);
		return 0;
	}
	if (num_u64_n(entry->value, entry->value_bytes, &number) < 0)
		return -EINVAL;
	if (field->type == NUMBER_U64)
		*(uint64_t *)at = number;
	else if (field->type == NUMBER_U32 && number <= UINT32_MAX)
		*(uint32_t *)at = (uint32_t)number;
	else if (field->type == YES_NO)
		*(bool *)at = number != 0;
	else
		return -ERANGE;
	return 0;
}

static int new_target(const struct ctl_entry *entry, struct probe_target ***targets, size_t *count, struct st_err *err)
{
	struct probe_target **list, *target;
	uint64_t pid;

	if (num_u64_n(entry->value, entry->value_bytes, &pid) < 0 || pid > INT32_MAX)
		return err_set(err, -EINVAL, "'%.*s' is no process id", (int)entry->value_bytes, entry->value);
	if (*count == PROBE_TARGETS_MAX)
		return err_set(err, -E2BIG, "more than %d processes in one request", PROBE_TARGETS_MAX);
	list = realloc(*targets, (*count + 1) * sizeof(*list));
	if (!list)
		return err_set(err, -ENOMEM, "out of memory");
	*targets = list;
	target = calloc(1, sizeof(*target));
	if (!target)
		return err_set(err, -ENOMEM, "out of memory");
	target->pid = (pid_t)pid;
	target->dir_fd = target->pool_fd = target->pid_fd = -1;
	list[(*count)++] = target;
	return 1;
}

int probe_target_take(const struct ctl_entry *entry, struct probe_target ***targets, size_t *count, const int *fds,
		      size_t fd_count, struct st_err *err)
{
	const size_t prefix = sizeof(TARGET) - 1;
	struct probe_target *target = *count ? (*targets)[*count - 1] : NULL;
	const char *key = entry->key + prefix + 1;
	size_t bytes = entry->key_bytes - prefix - 1;
	int ret = 0;

	if (entry->key_bytes < prefix || memcmp(entry->key, TARGET, prefix) != 0)
		return 0;
	if (entry->key_bytes == prefix)
		return new_target(entry, targets, count, err);
	if (entry->key[prefix] != '.' || !target)
		return 0;
	if (bytes == 3 && memcmp(key, "dir", 3) == 0)
		ret = keep_fd(entry->value, entry->value_bytes, fds, fd_count, &target->dir_fd);
	else if (bytes == 4 && memcmp(key, "pool", 4) == 0)
		ret = keep_fd(entry->value, entry->value_bytes, fds, fd_count, &target->pool_fd);
	else if (bytes == 9 && memcmp(key, "dump_path", 9) == 0)
		snprintf(target->dump_path, sizeof(target->dump_path), "%.*s", (int)entry->value_bytes, entry->value);
	else
		for (size_t i = 0; i < FIELDS && ret == 0; i++)
			if (strlen(fields[i].key) == bytes && memcmp(fields[i].key, key, bytes) == 0)
				ret = take_field(target, &fields[i], entry);
	if (ret < 0)
		return err_set(err, ret, "the request is malformed: %.*s='%.*s'", (int)entry->key_bytes, entry->key,
			       (int)(entry->value_bytes < 80 ? entry->value_bytes : 80), entry->value);
	return 0;
}
