/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * model_config.json of the user guide (5.2.2 and 5.3.2.1): where to read and write, and the detectors' parameters. Read
 * by cmd_failslow and cmd_localize. An absent file means the documented defaults, a broken one is an error that names
 * the key.
 */
#ifndef ANALYZE_MODEL_CONFIG_H
#define ANALYZE_MODEL_CONFIG_H

#include "analyze/failslow.h"
#include "analyze/localize.h"
#include "base/err.h"

#include <stdbool.h>

#define MODEL_CONFIG_PATH "/etc/systrace/config/model_config.json"

struct model_config {
	/* texts are owned by the configuration, NULL = not given */
	char *training_log;
	char *fail_slow_perception_path;
	char *root_path;
	char *slow_node_detection_path;
	char *algorithm;
	struct failslow_params failslow; /* .algorithm points to the text above or to a literal */
	unsigned off_kinds; /* bits 1 << enum loc_kind, of robust_detect_type */
	long max_num_normal_results;
	char *loaded_from; /* NULL = no file, defaults */
	char unknown[256]; /* keys that were not understood, blank-separated, "" = none */
};

/**
 * model_config_load - read the configuration
 * @path: file; NULL = MODEL_CONFIG_PATH, which may be absent
 *
 * Context: tool. Return: 0, -errno with @err. model_config_fini() in any case.
 */
int model_config_load(struct model_config *config, const char *path, struct st_err *err);

/**
 * model_config_input - where to read when the user names nothing
 * @configured: path of the configuration, may be NULL
 *
 * Return: @configured if it exists, else $SYSTRACE_DUMP_PATH or /home/sysTrace if that exists, else @configured.
 */
const char *model_config_input(const char *configured);

void model_config_fini(struct model_config *config);

#endif
