/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Reader of MSPTI marker CSV: ten columns, a row for each begin and each end. Begin and end are paired by (source kind,
 * id) and come out as one event, host and device side each on its own. One pass, no allocation per row; rows may be in
 * any order within the pairing table, lost, torn or of unknown flags. Opened by open.c.
 */
#include "trace/readers.h"

#include "trace/markers_impl.h"
#include "trace/session.h"
#include "wire/csv.h"

#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LINE_MAX_BYTES 65536u
#define WINDOW_NS 2000000000u

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
		ret = markers_take_row(mk, &row, ev);
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
		ret = markers_take_row(mk, &row, ev);
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
	if (mk->ops_count && markers_give_up(mk, 0) < 0)
		return -ENOMEM;
	return ret;
}

static int next_drop(struct markers *mk, struct event *ev)
{
	const struct drop *drop = &mk->drop[mk->drop_at++];
	static const uint32_t none[2] = { UINT32_MAX, UINT32_MAX };
	struct label label = { .name = drop->source ? drop->source : mk->name_lost };

	markers_fill(mk, ev, &label, 0, none, drop->from_ns ? drop->from_ns : mk->last_ns);
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
	if (!mk->labels || markers_pairs_init(mk) < 0)
		return -ENOMEM;
	mk->base.window_ns = WINDOW_NS;
	mk->base.origin.rank = markers_rank_of_name(mk->base.path, ip, sizeof(ip));
	mk->base.origin.ip = ev_namez(mk->base.session, ip);
	markers_read_sidecar(mk);

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
