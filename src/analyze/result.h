/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Results of failslow and localize as the user guide prints them (5.2.4, 5.3.4; docs/formats/results.md): the JSON text,
 * the file with its documented name, and the verdict in plain words.
 */
#ifndef ANALYZE_RESULT_H
#define ANALYZE_RESULT_H

#include "analyze/failslow.h"
#include "analyze/localize.h"
#include "analyze/model_config.h"
#include "base/err.h"
#include "trace/event.h"

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/**
 * failslow_json - the result as JSON text, to be freed with free()
 * @begin_ms, @end_ms: Unix ms of the detection run
 *
 * Return: NULL with @err (out of memory, build without jansson).
 */
char *failslow_json(const struct failslow_result *result, const char *algorithm, int64_t begin_ms, int64_t end_ms,
		    struct st_err *err);

/** localize_json - likewise; of @config: max_num_normal_results, record_kpi, servers of the rank table */
char *localize_json(const struct localize *loc, const struct loc_result *result, const struct ev_session *session,
		    const struct model_config *config, struct st_err *err);

/** failslow_type_word - normal, failSlow, hang */
const char *failslow_type_word(enum failslow_type type);

/** failslow_words, localize_words - the verdict for people */
void failslow_words(FILE *out, const struct failslow_result *result);
void localize_words(FILE *out, const struct localize *loc, const struct loc_result *result,
		    const struct ev_session *session);

/** result_dir_new - make a directory and those above it, and see that it can be written. Return: 0, -errno with @err. */
int result_dir_new(const char *dir, struct st_err *err);

/**
 * result_dir_of - the directory that fail_slow_perception_path means: its own, or that of a name ending in .json
 * @otherwise: for NULL
 *
 * Return: valid until the next call; not for threads.
 */
const char *result_dir_of(const char *path, const char *otherwise);

/**
 * result_write - write a result file; it appears whole
 * @dir: directory, made if it is not there; NULL or not writable: $XDG_STATE_HOME/sysTrace/result
 * @stem: name without `_<unix time>.json`
 * @path: gets the name written
 * @fallback: gets true when another directory than @dir was taken
 *
 * Return: 0 or -errno with @err.
 */
int result_write(const char *dir, const char *stem, const char *text, char *path, size_t path_room, bool *fallback,
		 struct st_err *err);

#endif
