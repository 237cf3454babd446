/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Packets of the Perfetto exporter that are no ftrace events; see ftrace_perfetto_impl.h. */
#include "convert/ftrace_perfetto_impl.h"
#include "trace/session.h"

#include <errno.h>
#include <string.h>

enum { TRACE_PACKET = 1 };
enum { EVENT_TYPE = 9, EVENT_TRACK = 11, EVENT_NAME = 23, TYPE_BEGIN = 1, TYPE_END = 2 };
enum { TRACK_UUID = 1, TRACK_NAME = 2, TRACK_THREAD = 4, TRACK_PARENT = 5 };
enum { THREAD_PID = 1, THREAD_TID = 2, THREAD_NAME = 5 };

#define SEQUENCE_ID 1

int pfpacket_put(struct perfetto *p, const struct pb_writer *packet)
{
	uint8_t head[16];
	size_t len = 1;

	if (packet->full)
		return p->out.failed = -EMSGSIZE; /* cannot be: everything in it is bounded */
	head[0] = TRACE_PACKET << 3 | 2;
	for (size_t n = packet->used;; n >>= 7) {
		head[len++] = (uint8_t)(n >= 128 ? (n & 127) | 128 : n);
		if (n < 128)
			break;
	}
	outfile_put(&p->out, head, len);
	outfile_put(&p->out, packet->data, packet->used);
	return p->out.failed;
}

struct pb_writer pfpacket_new(struct perfetto *p)
{
	struct pb_writer packet;

	pb_init(&packet, p->packet, p->packet_room);
	return packet;
}

void pfpacket_text(struct perfetto *p, struct pb_writer *w, uint32_t field, uint32_t name)
{
	const char *text = ev_text(p->base.view->session, name);
	size_t len = ev_text_len(p->base.view->session, name);
	char copy[6 * TEXT_MOST];
	size_t i;

	if (len > TEXT_MOST / 2)
		len = TEXT_MOST / 2;
	for (i = 0; i < len && (unsigned char)text[i] < 0x80; i++)
		;
	if (i < len) {
		/* escaped text without escapes: bytes that are no UTF-8 become code points */
		size_t n = 0;

		for (i = 0; i < len; i++) {
			static const char plain[] = "\"\\";

			if ((unsigned char)text[i] < 0x20 || strchr(plain, text[i])) {
				copy[n++] = text[i];
				continue;
			}
			size_t run = i;

			while (run < len && (unsigned char)text[run] >= 0x20 && !strchr(plain, text[run]))
				run++;
			n += frow_escape(copy + n, text + i, run - i);
			i = run - 1;
		}
		pb_bytes(w, field, copy, n);
		return;
	}
	pb_bytes(w, field, text, len);
}

int pfpacket_track(struct perfetto *p, uint64_t uuid, uint64_t parent, const char *name)
{
	struct pb_writer w = pfpacket_new(p);
	size_t mark = pb_begin(&w, PACKET_TRACK);

	pb_u64(&w, TRACK_UUID, uuid);
	if (parent)
		pb_u64(&w, TRACK_PARENT, parent);
	pb_bytes(&w, TRACK_NAME, name, strlen(name));
	pb_end(&w, mark);
	return pfpacket_put(p, &w);
}

int pfpacket_thread_track(struct perfetto *p, uint64_t uuid, int32_t tgid, int32_t tid, uint32_t comm)
{
	struct pb_writer w = pfpacket_new(p);
	size_t mark = pb_begin(&w, PACKET_TRACK), inner;

	pb_u64(&w, TRACK_UUID, uuid);
	inner = pb_begin(&w, TRACK_THREAD);
	pb_u64(&w, THREAD_PID, (uint64_t)tgid);
	pb_u64(&w, THREAD_TID, (uint64_t)tid);
	if (comm)
		pfpacket_text(p, &w, THREAD_NAME, comm);
	pb_end(&w, inner);
	pb_end(&w, mark);
	return pfpacket_put(p, &w);
}

int pfpacket_slice(struct perfetto *p, uint64_t uuid, const char *name, uint64_t begin_ns, uint64_t end_ns)
{
	int type;

	for (type = TYPE_BEGIN; type <= TYPE_END; type++) {
		struct pb_writer w = pfpacket_new(p);
		size_t mark;

		pb_u64(&w, PACKET_TIMESTAMP, type == TYPE_BEGIN ? begin_ns : end_ns);
		pb_u64(&w, PACKET_SEQUENCE, SEQUENCE_ID);
		mark = pb_begin(&w, PACKET_TRACK_EVENT);
		pb_u64(&w, EVENT_TYPE, (uint64_t)type);
		pb_u64(&w, EVENT_TRACK, uuid);
		if (type == TYPE_BEGIN)
			pb_bytes(&w, EVENT_NAME, name, strlen(name));
		pb_end(&w, mark);
		pb_u64(&w, PACKET_CLOCK_ID, p->clock_id);
		pfpacket_put(p, &w);
	}
	return p->out.failed;
}

/* ---- begin and end ------------------------------------------------------------------------------------------------------ */

static void put_clock(struct pb_writer *w, uint32_t id, uint64_t t_ns)
{
	size_t mark = pb_begin(w, 1);

	pb_u64(w, 1, id);
	pb_u64(w, 2, t_ns);
	pb_end(w, mark);
}

/* The trace's clock, and where it is known the wall clock, which is then the one of the whole trace. */
void pfpacket_clocks(struct perfetto *p)
{
	const struct fview *view = p->base.view;
	const struct ftrace_axis *axis = &view->options->axis;
	size_t i = 0;

	do {
		struct pb_writer w = pfpacket_new(p);
		size_t mark = pb_begin(&w, PACKET_CLOCKS);

		put_clock(&w, p->clock_id, axis->points ? axis->at[i].trace_ns : view->first_ns);
		if (axis->points)
			put_clock(&w, CLOCK_REALTIME_ID, axis->at[i].wall_ns);
		pb_u64(&w, 2, axis->points ? CLOCK_REALTIME_ID : p->clock_id);
		pb_end(&w, mark);
		pfpacket_put(p, &w);
	} while (++i < axis->points);
}

/* prev_state is written with the bits of kernels from 4.14 on; without a release Perfetto would take it for older. */
void pfpacket_system(struct perfetto *p)
{
	const char *release = p->base.view->release ? p->base.view->release : "4.14.0";
	struct pb_writer w = pfpacket_new(p);
	size_t mark = pb_begin(&w, PACKET_SYSTEM_INFO), inner = pb_begin(&w, 1);

	pb_bytes(&w, 1, "Linux", 5);
	pb_bytes(&w, 3, release, strlen(release));
	pb_end(&w, inner);
	pb_end(&w, mark);
	pfpacket_put(p, &w);
}

void pfpacket_stats(struct perfetto *p)
{
	struct pb_writer w = pfpacket_new(p);
	size_t mark = pb_begin(&w, PACKET_FTRACE_STATS), inner;
	bool any = false;
	uint32_t i;

	pb_u64(&w, 1, 2); /* at the end */
	for (i = 0; i < p->cpu_room; i++) {
		if (!p->cpus[i] || !p->cpus[i]->lost_events)
			continue;
		any = true;
		inner = pb_begin(&w, 2);
		pb_u64(&w, 1, i);
		pb_u64(&w, 3, p->cpus[i]->lost_events);
		pb_end(&w, inner);
	}
	pb_end(&w, mark);
	if (any)
		pfpacket_put(p, &w);
}
