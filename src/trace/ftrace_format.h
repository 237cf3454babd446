/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Layout of kernel events as their `format` files tell it: which field lies at which offset. Used by the trace.dat
 * reader for every event; nothing about field offsets or event ids is ever assumed.
 * Source: Documentation/trace/events.rst of the kernel, section 2.5 (event formats).
 */
#ifndef TRACE_FTRACE_FORMAT_H
#define TRACE_FTRACE_FORMAT_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FTRACE_MAX_FIELDS 64
#define FTRACE_NAME_BYTES 64

enum ftrace_field_type {
	FTRACE_INT, /* size 1, 2, 4 or 8 */
	FTRACE_CHARS, /* char[n] inside the record, terminated unless full */
	FTRACE_DYN_CHARS, /* __data_loc or __rel_loc of a string */
	FTRACE_BYTES /* any other array or struct */
};

struct ftrace_field {
	char name[FTRACE_NAME_BYTES];
	uint32_t offset; /* bytes from the start of the record's payload */
	uint32_t size; /* bytes there */
	uint8_t type; /* enum ftrace_field_type */
	bool is_signed;
	bool is_pointer; /* shown in hexadecimal */
	bool relative; /* __rel_loc: offset counts from the end of the field */
};

struct ftrace_format {
	uint32_t id;
	char system[FTRACE_NAME_BYTES];
	char name[FTRACE_NAME_BYTES];
	uint32_t common; /* how many of the fields are common_* (they come first) */
	uint32_t count;
	struct ftrace_field fields[]; /* @count of them */
};

/** struct ftrace_endian - how numbers lie in the file */
struct ftrace_endian {
	bool swap; /* file's byte order is not this machine's */
	bool big;
};

/**
 * ftrace_format_parse - read one format file
 * @text: @len bytes, need not be terminated
 *
 * Context: tool. Return: the format, to be freed with free(), or NULL with errno and @err (what is wrong, which line).
 */
struct ftrace_format *ftrace_format_parse(const char *system, const char *text, size_t len, struct st_err *err);

/** ftrace_format_field - field of that name, NULL when there is none. */
const struct ftrace_field *ftrace_format_field(const struct ftrace_format *format, const char *name);

/** ftrace_uint - unsigned number of 1, 2, 4 or 8 bytes at @at (unaligned); other sizes give 0. */
uint64_t ftrace_uint(const uint8_t *at, uint32_t size, struct ftrace_endian endian);

/**
 * ftrace_int - number in a record, sign-extended when the field is signed
 * @rec: payload of @len bytes
 *
 * Return: the value; 0 when the field lies outside the record.
 */
int64_t ftrace_int(const struct ftrace_field *field, const uint8_t *rec, uint32_t len, struct ftrace_endian endian);

/**
 * ftrace_string - text of a FTRACE_CHARS or FTRACE_DYN_CHARS field
 * @bytes: its length without the terminating NUL
 *
 * Return: points into @rec; "" (0 bytes) when it lies outside.
 */
const char *ftrace_string(const struct ftrace_field *field, const uint8_t *rec, uint32_t len,
			  struct ftrace_endian endian, uint32_t *bytes);

#endif
