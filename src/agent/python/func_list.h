/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * The list of functions to trace: text of a list file in, rows out. Pure text work without an interpreter; resolve.c
 * turns rows into objects. docs/python-stages.md has the grammar for users.
 */
#ifndef AGENT_PYTHON_FUNC_LIST_H
#define AGENT_PYTHON_FUNC_LIST_H

#include "base/err.h"
#include "wire/record.h"

#include <stdbool.h>
#include <stddef.h>

/** enum row_state - what became of a row at the last look */
enum row_state { ROW_NOT_LOADED, ROW_ATTACHED, ROW_NO_SUCH_NAME, ROW_UNTRACEABLE };

struct func_row {
	char *spec; /* module@Class@method as written, owned by the list */
	enum stage_type kind;
	bool kind_given; /* the line had a second word, or a built-in row of this spec did */
	_Atomic int state; /* enum row_state; read by status on another thread */
	_Atomic(const char *) why; /* ROW_UNTRACEABLE: static text, written before state */
	unsigned int attached; /* functions attached for it so far */
};

struct func_list {
	struct func_row *rows;
	size_t count;
	size_t room;
	unsigned int bad_lines; /* lines that were left out or had an unknown kind */
};

/**
 * func_list_parse - read a list
 * @text: need not end in a newline or a NUL
 * @err: the first line that was wrong, with its number; other lines are read all the same
 *
 * Context: thread (allocates). Return: 0, -EINVAL when a line was wrong (the good rows are in @list), -ENOMEM.
 */
int func_list_parse(struct func_list *list, const char *text, size_t len, struct st_err *err);

/** func_list_adopt - rows without a kind take that of @from's row of the same spec. Context: thread. */
void func_list_adopt(struct func_list *list, const struct func_list *from);

void func_list_fini(struct func_list *list);

/** func_list_kind - stage type of a kind's name in the list (STAGE_COUNT: no such kind). Context: any. */
enum stage_type func_list_kind(const char *word, size_t len);

/** the built-in list, as text */
extern const char func_list_builtin[];
extern const size_t func_list_builtin_len;

#endif
