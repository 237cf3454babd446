/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Line tables; see lines.h. The formats are those of CPython's Objects/lnotab_notes.txt and Objects/locations.md. */
#include "agent/stack/lines.h"

struct bytes {
	int (*byte)(void *arg, size_t i);
	void *arg;
	size_t i;
};

static int next(struct bytes *b)
{
	return b->byte(b->arg, b->i++);
}

/* Pairs: so many bytes of code further, so many lines on, which hold from there. */
static int64_t line_of_lnotab(struct bytes *b, int64_t line, int64_t offset)
{
	int64_t address = 0;
	int step, delta;

	while ((step = next(b)) >= 0 && (delta = next(b)) >= 0) {
		address += step;
		if (address > offset)
			break;
		line += delta < 128 ? delta : delta - 256;
	}
	return line;
}

/* Pairs: the next so many bytes of code are so many lines on; -128: they have no line. */
static int64_t line_of_ranges(struct bytes *b, int64_t line, int64_t offset)
{
	int64_t end = 0;
	int step, delta;

	while ((step = next(b)) >= 0 && (delta = next(b)) >= 0) {
		end += step;
		delta = delta < 128 ? delta : delta - 256;
		if (delta != -128)
			line += delta;
		if (offset < end)
			return delta == -128 ? 0 : line;
	}
	return line;
}

static int64_t next_varint(struct bytes *b)
{
	int64_t value = 0;
	int byte, shift = 0;

	do {
		byte = next(b);
		if (byte < 0 || shift > 30)
			return value;
		value |= (int64_t)(byte & 0x3f) << shift;
		shift += 6;
	} while (byte & 0x40);
	return value;
}

static int64_t next_signed(struct bytes *b)
{
	int64_t value = next_varint(b);

	return value & 1 ? -(value >> 1) : value >> 1;
}

/* An entry: 0x80 | form << 3 | code units - 1, then what the form asks for. */
static int64_t line_of_locations(struct bytes *b, int64_t line, int64_t offset)
{
	int64_t end = 0;
	int head, form;

	while ((head = next(b)) >= 0) {
		form = head >> 3 & 15;
		end += 2 * ((head & 7) + 1);
		if (form == 15) {
			if (offset < end)
				return 0;
			continue;
		}
		if (form == 14) { /* lines, end lines, columns */
			line += next_signed(b);
			next_varint(b);
			next_varint(b);
			next_varint(b);
		} else if (form == 13) {
			line += next_signed(b);
		} else if (form >= 10) {
			line += form - 10;
			b->i += 2;
		} else {
			b->i++;
		}
		if (offset < end)
			return line;
	}
	return line;
}

int64_t py_line(int minor, int (*byte)(void *arg, size_t i), void *arg, int32_t first, int64_t offset)
{
	struct bytes b = { byte, arg, 0 };

	if (offset < 0)
		return first;
	if (minor < 10)
		return line_of_lnotab(&b, first, offset);
	if (minor == 10)
		return line_of_ranges(&b, first, offset);
	return line_of_locations(&b, first, offset);
}
