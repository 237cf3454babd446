/* SPDX-License-Identifier: MulanPSL-2.0 */
/* What the tests of readers share: a file of given bytes, a reader on it, and its events as one text line each. */
#ifndef TRACE_FIXTURE_H
#define TRACE_FIXTURE_H

#include "trace/event.h"
#include "trace/session.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
/* behind the headers it needs */
#include <cmocka.h>

struct fixture {
	char dir[64];
	char path[128];
	struct ev_session *session;
	struct ev_reader *reader;
	struct st_err err;
	char lines[1 << 16]; /* reports */
	char text[1 << 18]; /* events */
	size_t count;
};

static inline void fx_init(struct fixture *fx)
{
	memset(fx, 0, sizeof(*fx));
	strcpy(fx->dir, "/tmp/st-trace-XXXXXX");
	assert_non_null(mkdtemp(fx->dir));
	fx->session = ev_session_new();
	assert_non_null(fx->session);
}

static inline void fx_write(struct fixture *fx, const char *name, const void *data, size_t len)
{
	FILE *file;

	snprintf(fx->path, sizeof(fx->path), "%s/%s", fx->dir, name);
	file = fopen(fx->path, "w");
	assert_non_null(file);
	assert_int_equal(fwrite(data, 1, len, file), len);
	assert_int_equal(fclose(file), 0);
}

static inline void fx_line(void *arg, const char *text)
{
	struct fixture *fx = arg;
	const char *base = strstr(text, fx->dir) == text ? text + strlen(fx->dir) + 1 : text;

	strncat(fx->lines, base, sizeof(fx->lines) - strlen(fx->lines) - 2);
	strcat(fx->lines, "\n");
}

static inline size_t fx_arg(const struct fixture *fx, const struct ev_arg *arg, char *out, size_t room)
{
	const char *key = ev_text(fx->session, arg->key);

	if (arg->type == EV_ARG_NAME)
		return (size_t)snprintf(out, room, " %s=%s", key, ev_text(fx->session, arg->name));
	return (size_t)snprintf(out, room, " %s=%llu", key, (unsigned long long)arg->u64);
}

/* kind/phase name begin+dur rank step pid/tid or device/stream quality args stack */
static inline size_t fx_event(const struct fixture *fx, const struct event *ev, char *out, size_t room)
{
	const uint32_t *frames;
	size_t used = 0, count, i;

	used += (size_t)snprintf(out, room, "%d/%d %s %llu+%llu c%d r%d s%u", ev->kind, ev->phase,
				 ev_text(fx->session, ev->name), (unsigned long long)ev->t_ns,
				 (unsigned long long)ev->dur_ns, ev->clock, ev->rank, ev->step);
	if (ev->track.device >= 0)
		used += (size_t)snprintf(out + used, room - used, " d%d/%d", ev->track.device, ev->track.stream);
	else
		used += (size_t)snprintf(out + used, room - used, " p%d/%d", ev->track.pid, ev->track.tid);
	used += (size_t)snprintf(out + used, room - used, " q%u", ev->quality);
	for (i = 0; i < ev->nargs; i++)
		used += fx_arg(fx, &ev->args[i], out + used, room - used);
	count = ev_stack_frames(fx->session, ev->stack, &frames);
	for (i = 0; i < count; i++)
		used += (size_t)snprintf(out + used, room - used, "%s%s", i ? ";" : " <",
					 ev_text(fx->session, frames[i]));
	used += (size_t)snprintf(out + used, room - used, count ? ">\n" : "\n");
	return used;
}

/* Read all events of fx->path into fx->text and the reports into fx->lines. Return: what the last ev_next() said. */
static inline int fx_read(struct fixture *fx)
{
	struct event ev;
	size_t used = 0;
	int ret;

	ev_close(fx->reader);
	fx->text[0] = fx->lines[0] = 0;
	fx->count = 0;
	fx->reader = ev_open(fx->session, fx->path, &fx->err);
	if (!fx->reader)
		return -1;
	while ((ret = ev_next(fx->reader, &ev, &fx->err)) == 1) {
		fx->count++;
		if (sizeof(fx->text) - used > 4096)
			used += fx_event(fx, &ev, fx->text + used, sizeof(fx->text) - used);
	}
	if (fx->reader->ops->report)
		fx->reader->ops->report(fx->reader, fx_line, fx);
	assert_int_equal(fx->reader->stats.events, fx->count);
	return ret;
}

static inline void fx_fini(struct fixture *fx)
{
	char command[160];

	ev_close(fx->reader);
	ev_session_free(fx->session);
	snprintf(command, sizeof(command), "rm -rf %s", fx->dir);
	assert_int_equal(system(command), 0);
	free(fx);
}

static inline int fx_setup(void **state)
{
	struct fixture *fx = malloc(sizeof(*fx));

	assert_non_null(fx);
	fx_init(fx);
	*state = fx;
	return 0;
}

static inline int fx_teardown(void **state)
{
	fx_fini(*state);
	return 0;
}

#endif
