/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Tables of the convert commands as one JSON object: numbers and texts at the top, lists of rows below. Written row by row,
 * so that memory does not grow with the tables.
 */
#ifndef CONVERT_TABLE_JSON_H
#define CONVERT_TABLE_JSON_H

#include "convert/latency.h"
#include "wire/json.h"

#include <stdio.h>

struct table_json {
	FILE *out;
	struct json_writer w;
	char *buffer;
	bool too_long; /* a row did not fit */
};

/** table_json_begin/_end - open and close the object. Return: 0, -ENOMEM, _end also -EMSGSIZE: a row did not fit. */
int table_json_begin(struct table_json *to, FILE *out);
int table_json_end(struct table_json *to);

/** table_json_list/_row - a list of the object, a row of the list, and their ends */
void table_json_list(struct table_json *to, const char *key);
void table_json_list_end(struct table_json *to);
void table_json_row(struct table_json *to);
void table_json_row_end(struct table_json *to);

void table_json_u64(struct table_json *to, const char *key, uint64_t value);
void table_json_i64(struct table_json *to, const char *key, int64_t value);
void table_json_text(struct table_json *to, const char *key, const char *text);

/** table_json_latency - total_ns, max_ns, p50_us, p90_us, p99_us */
void table_json_latency(struct table_json *to, const struct latency *l);

#endif
