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
#include "trace/event.h"

#include <stdbool.h>

#define MODEL_CONFIG_PATH "/etc/systrace/config/model_config.json"

#define MODEL_KINDS 5 /* compute, launch, comm, dataloader, ckpt: enum loc_kind without hang */

/** struct model_domain - one communication domain of hccl_domain, or the ranks of one server of the rank table */
struct model_domain {
	char *name; /* "tp:0" */
	int32_t *ranks;
	size_t count;
};

/** struct model_rank - one line of the rank table */
struct model_rank {
	int32_t rank;
	char ip[64];
};

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
	int with_fail_slow; /* 0, 1, -1 = not configured */
	int64_t range_from_ns, range_to_ns; /* slow_node_detection_range_times, wall clock; both 0 = empty */
	double slow_node_detection_time_span_hours;
	char *data_type; /* a hint: a file's content decides */
	bool detect[MODEL_KINDS]; /* enable_detect_type: documented localiser */
	char *ops[MODEL_KINDS]; /* fail_slow_ops, NULL = built in: see model_config_op() */
	char *save_image; /* directory of plots */
	bool record_kpi;
	bool use_plot;
	unsigned look_back; /* minutes in which an alarm is not repeated */
	struct model_domain *domains;
	size_t domains_count;
	bool domains_given; /* by hccl_domain: holds even where the records name groups */
	char *rank_table_json;
	struct model_rank *table; /* of the rank table, where there is one */
	size_t table_count;
	bool debug_data;
	bool auto_collect; /* service: switch missing layers on for a few seconds when a rank was found */
	char *on_finding; /* service: command run with the result file's name */
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

/** model_config_op - observation point of a kind below MODEL_KINDS (fail_slow_ops) */
const char *model_config_op(const struct model_config *config, enum loc_kind kind);

/** model_config_domain - name id of the configured domain of a rank, 0 = none */
uint32_t model_config_domain(const struct model_config *config, struct ev_session *session, int32_t rank);

/** model_config_ip - a rank's server in the rank table, NULL = not there */
const char *model_config_ip(const struct model_config *config, int32_t rank);

void model_config_fini(struct model_config *config);

#endif
