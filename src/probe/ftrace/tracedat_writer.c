/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Sections and options of trace.dat version 7; see tracedat_writer.h. */
#include "probe/ftrace/tracedat_writer.h"

#include "wire/tracedat_format.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/utsname.h>
#include <unistd.h>

#define ALIGN 4096u /* of each CPU's stream: block size, so that extents can be shared; also what trace-cmd does */

/* Bytes that grow; failed is looked at once, at the end. */
struct blob {
	uint8_t *data;
	size_t used, room;
	bool failed;
};

static void put(struct blob *blob, const void *data, size_t bytes)
{
	if (blob->room - blob->used < bytes) {
		size_t room = (blob->used + bytes) * 2;
		uint8_t *more = realloc(blob->data, room);

		if (!more) {
			blob->failed = true;
			return;
		}
		blob->data = more;
		blob->room = room;
	}
	if (bytes)
		memcpy(blob->data + blob->used, data, bytes);
	blob->used += bytes;
}

static void put_u16(struct blob *blob, uint16_t value)
{
	put(blob, &value, sizeof(value));
}

static void put_u32(struct blob *blob, uint32_t value)
{
	put(blob, &value, sizeof(value));
}

static void put_u64(struct blob *blob, uint64_t value)
{
	put(blob, &value, sizeof(value));
}

static void put_text(struct blob *blob, const char *text) /* with its NUL */
{
	put(blob, text, strlen(text) + 1);
}

static void patch_u64(struct blob *blob, size_t at, uint64_t value)
{
	if (!blob->failed)
		memcpy(blob->data + at, &value, sizeof(value));
}

/* --- sections ----------------------------------------------------------------------------------------------------- */

/* Names of the sections, for `trace-cmd dump`; a section header holds the offset in this table. */
static const struct {
	uint16_t id;
	const char *name;
} names[] = {
	{ TRACEDAT_SECTION_HEADER_INFO, "headers" },
	{ TRACEDAT_SECTION_FTRACE_EVENTS, "ftrace events" },
	{ TRACEDAT_SECTION_EVENT_FORMATS, "events format" },
	{ TRACEDAT_SECTION_KALLSYMS, "kallsyms" },
	{ TRACEDAT_SECTION_PRINTK, "printk" },
	{ TRACEDAT_SECTION_CMDLINES, "command lines" },
	{ TRACEDAT_SECTION_STRINGS, "strings" },
	{ TRACEDAT_SECTION_BUFFER, "flyrecord" },
	{ TRACEDAT_SECTION_OPTIONS, "options" },
};

#define NAMES (sizeof(names) / sizeof(names[0]))

struct file {
	struct blob head; /* from the start of the file up to the pages */
	uint64_t section_at[TRACEDAT_SECTION_BUFFER_TEXT + 1]; /* offsets of the section headers */
};

static uint32_t name_offset(uint16_t id)
{
	uint32_t offset = 0;

	for (size_t i = 0; i < NAMES && names[i].id != id; i++)
		offset += (uint32_t)strlen(names[i].name) + 1;
	return offset;
}

/* Return: where the size stands, for section_end(). */
static size_t section_begin(struct blob *blob, uint16_t id, uint16_t flags)
{
	put_u16(blob, id);
	put_u16(blob, flags);
	put_u32(blob, name_offset(id));
	put_u64(blob, 0);
	return blob->used - 8;
}

static void section_end(struct blob *blob, size_t size_at)
{
	patch_u64(blob, size_at, blob->used - size_at - 8);
}

/* A file of tracefs with its size in front. */
static int put_file(struct blob *blob, int dir, const char *path, bool wide, struct st_err *err)
{
	size_t bytes;
	char *data;
	int ret = file_read(dir, path, &data, &bytes);

	if (ret < 0)
		return err_set(err, ret, "cannot read %s of tracefs: %s", path, strerror(-ret));
	if (wide)
		put_u64(blob, bytes);
	else
		put_u32(blob, (uint32_t)bytes);
	put(blob, data, bytes);
	free(data);
	return 0;
}

static int put_header_info(struct blob *blob, const struct tracedat_source *source, struct st_err *err)
{
	int ret;

	put_text(blob, "header_page");
	ret = put_file(blob, source->fs->fd, "events/header_page", true, err);
	if (ret < 0)
		return ret;
	put_text(blob, "header_event");
	return put_file(blob, source->fs->fd, "events/header_event", true, err);
}

static int put_ftrace_events(struct blob *blob, const struct tracedat_source *source, struct st_err *err)
{
	put_u32(blob, 0); /* those of function tracers, which are not recorded */
	return 0;
}

static size_t group_bytes(const char *event)
{
	return strcspn(event, "/");
}

static bool same_group(const char *a, const char *b)
{
	return group_bytes(a) == group_bytes(b) && memcmp(a, b, group_bytes(a)) == 0;
}

static bool first_of_group(const struct event_list *events, size_t at)
{
	for (size_t i = 0; i < at; i++)
		if (same_group(events->names[i], events->names[at]))
			return false;
	return true;
}

/* One group: name, number of events, their formats. */
static int put_group(struct blob *blob, const struct tracedat_source *source, const char *member, struct st_err *err)
{
	const struct event_list *events = source->events;
	uint32_t count = 0;
	char path[320];
	int ret = 0;

	put(blob, member, group_bytes(member));
	put(blob, "", 1);
	for (size_t i = 0; i < events->count; i++)
		count += same_group(events->names[i], member);
	put_u32(blob, count);
	for (size_t i = 0; ret == 0 && i < events->count; i++) {
		if (!same_group(events->names[i], member))
			continue;
		snprintf(path, sizeof(path), "events/%s/format", events->names[i]);
		ret = put_file(blob, source->fs->fd, path, true, err);
	}
	return ret;
}

static int put_event_formats(struct blob *blob, const struct tracedat_source *source, struct st_err *err)
{
	const struct event_list *events = source->events;
	uint32_t groups = 0;
	int ret = 0;

	for (size_t i = 0; i < events->count; i++)
		groups += first_of_group(events, i);
	put_u32(blob, groups);
	for (size_t i = 0; ret == 0 && i < events->count; i++)
		if (first_of_group(events, i))
			ret = put_group(blob, source, events->names[i], err);
	return ret;
}

/* Does the event's text hold the name of a kernel function: %ps, %pS, %pf, %pF, %pB? */
static bool names_functions(const struct tracedat_source *source, const char *event)
{
	char path[320], *text, *at;
	bool found = false;

	snprintf(path, sizeof(path), "events/%s/format", event);
	if (file_read(source->fs->fd, path, &text, NULL) < 0)
		return false;
	for (at = strstr(text, "print fmt:"); at && !found; at = strstr(at + 1, "%p"))
		found = at[1] == 'p' && at[2] && strchr("sSfFB", at[2]);
	free(text);
	return found;
}

/* Megabytes that only those need who print such events. */
static int put_kallsyms(struct blob *blob, const struct tracedat_source *source, struct st_err *err)
{
	const struct event_list *events = source->events;
	size_t i = 0, bytes;
	char *text;

	while (i < events->count && !names_functions(source, events->names[i]))
		i++;
	if (i == events->count || file_read(AT_FDCWD, "/proc/kallsyms", &text, &bytes) < 0) {
		put_u32(blob, 0);
		return 0;
	}
	put_u32(blob, (uint32_t)bytes);
	put(blob, text, bytes);
	free(text);
	return 0;
}

static int put_printk(struct blob *blob, const struct tracedat_source *source, struct st_err *err)
{
	if (!file_exists(source->fs->fd, "printk_formats")) {
		put_u32(blob, 0);
		return 0;
	}
	return put_file(blob, source->fs->fd, "printk_formats", false, err);
}

static int put_cmdlines(struct blob *blob, const struct tracedat_source *source, struct st_err *err)
{
	put_u64(blob, strlen(source->cmdlines));
	put(blob, source->cmdlines, strlen(source->cmdlines));
	return 0;
}

static int put_strings(struct blob *blob, const struct tracedat_source *source, struct st_err *err)
{
	for (size_t i = 0; i < NAMES; i++)
		put_text(blob, names[i].name);
	return 0;
}

static const struct {
	uint16_t id;
	int (*put)(struct blob *blob, const struct tracedat_source *source, struct st_err *err);
} sections[] = {
	{ TRACEDAT_SECTION_HEADER_INFO, put_header_info },
	{ TRACEDAT_SECTION_FTRACE_EVENTS, put_ftrace_events },
	{ TRACEDAT_SECTION_EVENT_FORMATS, put_event_formats },
	{ TRACEDAT_SECTION_KALLSYMS, put_kallsyms },
	{ TRACEDAT_SECTION_PRINTK, put_printk },
	{ TRACEDAT_SECTION_CMDLINES, put_cmdlines },
	{ TRACEDAT_SECTION_STRINGS, put_strings },
};

static int put_head(struct file *file, const struct tracedat_source *source, size_t *options_at, struct st_err *err)
{
	const union {
		uint16_t number;
		uint8_t first;
	} order = { .number = 1 };
	struct blob *head = &file->head;
	uint8_t big_endian = order.first == 0, long_bytes = sizeof(long);
	int ret = 0;

	put(head, TRACEDAT_MAGIC, TRACEDAT_MAGIC_BYTES);
	put_text(head, "7");
	put(head, &big_endian, 1);
	put(head, &long_bytes, 1);
	put_u32(head, (uint32_t)source->page_bytes);
	put_text(head, source->zstd_version ? "zstd" : "none");
	put_text(head, source->zstd_version ? source->zstd_version : "");
	*options_at = head->used;
	put_u64(head, 0);
	for (size_t i = 0; ret == 0 && i < sizeof(sections) / sizeof(sections[0]); i++) {
		size_t size_at;

		file->section_at[sections[i].id] = head->used;
		size_at = section_begin(head, sections[i].id, 0);
		ret = sections[i].put(head, source, err);
		section_end(head, size_at);
	}
	return ret;
}

/* --- pages -------------------------------------------------------------------------------------------------------- */

static uint64_t aligned(uint64_t offset)
{
	return (offset + ALIGN - 1) / ALIGN * ALIGN;
}

/* The section's header, with the padding up to the first stream. Return: where the file goes on behind the pages. */
static uint64_t put_buffer_header(struct file *file, const struct tracedat_source *source)
{
	struct blob *head = &file->head;
	uint64_t end, begin;
	size_t size_at;

	file->section_at[TRACEDAT_SECTION_BUFFER] = head->used;
	size_at = section_begin(head, TRACEDAT_SECTION_BUFFER, source->zstd_version ? TRACEDAT_SECTION_COMPRESSED : 0);
	begin = head->used;
	while (head->used % ALIGN && !head->failed)
		put(head, "", 1);
	end = head->used;
	for (size_t i = 0; i < source->stream_count; i++)
		if (source->streams[i].bytes)
			end = aligned(end) + source->streams[i].bytes;
	patch_u64(head, size_at, end - begin);
	return end;
}

static int move_streams(int fd, const struct tracedat_source *source, uint64_t at, struct st_err *err)
{
	for (size_t i = 0; i < source->stream_count; i++) {
		struct stream *stream = &source->streams[i];
		int ret;

		if (!stream->bytes)
			continue;
		at = aligned(at);
		ret = move_bytes(stream->fd, stream->bytes, fd, at);
		if (ret < 0)
			return err_set(err, ret, "cannot write the pages of CPU %u: %s", stream->cpu, strerror(-ret));
		at += stream->bytes;
	}
	return 0;
}

/* --- options ------------------------------------------------------------------------------------------------------ */

static void put_option(struct blob *blob, uint16_t id, const void *data, size_t bytes)
{
	put_u16(blob, id);
	put_u32(blob, (uint32_t)bytes);
	put(blob, data, bytes);
}

static void put_option_text(struct blob *blob, uint16_t id, const char *text)
{
	put_option(blob, id, text, strlen(text) + 1);
}

static void put_option_buffer(struct blob *blob, const struct file *file, const struct tracedat_source *source)
{
	uint64_t at = file->head.used;
	struct blob body = { 0 };
	uint32_t count = 0;

	for (size_t i = 0; i < source->stream_count; i++)
		count += source->streams[i].bytes != 0;
	put_u64(&body, file->section_at[TRACEDAT_SECTION_BUFFER]);
	put_text(&body, ""); /* the top buffer's name */
	put_text(&body, source->clock);
	put_u32(&body, (uint32_t)source->page_bytes);
	put_u32(&body, count);
	for (size_t i = 0; i < source->stream_count; i++) {
		if (!source->streams[i].bytes)
			continue;
		at = aligned(at);
		put_u32(&body, source->streams[i].cpu);
		put_u64(&body, at);
		put_u64(&body, source->streams[i].bytes);
		at += source->streams[i].bytes;
	}
	put_option(blob, TRACEDAT_OPTION_BUFFER, body.data, body.used);
	blob->failed |= body.failed;
	free(body.data);
}

static void put_option_uname(struct blob *blob)
{
	struct utsname host;
	char text[sizeof(host)];

	if (uname(&host) < 0)
		return;
	snprintf(text, sizeof(text), "%s %s %s %s", host.sysname, host.nodename, host.release, host.machine);
	put_option_text(blob, TRACEDAT_OPTION_UNAME, text);
}

static void put_options(struct blob *blob, const struct file *file, const struct tracedat_source *source)
{
	size_t size_at = section_begin(blob, TRACEDAT_SECTION_OPTIONS, 0);
	uint64_t none = 0, id = 0;

	for (size_t i = 0; i < sizeof(sections) / sizeof(sections[0]); i++)
		if (sections[i].id != TRACEDAT_SECTION_STRINGS)
			put_option(blob, sections[i].id, &file->section_at[sections[i].id], sizeof(uint64_t));
	put_option(blob, TRACEDAT_OPTION_CPUCOUNT, &source->cpu_count, sizeof(source->cpu_count));
	put_option_text(blob, TRACEDAT_OPTION_TRACECLOCK, source->clocks);
	put_option_uname(blob);
	put_option_text(blob, TRACEDAT_OPTION_VERSION, "sysTrace " ST_VERSION);
	if (getrandom(&id, sizeof(id), GRND_NONBLOCK) == (ssize_t)sizeof(id))
		put_option(blob, TRACEDAT_OPTION_TRACEID, &id, sizeof(id));
	put_option_text(blob, TRACEDAT_OPTION_CPUSTAT, source->cpustat);
	put_option_buffer(blob, file, source);
	put_option(blob, TRACEDAT_OPTION_DONE, &none, sizeof(none));
	section_end(blob, size_at);
}

/* --- the file ----------------------------------------------------------------------------------------------------- */

static int write_blob(int fd, const struct blob *blob, uint64_t offset, struct st_err *err)
{
	size_t done = 0;

	if (blob->failed)
		return err_set(err, -ENOMEM, "out of memory");
	while (done < blob->used) {
		ssize_t got = pwrite(fd, blob->data + done, blob->used - done, (off_t)(offset + done));

		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			return err_set(err, got < 0 ? -errno : -ENOSPC, "cannot write the file: %s",
				       strerror(got < 0 ? errno : ENOSPC));
		done += (size_t)got;
	}
	return 0;
}

int tracedat_write(int fd, const struct tracedat_source *source, uint64_t *bytes, struct st_err *err)
{
	struct file file = { 0 };
	struct blob options = { 0 };
	uint64_t end = 0;
	size_t options_at;
	int ret;

	ret = put_head(&file, source, &options_at, err);
	if (ret < 0)
		goto out;
	end = put_buffer_header(&file, source);
	patch_u64(&file.head, options_at, end);
	ret = write_blob(fd, &file.head, 0, err);
	if (ret == 0)
		ret = move_streams(fd, source, file.head.used, err);
	if (ret < 0)
		goto out;
	put_options(&options, &file, source);
	ret = write_blob(fd, &options, end, err);
	*bytes = end + options.used;
out:
	free(file.head.data);
	free(options.data);
	return ret;
}
