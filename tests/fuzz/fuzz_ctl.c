/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Any bytes as a control message: header, walk, lookups, and the checks of keys and values with what was found. The
 * three readers of a payload must agree about it.
 */
#include "wire/ctl.h"
#include "wire/plugin_spec.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_pair(const struct ctl_entry *entry)
{
	char key[64], value[256];
	struct plugin_pair pair = { key, value };
	struct plugin_timing timing = { 0 };
	struct st_err err;

	snprintf(key, sizeof(key), "%.*s", (int)entry->key_bytes, entry->key);
	snprintf(value, sizeof(value), "%.*s", (int)(entry->value_bytes > 255 ? 255 : entry->value_bytes),
		 entry->value);
	plugin_timing_take(&timing, key, value);
	plugin_find(value, &err);
	for (int id = 0; id < PLUGIN_COUNT; id++)
		if (plugin_check_enable((enum plugin_id)id, &pair, 1, &err) < 0 &&
		    !memchr(err.text, '\0', sizeof(err.text)))
			abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const uint8_t *payload = data + CTL_FRAME_BYTES;
	uint32_t bytes, at = 0, count = 0;
	struct ctl_entry entry;
	struct ctl_frame frame;
	char out[16], key[256];
	int ret;

	if (size < CTL_FRAME_BYTES)
		return 0;
	ctl_frame_decode(data, &frame);
	bytes = (uint32_t)(size - CTL_FRAME_BYTES);
	while ((ret = ctl_next(payload, bytes, &at, &entry)) == 1) {
		if (entry.key + entry.key_bytes > (const char *)data + size ||
		    entry.value + entry.value_bytes > (const char *)data + size)
			abort();
		snprintf(key, sizeof(key), "%.*s", (int)entry.key_bytes, entry.key);
		if (ctl_get(payload, bytes, key, out, sizeof(out)) < 0)
			abort();
		if (++count < 64)
			check_pair(&entry);
	}
	if (count <= CTL_MAX_ENTRIES && ctl_check(payload, bytes) != ret)
		abort();
	return 0;
}
