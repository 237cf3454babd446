/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Plugin MSPTI where there is no device runtime to ask: torch.distributed's calls, which steps.c sees anyway, are written
 * one by one as host markers. This file only decides whether what was asked for can be had and turns the switch; the
 * marker itself is made in steps.c and becomes lines of the CSV in spool/.
 */
#include "agent/agent.h"
#include "agent/plugin.h"
#include "agent/python/python.h"
#include "agent/python/python_api.h"
#include "agent/steps.h"
#include "agent/threads.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define EVENT_MARKER 1u
#define EVENT_KERNEL 2u
#define EVENT_API 4u

static const struct {
	const char *word;
	unsigned bit;
} events[] = { { "marker", EVENT_MARKER }, { "kernel", EVENT_KERNEL }, { "api", EVENT_API } };

#define ATTACH_MS 2000 /* how long enabling waits for the interpreter lock */
#define THREAD_TRIES 50
#define THREAD_POLL_NS 5000000u

static uint64_t markers_before; /* steps_stats.markers when the capture began */
static uint64_t left_out_before;
static bool attached_here; /* Python tracing is off in this process: its hooks are there for the markers alone */

/* Bits of a comma list; words were checked against the plugin's row before. */
static unsigned event_bits(const char *list)
{
	unsigned bits = 0;
	size_t i, len;

	for (; list && *list; list += len + (list[len] == ',')) {
		len = strcspn(list, ",");
		for (i = 0; i < sizeof(events) / sizeof(events[0]); i++)
			if (strlen(events[i].word) == len && !strncasecmp(list, events[i].word, len))
				bits |= events[i].bit;
	}
	return bits;
}

static unsigned wanted(const struct plugin_args *args)
{
	const char *list = plugin_args_get(args, "event");

	return list && *list ? event_bits(list) : EVENT_MARKER;
}

static int mspti_check(const struct plugin_args *args, struct st_err *err)
{
	const char *why = python_off_reason();

	if ((wanted(args) & EVENT_MARKER) && why)
		return err_set(err, -ENOTSUP,
			       "markers are made of Python's calls of torch.distributed, and there are none: %s", why);
	if (wanted(args) & EVENT_MARKER)
		return 0;
	return err_set(
		err, -ENOTSUP,
		"event=kernel and event=api are records of a device: this process has no libmspti.so (Ascend) and no "
		"CUPTI (NVIDIA) to make them; event=marker records the collectives of torch.distributed");
}

/* Before the interpreter runs (SYSTRACE_PLUGINS) there is nothing to wait for: the wish is carried out when it does. */
static int attach(void)
{
	bool runs = py.minor && py.Py_IsInitialized();
	int ret, tries;

	for (tries = 0; tries < THREAD_TRIES; tries++) {
		ret = python_stages_switch(true, runs ? ATTACH_MS : 0);
		if (ret != -ESRCH)
			break;
		thread_sleep(THREAD_CTL, THREAD_POLL_NS); /* systrace/py is just being started */
	}
	return ret == -ETIMEDOUT ? 0 : ret;
}

static int mspti_start(const struct plugin_args *args, struct st_err *err)
{
	struct steps_stats stats;
	int ret;

	if (!pool_on(&agent.pool, PLUGIN_BIT_STAGES)) {
		ret = attach();
		if (ret < 0)
			return err_set(err, ret, "cannot trace Python functions: %s", strerror(-ret));
		attached_here = true;
	}
	if (!pool_on(&agent.pool, PLUGIN_BIT(PLUGIN_MSPTI))) {
		steps_stats(&stats);
		markers_before = stats.markers;
		left_out_before = stats.left_out;
	}
	steps_markers_every(1);
	pool_switch(&agent.pool, PLUGIN_BIT(PLUGIN_MSPTI), true);
	if (wanted(args) & ~EVENT_MARKER)
		err_set(err, 0,
			"host markers only: no libmspti.so (Ascend) or CUPTI (NVIDIA) in this process for kernel and "
			"api");
	return 0;
}

static void mspti_stop(void)
{
	pool_switch(&agent.pool, PLUGIN_BIT(PLUGIN_MSPTI), false);
	if (attached_here && !pool_on(&agent.pool, PLUGIN_BIT_STAGES))
		python_stages_switch(false, 0);
	attached_here = false;
}

static void mspti_status(char *text, size_t room)
{
	struct steps_stats stats;

	steps_stats(&stats);
	snprintf(text, room, "%llu markers", (unsigned long long)(stats.markers - markers_before));
	if (stats.left_out == left_out_before)
		return;
	snprintf(text, room, "%llu markers, %llu left out for SYSTRACE_BUDGET_PCT",
		 (unsigned long long)(stats.markers - markers_before),
		 (unsigned long long)(stats.left_out - left_out_before));
}

static uint64_t mspti_calls(void)
{
	struct steps_stats stats;

	steps_stats(&stats);
	return stats.markers;
}

static int mspti_back_off(unsigned int level, char *what, size_t room)
{
	static const uint32_t every[] = { 4, 16, 64 };

	if (level > sizeof(every) / sizeof(every[0]))
		return -ERANGE;
	steps_markers_every(every[level - 1]);
	snprintf(what, room, "only every %uth call is a marker now", every[level - 1]);
	return 0;
}

const struct plugin plugin_mspti = {
	.id = PLUGIN_MSPTI,
	.check = mspti_check,
	.start = mspti_start,
	.stop = mspti_stop,
	.calls = mspti_calls,
	.back_off = mspti_back_off,
	.status = mspti_status,
};
