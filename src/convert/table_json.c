/* SPDX-License-Identifier: MulanPSL-2.0 */
/* See table_json.h. */
#include "convert/table_json.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define ROW_BYTES (64u << 10)

static void flush(struct table_json *to)
{
	if (to->w.full)
		to->too_long = true;
	else
		fwrite(to->w.data, 1, to->w.used, to->out);
	to->w.used = 0;
	to->w.full = false;
}

int table_json_begin(struct table_json *to, FILE *out)
{
	*to = (struct table_json){ .out = out, .buffer = malloc(ROW_BYTES) };
	if (!to->buffer)
		return -ENOMEM;
	json_init(&to->w, to->buffer, ROW_BYTES);
	json_open(&to->w, '{');
	return 0;
}

int table_json_end(struct table_json *to)
{
	json_close(&to->w, '}');
	json_raw(&to->w, "\n");
	flush(to);
	free(to->buffer);
	return to->too_long ? -EMSGSIZE : 0;
}

void table_json_list(struct table_json *to, const char *key)
{
	json_key(&to->w, key);
	json_open(&to->w, '[');
	flush(to);
}

void table_json_list_end(struct table_json *to)
{
	json_close(&to->w, ']');
}

void table_json_row(struct table_json *to)
{
	json_open(&to->w, '{');
}

void table_json_row_end(struct table_json *to)
{
	json_close(&to->w, '}');
	flush(to);
}

void table_json_u64(struct table_json *to, const char *key, uint64_t value)
{
	json_key(&to->w, key);
	json_u64(&to->w, value);
}

void table_json_i64(struct table_json *to, const char *key, int64_t value)
{
	json_key(&to->w, key);
	json_i64(&to->w, value);
}

void table_json_text(struct table_json *to, const char *key, const char *text)
{
	json_key(&to->w, key);
	json_text(&to->w, text, strlen(text));
}

static void put_us(struct table_json *to, const char *key, double us)
{
	char text[32];

	snprintf(text, sizeof(text), "%.3f", us);
	json_key(&to->w, key);
	json_raw(&to->w, text);
	to->w.comma = true;
}

void table_json_latency(struct table_json *to, const struct latency *l)
{
	table_json_u64(to, "total_ns", l->total_ns);
	table_json_u64(to, "max_ns", l->max_ns);
	put_us(to, "p50_us", latency_us(l, 0.5));
	put_us(to, "p90_us", latency_us(l, 0.9));
	put_us(to, "p99_us", latency_us(l, 0.99));
}
