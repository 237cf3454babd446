/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * One line of ftrace text, from tracefs (`trace`, `trace_pipe`) or `trace-cmd report`: takes the columns before the
 * event's name apart. Task names may hold anything, so the columns are found by their shape and place, not by blanks.
 * Source: docs/formats/ftrace-text.md; kernel/trace/trace_output.c and trace.c of the kernel.
 */
#ifndef TRACE_FTRACE_LINE_H
#define TRACE_FTRACE_LINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum ftrace_line_kind {
	FLINE_EVENT,
	FLINE_HEADER, /* # ..., cpus=N, version = 6 */
	FLINE_LOST, /* CPU:1 [LOST 12 EVENTS]: cpu, lost (0 = unknown number) */
	FLINE_STACK, /* part of a stack trace, belongs to the event before */
	FLINE_MARK, /* ##### CPU 2 buffer started ####, CPU:0 [SUBBUFFER START] */
	FLINE_EMPTY,
	FLINE_FUNCTION, /* function or function_graph tracer */
	FLINE_LATENCY, /* latency format: no absolute time */
	FLINE_RAW, /* raw option: numbers only */
	FLINE_UNKNOWN
};

struct ftrace_line {
	enum ftrace_line_kind kind;
	const char *comm; /* padding removed; not terminated */
	uint32_t comm_len;
	int32_t pid; /* of the task on the CPU */
	int32_t tgid; /* -1 = not told */
	int32_t cpu;
	uint64_t t_ns;
	const char *event; /* name */
	uint32_t event_len;
	const char *text; /* what follows the name */
	uint32_t text_len;
	uint64_t lost;
};

/**
 * ftrace_line_parse - take one line apart
 * @text: @len bytes without the newline; @line points into it
 *
 * Context: tool; no allocation. Return: line->kind.
 */
enum ftrace_line_kind ftrace_line_parse(const char *text, size_t len, struct ftrace_line *line);

/**
 * ftrace_key - find ` key=` from the right
 * @text, @len: where to look; *len is cut to what stands before the key
 * @value, @value_len: what stood between it and the old end, without trailing blanks
 *
 * The rightmost occurrence counts, so that a task name that looks like a key does not win over the real one.
 * Return: true when the key is there.
 */
bool ftrace_key(const char *text, size_t *len, const char *key, const char **value, size_t *value_len);

/** ftrace_number - decimal or 0x number at the start of a value; *end behind it. Return: the value, 0 without digits. */
int64_t ftrace_number(const char *text, size_t len, const char **end);

#endif
