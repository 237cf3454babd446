/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Reads the list of functions to trace. Called by the Python thread for SYSTRACE_PYFUNC_LIST and for the built-in list;
 * knows nothing of Python objects.
 */
#include "agent/python/func_list.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define SPEC_MAX 512

/* The built-in list is the file that is installed for users to copy: one source for both. */
__asm__(".pushsection .rodata\n"
	".balign 8\n"
	".globl func_list_builtin\n"
	".hidden func_list_builtin\n"
	".type func_list_builtin, %object\n"
	"func_list_builtin:\n"
	".incbin \"" ST_PYTHON_LIST "\"\n"
	"func_list_builtin_end:\n"
	".byte 0\n"
	".size func_list_builtin, . - func_list_builtin\n"
	".balign 8\n"
	".globl func_list_builtin_len\n"
	".hidden func_list_builtin_len\n"
	".type func_list_builtin_len, %object\n"
	"func_list_builtin_len:\n"
	".quad func_list_builtin_end - func_list_builtin\n"
	".size func_list_builtin_len, 8\n"
	".popsection\n");

static const char *const kind_names[STAGE_COUNT] = {
	[STAGE_UNKNOWN] = "UNKNOWN",	 [STAGE_DATALOADER] = "DATALOADER",	      [STAGE_FORWARD] = "FORWARD",
	[STAGE_BACKWARD] = "BACKWARD",	 [STAGE_SYNCHRONIZATION] = "SYNCHRONIZATION", [STAGE_GC] = "GC",
	[STAGE_OPTIMIZER] = "OPTIMIZER", [STAGE_CHECKPOINT] = "CHECKPOINT",	      [STAGE_COMM] = "COMM",
};

enum stage_type func_list_kind(const char *word, size_t len)
{
	int kind;

	for (kind = 0; kind < STAGE_COUNT; kind++)
		if (strlen(kind_names[kind]) == len && strncasecmp(kind_names[kind], word, len) == 0)
			break;
	return (enum stage_type)kind;
}

static const struct func_row *row_find(const struct func_list *list, const char *spec, size_t len)
{
	for (size_t i = 0; i < list->count; i++)
		if (strlen(list->rows[i].spec) == len && memcmp(list->rows[i].spec, spec, len) == 0)
			return &list->rows[i];
	return NULL;
}

static int row_add(struct func_list *list, const char *spec, size_t len, enum stage_type kind, bool kind_given)
{
	struct func_row *rows;

	if (row_find(list, spec, len))
		return 0; /* lists in use repeat lines */
	if (list->count == list->room) {
		size_t room = list->room ? 2 * list->room : 64;

		rows = realloc(list->rows, room * sizeof(*rows));
		if (!rows)
			return -ENOMEM;
		list->rows = rows;
		list->room = room;
	}
	list->rows[list->count] =
		(struct func_row){ .spec = strndup(spec, len), .kind = kind, .kind_given = kind_given };
	if (!list->rows[list->count].spec)
		return -ENOMEM;
	list->count++;
	return 0;
}

/* "GC", or at least one '@' with something on both sides of each; names hold no blanks */
static bool spec_is_good(const char *spec, size_t len)
{
	bool at = false;

	if (len == 2 && memcmp(spec, "GC", 2) == 0)
		return true;
	if (len == 0 || len > SPEC_MAX)
		return false;
	for (size_t i = 0; i < len; i++) {
		if (spec[i] != '@' && spec[i] != '.') {
			if (!isalnum((unsigned char)spec[i]) && spec[i] != '_' && (unsigned char)spec[i] < 128)
				return false;
			continue;
		}
		at |= spec[i] == '@';
		if (i == 0 || i + 1 == len || spec[i + 1] == '@' || spec[i + 1] == '.')
			return false;
	}
	return at;
}

static size_t word_len(const char *text, size_t len)
{
	size_t n = 0;

	while (n < len && !isspace((unsigned char)text[n]) && text[n] != '#')
		n++;
	return n;
}

static size_t blank_len(const char *text, size_t len)
{
	size_t n = 0;

	while (n < len && isspace((unsigned char)text[n]))
		n++;
	return n;
}

static int line_bad(struct func_list *list, struct st_err *err, unsigned int number, const char *what)
{
	if (list->bad_lines++ == 0)
		err_set(err, -EINVAL, "line %u: %s", number, what);
	return 0;
}

static int line_parse(struct func_list *list, const char *text, size_t len, unsigned int number, struct st_err *err)
{
	size_t skip = blank_len(text, len), spec_len, kind_len;
	const char *spec = text + skip, *word;
	enum stage_type kind = STAGE_UNKNOWN;

	len -= skip;
	if (len == 0 || *spec == '#')
		return 0;
	spec_len = word_len(spec, len);
	if (!spec_is_good(spec, spec_len))
		return line_bad(list, err, number, "a function is written module@name or module@Class@method");

	skip = spec_len + blank_len(spec + spec_len, len - spec_len);
	word = spec + skip;
	kind_len = word_len(word, len - skip);
	if (kind_len) {
		kind = func_list_kind(word, kind_len);
		if (kind == STAGE_COUNT) {
			line_bad(list, err, number, "unknown stage kind; the row is kept as UNKNOWN");
			kind = STAGE_UNKNOWN;
		}
		skip += kind_len;
		skip += blank_len(spec + skip, len - skip);
		if (skip < len && spec[skip] != '#')
			line_bad(list, err, number, "more than two words; the rest is ignored");
	} else if (spec_len == 2) {
		kind = STAGE_GC;
	}
	return row_add(list, spec, spec_len, kind, kind_len != 0);
}

int func_list_parse(struct func_list *list, const char *text, size_t len, struct st_err *err)
{
	unsigned int number = 0;
	int ret;

	while (len) {
		const char *end = memchr(text, '\n', len);
		size_t line = end ? (size_t)(end - text) : len;

		ret = line_parse(list, text, line, ++number, err);
		if (ret < 0)
			return err_set(err, ret, "line %u: out of memory", number);
		line += end != NULL;
		text += line;
		len -= line;
	}
	return list->bad_lines ? -EINVAL : 0;
}

void func_list_adopt(struct func_list *list, const struct func_list *from)
{
	for (size_t i = 0; i < list->count; i++) {
		struct func_row *row = &list->rows[i];
		const struct func_row *known;

		if (row->kind_given)
			continue;
		known = row_find(from, row->spec, strlen(row->spec));
		if (known) {
			row->kind = known->kind;
			row->kind_given = true;
		}
	}
}

void func_list_fini(struct func_list *list)
{
	for (size_t i = 0; i < list->count; i++)
		free(list->rows[i].spec);
	free(list->rows);
	*list = (struct func_list){ 0 };
}
