/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Parser of the kernel's event format files; see ftrace_format.h. */
#include "trace/ftrace_format.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One line of the text; moves *at behind it. false at the end. */
static bool next_line(const char **at, const char *end, const char **line, size_t *len)
{
	const char *stop;

	if (*at >= end)
		return false;
	stop = memchr(*at, '\n', (size_t)(end - *at));
	if (!stop)
		stop = end;
	*line = *at;
	*len = (size_t)(stop - *at);
	*at = stop + 1;
	return true;
}

static bool begins(const char *text, size_t len, const char *prefix)
{
	size_t n = strlen(prefix);

	return len >= n && !memcmp(text, prefix, n);
}

static void copy_name(char out[FTRACE_NAME_BYTES], const char *text, size_t len)
{
	if (len >= FTRACE_NAME_BYTES)
		len = FTRACE_NAME_BYTES - 1;
	memcpy(out, text, len);
	out[len] = 0;
}

/* Number behind `key` in the line (`offset:8;`), -1 when the key is absent. */
static long number_after(const char *line, size_t len, const char *key)
{
	const char *found = memmem(line, len, key, strlen(key));
	const char *at, *end = line + len;
	long value = 0;

	if (!found)
		return -1;
	for (at = found + strlen(key); at < end && *at >= '0' && *at <= '9' && value < 100000000; at++)
		value = value * 10 + (*at - '0');
	return value;
}

static uint8_t field_type(const char *decl, size_t len, const char *name_end, uint32_t size)
{
	bool chars = memmem(decl, len, "char", 4) != NULL;
	bool array = name_end < decl + len && *name_end == '[';

	if (begins(decl, len, "__data_loc") || begins(decl, len, "__rel_loc"))
		return chars ? FTRACE_DYN_CHARS : FTRACE_BYTES;
	if (array)
		return chars && !memmem(decl, len, "unsigned char", 13) ? FTRACE_CHARS : FTRACE_BYTES;
	return size == 1 || size == 2 || size == 4 || size == 8 ? FTRACE_INT : FTRACE_BYTES;
}

/* `field:char prev_comm[16];	offset:8;	size:16;	signed:0;` */
static int parse_field(struct ftrace_field *field, const char *line, size_t len)
{
	const char *decl = (const char *)memmem(line, len, "field:", 6) + 6;
	const char *stop = memchr(decl, ';', (size_t)(line + len - decl));
	const char *name, *name_end;
	long offset, size;

	if (!stop)
		return -EINVAL;
	name_end = stop;
	if (name_end > decl && name_end[-1] == ']') /* prev_comm[16]; but `char[] name` ends in the name */
		while (name_end > decl && *name_end != '[')
			name_end--;
	for (name = name_end; name > decl && name[-1] != ' ' && name[-1] != '*' && name[-1] != '\t';)
		name--;
	offset = number_after(stop, (size_t)(line + len - stop), "offset:");
	size = number_after(stop, (size_t)(line + len - stop), "size:");
	if (name == name_end || offset < 0 || size < 0)
		return -EINVAL;

	copy_name(field->name, name, (size_t)(name_end - name));
	field->offset = (uint32_t)offset;
	field->size = (uint32_t)size;
	field->is_signed = number_after(stop, (size_t)(line + len - stop), "signed:") == 1;
	field->is_pointer = memchr(decl, '*', (size_t)(name_end - decl)) != NULL;
	field->relative = begins(decl, (size_t)(stop - decl), "__rel_loc");
	field->type = field_type(decl, (size_t)(stop - decl), name_end, field->size);
	return 0;
}

static uint32_t count_fields(const char *text, size_t len)
{
	const char *at = text, *end = text + len, *line;
	uint32_t count = 0;
	size_t n;

	while (next_line(&at, end, &line, &n) && !begins(line, n, "print fmt"))
		count += memmem(line, n, "field:", 6) != NULL;
	return count < FTRACE_MAX_FIELDS ? count : FTRACE_MAX_FIELDS;
}

struct ftrace_format *ftrace_format_parse(const char *system, const char *text, size_t len, struct st_err *err)
{
	uint32_t room = count_fields(text, len);
	struct ftrace_format *format = calloc(1, sizeof(*format) + room * sizeof(format->fields[0]));
	const char *at = text, *end = text + len, *line;
	bool have_id = false;
	int number = 0;
	size_t n;

	if (!format) {
		err_set(err, -ENOMEM, "out of memory");
		errno = ENOMEM;
		return NULL;
	}
	copy_name(format->system, system, strlen(system));
	while (next_line(&at, end, &line, &n) && !begins(line, n, "print fmt")) {
		number++;
		if (begins(line, n, "name: ")) {
			copy_name(format->name, line + 6, n - 6);
		} else if (begins(line, n, "ID: ")) {
			format->id = (uint32_t)number_after(line, n, "ID: ");
			have_id = true;
		} else if (memmem(line, n, "field:", 6) && format->count < room) {
			if (parse_field(&format->fields[format->count], line, n) < 0) {
				err_set(err, -EINVAL, "format of %s/%s, line %d: cannot read the field in '%.*s'",
					system, format->name, number, (int)(n < 80 ? n : 80), line);
				goto bad;
			}
			if (!strncmp(format->fields[format->count].name, "common_", 7))
				format->common = format->count + 1;
			format->count++;
		}
	}
	if (have_id && format->name[0])
		return format;
	err_set(err, -EINVAL, "format of an event of %s has no name or ID", system);
bad:
	free(format);
	errno = EINVAL;
	return NULL;
}

const struct ftrace_field *ftrace_format_field(const struct ftrace_format *format, const char *name)
{
	uint32_t i;

	for (i = 0; i < format->count; i++)
		if (!strcmp(format->fields[i].name, name))
			return &format->fields[i];
	return NULL;
}

uint64_t ftrace_uint(const uint8_t *at, uint32_t size, struct ftrace_endian endian)
{
	uint16_t u16;
	uint32_t u32;
	uint64_t u64;

	switch (size) {
	case 1:
		return *at;
	case 2:
		memcpy(&u16, at, 2);
		return endian.swap ? __builtin_bswap16(u16) : u16;
	case 4:
		memcpy(&u32, at, 4);
		return endian.swap ? __builtin_bswap32(u32) : u32;
	case 8:
		memcpy(&u64, at, 8);
		return endian.swap ? __builtin_bswap64(u64) : u64;
	default:
		return 0;
	}
}

int64_t ftrace_int(const struct ftrace_field *field, const uint8_t *rec, uint32_t len, struct ftrace_endian endian)
{
	uint64_t value;

	if (field->offset > len || field->size > len - field->offset)
		return 0;
	value = ftrace_uint(rec + field->offset, field->size, endian);
	if (field->is_signed && field->size < 8 && field->size)
		return (int64_t)(value << (64 - 8 * field->size)) >> (64 - 8 * field->size);
	return (int64_t)value;
}

const char *ftrace_string(const struct ftrace_field *field, const uint8_t *rec, uint32_t len,
			  struct ftrace_endian endian, uint32_t *bytes)
{
	uint32_t at = field->offset, room = field->size, loc;

	*bytes = 0;
	if (at > len || room > len - at)
		return "";
	if (field->type == FTRACE_DYN_CHARS) {
		loc = (uint32_t)ftrace_uint(rec + at, 4, endian);
		at = (loc & 0xffff) + (field->relative ? at + field->size : 0);
		room = loc >> 16;
		if (at > len || room > len - at)
			return "";
	}
	*bytes = (uint32_t)strnlen((const char *)rec + at, room);
	return (const char *)rec + at;
}
