/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Lines of ftrace text; see ftrace_line.h. */
#include "trace/ftrace_line.h"

#include <string.h>

#define COMM_WIDTH 16 /* the kernel and trace-cmd print "%16s-%d" */

static bool is_digit(char c)
{
	return c >= '0' && c <= '9';
}

static bool is_word(char c)
{
	return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

static const char *skip_blanks(const char *at, const char *end)
{
	while (at < end && *at == ' ')
		at++;
	return at;
}

/* Digits at @at, at most 18. NULL when there are none. */
static const char *read_digits(const char *at, const char *end, uint64_t *value)
{
	const char *start = at;
	uint64_t n = 0;

	while (at < end && is_digit(*at) && at - start < 19)
		n = n * 10 + (uint64_t)(*at++ - '0');
	*value = n;
	return at > start ? at : NULL;
}

/* "719.012490: " or "641282447279: "; the fraction's digits give its scale. */
static const char *read_time(const char *at, const char *end, uint64_t *t_ns)
{
	uint64_t whole, part = 0;
	const char *stop;
	int digits;

	at = read_digits(at, end, &whole);
	if (!at)
		return NULL;
	if (at < end && *at == '.') {
		stop = read_digits(at + 1, end, &part);
		if (!stop)
			return NULL;
		digits = (int)(stop - at - 1);
		if (digits > 9)
			return NULL;
		for (; digits < 9; digits++)
			part *= 10;
		whole = whole * 1000000000u + part;
		at = stop;
	}
	*t_ns = whole;
	return at + 1 < end && at[0] == ':' && at[1] == ' ' ? at + 2 : NULL;
}

/* Flags column: 4 or 5 characters of its alphabet, then a blank. NULL when @at is none. */
static const char *read_flags(const char *at, const char *end)
{
	static const char alphabet[] = ".dDbBXNnplLPZzHhsSF0123456789abcdefghijklmnopqrstuvwxyz#";
	const char *start = at;

	while (at < end && *at != ' ' && at - start < 8 && strchr(alphabet, *at))
		at++;
	return at - start >= 4 && at - start <= 6 && at < end && *at == ' ' ? at : NULL;
}

/* The event's name and what follows. */
static bool read_event(const char *at, const char *end, struct ftrace_line *line)
{
	const char *start;

	at = skip_blanks(at, end);
	if (at < end && *at == '(') { /* trace-cmd report --ts-diff: "(+56)   " */
		while (at < end && *at != ')')
			at++;
		at = at < end ? skip_blanks(at + 1, end) : end;
	}
	start = at;
	while (at < end && is_word(*at))
		at++;
	if (at == start)
		return false;
	line->event = start;
	line->event_len = (uint32_t)(at - start);
	if (at < end && *at == ':')
		at = skip_blanks(at + 1, end);
	else if (at < end && *at != '(' && !(end - at > 3 && !memcmp(at, " ->", 3)))
		line->kind = FLINE_FUNCTION; /* "func <-parent" */
	line->text = at;
	line->text_len = (uint32_t)(end - at);
	return true;
}

/* Columns from the pid on: `11018   (  11018) [000] d..2.   641.282503: name: ...`, @at behind the dash. */
static bool read_columns(const char *text, const char *dash, const char *end, struct ftrace_line *line)
{
	const char *at, *flags;
	uint64_t value;

	at = read_digits(dash + 1, end, &value);
	if (!at || value > INT32_MAX)
		return false;
	line->pid = (int32_t)value;
	at = skip_blanks(at, end);
	line->tgid = -1;
	if (at < end && *at == '(') {
		const char *close = memchr(at, ')', (size_t)(end - at));

		at = skip_blanks(at + 1, end);
		if (!close)
			return false;
		if (at < close && is_digit(*at) && read_digits(at, close, &value) == close && value <= INT32_MAX)
			line->tgid = (int32_t)value;
		else if (at < close && *at != '-')
			return false;
		at = skip_blanks(close + 1, end);
	}
	if (at >= end || *at != '[')
		return false;
	at = read_digits(at + 1, end, &value);
	if (!at || at >= end || *at != ']' || value > INT32_MAX)
		return false;
	line->cpu = (int32_t)value;
	at = skip_blanks(at + 1, end);
	flags = read_flags(at, end);
	if (flags) {
		const char *after = read_time(skip_blanks(flags, end), end, &line->t_ns);

		if (after && read_event(after, end, line))
			goto found;
	}
	at = read_time(at, end, &line->t_ns);
	if (!at || !read_event(at, end, line))
		return false;
found:
	line->comm = skip_blanks(text, dash);
	if (line->comm == dash && dash > text) /* a name of blanks only */
		line->comm = dash - 1;
	line->comm_len = (uint32_t)(dash - line->comm);
	return true;
}

/* The dash before the pid stands in column 16 unless something is in front of the task's name. */
static bool read_prefix(const char *text, const char *end, struct ftrace_line *line)
{
	const char *at;

	line->kind = FLINE_EVENT;
	if (end - text > COMM_WIDTH && text[COMM_WIDTH] == '-' && read_columns(text, text + COMM_WIDTH, end, line))
		return true;
	for (at = text; at < end; at++) {
		at = memchr(at, '-', (size_t)(end - at));
		if (!at)
			return false;
		line->kind = FLINE_EVENT;
		if (read_columns(text, at, end, line))
			return true;
	}
	return false;
}

static bool begins(const char *text, size_t len, const char *prefix)
{
	size_t n = strlen(prefix);

	return len >= n && !memcmp(text, prefix, n);
}

/* CPU:1 [LOST 59108 EVENTS], CPU:1 [LOST EVENTS], CPU:1 [58943 EVENTS DROPPED], CPU:0 [SUBBUFFER START] */
static enum ftrace_line_kind cpu_line(const char *text, const char *end, struct ftrace_line *line)
{
	uint64_t cpu;
	const char *at = read_digits(text + 4, end, &cpu);

	if (!at || end - at < 3 || at[0] != ' ' || at[1] != '[')
		return FLINE_UNKNOWN;
	at += 2;
	line->cpu = (int32_t)cpu;
	line->lost = 0;
	if (begins(at, (size_t)(end - at), "SUBBUFFER"))
		return FLINE_MARK;
	if (begins(at, (size_t)(end - at), "LOST "))
		read_digits(at + 5, end, &line->lost);
	else if (!begins(at, (size_t)(end - at), "EVENTS DROPPED") &&
		 !(read_digits(at, end, &line->lost) && memmem(at, (size_t)(end - at), "EVENTS DROPPED", 14)))
		return FLINE_UNKNOWN;
	return FLINE_LOST;
}

/* `  <idle>-0         0d..2. 17449us+: sched_switch: ...` */
static bool is_latency(const char *text, const char *end)
{
	const char *us = memmem(text, (size_t)(end - text), "us", 2);

	return us && us > text && is_digit(us[-1]) && end - us > 4 && us[3] == ':';
}

/* `12809 0 719514066015 type: 372` */
static bool is_raw(const char *text, const char *end)
{
	const char *at = skip_blanks(text, end);
	uint64_t value;
	int i;

	for (i = 0; i < 3; i++) {
		at = read_digits(at, end, &value);
		if (!at)
			return false;
		at = skip_blanks(at, end);
	}
	return begins(at, (size_t)(end - at), "type:");
}

enum ftrace_line_kind ftrace_line_parse(const char *text, size_t len, struct ftrace_line *line)
{
	const char *end, *at;

	while (len && (text[len - 1] == '\r' || text[len - 1] == '\n'))
		len--;
	end = text + len;
	at = skip_blanks(text, end);
	if (at == end)
		return line->kind = FLINE_EMPTY;
	if (begins(text, len, "#####"))
		return line->kind = FLINE_MARK;
	if (*at == '#')
		return line->kind = FLINE_HEADER;
	if (begins(text, len, "CPU:") && (line->kind = cpu_line(text, end, line)) != FLINE_UNKNOWN)
		return line->kind;
	if (begins(at, (size_t)(end - at), "=> "))
		return line->kind = FLINE_STACK;
	if (read_prefix(text, end, line))
		return line->kind;
	if (begins(text, len, "cpus=") || begins(text, len, "version ="))
		return line->kind = FLINE_HEADER;
	if (memmem(text, len, "<stack trace>", 13))
		return line->kind = FLINE_STACK;
	if (is_latency(text, end))
		return line->kind = FLINE_LATENCY;
	if (is_raw(text, end))
		return line->kind = FLINE_RAW;
	if (is_digit(*at) && memmem(at, (size_t)(end - at), ")", 1) && memchr(at, '|', (size_t)(end - at)))
		return line->kind = FLINE_FUNCTION; /* function_graph */
	return line->kind = FLINE_UNKNOWN;
}

bool ftrace_key(const char *text, size_t *len, const char *key, const char **value, size_t *value_len)
{
	size_t n = strlen(key), end = *len;
	const char *at = text + *len;

	if (end < n + 1)
		return false;
	for (at -= n + 1; at >= text; at--) {
		if (at[n] != '=' || at[0] != key[0] || memcmp(at, key, n) ||
		    (at > text && at[-1] != ' ' && at[-1] != '['))
			continue;
		*value = at + n + 1;
		*value_len = (size_t)(text + end - *value);
		while (*value_len && (*value)[*value_len - 1] == ' ')
			(*value_len)--;
		*len = (size_t)(at - text);
		if (*len)
			(*len)--; /* the blank or bracket before the key */
		return true;
	}
	return false;
}

static int hex_digit(char c)
{
	if (is_digit(c))
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

int64_t ftrace_number(const char *text, size_t len, const char **end)
{
	const char *at = text, *stop = text + len;
	bool minus = false;
	uint64_t value = 0;

	if (at < stop && *at == '-') {
		minus = true;
		at++;
	}
	if (stop - at > 2 && at[0] == '0' && (at[1] == 'x' || at[1] == 'X'))
		for (at += 2; at < stop && hex_digit(*at) >= 0; at++)
			value = value << 4 | (uint64_t)hex_digit(*at);
	else
		for (; at < stop && is_digit(*at); at++)
			value = value * 10 + (uint64_t)(*at - '0');
	if (end)
		*end = at;
	return minus ? (int64_t)(0 - value) : (int64_t)value;
}
