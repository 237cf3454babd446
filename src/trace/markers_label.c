/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Names of markers: operation, group, type and count of collectives, in both published forms; see markers_impl.h. */
#include "trace/markers_impl.h"

#include "base/hash64.h"

#include <string.h>

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

void markers_label(struct markers *mk, const char *text, size_t len, struct label *label)
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
