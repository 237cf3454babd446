/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Whose a file of markers is: its sidecar and its name; see markers_impl.h. */
#include "trace/markers_impl.h"

#include "trace/session.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef HAVE_JANSSON
#include <jansson.h>
#endif

#ifdef HAVE_JANSSON
static uint64_t json_number(const json_t *object, const char *key)
{
	const json_t *value = json_object_get(object, key);

	if (json_is_string(value))
		return strtoull(json_string_value(value), NULL, 10);
	return json_is_number(value) ? (uint64_t)json_integer_value(value) : 0;
}

static void take_origin(struct markers *mk, const json_t *from)
{
	struct ev_origin *to = &mk->base.origin;
	const struct {
		const char *key;
		uint32_t *id;
	} texts[] = { { "run", &to->run }, { "host", &to->host },     { "boot_id", &to->boot_id },
		      { "job", &to->job }, { "author", &to->author }, { "ip", &to->ip } };
	size_t i;

	for (i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
		*texts[i].id = ev_namez(mk->base.session, json_string_value(json_object_get(from, texts[i].key)));
	if (json_is_true(json_object_get(from, "rank_known")))
		to->rank = (int32_t)json_number(from, "rank");
	to->local_rank = (int32_t)json_number(from, "local_rank");
	to->world_size = (uint32_t)json_number(from, "world_size");
	to->pid = (uint32_t)json_number(from, "pid");
	to->segment = (uint32_t)json_number(from, "segment");
	to->proc_start = json_number(from, "proc_start");
	to->run_start_us = json_number(from, "run_start_us");
	to->wall_minus_mono_ns = (int64_t)json_number(from, "wall_minus_mono_ns");
	to->known = true;
}

void markers_read_sidecar(struct markers *mk)
{
	char name[4096];
	const json_t *drop;
	json_t *root, *origin;
	size_t i;

	if (snprintf(name, sizeof(name), "%s.meta.json", mk->base.path) >= (int)sizeof(name))
		return;
	root = json_load_file(name, JSON_REJECT_DUPLICATES, NULL);
	if (!root)
		return;
	origin = json_object_get(root, "origin");
	if (json_is_array(origin)) /* one per process that appended: the last one is the newest */
		origin = json_array_get(origin, json_array_size(origin) - 1);
	if (json_is_object(origin))
		take_origin(mk, origin);
	json_array_foreach(json_object_get(root, "drops"), i, drop)
	{
		if (mk->drops == sizeof(mk->drop) / sizeof(mk->drop[0]) || !json_number(drop, "count"))
			continue;
		mk->drop[mk->drops++] =
			(struct drop){ ev_namez(mk->base.session, json_string_value(json_object_get(drop, "source"))),
				       json_number(drop, "count"), json_number(drop, "from_ns"),
				       json_number(drop, "to_ns") };
	}
	json_decref(root);
}
#else
void markers_read_sidecar(struct markers *mk)
{
}
#endif

/* `<what>-<ip>-<rank>.csv`, also `-.<rank>.csv`: the number before the suffix */
int32_t markers_rank_of_name(const char *path, char *ip, size_t ip_room)
{
	const char *base = strrchr(path, '/');
	const char *end, *at, *dash;
	size_t len;
	long rank;

	base = base ? base + 1 : path;
	if (ip_room)
		*ip = 0;
	end = strstr(base, ".csv");
	if (!end)
		return EV_NO_RANK;
	for (at = end; at > base && at[-1] >= '0' && at[-1] <= '9'; at--)
		;
	if (at == end || at == base || end - at > 9 || (at[-1] != '-' && at[-1] != '.'))
		return EV_NO_RANK;
	rank = strtol(at, NULL, 10);
	at--;
	if (*at == '.' && at > base && at[-1] == '-')
		at--;
	for (dash = at; dash > base && dash[-1] != '-'; dash--)
		;
	len = (size_t)(at - dash);
	if (dash > base && len && len < ip_room) {
		memcpy(ip, dash, len);
		ip[len] = 0;
	}
	return (int32_t)rank;
}
