/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Rows in ascending order of their begin, any number of them: sorted runs go to a nameless temporary file beside the
 * output and are merged at the end. The database's exporter needs it, as slices become known when they end. Memory stays
 * below 24 MiB.
 */
#ifndef CONVERT_FTRACE_SORT_H
#define CONVERT_FTRACE_SORT_H

#include "convert/ftrace_sink.h"

struct frow_sort;

/** frow_sort_new - @beside: path whose directory takes the temporary file. Return: NULL with errno and @err. */
struct frow_sort *frow_sort_new(const char *beside, struct st_err *err);

/** frow_sort_put - one more row, copied. Return: 0 or -errno (a full disk). */
int frow_sort_put(struct frow_sort *sort, const struct frow *row);

/** frow_sort_done - all rows are there; frow_sort_next() may follow. Return: 0 or -errno. */
int frow_sort_done(struct frow_sort *sort);

/** frow_sort_next - next row: ascending begin_ns, the longer one first, else as put. Return: 1, 0 at the end, -errno. */
int frow_sort_next(struct frow_sort *sort, struct frow *row);

/** frow_sort_limit - rows per run and runs per merge, for tests; 0 = as usual */
void frow_sort_limit(struct frow_sort *sort, size_t rows, size_t runs);

/** frow_sort_free - NULL is fine. */
void frow_sort_free(struct frow_sort *sort);

#endif
