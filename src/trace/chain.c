/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Reader over the segments of one file; see chain.h. */
#include "trace/chain.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct chain {
	struct ev_reader base;
	char **paths;
	size_t count, at; /* at: of the segment being read */
	struct ev_reader *now; /* NULL: to be opened */
	struct ev_reader_stats done; /* of the segments read */
	char **lines; /* their reports */
	size_t lines_count;
};

static void keep_line(void *arg, const char *text)
{
	struct chain *chain = arg;
	char **lines = realloc(chain->lines, (chain->lines_count + 1) * sizeof(*lines));

	if (!lines)
		return;
	chain->lines = lines;
	lines[chain->lines_count] = strdup(text);
	chain->lines_count += lines[chain->lines_count] != NULL;
}

/* What the segment being read adds to those before it. */
static void sum_stats(struct chain *chain)
{
	const struct ev_reader_stats *add = &chain->now->stats;
	struct ev_reader_stats *sum = &chain->base.stats;

	*sum = chain->done;
	sum->events += add->events;
	sum->bytes += add->bytes;
	sum->total_bytes += add->total_bytes;
	sum->consumed_bytes += add->consumed_bytes;
	sum->lost += add->lost;
	sum->skipped += add->skipped;
	sum->torn |= add->torn;
}

static void finish_segment(struct chain *chain)
{
	sum_stats(chain);
	chain->done = chain->base.stats;
	if (chain->now->ops->report)
		chain->now->ops->report(chain->now, keep_line, chain);
	ev_close(chain->now);
	chain->now = NULL;
	chain->at++;
}

static void take_over(struct chain *chain)
{
	chain->base.origin = chain->now->origin;
	chain->base.window_ns = chain->now->window_ns;
	chain->base.source = chain->now->source;
}

static int chain_next(struct ev_reader *reader, struct event *ev, struct st_err *err)
{
	struct chain *chain = (struct chain *)reader;
	int ret;

	while (chain->at < chain->count) {
		if (!chain->now) {
			chain->now = ev_open(reader->session, chain->paths[chain->at], err);
			if (!chain->now) {
				chain->at++;
				return -errno;
			}
		}
		ret = ev_next(chain->now, ev, err);
		if (ret == 1) {
			take_over(chain);
			sum_stats(chain);
			return 1;
		}
		finish_segment(chain);
		if (ret < 0)
			return ret;
	}
	return 0;
}

static void chain_close(struct ev_reader *reader)
{
	struct chain *chain = (struct chain *)reader;
	size_t i;

	ev_close(chain->now);
	for (i = 0; chain->paths && i < chain->count; i++)
		free(chain->paths[i]);
	for (i = 0; i < chain->lines_count; i++)
		free(chain->lines[i]);
	free(chain->paths);
	free(chain->lines);
	free(chain);
}

static void chain_report(const struct ev_reader *reader, void (*line)(void *arg, const char *text), void *arg)
{
	const struct chain *chain = (const struct chain *)reader;
	size_t i;

	for (i = 0; i < chain->lines_count; i++)
		line(arg, chain->lines[i]);
	if (chain->now && chain->now->ops->report)
		chain->now->ops->report(chain->now, line, arg);
}

static const struct ev_reader_ops chain_ops = {
	.format = "segments",
	.next = chain_next,
	.close = chain_close,
	.report = chain_report,
};

struct ev_reader *chain_open(struct ev_session *session, const char *const *paths, size_t count, struct st_err *err)
{
	struct chain *chain;
	size_t i;

	if (count == 1)
		return ev_open(session, paths[0], err);
	chain = calloc(1, sizeof(*chain));
	if (!chain)
		goto no_memory;
	chain->base.ops = &chain_ops;
	chain->base.session = session;
	chain->count = count;
	chain->paths = calloc(count + 1, sizeof(*chain->paths));
	chain->base.path = strdup(paths[count - 1]);
	for (i = 0; chain->paths && i < count; i++) {
		chain->paths[i] = strdup(paths[i]);
		if (!chain->paths[i])
			goto no_memory;
	}
	if (!chain->paths || !chain->base.path)
		goto no_memory;
	chain->now = ev_open(session, chain->paths[0], err);
	if (!chain->now) {
		i = (size_t)errno;
		ev_close(&chain->base);
		errno = (int)i;
		return NULL;
	}
	take_over(chain);
	return &chain->base;
no_memory:
	if (chain)
		ev_close(&chain->base);
	err_set(err, -ENOMEM, "%s: out of memory", paths[0]);
	errno = ENOMEM;
	return NULL;
}
