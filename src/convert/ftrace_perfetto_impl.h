/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Private to the Perfetto exporter of `convert ftrace`, which is told in four files: packets (ftrace_perfetto_packet.c), what
 * a CPU did as bundles of ftrace events (ftrace_perfetto_cpu.c), which thread belongs to which process
 * (ftrace_perfetto_tasks.c), and the exporter that calls them (ftrace_perfetto.c). Field numbers are those of
 * perfetto/trace/; tests/e2e/perfetto_subset.proto restates them with names.
 */
#ifndef CONVERT_FTRACE_PERFETTO_IMPL_H
#define CONVERT_FTRACE_PERFETTO_IMPL_H

#include "convert/ftrace_sink.h"
#include "trace/ftrace_known.h"
#include "wire/pb.h"

enum { /* TracePacket */
       PACKET_FTRACE = 1,
       PACKET_PROCESS_TREE = 2,
       PACKET_CLOCKS = 6,
       PACKET_TIMESTAMP = 8,
       PACKET_SEQUENCE = 10,
       PACKET_TRACK_EVENT = 11,
       PACKET_FTRACE_STATS = 34,
       PACKET_SYSTEM_INFO = 45,
       PACKET_CLOCK_ID = 58,
       PACKET_TRACK = 60
};
enum { CLOCK_REALTIME_ID = 1, CLOCK_RAW_ID = 5, CLOCK_BOOT_ID = 6 };
enum { FTRACE_CLOCK_BOOT = 0, FTRACE_CLOCK_RAW = 4 };

#define BATCH 1024 /* switches, and wakings, of a CPU in one bundle */
#define TEXTS (2 * BATCH)
#define TEXT_MOST 1024
#define COMM_SLOTS 512
#define IRQ_DEPTH 16
#define MAX_CPUS 1024 /* Perfetto takes no more */

struct compact {
	uint32_t n;
	uint64_t t_ns[BATCH];
	int32_t pid[BATCH], prio[BATCH], third[BATCH]; /* third: prev_state, or target CPU */
	uint32_t comm[BATCH];
};

struct comm_slot {
	uint32_t name, batch, index;
};

struct irq_open {
	uint16_t entry; /* field number of the entry's event */
	int64_t number;
};

struct pcpu {
	int32_t pid; /* on the CPU, -1 = unknown: for Perfetto the idle task is */
	uint32_t comm;
	uint32_t idle; /* name of its idle task */
	bool chained; /* Perfetto knows who is on the CPU: a compact switch suffices */
	bool lost; /* the next bundle follows lost events */
	uint64_t lost_events;
	uint32_t batch; /* number of the bundle, for the slots */
	struct compact sw, waking;
	uint32_t texts[TEXTS];
	uint32_t text_count;
	struct comm_slot slots[COMM_SLOTS];
	struct pb_writer events;
	int depth;
	struct irq_open irqs[IRQ_DEPTH];
};

struct ptask {
	int32_t tid, tgid;
	uint32_t comm;
	bool has_track;
};

struct perfetto {
	struct fsink base;
	struct outfile out;
	struct known_keys keys;
	uint32_t clock_id, ftrace_clock;
	bool wakings; /* sched_waking is recorded: sched_wakeup says nothing more */
	struct pcpu **cpus;
	uint32_t cpu_room;
	uint64_t far_events; /* of CPUs from MAX_CPUS on: left out */
	struct ptask *tasks; /* open addressing by tid; tid 0 = free */
	uint32_t task_count, task_room;
	bool group_root, lost_root;
	uint8_t *packet; /* being built */
	size_t packet_room;
};

/* ---- packets ---------------------------------------------------------------------------------------------------------- */

/** pfpacket_new - writer of the packet being built; one at a time */
struct pb_writer pfpacket_new(struct perfetto *p);

/** pfpacket_put - write a packet down. Return: 0 or -errno, kept in p->out.failed. */
int pfpacket_put(struct perfetto *p, const struct pb_writer *packet);

/** pfpacket_text - a name as UTF-8: bytes that are none become the code points of their values; cut at TEXT_MOST / 2 */
void pfpacket_text(struct perfetto *p, struct pb_writer *w, uint32_t field, uint32_t name);

/** pfpacket_track - descriptor of a track; @parent 0 = none */
int pfpacket_track(struct perfetto *p, uint64_t uuid, uint64_t parent, const char *name);

/** pfpacket_thread_track - descriptor of the track of a thread */
int pfpacket_thread_track(struct perfetto *p, uint64_t uuid, int32_t tgid, int32_t tid, uint32_t comm);

/** pfpacket_slice - begin and end of a slice on a track, times of the trace */
int pfpacket_slice(struct perfetto *p, uint64_t uuid, const char *name, uint64_t begin_ns, uint64_t end_ns);

/** pfpacket_clocks/_system/_stats - clock snapshots, kernel release (first packets), lost events per CPU (last one) */
void pfpacket_clocks(struct perfetto *p);
void pfpacket_system(struct perfetto *p);
void pfpacket_stats(struct perfetto *p);

/* ---- CPUs --------------------------------------------------------------------------------------------------------------- */

/** pfcpu_get - a CPU, made when it is new; NULL and p->out.failed when out of memory. @number: below MAX_CPUS */
struct pcpu *pfcpu_get(struct perfetto *p, int32_t number);

/** pfcpu_event - one event of that CPU. Return: 0 or -errno. */
int pfcpu_event(struct perfetto *p, struct pcpu *cpu, const struct event *ev);

/** pfcpu_cut - what goes on there is unknown from @t_ns on: interrupts end and the task leaves */
void pfcpu_cut(struct perfetto *p, struct pcpu *cpu, uint32_t number, uint64_t t_ns);

/** pfcpu_enter - a task is on the CPU though no switch said so: seen in the middle */
void pfcpu_enter(struct perfetto *p, struct pcpu *cpu, uint32_t number, uint64_t t_ns, int32_t pid, uint32_t comm);

/** pfcpu_flush - write what is gathered as a bundle */
int pfcpu_flush(struct perfetto *p, struct pcpu *cpu, uint32_t number);

/* ---- tasks -------------------------------------------------------------------------------------------------------------- */

/** pftask_note - which process a thread belongs to, and its name where that is told (0 = not) */
void pftask_note(struct perfetto *p, int32_t tid, int32_t tgid, uint32_t comm);

/** pftask_track - track for slices of a thread, described when it is new; 0 = its process is not told. @comm: its name */
uint64_t pftask_track(struct perfetto *p, int32_t tid, uint32_t comm);

/** pftask_put_tree - process tree of all that is known, the pid map's tasks included */
void pftask_put_tree(struct perfetto *p);

#endif
