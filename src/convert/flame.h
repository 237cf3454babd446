/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Stacks with values as one tree: collapsed stacks for other tools, and a flame graph as one SVG file that needs nothing
 * else. Called by whoever has stacks to show; it knows neither memory nor time.
 */
#ifndef CONVERT_FLAME_H
#define CONVERT_FLAME_H

#include "base/err.h"
#include "trace/event.h"

struct flame;

/** flame_new/_free - NULL when out of memory; names are @session's */
struct flame *flame_new(struct ev_session *session);
void flame_free(struct flame *flame);

/**
 * flame_add - one stack
 * @names: name ids, outermost first
 * @value: what its width stands for; @count: of how many things, for people
 *
 * Return: 0 or -ENOMEM.
 */
int flame_add(struct flame *flame, const uint32_t *names, size_t depth, uint64_t value, double count);

/** flame_value - sum of all values */
uint64_t flame_value(const struct flame *flame);

/** flame_collapsed - "outermost;...;innermost value" lines, the largest first; @path "-" = standard output. 0 or -errno. */
int flame_collapsed(const struct flame *flame, const char *path, struct st_err *err);

/** struct flame_look - words of the picture; first field is the size of the struct */
struct flame_look {
	size_t size;
	const char *title, *subtitle;
	const char *counted; /* what count counts: "blocks" */
	void (*format)(char *text, size_t room, uint64_t value); /* a value for people: "12.3 MB" */
};

/** flame_svg - the picture: hover shows, click zooms, search marks. 0 or -errno with @err. */
int flame_svg(struct flame *flame, const char *path, const struct flame_look *look, struct st_err *err);

#endif
