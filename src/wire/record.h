/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Records: what hooks put into the pool, and the field lists from which every encoder and reader of the files is made.
 * One list per message gives the struct of wire/messages.h, its protobuf and JSON writers and readers; nothing else
 * spells a field number. The numbers below 20 are the published v3 schema, the others are ours
 * (src/wire/proto/systrace.proto says the same in protobuf's language and a test holds the two together).
 */
#ifndef WIRE_RECORD_H
#define WIRE_RECORD_H

#include <stdint.h>

/** enum stage_type - StageType of the schema; 6.. are ours */
enum stage_type {
	STAGE_UNKNOWN,
	STAGE_DATALOADER,
	STAGE_FORWARD,
	STAGE_BACKWARD,
	STAGE_SYNCHRONIZATION,
	STAGE_GC,
	STAGE_OPTIMIZER,
	STAGE_CHECKPOINT,
	STAGE_COMM,
	STAGE_COUNT
};

/** enum step_source - what ended a step (design: completed optimizer steps, else dataloader calls, else model calls) */
enum step_source { STEP_BY_UNKNOWN, STEP_BY_OPTIMIZER, STEP_BY_DATALOADER, STEP_BY_MODEL_CALL };

/** flags of a stage */
#define STAGE_RAISED 1u /* left by an exception */
#define STAGE_CUT 2u /* begin or end not seen: capture began or ended, or the process was killed inside it */
#define STAGE_WORKER 4u /* recorded in a forked child (data loader worker) */

enum rec_type {
	REC_NONE,
	REC_STAGE,
	REC_STEP,
	REC_COMM, /* one collective call; STAGE_CUT: it has not returned, dur_ns is its time so far */
	REC_COMM_SUM, /* one step's calls of one operation and group */
	REC_GC,
	REC_NOTE, /* text for people: back-offs, renumbering, what was given up */
	REC_IO, /* one I/O call */
	REC_LOCK, /* one wait for a lock, or the count of all calls of a function */
	REC_GIL, /* a hold of the interpreter lock, a wait for it */
	REC_STACK, /* what a stack id of other records stands for */
	REC_MODULE, /* an object file that frames of stacks lie in */
	REC_CODE, /* a Python function that frames of stacks run */
	REC_MEM, /* a sampled block of memory came or went */
	REC_MEM_SITE, /* the sampled blocks of one stack that are alive when the capture ends */
	REC_MEM_STATE, /* what the whole process holds, now and then */
	REC_TYPES
};

/** struct rec_head - first 8 bytes of each record in a chunk; pid, tid and comm are the chunk's */
struct rec_head {
	uint16_t bytes; /* whole record, multiple of 8 */
	uint8_t type; /* enum rec_type */
	uint8_t flags;
	uint32_t step; /* the step that ran then, from 1: pool_header.step + 1 */
};

struct rec_stage {
	struct rec_head head; /* flags: STAGE_RAISED, ... */
	uint64_t begin_ns; /* CLOCK_MONOTONIC */
	uint64_t dur_ns;
	uint32_t name; /* pool name: the function as written in the list file */
	uint32_t stage_id; /* documented stage_id: dataloader calls so far */
	uint32_t kind; /* enum stage_type */
	uint32_t stack; /* pool name of a rendered stack ("f@file:line;..."), 0 = none */
};

struct rec_gc {
	struct rec_head head;
	uint64_t begin_ns;
	uint64_t dur_ns;
	uint32_t stage_id;
	uint32_t gen; /* 0..2 */
	uint32_t collected;
	uint32_t uncollectable;
};

struct rec_step {
	struct rec_head head; /* step: the number of the step that ended, counted from 1 */
	uint64_t begin_ns; /* end of the step before, or the first event seen */
	uint64_t dur_ns;
	uint32_t source; /* enum step_source */
	uint32_t microbatches; /* dataloader calls within the step */
	uint32_t renumbered_from; /* not 0: steps were counted by another source before; this is its last number */
	uint32_t reserved;
};

struct rec_comm {
	struct rec_head head;
	uint64_t begin_ns;
	uint64_t dur_ns;
	uint64_t count; /* elements of the (first) tensor, 0 = unknown or none */
	uint32_t op; /* pool name: all_reduce, ... */
	uint32_t group; /* pool name of the process group */
	uint32_t dtype; /* pool name: float32, ... */
	uint32_t seq; /* n-th call on this group in this process, from 1 */
};

/* flags of a flight ring slot */
#define FLIGHT_RAISED 1u /* left by an exception */
#define FLIGHT_OPEN 2u /* had not returned when the ring was dumped: dur_ns is its time so far */
#define FLIGHT_WRITTEN 4u /* also put as REC_COMM: a dump leaves it out */

/** struct comm_flight - payload of a flight ring slot: rec_comm without its head, then what a chunk's header would say */
struct comm_flight {
	uint64_t begin_ns;
	uint64_t dur_ns;
	uint64_t count;
	uint32_t op;
	uint32_t group;
	uint32_t dtype;
	uint32_t seq;
	uint32_t step;
	uint32_t pid;
	uint32_t tid;
	uint32_t flags; /* FLIGHT_... */
};
_Static_assert(sizeof(struct comm_flight) == 56, "a flight ring slot keeps 56 bytes");

/* Sums whose group is 0 are no collectives: garbage collections (op `GC`) and short stages (op = the function) that are
 * not written one by one; elements are then collected objects, last_seq is 0. */
struct rec_comm_sum {
	struct rec_head head;
	uint64_t begin_ns; /* of the step's first such call */
	uint64_t last_begin_ns; /* of the step's last such call: the rank's arrival */
	uint64_t total_ns;
	uint64_t max_ns;
	uint64_t elements;
	uint32_t calls;
	uint32_t op;
	uint32_t group;
	uint32_t last_seq; /* seq of the last call, matches ranks */
};

struct rec_note {
	struct rec_head head; /* flags: enum note_level */
	uint64_t at_ns;
	uint32_t text; /* pool name */
	uint32_t reserved;
};

/** enum io_type - IOType of the schema; 18.. are ours. X(number, NAME, what people read) */
#define IO_TYPES(X)                   \
	X(0, UNKNOWN, "unknown")      \
	X(1, READ, "read")            \
	X(2, WRITE, "write")          \
	X(3, FREAD, "fread")          \
	X(4, FWRITE, "fwrite")        \
	X(5, FOPEN, "fopen")          \
	X(6, FCLOSE, "fclose")        \
	X(7, FFLUSH, "fflush")        \
	X(8, REMOVE, "remove")        \
	X(9, RENAME, "rename")        \
	X(10, OPEN, "open")           \
	X(11, CLOSE, "close")         \
	X(12, FSYNC, "fsync")         \
	X(13, MKDIR, "mkdir")         \
	X(14, RMDIR, "rmdir")         \
	X(15, UNLINK, "unlink")       \
	X(16, OPENDIR, "opendir")     \
	X(17, CLOSEDIR, "closedir")   \
	X(18, PREAD, "pread")         \
	X(19, PWRITE, "pwrite")       \
	X(20, READV, "readv")         \
	X(21, WRITEV, "writev")       \
	X(22, PREADV, "preadv")       \
	X(23, PWRITEV, "pwritev")     \
	X(24, FDATASYNC, "fdatasync") \
	X(25, CONNECT, "connect")     \
	X(26, ACCEPT, "accept")       \
	X(27, SEND, "send")           \
	X(28, RECV, "recv")           \
	X(29, SENDTO, "sendto")       \
	X(30, RECVFROM, "recvfrom")   \
	X(31, SENDMSG, "sendmsg")     \
	X(32, RECVMSG, "recvmsg")
#define IO_TYPE_ID(number, name, text) IO_##name = number,
enum io_type { IO_TYPES(IO_TYPE_ID) IO_TYPE_COUNT };

#define IO_SOCKET 1u /* flags of rec_io: the text is a peer, not a path */
#define IO_TEXT_MAX 240u /* bytes of the text; of a longer path its end */

struct rec_io {
	struct rec_head head;
	uint64_t begin_ns;
	uint64_t dur_ns;
	int64_t bytes; /* moved, or the descriptor that was opened, 0, or -errno */
	int64_t offset; /* -1 = the file's position, or none */
	uint32_t stage_id;
	int32_t fd; /* -1 = none */
	uint8_t type; /* enum io_type */
	uint8_t stage; /* enum stage_type */
	uint8_t flags; /* IO_SOCKET */
	uint8_t text_bytes;
	char text[]; /* path or peer as known, not terminated; the record's end is padded */
};

/** enum lock_call - what was called. X(NAME, "function") */
#define LOCK_CALLS(X)                                 \
	X(MUTEX_LOCK, "pthread_mutex_lock")           \
	X(MUTEX_TRYLOCK, "pthread_mutex_trylock")     \
	X(MUTEX_TIMEDLOCK, "pthread_mutex_timedlock") \
	X(MUTEX_CLOCKLOCK, "pthread_mutex_clocklock") \
	X(RDLOCK, "pthread_rwlock_rdlock")            \
	X(TRYRDLOCK, "pthread_rwlock_tryrdlock")      \
	X(TIMEDRDLOCK, "pthread_rwlock_timedrdlock")  \
	X(CLOCKRDLOCK, "pthread_rwlock_clockrdlock")  \
	X(WRLOCK, "pthread_rwlock_wrlock")            \
	X(TRYWRLOCK, "pthread_rwlock_trywrlock")      \
	X(TIMEDWRLOCK, "pthread_rwlock_timedwrlock")  \
	X(CLOCKWRLOCK, "pthread_rwlock_clockwrlock")  \
	X(SPIN_LOCK, "pthread_spin_lock")             \
	X(SPIN_TRYLOCK, "pthread_spin_trylock")       \
	X(TIMEDJOIN, "pthread_timedjoin_np")          \
	X(CLOCKJOIN, "pthread_clockjoin_np")          \
	X(TRYJOIN, "pthread_tryjoin_np")              \
	X(YIELD, "pthread_yield")                     \
	X(SEM_WAIT, "sem_wait")                       \
	X(SEM_TIMEDWAIT, "sem_timedwait")             \
	X(SEM_CLOCKWAIT, "sem_clockwait")             \
	X(SEM_TRYWAIT, "sem_trywait")                 \
	X(COND_WAIT, "pthread_cond_wait")             \
	X(COND_TIMEDWAIT, "pthread_cond_timedwait")   \
	X(COND_CLOCKWAIT, "pthread_cond_clockwait")
#define LOCK_CALL_ID(name, text) LOCK_##name,
enum lock_call { LOCK_CALLS(LOCK_CALL_ID) LOCK_CALL_COUNT };

#define LOCK_COUNTED 1u /* flags of rec_lock's head: address is the number of calls since the capture began */

struct rec_lock {
	struct rec_head head;
	uint64_t begin_ns;
	uint64_t dur_ns;
	uint64_t address; /* of mutex, lock, semaphore or condition; of join the pthread_t */
	uint64_t caller; /* return address */
	uint32_t owner; /* tid of who held it when the wait began, 0 = unknown */
	int32_t result; /* errno, 0 = got it */
	uint32_t stage_id;
	uint16_t call; /* enum lock_call */
	uint16_t stage; /* enum stage_type */
	uint32_t repeats; /* not 0: so many failures in a row, the last one at the end */
	uint32_t stack; /* id of rec_stack, 0 = none */
	uint64_t lock_at, caller_at; /* both as frames of kind FRAME_NATIVE; 0 = in no object file */
};

enum gil_what { GIL_HOLD, GIL_WAIT, GIL_FORCED };

#define GIL_CUT_BEGIN 1u /* flags of rec_gil's head: it had begun before the capture */
#define GIL_CUT_END 2u /* it went on when the capture ended */
#define GIL_FOR_OTHER 4u /* struct rec_gil_for: not the writer's */
#define GIL_ASKED 8u /* a hold that ended after a waiting thread's switch interval had run out: a forced switch */

struct rec_gil {
	struct rec_head head;
	uint64_t begin_ns;
	uint64_t dur_ns;
	uint32_t what; /* enum gil_what; FORCED: what a drop on request waits for its successor */
	uint32_t timeouts; /* of a wait: how often the switch interval ran out */
	uint32_t lock; /* 0 = that of the main interpreter, else of an interpreter with a lock of its own */
	uint32_t reserved;
};

struct rec_gil_for {
	struct rec_gil gil;
	char comm[16]; /* name of that thread, "" = not known */
	uint32_t tid;
	uint32_t reserved;
};

/*
 * Stacks: each distinct one is put once, before the first record that names its id; so are the modules and functions that
 * its frames refer to. Threads empty their chunks when they like: in the files a definition may come after its use.
 */
#define STACK_FRAMES_MAX 124u /* frames of one stack; of a longer one the innermost */
#define STACK_CUT 1u /* flags of rec_stack's head: there were more frames outside */
#define STACK_GUESSED 2u /* some frames were found by frame pointers, not by unwind tables */

/* A frame, innermost first, is 64 bits: the kind, then
 *   native: module id, address inside it as its symbol table counts (return address - 1: lies inside the call)
 *   Python: function id, line (0 = unknown)
 *   raw: an address outside every known module (code made at run time) */
enum frame_kind { FRAME_RAW, FRAME_NATIVE, FRAME_PYTHON };
#define FRAME_KIND(frame) ((enum frame_kind)((frame) >> 62))
#define FRAME_NATIVE_AT(module, offset) ((uint64_t)FRAME_NATIVE << 62 | (uint64_t)(module) << 44 | (uint64_t)(offset))
#define FRAME_PYTHON_AT(code, line) ((uint64_t)FRAME_PYTHON << 62 | (uint64_t)(code) << 24 | (uint64_t)(line))
#define FRAME_OFFSET_BITS 44
#define FRAME_LINE_BITS 24
#define FRAME_MODULE(frame) ((uint32_t)((frame) >> FRAME_OFFSET_BITS & 0x3ffffu))
#define FRAME_OFFSET(frame) ((frame) & ((1ull << FRAME_OFFSET_BITS) - 1))
#define FRAME_CODE(frame) ((uint32_t)((frame) >> FRAME_LINE_BITS))
#define FRAME_LINE(frame) ((uint32_t)(frame) & ((1u << FRAME_LINE_BITS) - 1))

struct rec_stack {
	struct rec_head head; /* flags: STACK_CUT, STACK_GUESSED */
	uint32_t id; /* from 1; forked children share the numbers */
	uint32_t count;
	uint64_t frames[]; /* count of them, innermost first */
};

#define BUILD_ID_MAX 32u

struct rec_module {
	struct rec_head head;
	uint32_t id; /* from 1 */
	uint16_t path_bytes;
	uint8_t build_id_bytes; /* 0 = the file has none */
	uint8_t reserved;
	uint8_t build_id[BUILD_ID_MAX];
	char path[]; /* as the loader knows it, not terminated; the record's end is padded */
};

struct rec_code {
	struct rec_head head;
	uint32_t id; /* from 1 */
	uint32_t first_line;
	uint16_t name_bytes; /* qualified name; before 3.11 the plain one */
	uint16_t file_bytes;
	uint32_t reserved;
	char text[]; /* name, then file; UTF-8, not terminated; the record's end is padded */
};

/** enum mem_kind - where a block came from; frozen: in files */
enum mem_kind {
	MEM_MALLOC, /* malloc and its family */
	MEM_MMAP, /* anonymous memory that the job mapped itself */
	MEM_KINDS
};

/* flags of rec_mem's head */
#define MEM_FREED 1u /* it went; else it came */
#define MEM_UNTRACKED 2u /* no room to remember it: its end will not be told */
#define MEM_REST 4u /* what is left of a mapping whose other part went: not a new one */

struct rec_mem {
	struct rec_head head;
	uint64_t at_ns; /* CLOCK_MONOTONIC */
	uint64_t address;
	uint64_t bytes; /* as asked for */
	uint64_t usable; /* as the allocator gave; of mappings whole pages */
	uint64_t weight; /* bytes that it stands for: it is one of many that were not sampled */
	uint32_t stage_id;
	uint32_t stack; /* 0 = none */
	uint16_t stage; /* enum stage_type */
	uint16_t kind; /* enum mem_kind */
	uint32_t reserved;
};

struct rec_mem_site {
	struct rec_head head;
	uint64_t at_ns;
	uint64_t blocks; /* sampled ones */
	uint64_t bytes;
	uint64_t usable;
	uint64_t weight;
	uint64_t oldest_ns; /* when the first of them came */
	uint32_t stack;
	uint32_t kind;
};

/* flags of rec_mem_state's head */
#define MEM_BEGINS 1u /* the capture begins */
#define MEM_ENDED 2u /* it has ended: the sites that are alive were told just before */

struct rec_mem_state {
	struct rec_head head;
	uint64_t at_ns;
	uint64_t heap; /* live bytes of malloc since the capture began, estimated from the samples */
	uint64_t mapped; /* live bytes that the job mapped itself since then */
	uint64_t brk; /* bytes of the process's brk heap, whoever grew it */
	uint64_t rss; /* resident bytes of the process */
	uint64_t sample_bytes;
	uint64_t untracked; /* blocks for which there was no room, so far */
};

/* ---- messages of the files: F(number, type, name, json) ------------------------------------------------------------
 * Types: u32 u64 i64 (varints, i64 as int64), boolean, str (UTF-8), bytes, and in REPEATED lists M(number, message, name).
 * A zero or empty field is left out, as proto3 does. */

#define FIELDS_CLOCK(F)                                       \
	F(1, u64, mono_ns, "mono_ns")                         \
	F(2, u64, mono_raw_ns, "mono_raw_ns")                 \
	F(3, u64, boottime_ns, "boottime_ns")                 \
	F(4, u64, realtime_ns, "realtime_ns")                 \
	F(5, u64, device_ns, "device_ns") /* 0 = no device */ \
	F(6, str, device, "device")

#define FIELDS_ORIGIN(F)                                                                                \
	F(1, str, run, "run")                                                                           \
	F(2, str, host, "host")                                                                         \
	F(3, str, boot_id, "boot_id")                                                                   \
	F(4, str, pids, "pids") /* NSpid, outermost first, blank-separated */                           \
	F(5, u64, proc_start, "proc_start") /* clock ticks since boot, field 22 of /proc/pid/stat */    \
	F(6, u32, rank, "rank")                                                                         \
	F(7, boolean, rank_known, "rank_known")                                                         \
	F(8, u32, local_rank, "local_rank")                                                             \
	F(9, u32, world_size, "world_size") /* 0 = unknown */                                           \
	F(10, str, job, "job") /* script or command name */                                             \
	F(11, str, version, "version") /* of the writer */                                              \
	F(12, u32, format, "format") /* of the file, now 1 */                                           \
	F(13, i64, wall_minus_mono_ns, "wall_minus_mono_ns") /* start_us = (start_ns + this) / 1000 */  \
	F(14, u32, segment, "segment") /* 0 = first */                                                  \
	F(15, str, author, "author") /* agent, probe, recover */                                        \
	F(16, str, ip, "ip")                                                                            \
	F(17, u32, pid, "pid") /* in the writer's namespace */                                          \
	F(18, u64, run_start_us, "run_start_us") /* wall clock of the process's start */                \
	F(19, boolean, worker, "worker") /* written by a promoted or spawned worker that has no rank */ \
	F(21, u64, pid_namespace, "pid_namespace") /* inode: where pid and proc_start are to be judged */
#define REPEATED_ORIGIN(M) M(20, clock, clocks)

#define FIELDS_DROP(F)                \
	F(1, str, source, "source")   \
	F(2, u64, count, "count")     \
	F(3, u64, from_ns, "from_ns") \
	F(4, u64, to_ns, "to_ns")

#define FIELDS_GC_DEBUG(F)                \
	F(1, u32, collected, "collected") \
	F(2, u32, uncollectable, "uncollectable")

#define FIELDS_STAGE(F)                                  \
	F(1, u32, stage_id, "stage_id")                  \
	F(2, str, stage_type, "stage_type")              \
	F(3, u64, start_us, "start_us")                  \
	F(4, u64, end_us, "end_us")                      \
	F(20, u64, start_ns, "start_ns")                 \
	F(21, u64, dur_ns, "dur_ns")                     \
	F(22, u32, step, "step")                         \
	F(23, u32, kind, "kind") /* enum stage_type */   \
	F(24, u32, pid, "pid") /* 0 = Origin's */        \
	F(25, u32, tid, "tid") /* 0 = the main thread */ \
	F(26, u32, flags, "flags")                       \
	F(27, u32, gen, "gen") /* generation, GC only */
/* 5: repeated string stack_frames; 6: gc_debug */

#define FIELDS_COMM_SUM(F)                        \
	F(1, str, op, "op")                       \
	F(2, str, group, "group")                 \
	F(3, u32, calls, "calls")                 \
	F(4, u64, total_ns, "total_ns")           \
	F(5, u64, max_ns, "max_ns")               \
	F(6, u64, last_start_ns, "last_start_ns") \
	F(7, u64, elements, "elements")           \
	F(8, u32, last_seq, "last_seq")           \
	F(20, u64, start_ns, "start_ns")          \
	F(22, u32, step, "step")

#define FIELDS_STEP(F)                                \
	F(1, u32, source, "source")                   \
	F(2, u32, microbatches, "microbatches")       \
	F(3, u32, renumbered_from, "renumbered_from") \
	F(20, u64, start_ns, "start_ns")              \
	F(21, u64, dur_ns, "dur_ns")                  \
	F(22, u32, step, "step")

#define FIELDS_NOTE(F)                   \
	F(1, str, text, "text")          \
	F(20, u64, start_ns, "start_ns") \
	F(22, u32, step, "step")

#define FIELDS_THREAD(F)        \
	F(1, u32, pid, "pid")   \
	F(2, u32, tid, "tid")   \
	F(3, str, comm, "comm") \
	F(4, u32, inner_tid, "inner_tid") /* in its own pid namespace, 0 = the same as tid */

/* In bytes the descriptor of a successful open counts as 0. */
#define FIELDS_IO(F)                                                                           \
	F(1, u64, start_us, "start_us")                                                        \
	F(2, u64, dur, "dur") /* us */                                                         \
	F(3, u32, stage_id, "stage_id")                                                        \
	F(4, stage_name, stage_type, "stage_type")                                             \
	F(5, io_name, io_type, "io_type")                                                      \
	F(6, u32, rank, "rank")                                                                \
	F(7, bytes, file_name, "file_name")                                                    \
	F(20, u64, start_ns, "start_ns")                                                       \
	F(21, u64, dur_ns, "dur_ns")                                                           \
	F(22, u32, step, "step")                                                               \
	F(23, s64, bytes, "bytes") /* moved, or -errno */                                      \
	F(24, u64, offset, "offset") /* where the call says it (pread, ...) */                 \
	F(25, str, peer, "peer") /* of a socket: address:port, unix:path, socket:[inode] */    \
	F(26, u32, pid, "pid") /* 0 = Origin's */                                              \
	F(27, u32, tid, "tid") /* 0 = the main thread */                                       \
	F(28, u32, fd, "fd") /* 1 + descriptor, 0 = none */                                    \
	F(29, boolean, worker, "worker") /* recorded in a forked child (data loader worker) */ \
	F(30, boolean, is_socket, "is_socket")

/* Top level of io_trace files: repeated IOEntry, then who wrote it, drops, notes and thread names. */
#define REPEATED_IO(M)         \
	M(1, io, IO_entries)   \
	M(32, note, notes)     \
	M(33, thread, threads) \
	M(100, origin, origin) \
	M(101, drop, drops)

/* OS_event_type of FIELDS_OS */
enum os_event_type {
	OS_PAGE_FAULT,
	OS_SWAP_PAGE,
	OS_COMPACTION,
	OS_VMSCAN,
	OS_OFFCPU, /* off the CPU for dur, then on it for on_ns */
	OS_ONCPU,
	OS_WAKEUP,
	OS_MIGRATE,
	OS_IRQ,
	OS_SOFTIRQ,
	OS_OOM_KILL,
	OS_TAKER, /* what ran on a CPU while a thread of the job waited for it */
	OS_EVENT_COUNT
};

/* flags of FIELDS_OS */
#define OS_BEGIN_UNSEEN 1u /* the span had begun before the capture */
#define OS_OFF_OPEN 2u /* the capture ended while it was off the CPU */
#define OS_ON_OPEN 4u /* ... while it was on the CPU */
#define OS_EXITED 8u /* the thread ended after this span */
#define OS_MAJOR 16u /* page fault: major */
#define OS_ON_GUESSED 64u /* the kernel did not report when it came on: told by its CPU time */
#define OS_PREEMPTED 32u /* it could have run on: preempted, or it yielded (the kernel counts both as involuntary) */

/* Ids are the host's; Thread messages give those inside a container. */
#define FIELDS_OS(F)                                                                                              \
	F(1, u32, key, "key") /* thread id; CPU number of events that belong to no thread */                      \
	F(2, u64, start_us, "start_us")                                                                           \
	F(3, u64, dur, "dur") /* us */                                                                            \
	F(4, u64, rundelay, "rundelay") /* ns, the kernel's sum since the thread's birth, when it left the CPU */ \
	F(5, u32, OS_event_type, "OS_event_type")                                                                 \
	F(6, u32, rank, "rank")                                                                                   \
	F(7, str, comm, "comm")                                                                                   \
	F(8, str, nxt_comm, "nxt_comm") /* who ran instead */                                                     \
	F(9, u32, nxt_pid, "nxt_pid") /* its thread id */                                                         \
	F(20, u64, start_ns, "start_ns")                                                                          \
	F(21, u64, dur_ns, "dur_ns")                                                                              \
	F(22, u32, step, "step")                                                                                  \
	F(23, u64, delay_ns, "delay_ns") /* of this span: how long it was runnable and not running */             \
	F(24, u64, on_ns, "on_ns") /* how long it then ran */                                                     \
	F(25, u32, cpu, "cpu") /* 1 + where it then ran, or where the event was; 0 = unknown */                   \
	F(26, u32, from_cpu, "from_cpu") /* 1 + where it had run before, when that was another */                 \
	F(27, u32, migrations, "migrations") /* moves between CPUs in this span */                                \
	F(28, u32, state, "state") /* why it left: 0 preempted or yielded, else the kernel's task state bits */   \
	F(29, u64, wake_ns, "wake_ns") /* from its wake-up until it ran */                                        \
	F(30, u32, waker_pid, "waker_pid") /* thread id; 0 = an interrupt, or unknown */                          \
	F(31, str, waker_comm, "waker_comm")                                                                      \
	F(32, u32, nxt_tgid, "nxt_tgid") /* process of nxt_pid */                                                 \
	F(33, u64, irq_ns, "irq_ns") /* hard interrupts during on_ns, ... */                                      \
	F(34, u32, irqs, "irqs")                                                                                  \
	F(35, u64, softirq_ns, "softirq_ns")                                                                      \
	F(36, u32, softirqs, "softirqs")                                                                          \
	F(37, u32, flags, "flags")                                                                                \
	F(38, u32, pid, "pid") /* process of the thread when it is not Origin's: a forked worker */               \
	F(39, str, name, "name") /* of the interrupt, file of a page fault, ... */                                \
	F(40, u32, number, "number") /* 1 + number of the interrupt or vector; pages */                           \
	F(41, u64, address, "address")

/* so_name: file name of the object, or source file of a Python function, address then being the line. */
#define FIELDS_FRAME(F)               \
	F(1, u64, address, "address") \
	F(2, str, so_name, "so_name") \
	F(20, str, function, "function") /* Python */

#define FIELDS_MEM_ALLOC(F)                                         \
	F(1, u64, alloc_ptr, "alloc_ptr")                           \
	F(2, u32, stage_id, "stage_id")                             \
	F(3, stage_name, stage_type, "stage_type")                  \
	F(4, u64, mem_size, "mem_size")                             \
	F(20, u64, start_ns, "start_ns")                            \
	F(21, u64, dur_ns, "dur_ns")                                \
	F(22, u32, step, "step")                                    \
	F(23, u64, usable, "usable")                                \
	F(24, u64, weight, "weight") /* bytes that it stands for */ \
	F(25, u32, kind, "kind") /* enum mem_kind */                \
	F(26, u32, stack, "stack") /* id in the stacks file */      \
	F(27, u32, flags, "flags") /* MEM_UNTRACKED, MEM_REST */
#define REPEATED_MEM_ALLOC(M) M(5, frame, stack_frames)

#define FIELDS_MEM_FREE(F)                         \
	F(1, u64, alloc_ptr, "alloc_ptr")          \
	F(2, u32, stage_id, "stage_id")            \
	F(3, stage_name, stage_type, "stage_type") \
	F(20, u64, start_ns, "start_ns")           \
	F(21, u64, dur_ns, "dur_ns")               \
	F(22, u32, step, "step")                   \
	F(25, u32, kind, "kind")

/* What a stack holds when the capture ends. */
#define FIELDS_MEM_SITE(F)                \
	F(1, u64, blocks, "blocks")       \
	F(2, u64, bytes, "bytes")         \
	F(3, u64, usable, "usable")       \
	F(4, u64, weight, "weight")       \
	F(6, u64, oldest_ns, "oldest_ns") \
	F(20, u64, start_ns, "start_ns")  \
	F(25, u32, kind, "kind")          \
	F(26, u32, stack, "stack")
#define REPEATED_MEM_SITE(M) M(5, frame, stack_frames)

#define FIELDS_PROC_MEM(F)                                           \
	F(1, u32, pid, "pid") /* of the thread (user guide 7.4.5) */ \
	F(23, u32, tgid, "tgid") /* of its process */                \
	F(24, u32, space, "space") /* enum mem_space */
#define REPEATED_PROC_MEM(M)              \
	M(2, mem_alloc, mem_alloc_stacks) \
	M(3, mem_free, mem_free_stacks)   \
	M(25, mem_site, mem_live_stacks)  \
	M(26, mem_state, mem_states)      \
	M(100, origin, origin)            \
	M(101, drop, drops)

enum mem_space { MEM_SPACE_UNKNOWN, MEM_SPACE_HOST, MEM_SPACE_DEVICE };

#define FIELDS_MEM_STATE(F)                                   \
	F(1, u64, heap, "heap")                               \
	F(2, u64, mapped, "mapped")                           \
	F(3, u64, brk, "brk")                                 \
	F(4, u64, rss, "rss")                                 \
	F(5, u64, sample_bytes, "sample_bytes")               \
	F(6, u64, untracked, "untracked")                     \
	F(7, u32, flags, "flags") /* MEM_BEGINS, MEM_ENDED */ \
	F(20, u64, start_ns, "start_ns")                      \
	F(22, u32, step, "step")

/* Top level of os_trace files: agent's and probe's parts alike */
#define REPEATED_OS(M)            \
	M(1, os, OSprobe_entries) \
	M(30, proc_mem, proc_mem) \
	M(32, note, notes)        \
	M(33, thread, threads)    \
	M(100, origin, origin)    \
	M(101, drop, drops)

#define FIELDS_PYTORCH(F)             \
	F(2, u32, rank, "rank")       \
	F(3, u32, step_id, "step_id") \
	F(4, str, comm, "comm")
#define REPEATED_PYTORCH(M)         \
	M(1, stage, pytorch_stages) \
	M(30, comm_sum, comm_sums)  \
	M(31, step, steps)          \
	M(32, note, notes)          \
	M(33, thread, threads)      \
	M(100, origin, origin)      \
	M(101, drop, drops)

#endif
