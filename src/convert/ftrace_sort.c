/* SPDX-License-Identifier: MulanPSL-2.0 */
/* External merge sort of rows; see ftrace_sort.h. */
#include "convert/ftrace_sort.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RUN_ROWS (128u << 10) /* 9 MiB of rows, 3 MiB of keys, as much while sorting */
#define MAX_RUNS 256 /* merged at a time */
#define MERGE_ROWS (64u << 10) /* rows in memory while merging, shared by the runs */

struct key {
	uint64_t begin_ns, end_ns;
	uint32_t at;
};

struct run {
	uint64_t begin, end; /* bytes in the file not read yet */
	struct frow *rows; /* read already */
	uint32_t have, used;
};

struct frow_sort {
	int fd;
	uint64_t bytes; /* written to the file */
	struct frow *rows; /* of the run being filled */
	struct key *keys;
	size_t count, run_rows, max_runs;
	struct run runs[MAX_RUNS];
	uint32_t run_count;
	struct frow *merge_rows;
	uint32_t heap[MAX_RUNS];
	uint32_t heap_len;
	size_t next; /* without runs: next of keys */
	int failed;
};

static int by_begin(const void *left, const void *right)
{
	const struct key *a = left, *b = right;

	if (a->begin_ns != b->begin_ns)
		return a->begin_ns < b->begin_ns ? -1 : 1;
	if (a->end_ns != b->end_ns)
		return a->end_ns > b->end_ns ? -1 : 1;
	return (a->at > b->at) - (a->at < b->at);
}

struct frow_sort *frow_sort_new(const char *beside, struct st_err *err)
{
	struct frow_sort *sort = calloc(1, sizeof(*sort));
	char path[4200];

	if (!sort)
		goto no_memory;
	sort->fd = -1;
	sort->run_rows = RUN_ROWS;
	sort->max_runs = MAX_RUNS;
	sort->rows = malloc(RUN_ROWS * sizeof(*sort->rows));
	sort->keys = malloc(RUN_ROWS * sizeof(*sort->keys));
	if (!sort->rows || !sort->keys)
		goto no_memory;
	snprintf(path, sizeof(path), "%s.sort.XXXXXX", beside);
	sort->fd = mkostemp(path, O_CLOEXEC);
	if (sort->fd < 0) {
		err_set(err, -errno, "cannot create a temporary file beside %s: %s", beside, strerror(errno));
		goto fail;
	}
	unlink(path);
	return sort;
no_memory:
	errno = ENOMEM;
	err_set(err, -ENOMEM, "%s: out of memory", beside);
fail:
	frow_sort_free(sort);
	return NULL;
}

void frow_sort_limit(struct frow_sort *sort, size_t rows, size_t runs)
{
	sort->run_rows = rows && rows < RUN_ROWS ? rows : RUN_ROWS;
	sort->max_runs = runs && runs < MAX_RUNS ? runs : MAX_RUNS;
}

static int write_rows(struct frow_sort *sort, const struct frow *rows, size_t count)
{
	const char *at = (const char *)rows;
	size_t bytes = count * sizeof(*rows);

	while (bytes) {
		ssize_t n = pwrite(sort->fd, at, bytes, (off_t)sort->bytes);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return sort->failed = n < 0 ? -errno : -ENOSPC;
		at += n;
		bytes -= (size_t)n;
		sort->bytes += (uint64_t)n;
	}
	return 0;
}

static void sort_keys(struct frow_sort *sort)
{
	size_t i;

	for (i = 0; i < sort->count; i++)
		sort->keys[i] = (struct key){ sort->rows[i].begin_ns, sort->rows[i].end_ns, (uint32_t)i };
	qsort(sort->keys, sort->count, sizeof(*sort->keys), by_begin);
}

static int flush_run(struct frow_sort *sort)
{
	struct run *run = &sort->runs[sort->run_count];
	struct frow out[256];
	size_t i, n = 0;

	sort_keys(sort);
	*run = (struct run){ .begin = sort->bytes };
	for (i = 0; i < sort->count && !sort->failed; i++) {
		out[n++] = sort->rows[sort->keys[i].at];
		if (n == sizeof(out) / sizeof(out[0]) || i + 1 == sort->count) {
			write_rows(sort, out, n);
			n = 0;
		}
	}
	run->end = sort->bytes;
	sort->run_count++;
	sort->count = 0;
	return sort->failed;
}

/* ---- merging -------------------------------------------------------------------------------------------------------- */

static int refill(struct frow_sort *sort, struct run *run, uint32_t room)
{
	uint64_t left = run->end - run->begin;
	size_t bytes = (size_t)room * sizeof(*run->rows), done = 0;

	if (bytes > left)
		bytes = (size_t)left;
	while (done < bytes) {
		ssize_t n = pread(sort->fd, (char *)run->rows + done, bytes - done, (off_t)(run->begin + done));

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return sort->failed = n < 0 ? -errno : -EIO;
		done += (size_t)n;
	}
	run->begin += bytes;
	run->have = (uint32_t)(bytes / sizeof(*run->rows));
	run->used = 0;
	return 0;
}

static bool earlier(const struct frow_sort *sort, uint32_t a, uint32_t b)
{
	const struct frow *x = &sort->runs[a].rows[sort->runs[a].used], *y = &sort->runs[b].rows[sort->runs[b].used];

	if (x->begin_ns != y->begin_ns)
		return x->begin_ns < y->begin_ns;
	return x->end_ns != y->end_ns ? x->end_ns > y->end_ns : a < b;
}

static void sift_down(struct frow_sort *sort, uint32_t at)
{
	uint32_t moving = sort->heap[at], child;

	while ((child = 2 * at + 1) < sort->heap_len) {
		if (child + 1 < sort->heap_len && earlier(sort, sort->heap[child + 1], sort->heap[child]))
			child++;
		if (!earlier(sort, sort->heap[child], moving))
			break;
		sort->heap[at] = sort->heap[child];
		at = child;
	}
	sort->heap[at] = moving;
}

static int merge_begin(struct frow_sort *sort)
{
	uint32_t share = MERGE_ROWS / (sort->run_count ? sort->run_count : 1), i;

	if (!sort->merge_rows)
		sort->merge_rows = malloc(MERGE_ROWS * sizeof(*sort->merge_rows));
	if (!sort->merge_rows)
		return sort->failed = -ENOMEM;
	sort->heap_len = 0;
	for (i = 0; i < sort->run_count && !sort->failed; i++) {
		sort->runs[i].rows = sort->merge_rows + (size_t)i * share;
		refill(sort, &sort->runs[i], share);
		if (sort->runs[i].have)
			sort->heap[sort->heap_len++] = i;
	}
	for (i = sort->heap_len / 2; i-- > 0;)
		sift_down(sort, i);
	return sort->failed;
}

static int merge_next(struct frow_sort *sort, struct frow *row)
{
	struct run *run;

	if (!sort->heap_len)
		return 0;
	run = &sort->runs[sort->heap[0]];
	*row = run->rows[run->used++];
	if (run->used == run->have && refill(sort, run, MERGE_ROWS / sort->run_count))
		return sort->failed;
	if (!run->have)
		sort->heap[0] = sort->heap[--sort->heap_len];
	if (sort->heap_len)
		sift_down(sort, 0);
	return 1;
}

/* So many runs that their buffers would get small: one run is made of them, behind the others in the file. */
static int join_runs(struct frow_sort *sort)
{
	struct run joined = { .begin = sort->bytes };
	struct frow out[256];
	size_t n = 0;
	int ret = merge_begin(sort);

	while (!ret && (ret = merge_next(sort, &out[n])) == 1) {
		ret = 0;
		if (++n < sizeof(out) / sizeof(out[0]))
			continue;
		ret = write_rows(sort, out, n);
		n = 0;
	}
	if (!ret && n)
		ret = write_rows(sort, out, n);
	joined.end = sort->bytes;
#ifdef FALLOC_FL_PUNCH_HOLE
	fallocate(sort->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, (off_t)joined.begin); /* where it can */
#endif
	sort->runs[0] = joined;
	sort->run_count = 1;
	return ret;
}

int frow_sort_put(struct frow_sort *sort, const struct frow *row)
{
	if (sort->failed)
		return sort->failed;
	if (sort->count == sort->run_rows) {
		if (flush_run(sort) || (sort->run_count == sort->max_runs && join_runs(sort)))
			return sort->failed;
	}
	sort->rows[sort->count++] = *row;
	return 0;
}

int frow_sort_done(struct frow_sort *sort)
{
	if (sort->failed)
		return sort->failed;
	if (!sort->run_count) { /* all of them are in memory */
		sort_keys(sort);
		return 0;
	}
	if (sort->count && flush_run(sort))
		return sort->failed;
	free(sort->rows);
	free(sort->keys);
	sort->rows = NULL;
	sort->keys = NULL;
	return merge_begin(sort);
}

int frow_sort_next(struct frow_sort *sort, struct frow *row)
{
	if (sort->failed)
		return sort->failed;
	if (sort->run_count)
		return merge_next(sort, row);
	if (sort->next == sort->count)
		return 0;
	*row = sort->rows[sort->keys[sort->next++].at];
	return 1;
}

void frow_sort_free(struct frow_sort *sort)
{
	if (!sort)
		return;
	if (sort->fd >= 0)
		close(sort->fd);
	free(sort->rows);
	free(sort->keys);
	free(sort->merge_rows);
	free(sort);
}
