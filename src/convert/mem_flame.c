/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Memory as flame graph and as collapsed stacks; see mem_out.h. */
#include "convert/flame.h"
#include "convert/mem_out.h"
#include "trace/session.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define FRAMES 512

static int add_site(struct flame *flame, struct ev_session *session, const struct mem_sum *sum,
		    const struct mem_site *site, enum mem_view view)
{
	struct mem_use use = mem_use_of(sum, site, view);
	uint32_t names[FRAMES + 3], depth = 0;
	const uint32_t *frames;
	size_t count = ev_stack_frames(session, site->stack, &frames);
	char text[80];

	if (!use.blocks)
		return 0;
	if (mem_process_count(sum) > 1) {
		mem_process_text(mem_process(sum, site->process), text, sizeof(text));
		names[depth++] = ev_namez(session, text);
	}
	if (!count)
		names[depth++] = ev_namez(session, "[no stack]");
	if (count > FRAMES)
		count = FRAMES;
	while (count-- > 0)
		names[depth++] = frames[count];
	if (strcmp(mem_kind_name(site), "malloc") != 0) {
		snprintf(text, sizeof(text), "[%s]", mem_kind_name(site));
		names[depth++] = ev_namez(session, text);
	}
	return flame_add(flame, names, depth, use.bytes, use.all_blocks);
}

static void subtitle(const struct mem_sum *sum, char *text, size_t room)
{
	const struct mem_process *first = mem_process(sum, 0);
	size_t count = mem_process_count(sum);
	char name[64], period[48];

	mem_process_text(first, name, sizeof(name));
	if (count > 1)
		snprintf(name, sizeof(name), "%zu processes", count);
	mem_bytes(period, sizeof(period), first->sample_bytes);
	if (!first->sample_bytes) { /* of a published file: no times either */
		snprintf(text, room, "%s", name);
		return;
	}
	snprintf(text, room, "%s, %.1f s%s%s%s", name, (double)(first->last_ns - first->first_ns) / 1e9,
		 first->sample_bytes > 1 ? ", one allocation in " : ", every allocation recorded",
		 first->sample_bytes > 1 ? period : "", first->sample_bytes > 1 ? " sampled" : "");
}

int64_t mem_flame_write(struct ev_session *session, const struct mem_sum *sum, enum mem_view view, bool svg,
			const char *path, struct st_err *err)
{
	struct flame *flame = flame_new(session);
	char line[200];
	struct flame_look look = {
		.size = sizeof(look),
		.title = view == MEM_INUSE ? "Memory in use at the end" : "Memory allocated",
		.subtitle = line,
		.counted = "blocks",
		.format = mem_bytes,
	};
	int64_t ret = flame ? 0 : -ENOMEM;
	size_t i;

	for (i = 0; i < mem_site_count(sum) && ret == 0; i++)
		ret = add_site(flame, session, sum, mem_site(sum, i), view);
	if (ret < 0)
		err_set(err, (int)ret, "out of memory");
	if (ret == 0 && flame_value(flame)) {
		subtitle(sum, line, sizeof(line));
		ret = svg ? flame_svg(flame, path, &look, err) : flame_collapsed(flame, path, err);
		ret = ret < 0 ? ret : (int64_t)flame_value(flame);
	}
	flame_free(flame);
	return ret;
}
