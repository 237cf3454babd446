/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Reader of MSPTI marker CSV: ten columns, a row for each begin and each end. Begin and end are paired by (source kind,
 * id) and come out as one event, host and device side each on its own. One pass, no allocation per row; rows may be in
 * any order within the pairing table, lost, torn or of unknown flags. Opened by open.c.
 */
#include "trace/readers.h"

#include "base/hash64.h"
#include "trace/markers.h"
#include "trace/session.h"
#include "wire/csv.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef HAVE_JANSSON
#include <jansson.h>
#endif

#define OPEN_MAX_OPS 4096u /* begun and not yet ended; the older half is given up beyond */
#define NAME_SLOTS 1024u /* direct-mapped cache of name texts */
#define NAME_BYTES 232u /* longer texts are parsed each time */
#define LINE_MAX_BYTES 65536u
#define WINDOW_NS 2000000000u

enum { FLAG_INSTANT = 1 | 8, FLAG_BEGIN = 2 | 16, FLAG_END = 4 | 32, FLAG_ALL = 63 };

enum column {
	COL_FLAG,
	COL_ID,
	COL_KIND,
	COL_NAME,
	COL_SOURCE,
	COL_TIME,
	COL_DEVICE,
	COL_STREAM,
	COL_PID,
	COL_TID,
	COLS
};

static const char *const column_names[COLS] = {
	"Flag",
	"Id",
	"Kind",
	"Name",
	"SourceKind",
	"Timestamp",
	"msptiObjectId_Ds_DeviceId",
	"msptiObjectId_Ds_StreamId",
	"msptiObjectId_Pt_ProcessId",
	"msptiObjectId_Pt_ThreadId",
};
/** struct row - one line; the four columns of objects hold two numbers, written twice */
struct row {
	uint64_t flag, id, kind, source, t_ns;
	uint64_t object[4]; /* device, stream, pid, tid as written */
	const char *name;
	size_t name_len;
};

/** struct label - what a name means; texts as name ids */
struct label {
	uint32_t name; /* operation of a collective, whole text otherwise; 0 = empty */
	uint32_t group, dtype;
	bool comm;
	uint64_t count;
};

struct cached_label {
	uint64_t hash;
	uint32_t len; /* 0 = free */
	char text[NAME_BYTES];
	struct label label;
};

/** struct op - half a pair; key 0 = free slot */
struct op {
	uint64_t key; /* id * 2 + side + 1 */
	uint64_t t_ns;
	uint32_t object[2];
	bool ended; /* the end came first */
	struct label label;
};

struct markers {
	struct ev_reader base;
	struct input input;
	uint8_t column_at[32]; /* enum column of each column of a file with another header */
	unsigned int columns; /* 0 = the usual ten */
	struct op *ops;
	uint32_t ops_mask, ops_count;
	struct cached_label *labels;
	struct event *queue; /* given up or left open, to be delivered */
	uint32_t queue_at, queue_len;
	bool done;
	bool device_only; /* markers_device_only() */
	uint64_t issued; /* then: highest id whose host side began */
	uint32_t key_group, key_dtype, key_count, key_id, key_side, name_unnamed, name_lost, sides[2];
	uint64_t rows, bad_rows, odd_flags, no_time, unpaired_ends, unpaired_begins, other_kinds;
	uint64_t first_bad; /* offset */
	uint64_t last_ns; /* time of the newest row */
	uint64_t lines_end; /* offset; whole lines up to here are in the window */
	bool cut; /* the last line had no end */
	uint32_t drops, drop_at; /* of the sidecar */
	struct drop {
		uint32_t source;
		uint64_t count, from_ns, to_ns;
	} drop[16];
};

/* ---- names -------------------------------------------------------------------------------------------------------- */

static uint32_t intern(struct markers *mk, const char *text, size_t len)
{
	return ev_name(mk->base.session, text, len);
}

static uint64_t number_of(const char *text, size_t len)
{
	uint64_t value = 0;

	while (len && *text >= '0' && *text <= '9') {
		value = value * 10 + (uint64_t)(*text++ - '0');
		len--;
	}
	return value;
}

/* comm:<op>!<group>!<dtype>!<count>, or with commas */
static void label_old(struct markers *mk, const char *text, size_t len, struct label *label)
{
	const char *part[4] = { text, "", "", "" };
	size_t part_len[4] = { 0 };
	size_t i;
	int n = 0;

	for (i = 0; i <= len; i++) {
		if (i < len && text[i] != '!' && text[i] != ',')
			continue;
		part_len[n] = (size_t)(text + i - part[n]);
		if (i == len || n == 3)
			break;
		part[++n] = text + i + 1;
	}
	label->comm = true;
	label->name = intern(mk, part[0], part_len[0]);
	label->group = intern(mk, part[1], part_len[1]);
	label->dtype = intern(mk, part[2], part_len[2]);
	label->count = number_of(part[3], part_len[3]);
}

/* Value of a key of the brace form, whose quotes may be preceded by backslashes. Return: its length, 0 = not there. */
static size_t brace_value(const char *text, size_t len, const char *key, const char **value)
{
	const char *end = text + len;
	const char *at = memmem(text, len, key, strlen(key));
	const char *begin;

	if (!at)
		return 0;
	at += strlen(key);
	while (at < end && (*at == '\\' || *at == '"' || *at == ' '))
		at++;
	if (at == end || *at++ != ':')
		return 0;
	while (at < end && (*at == '\\' || *at == '"' || *at == ' '))
		at++;
	begin = at;
	while (at < end && *at != '\\' && *at != '"')
		at++;
	*value = begin;
	return (size_t)(at - begin);
}

static void label_brace(struct markers *mk, const char *text, size_t len, struct label *label)
{
	const char *value = "";
	size_t n = brace_value(text, len, "opName", &value);

	if (!n) {
		label->name = intern(mk, text, len);
		return;
	}
	label->comm = true;
	label->name = intern(mk, value, n);
	n = brace_value(text, len, "groupName", &value);
	label->group = n ? intern(mk, value, n) : 0;
	n = brace_value(text, len, "dataType", &value);
	label->dtype = n ? intern(mk, value, n) : 0;
	n = brace_value(text, len, "count", &value);
	label->count = n ? number_of(value, n) : 0;
}

static void label_parse(struct markers *mk, const char *text, size_t len, struct label *label)
{
	*label = (struct label){ 0 };
	if (len > 5 && memcmp(text, "comm:", 5) == 0)
		label_old(mk, text + 5, len - 5, label);
	else if (len && text[0] == '{')
		label_brace(mk, text, len, label);
	else
		label->name = intern(mk, text, len);
}

/* Names of one file differ in their operation, group or count: a few places tell most of them apart, comparing does the rest */
static uint64_t label_hash(const char *text, size_t len)
{
	char places[32];

	if (len < 2 * sizeof(places))
		return hash64(text, len);
	memcpy(places, text + 8, 8);
	memcpy(places + 8, text + len / 2 - 4, 8);
	memcpy(places + 16, text + len - 32, 16);
	return hash64(places, sizeof(places));
}

static void label_of(struct markers *mk, const char *text, size_t len, struct label *label)
{
	struct cached_label *cached;
	uint64_t hash;

	if (!len || len > NAME_BYTES) {
		label_parse(mk, text, len, label);
		return;
	}
	hash = label_hash(text, len);
	cached = &mk->labels[hash & (NAME_SLOTS - 1)];
	if (cached->len != len || cached->hash != hash || memcmp(cached->text, text, len) != 0) {
		label_parse(mk, text, len, &cached->label);
		cached->hash = hash;
		cached->len = (uint32_t)len;
		memcpy(cached->text, text, len);
	}
	*label = cached->label;
}

/* ---- pairing ------------------------------------------------------------------------------------------------------ */

static uint32_t op_slot(const struct markers *mk, uint64_t key)
{
	return (uint32_t)hash64_mix(key, 0x9e3779b97f4a7c15u) & mk->ops_mask;
}

/* Slot of a key: where it is, or the free one where it would go. */
static struct op *op_find(struct markers *mk, uint64_t key)
{
	uint32_t at = op_slot(mk, key);

	while (mk->ops[at].key && mk->ops[at].key != key)
		at = (at + 1) & mk->ops_mask;
	return &mk->ops[at];
}

/* Take an op out; the ones behind move up, so that no tombstones are left. */
static void op_remove(struct markers *mk, struct op *op)
{
	uint32_t hole = (uint32_t)(op - mk->ops);
	uint32_t at = hole;
	uint32_t home;

	for (;;) {
		at = (at + 1) & mk->ops_mask;
		if (!mk->ops[at].key)
			break;
		home = op_slot(mk, mk->ops[at].key);
		if (((at - home) & mk->ops_mask) >= ((at - hole) & mk->ops_mask)) {
			mk->ops[hole] = mk->ops[at];
			hole = at;
		}
	}
	mk->ops[hole].key = 0;
	mk->ops_count--;
}

static int ops_grow(struct markers *mk)
{
	struct op *old = mk->ops;
	uint32_t old_slots = mk->ops ? mk->ops_mask + 1 : 0;
	uint32_t slots = old_slots ? old_slots * 2 : 256;
	uint32_t i;

	mk->ops = calloc(slots, sizeof(*mk->ops));
	if (!mk->ops) {
		mk->ops = old;
		return -ENOMEM;
	}
	mk->ops_mask = slots - 1;
	for (i = 0; i < old_slots; i++)
		if (old[i].key)
			*op_find(mk, old[i].key) = old[i];
	free(old);
	return 0;
}

static void fill_event(struct markers *mk, struct event *ev, const struct label *label, unsigned int side,
		       const uint32_t object[2], uint64_t t_ns)
{
	memset(ev, 0, offsetof(struct event, args));
	ev->t_ns = t_ns;
	ev->track = (struct ev_track){ mk->base.origin.host, -1, -1, -1, -1, -1 };
	if (side) {
		ev->track.device = (int32_t)object[0];
		ev->track.stream = (int32_t)object[1];
	} else {
		ev->track.pid = (int32_t)object[0];
		ev->track.tid = (int32_t)object[1];
	}
	ev->rank = mk->base.origin.rank;
	ev->kind = label->comm ? EV_COMM : EV_OTHER;
	ev->name = label->name ? label->name : mk->name_unnamed;
	ev->clock = EV_CLOCK_REAL;
	ev->source = mk->base.source;
	if (label->comm) {
		ev->args[0] = (struct ev_arg){ .key = mk->key_group, .type = EV_ARG_NAME, .name = label->group };
		ev->args[1] = (struct ev_arg){ .key = mk->key_dtype, .type = EV_ARG_NAME, .name = label->dtype };
		ev->args[2] = (struct ev_arg){ .key = mk->key_count, .type = EV_ARG_U64, .u64 = label->count };
		ev->nargs = 3;
	}
}

static void add_id(struct markers *mk, struct event *ev, uint64_t id, unsigned int side)
{
	ev->args[ev->nargs++] = (struct ev_arg){ .key = mk->key_id, .type = EV_ARG_U64, .u64 = id };
	ev->args[ev->nargs++] = (struct ev_arg){ .key = mk->key_side, .type = EV_ARG_NAME, .name = mk->sides[side] };
}

/* Half a pair whose other half will not come. An end alone says nothing but that it ended. */
static void give_up(struct markers *mk, const struct op *op)
{
	struct event *ev;

	if (op->ended) {
		mk->unpaired_ends++;
		return;
	}
	mk->unpaired_begins++;
	ev = &mk->queue[mk->queue_len++];
	fill_event(mk, ev, &op->label, (op->key - 1) & 1, op->object, op->t_ns);
	add_id(mk, ev, (op->key - 1) >> 1, (op->key - 1) & 1);
	ev->phase = EV_BEGIN;
	ev->quality = EV_CUT_END;
}

static int by_time(const void *left, const void *right)
{
	uint64_t a = ((const struct op *)left)->t_ns, b = ((const struct op *)right)->t_ns;

	return a < b ? -1 : a > b;
}

/* Give up the oldest ops until only @keep are left. Return: 0 or -ENOMEM. */
static int give_up_old(struct markers *mk, uint32_t keep)
{
	struct op *all = malloc((mk->ops_count + 1) * sizeof(*all));
	uint32_t i, n = 0;

	if (!all)
		return -ENOMEM;
	if (!mk->queue) {
		mk->queue = malloc(OPEN_MAX_OPS * sizeof(*mk->queue));
		if (!mk->queue) {
			free(all);
			return -ENOMEM;
		}
	}
	mk->queue_at = mk->queue_len = 0;
	for (i = 0; i <= mk->ops_mask; i++)
		if (mk->ops[i].key)
			all[n++] = mk->ops[i];
	qsort(all, n, sizeof(*all), by_time);
	for (i = 0; i + keep < n; i++) {
		give_up(mk, &all[i]);
		op_remove(mk, op_find(mk, all[i].key));
	}
	free(all);
	return 0;
}

static int pair_half(struct markers *mk, const struct row *row, bool ended, struct event *ev)
{
	unsigned int side = row->source != 0;
	uint64_t key = ((row->id & (UINT64_MAX >> 2)) << 1 | side) + 1;
	struct op *op = op_find(mk, key);
	const uint32_t object[2] = { (uint32_t)row->object[side ? 0 : 2], (uint32_t)row->object[side ? 1 : 3] };

	if (op->key && op->ended != ended) {
		uint64_t begin_ns = ended ? op->t_ns : row->t_ns, end_ns = ended ? row->t_ns : op->t_ns;

		if (ended) {
			fill_event(mk, ev, &op->label, side, op->object, begin_ns);
		} else {
			label_of(mk, row->name, row->name_len, &op->label);
			fill_event(mk, ev, &op->label, side, object, begin_ns);
		}
		add_id(mk, ev, row->id, side);
		ev->dur_ns = end_ns > begin_ns ? end_ns - begin_ns : 0;
		op_remove(mk, op);
		return 1;
	}
	if (op->key) { /* the same half twice: the id was used again */
		if (ended)
			mk->unpaired_ends++;
		else
			mk->unpaired_begins++;
	} else {
		if (mk->ops_count >= OPEN_MAX_OPS) {
			if (give_up_old(mk, OPEN_MAX_OPS / 2) < 0)
				return -ENOMEM;
			op = op_find(mk, key);
		} else if (mk->ops_count > mk->ops_mask / 2) {
			if (ops_grow(mk) < 0)
				return -ENOMEM;
			op = op_find(mk, key);
		}
		mk->ops_count++;
	}
	op->key = key;
	op->t_ns = row->t_ns;
	op->object[0] = object[0];
	op->object[1] = object[1];
	op->ended = ended;
	if (!ended)
		label_of(mk, row->name, row->name_len, &op->label);
	return 0;
}

/* A whole row. Return: 1 = event, 0 = none, -ENOMEM. */
static int take_row(struct markers *mk, const struct row *row, struct event *ev)
{
	unsigned int side = row->source != 0;
	struct label label;

	if (row->kind != 1) {
		mk->other_kinds++;
		mk->base.stats.skipped++;
		return 0;
	}
	if (mk->device_only && !side) {
		if (row->flag & FLAG_BEGIN && row->id > mk->issued)
			mk->issued = row->id;
		return 0;
	}
	if (!row->t_ns) {
		mk->no_time++;
		mk->base.stats.skipped++;
		return 0;
	}
	if (row->t_ns > mk->last_ns)
		mk->last_ns = row->t_ns;
	if (row->flag & FLAG_BEGIN)
		return pair_half(mk, row, false, ev);
	if (row->flag & FLAG_END)
		return pair_half(mk, row, true, ev);
	if (!(row->flag & FLAG_INSTANT)) {
		mk->odd_flags++;
		mk->base.stats.skipped++;
		return 0;
	}
	label_of(mk, row->name, row->name_len, &label);
	fill_event(mk, ev, &label, side,
		   (const uint32_t[2]){ (uint32_t)row->object[side ? 0 : 2], (uint32_t)row->object[side ? 1 : 3] },
		   row->t_ns);
	add_id(mk, ev, row->id, side);
	ev->phase = EV_INSTANT;
	return 1;
}

/* ---- rows --------------------------------------------------------------------------------------------------------- */

/* Digits up to @stop. Return: behind the stop, NULL = something else stands there. The buffer ends with a line end. */
static inline const char *digits(const char *at, char stop, uint64_t *value)
{
	const char *begin = at;
	uint64_t sum = 0;
	unsigned int digit;

	while ((digit = (unsigned int)(*at - '0')) < 10) {
		sum = sum * 10 + digit;
		at++;
	}
	*value = sum;
	return at != begin && at - begin < 21 && *at == stop ? at + 1 : NULL;
}

/* The six columns behind the name, the last one ending at a line end. Of a host row of which only the id counts the rest is
 * passed over. */
static inline const char *tail(const char *at, const char *end, bool device_only, struct row *row)
{
	uint64_t *const object = row->object;
	unsigned int digit;
	const char *begin;
	uint64_t sum = 0;

	if (!(at = digits(at, ',', &row->source)))
		return NULL;
	if (device_only && row->source == 0) {
		at = memchr(at, '\n', (size_t)(end - at));
		return at ? at + 1 : NULL;
	}
	if (!(at = digits(at, ',', &row->t_ns)) || !(at = digits(at, ',', &object[0])) ||
	    !(at = digits(at, ',', &object[1])) || !(at = digits(at, ',', &object[2])))
		return NULL;
	begin = at;
	while ((digit = (unsigned int)(*at - '0')) < 10) {
		sum = sum * 10 + digit;
		at++;
	}
	object[3] = sum;
	if (at == begin)
		return NULL;
	if (*at == '\r')
		at++;
	return *at == '\n' ? at + 1 : NULL;
}

/* Number of a column of any content; -1 (unknown) becomes all ones. Return: false = not a number. */
static bool loose_number(const char *at, size_t len, uint64_t *value)
{
	bool minus = len && *at == '-';
	size_t i = minus;

	*value = 0;
	if (i == len)
		return false;
	for (; i < len; i++) {
		if (at[i] < '0' || at[i] > '9')
			return false;
		*value = *value * 10 + (uint64_t)(at[i] - '0');
	}
	if (minus)
		*value = UINT64_MAX;
	return true;
}

static bool set_column(struct row *row, enum column column, const char *at, size_t len)
{
	uint64_t *const numbers[COLS] = {
		[COL_FLAG] = &row->flag,	[COL_ID] = &row->id,	     [COL_KIND] = &row->kind,
		[COL_SOURCE] = &row->source,	[COL_TIME] = &row->t_ns,     [COL_DEVICE] = &row->object[0],
		[COL_STREAM] = &row->object[1], [COL_PID] = &row->object[2], [COL_TID] = &row->object[3]
	};

	if (column == COL_NAME) {
		row->name = at;
		row->name_len = len;
		return true;
	}
	return column >= COLS || loose_number(at, len, numbers[column]);
}

/* A line that is not of the usual form: columns by the header, commas inside the name, signs, blanks before the end. */
static bool loose_row(const struct markers *mk, const char *at, const char *end, struct row *row)
{
	static const uint8_t usual[COLS] = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 };
	const uint8_t *columns = mk->columns ? mk->column_at : usual;
	unsigned int count = mk->columns ? mk->columns : COLS;
	unsigned int commas = 0, extra, i;
	const char *p, *stop;

	while (end > at && (end[-1] == '\r' || end[-1] == ' '))
		end--;
	for (p = at; p < end; p++)
		commas += *p == ',';
	if (commas + 1 < count)
		return false;
	extra = commas + 1 - count; /* commas that belong to the name */
	for (i = 0; i < count; i++) {
		for (stop = at; stop < end; stop++)
			if (*stop == ',' && (columns[i] != COL_NAME || extra-- == 0))
				break;
		if (!set_column(row, (enum column)columns[i], at, (size_t)(stop - at)))
			return false;
		at = stop + 1;
	}
	return true;
}

/* One line at @at; the buffer holds a line end somewhere behind. Return: behind the line, *ok = it was understood. */
static const char *parse_row(const struct markers *mk, const char *at, const char *end, struct row *row, bool *ok)
{
	const char *line = at;
	const char *next;

	if (mk->columns == 0 && (at = digits(at, ',', &row->flag)) && (at = digits(at, ',', &row->id)) &&
	    (at = digits(at, ',', &row->kind))) {
		row->name = at;
		if (*at == ',') {
			row->name_len = 0;
			at++;
		} else {
			at = memchr(at, ',', (size_t)(end - at));
			row->name_len = at ? (size_t)(at - row->name) : 0;
			if (at)
				at++;
		}
		next = at ? tail(at, end, mk->device_only, row) : NULL;
		if (next) { /* no line end can be inside the name: too many columns would follow */
			*ok = true;
			return next;
		}
	}
	next = memchr(line, '\n', (size_t)(end - line));
	*row = (struct row){ .kind = 1 };
	*ok = loose_row(mk, line, next ? next : end, row);
	return next ? next + 1 : end;
}

/* Bring whole lines into the window. Return: 1 = there are some, 0 = the file ends (a piece of a line may be left), -errno. */
static int whole_lines(struct markers *mk, struct st_err *err)
{
	struct input *input = &mk->input;
	const unsigned char *last;
	int ret;

	if (input->offset < mk->lines_end)
		return 1;
	for (;;) {
		last = input->len ? memrchr(input->at, '\n', input->len) : NULL;
		if (last) {
			mk->lines_end = input->offset + (uint64_t)(last + 1 - input->at);
			return 1;
		}
		if (input->eof)
			return 0;
		if (input->len > LINE_MAX_BYTES) { /* no line of ours: left out as one bad row */
			mk->lines_end = input->offset + input->len;
			return 1;
		}
		ret = input_more(input, err);
		if (ret < 0)
			return ret;
	}
}

/* The last line without its end counts only if its last column, which is a copy, shows that it is whole. */
static int last_piece(struct markers *mk, struct event *ev)
{
	struct input *input = &mk->input;
	const char *at = (const char *)input->at;
	struct row row = { 0 };
	int ret = 0;

	if (input->len && loose_row(mk, at, at + input->len, &row) && row.object[0] == row.object[2] &&
	    row.object[1] == row.object[3]) {
		mk->rows++;
		ret = take_row(mk, &row, ev);
	} else if (input->len) {
		mk->cut = mk->base.stats.torn = true;
		mk->base.stats.skipped++;
	}
	input_skip(input, input->len);
	return ret;
}

/* The next row of the window. Return: 1 = event, 0 = none, -errno. */
static int take_line(struct markers *mk, struct event *ev)
{
	struct input *input = &mk->input;
	const char *at = (const char *)input->at;
	struct row row;
	const char *next;
	bool ok;
	int ret = 0;

	next = parse_row(mk, at, at + (mk->lines_end - input->offset), &row, &ok);
	if (ok) {
		mk->rows++;
		ret = take_row(mk, &row, ev);
	} else if (next - at > 2) { /* not just an empty line */
		if (!mk->bad_rows++)
			mk->first_bad = input->offset;
		mk->base.stats.skipped++;
	}
	input_skip(input, (size_t)(next - at));
	return ret;
}

/* Behind the last line: what is left open. */
static int finish_file(struct markers *mk, struct event *ev)
{
	int ret = last_piece(mk, ev);

	mk->done = true;
	if (mk->ops_count && give_up_old(mk, 0) < 0)
		return -ENOMEM;
	return ret;
}

static int next_drop(struct markers *mk, struct event *ev)
{
	const struct drop *drop = &mk->drop[mk->drop_at++];
	static const uint32_t none[2] = { UINT32_MAX, UINT32_MAX };
	struct label label = { .name = drop->source ? drop->source : mk->name_lost };

	fill_event(mk, ev, &label, 0, none, drop->from_ns ? drop->from_ns : mk->last_ns);
	ev->kind = EV_LOST;
	ev->clock = drop->from_ns ? EV_CLOCK_MONO : EV_CLOCK_REAL;
	ev->dur_ns = drop->to_ns > drop->from_ns ? drop->to_ns - drop->from_ns : 0;
	ev->args[ev->nargs++] = (struct ev_arg){ .key = mk->key_count, .type = EV_ARG_U64, .u64 = drop->count };
	mk->base.stats.lost += drop->count;
	return 1;
}

static int markers_next(struct ev_reader *reader, struct event *ev, struct st_err *err)
{
	struct markers *mk = (struct markers *)reader;
	int ret = 0;

	while (!ret) {
		/* losses without a time are told behind the last row */
		if (mk->drop_at < mk->drops &&
		    (mk->drop[mk->drop_at].from_ns || (mk->done && mk->queue_at == mk->queue_len))) {
			ret = next_drop(mk, ev);
		} else if (mk->queue_at < mk->queue_len) {
			*ev = mk->queue[mk->queue_at++];
			ret = 1;
		} else if (mk->done) {
			break;
		} else {
			ret = whole_lines(mk, err);
			if (ret < 0)
				return ret;
			ret = ret ? take_line(mk, ev) : finish_file(mk, ev);
			if (ret < 0)
				return err_set(err, ret, "%s: out of memory", reader->path);
		}
	}
	reader->stats.events += (uint64_t)ret;
	reader_progress(reader, &mk->input);
	return ret;
}

static void markers_close(struct ev_reader *reader)
{
	struct markers *mk = (struct markers *)reader;

	input_close(&mk->input);
	free(mk->ops);
	free(mk->labels);
	free(mk->queue);
	free(mk);
}

static void markers_report(const struct ev_reader *reader, void (*line)(void *arg, const char *text), void *arg)
{
	const struct markers *mk = (const struct markers *)reader;
	const struct {
		uint64_t count;
		const char *what;
	} rows[] = {
		{ mk->unpaired_begins, "operations begun without an end (shown as open)" },
		{ mk->unpaired_ends, "ends without a begin left out" },
		{ mk->odd_flags, "rows with an unknown flag left out" },
		{ mk->other_kinds, "rows of another kind than marker left out" },
		{ mk->no_time, "rows without a time left out" },
	};
	char text[512];
	size_t i;

	for (i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		if (!rows[i].count)
			continue;
		snprintf(text, sizeof(text), "%s: %" PRIu64 " %s", reader->path, rows[i].count, rows[i].what);
		line(arg, text);
	}
	if (mk->bad_rows) {
		snprintf(text, sizeof(text),
			 "%s: %" PRIu64 " rows not of the ten columns left out, the first at byte %" PRIu64,
			 reader->path, mk->bad_rows, mk->first_bad);
		line(arg, text);
	}
	if (mk->cut || mk->input.torn) {
		snprintf(text, sizeof(text), "%s: %s; the %" PRIu64 " rows before it were read", reader->path,
			 mk->input.torn ? mk->input.problem : "the last row is cut", mk->rows);
		line(arg, text);
	}
}

static const struct ev_reader_ops markers_ops;

void markers_device_only(struct ev_reader *reader)
{
	if (reader->ops == &markers_ops)
		((struct markers *)reader)->device_only = true;
}

uint64_t markers_issued(const struct ev_reader *reader)
{
	return reader->ops == &markers_ops ? ((const struct markers *)reader)->issued : 0;
}

static const struct ev_reader_ops markers_ops = {
	.format = "mspti-csv",
	.next = markers_next,
	.close = markers_close,
	.report = markers_report,
};

/* ---- opening ------------------------------------------------------------------------------------------------------ */

#ifdef HAVE_JANSSON
static uint64_t json_number(const json_t *object, const char *key)
{
	const json_t *value = json_object_get(object, key);

	if (json_is_string(value))
		return strtoull(json_string_value(value), NULL, 10);
	return json_is_number(value) ? (uint64_t)json_integer_value(value) : 0;
}

static void take_origin(struct markers *mk, const json_t *from)
{
	struct ev_origin *to = &mk->base.origin;
	const struct {
		const char *key;
		uint32_t *id;
	} texts[] = { { "run", &to->run }, { "host", &to->host },     { "boot_id", &to->boot_id },
		      { "job", &to->job }, { "author", &to->author }, { "ip", &to->ip } };
	size_t i;

	for (i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
		*texts[i].id = ev_namez(mk->base.session, json_string_value(json_object_get(from, texts[i].key)));
	if (json_is_true(json_object_get(from, "rank_known")))
		to->rank = (int32_t)json_number(from, "rank");
	to->local_rank = (int32_t)json_number(from, "local_rank");
	to->world_size = (uint32_t)json_number(from, "world_size");
	to->pid = (uint32_t)json_number(from, "pid");
	to->segment = (uint32_t)json_number(from, "segment");
	to->proc_start = json_number(from, "proc_start");
	to->run_start_us = json_number(from, "run_start_us");
	to->wall_minus_mono_ns = (int64_t)json_number(from, "wall_minus_mono_ns");
	to->known = true;
}

static void read_sidecar(struct markers *mk)
{
	char name[4096];
	const json_t *drop;
	json_t *root, *origin;
	size_t i;

	if (snprintf(name, sizeof(name), "%s.meta.json", mk->base.path) >= (int)sizeof(name))
		return;
	root = json_load_file(name, JSON_REJECT_DUPLICATES, NULL);
	if (!root)
		return;
	origin = json_object_get(root, "origin");
	if (json_is_array(origin)) /* one per process that appended: the last one is the newest */
		origin = json_array_get(origin, json_array_size(origin) - 1);
	if (json_is_object(origin))
		take_origin(mk, origin);
	json_array_foreach(json_object_get(root, "drops"), i, drop)
	{
		if (mk->drops == sizeof(mk->drop) / sizeof(mk->drop[0]) || !json_number(drop, "count"))
			continue;
		mk->drop[mk->drops++] =
			(struct drop){ ev_namez(mk->base.session, json_string_value(json_object_get(drop, "source"))),
				       json_number(drop, "count"), json_number(drop, "from_ns"),
				       json_number(drop, "to_ns") };
	}
	json_decref(root);
}
#else
static void read_sidecar(struct markers *mk)
{
}
#endif

/* `<what>-<ip>-<rank>.csv`, also `-.<rank>.csv`: the number before the suffix */
int32_t markers_rank_of_name(const char *path, char *ip, size_t ip_room)
{
	const char *base = strrchr(path, '/');
	const char *end, *at, *dash;
	size_t len;
	long rank;

	base = base ? base + 1 : path;
	if (ip_room)
		*ip = 0;
	end = strstr(base, ".csv");
	if (!end)
		return EV_NO_RANK;
	for (at = end; at > base && at[-1] >= '0' && at[-1] <= '9'; at--)
		;
	if (at == end || at == base || end - at > 9 || (at[-1] != '-' && at[-1] != '.'))
		return EV_NO_RANK;
	rank = strtol(at, NULL, 10);
	at--;
	if (*at == '.' && at > base && at[-1] == '-')
		at--;
	for (dash = at; dash > base && dash[-1] != '-'; dash--)
		;
	len = (size_t)(at - dash);
	if (dash > base && len && len < ip_room) {
		memcpy(ip, dash, len);
		ip[len] = 0;
	}
	return (int32_t)rank;
}

/* Columns of a header that is not the usual one. */
static void take_header(struct markers *mk, const char *at, size_t len)
{
	const char *end = at + len;
	const char *stop;
	unsigned int i;

	while (at < end && mk->columns < sizeof(mk->column_at)) {
		for (stop = at; stop < end && *stop != ',' && *stop != '\r' && *stop != '\n'; stop++)
			;
		for (i = 0; i < COLS; i++)
			if (strlen(column_names[i]) == (size_t)(stop - at) &&
			    memcmp(column_names[i], at, (size_t)(stop - at)) == 0)
				break;
		mk->column_at[mk->columns++] = (uint8_t)i;
		if (stop == end || *stop != ',')
			break;
		at = stop + 1;
	}
}

static bool skip_bom(const unsigned char **head, size_t *len)
{
	if (*len < 3 || memcmp(*head, "\xef\xbb\xbf", 3) != 0)
		return false;
	*head += 3;
	*len -= 3;
	return true;
}

static int markers_start(struct markers *mk)
{
	static const struct {
		size_t offset;
		const char *text;
	} keys[] = {
#define KEY(member, text) { offsetof(struct markers, member), text }
		KEY(key_group, "group"),   KEY(key_dtype, "dtype"), KEY(key_count, "count"),
		KEY(key_id, "id"),	   KEY(key_side, "side"),   KEY(name_unnamed, "marker"),
		KEY(name_lost, "records"), KEY(sides[0], "host"),   KEY(sides[1], "device"),
#undef KEY
	};
	const unsigned char *at;
	char ip[64];
	size_t i;

	for (i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
		uint32_t id = ev_namez(mk->base.session, keys[i].text);

		if (!id)
			return -ENOMEM;
		*(uint32_t *)(void *)((char *)mk + keys[i].offset) = id;
	}
	mk->labels = calloc(NAME_SLOTS, sizeof(*mk->labels));
	if (!mk->labels || ops_grow(mk) < 0)
		return -ENOMEM;
	mk->base.window_ns = WINDOW_NS;
	mk->base.origin.rank = markers_rank_of_name(mk->base.path, ip, sizeof(ip));
	mk->base.origin.ip = ev_namez(mk->base.session, ip);
	read_sidecar(mk);

	at = mk->input.at;
	i = mk->input.len;
	if (skip_bom(&at, &i))
		input_skip(&mk->input, 3);
	at = memchr(mk->input.at, '\n', mk->input.len);
	i = at ? (size_t)(at + 1 - mk->input.at) : mk->input.len;
	if (i != sizeof(CSV_MARKER_HEADER) - 1 || memcmp(mk->input.at, CSV_MARKER_HEADER, i) != 0)
		take_header(mk, (const char *)mk->input.at, i);
	input_skip(&mk->input, i);
	return 0;
}

static struct ev_reader *markers_open(struct ev_session *session, struct input *input, const char *path,
				      struct st_err *err)
{
	struct markers *mk = calloc(1, sizeof(*mk));

	if (!mk || reader_init(&mk->base, &markers_ops, session, path, err) < 0) {
		err_set(err, -ENOMEM, "%s: out of memory", path);
		free(mk);
		return NULL;
	}
	mk->input = *input;
	*input = (struct input){ .fd = -1 };
	if (markers_start(mk) < 0) {
		err_set(err, -ENOMEM, "%s: out of memory", path);
		ev_close(&mk->base);
		return NULL;
	}
	reader_progress(&mk->base, &mk->input);
	return &mk->base;
}

/* The first line names the columns that matter. */
static bool markers_knows(const unsigned char *head, size_t len)
{
	static const char *const wanted[] = { "Flag,Id,Kind,Name,SourceKind,Timestamp", "Flag", "SourceKind",
					      "Timestamp" };
	const unsigned char *end;
	size_t i;

	skip_bom(&head, &len);
	end = memchr(head, '\n', len);
	if (end)
		len = (size_t)(end - head);
	if (len > 1024)
		return false;
	for (i = 1; i < sizeof(wanted) / sizeof(wanted[0]); i++)
		if (!memmem(head, len, wanted[i], strlen(wanted[i])))
			return false;
	return true;
}

const struct format format_markers = {
	.name = "mspti-csv",
	.what = "MSPTI markers (CSV)",
	.knows = markers_knows,
	.open = markers_open,
};
