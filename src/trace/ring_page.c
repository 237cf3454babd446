/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Walks a page of the kernel's ring buffer; see ring_page.h. */
#include "trace/ring_page.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { TYPE_LONG_DATA = 0, TYPE_PADDING = 29, TYPE_TIME_EXTEND = 30, TYPE_TIME_STAMP = 31 };

#define COMMIT_LENGTH 0xfffffu /* bits of commit that hold the length */
#define COMMIT_LOST (1u << 31) /* events were lost before this page */
#define COMMIT_LOST_STORED (1u << 30) /* and their number lies behind the data */
#define DELTA_BITS 27
#define STAMP_MASK ((1ull << 59) - 1)

static int layout_field(const struct ftrace_format *format, const char *name, uint32_t *offset, uint32_t *size)
{
	const struct ftrace_field *field = ftrace_format_field(format, name);

	if (!field)
		return -EINVAL;
	*offset = field->offset;
	if (size)
		*size = field->size;
	return 0;
}

int ring_layout_parse(struct ring_layout *layout, const char *text, size_t len, struct st_err *err)
{
	static const char head[] = "name: header_page\nID: 0\n";
	char whole[2048];
	struct ftrace_format *format;
	int ret = 0;

	if (len > sizeof(whole) - sizeof(head))
		return err_set(err, -EINVAL, "header_page is %zu bytes long, expected some hundred", len);
	/* header_page is a format file without its first two lines */
	memcpy(whole, head, sizeof(head) - 1);
	memcpy(whole + sizeof(head) - 1, text, len);
	format = ftrace_format_parse("header", whole, sizeof(head) - 1 + len, err);
	if (!format)
		return -EINVAL;
	if (layout_field(format, "timestamp", &layout->ts_offset, NULL) ||
	    layout_field(format, "commit", &layout->commit_offset, &layout->commit_size) ||
	    layout_field(format, "data", &layout->data_offset, NULL) ||
	    (layout->commit_size != 4 && layout->commit_size != 8) || layout->data_offset > 256 ||
	    layout->ts_offset + 8 > layout->data_offset ||
	    layout->commit_offset + layout->commit_size > layout->data_offset)
		ret = err_set(err, -EINVAL, "header_page names no usable timestamp, commit and data fields");
	free(format);
	return ret;
}

int ring_page_begin(struct ring_page *page, const struct ring_layout *layout, const uint8_t *data, uint32_t bytes)
{
	uint64_t commit;
	uint32_t room;

	*page = (struct ring_page){ 0 };
	if (bytes <= layout->data_offset)
		return -EINVAL;
	room = bytes - layout->data_offset;
	commit = ftrace_uint(data + layout->commit_offset, layout->commit_size, layout->endian);
	page->t_ns = ftrace_uint(data + layout->ts_offset, 8, layout->endian);
	page->data = data + layout->data_offset;
	page->len = (uint32_t)(commit & COMMIT_LENGTH);
	if (page->len > room) {
		page->len = room;
		page->broken = true;
	}
	page->lost_before = (commit & COMMIT_LOST) != 0;
	if (page->lost_before && (commit & COMMIT_LOST_STORED) && room - page->len >= layout->commit_size) {
		page->lost = ftrace_uint(page->data + page->len, layout->commit_size, layout->endian);
		page->lost_known = true;
	}
	return page->broken ? -EINVAL : 0;
}

/* Size of the event at page->at, header included; 0 = the page ends here. Sets payload and delta. */
static uint32_t read_event(struct ring_page *page, const struct ring_layout *layout, struct ring_event *ev,
			   uint32_t *type)
{
	const uint8_t *at = page->data + page->at;
	uint32_t room = page->len - page->at, head, array, size;
	uint64_t delta;

	if (room < 4)
		return 0;
	head = (uint32_t)ftrace_uint(at, 4, layout->endian);
	*type = layout->endian.big ? head >> DELTA_BITS : head & 31;
	delta = layout->endian.big ? head & ((1u << DELTA_BITS) - 1) : head >> 5;
	if (*type >= 1 && *type < TYPE_PADDING) {
		size = 4 + 4 * *type;
		page->t_ns += delta;
		ev->payload = at + 4;
		ev->len = size - 4;
		return size <= room ? size : 0;
	}
	if (room < 8)
		return 0; /* also the end mark: padding with delta 0 in the last 4 bytes */
	array = (uint32_t)ftrace_uint(at + 4, 4, layout->endian);
	switch (*type) {
	case TYPE_LONG_DATA:
		/* the length counts its own 4 bytes */
		if (array < 4 || array > room - 4)
			return 0;
		page->t_ns += delta;
		ev->payload = at + 8;
		ev->len = array - 4;
		size = 4 + ((array + 3) & ~3u);
		return size <= room ? size : room;
	case TYPE_PADDING:
		if (!delta || array > room - 4)
			return 0;
		page->t_ns += delta;
		return array + 4;
	case TYPE_TIME_EXTEND:
		page->t_ns += ((uint64_t)array << DELTA_BITS) + delta;
		return 8;
	default: /* TYPE_TIME_STAMP: low 59 bits are absolute */
		page->t_ns = (page->t_ns & ~STAMP_MASK) | ((((uint64_t)array << DELTA_BITS) + delta) & STAMP_MASK);
		return 8;
	}
}

bool ring_page_next(struct ring_page *page, const struct ring_layout *layout, struct ring_event *ev)
{
	uint32_t type, size;

	while (page->at < page->len) {
		size = read_event(page, layout, ev, &type);
		if (!size) {
			/* a padding mark ends a page rightly; anything else was cut off */
			if (page->len - page->at >= 4 && type != TYPE_PADDING)
				page->broken = true;
			page->at = page->len;
			return false;
		}
		page->at += size;
		if (type < TYPE_PADDING) {
			ev->t_ns = page->t_ns;
			return true;
		}
	}
	return false;
}
