/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Objects by address; see module.h. */
#include "agent/stack/module.h"

#include "agent/hook/got.h"
#include "agent/agent.h"
#include "agent/stack/intern.h"
#include "agent/stack/memory.h"
#include "base/hash64.h"

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <link.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define KNOWN_SETS 256u
#define KNOWN_WAYS 4u
#define PATH_BYTES 900u /* of a longer path its end */
#define NOTE_BYTES 1024u
#define LISTED_MAX 2048u /* objects beyond that are unknown */
#define RETRIES 3

/* struct dl_find_object of glibc 2.35, as its manual lays it out; older headers have none */
struct found {
	unsigned long long flags;
	void *map_start, *map_end;
	struct link_map *link_map;
	void *unwind_header;
	unsigned long long reserved[7];
};

static int (*_Atomic find_object)(void *pc, struct found *found);
static char program[PATH_BYTES];
static uintptr_t own_begin, own_end;

/* What was found out about an object once. A sequence lock over words: odd while it is written. */
enum known_word {
	KNOWN_BEGIN,
	KNOWN_END,
	KNOWN_BIAS,
	KNOWN_HEADER,
	KNOWN_IDENTITY,
	KNOWN_ID,
	KNOWN_STAMP_AT, /* 0 = none */
	KNOWN_STAMP,
	KNOWN_WORDS
};
struct known {
	_Atomic uint32_t seq;
	_Atomic uint64_t word[KNOWN_WORDS];
};
static struct known known[KNOWN_SETS][KNOWN_WAYS];

/* Old glibc: objects in the order of their addresses, under a sequence lock as well. */
static struct {
	_Atomic uint32_t seq;
	_Atomic uint32_t count;
	_Atomic uint64_t word[LISTED_MAX][KNOWN_WORDS];
} list;

/* --- what an object says of itself ------------------------------------------------------------------------------------- */

bool module_view(const struct module *m, uintptr_t at, size_t bytes, struct module_view *view)
{
	if (at < m->begin || at >= m->end)
		return false;
	if (bytes > m->end - at)
		bytes = m->end - at;
	view->at = (const uint8_t *)at;
	if (!m->direct) {
		bytes = memory_copy_some(view->room, at, bytes < sizeof(view->room) ? bytes : sizeof(view->room));
		view->at = view->room;
	}
	view->end = view->at + bytes;
	return bytes > 0;
}

/* The build id in a note segment. Return: found. */
static bool read_note(const struct module *m, uintptr_t at, size_t bytes, struct build_id *id)
{
	struct module_view view;
	size_t used = 0;

	if (bytes > NOTE_BYTES || !module_view(m, at, bytes, &view))
		return false;
	bytes = (size_t)(view.end - view.at);
	while (used + sizeof(ElfW(Nhdr)) <= bytes) {
		ElfW(Nhdr) note;
		size_t name, text;

		memcpy(&note, view.at + used, sizeof(note));
		name = used + sizeof(note);
		text = name + ((note.n_namesz + 3u) & ~3u);
		if (text > bytes || note.n_descsz > bytes - text)
			return false;
		if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 && !memcmp(view.at + name, "GNU", 4)) {
			id->bytes = note.n_descsz < BUILD_ID_MAX ? note.n_descsz : BUILD_ID_MAX;
			id->at = at + text;
			memcpy(id->byte, view.at + text, id->bytes);
			return true;
		}
		used = text + ((note.n_descsz + 3u) & ~3u);
	}
	return false;
}

void module_build_id(const struct module *m, struct build_id *id)
{
	struct module_view view;
	ElfW(Ehdr) head;
	size_t i;

	*id = (struct build_id){ .bytes = 0 };
	if (!module_view(m, m->begin, sizeof(head), &view) || view.end - view.at < (ptrdiff_t)sizeof(head))
		return;
	memcpy(&head, view.at, sizeof(head));
	if (memcmp(head.e_ident, ELFMAG, SELFMAG) || head.e_phentsize != sizeof(ElfW(Phdr)))
		return;
	for (i = 0; i < head.e_phnum; i++) {
		ElfW(Phdr) part;

		if (!module_view(m, m->begin + head.e_phoff + i * sizeof(part), sizeof(part), &view) ||
		    view.end - view.at < (ptrdiff_t)sizeof(part))
			return;
		memcpy(&part, view.at, sizeof(part));
		if (part.p_type == PT_NOTE && read_note(m, m->bias + part.p_vaddr, part.p_filesz, id))
			return;
	}
}

/* --- definitions --------------------------------------------------------------------------------------------------------- */

static void put_definition(uint32_t id, const char *path, const struct build_id *build_id)
{
	uint64_t room[POOL_MAX_RECORD / 8] = { 0 };
	struct rec_module *rec = (struct rec_module *)room;
	size_t len = strlen(path), bytes;

	if (len > PATH_BYTES) {
		path += len - PATH_BYTES;
		len = PATH_BYTES;
	}
	bytes = (sizeof(*rec) + len + 7) & ~(size_t)7;
	rec->head = (struct rec_head){ .bytes = (uint16_t)bytes, .type = REC_MODULE };
	rec->id = id;
	rec->path_bytes = (uint16_t)len;
	rec->build_id_bytes = (uint8_t)build_id->bytes;
	memcpy(rec->build_id, build_id->byte, build_id->bytes);
	memcpy(rec->path, path, len);
	if (pool_put(&agent.pool, rec, (uint32_t)bytes, POOL_SRC_STACK))
		intern_name_told(INTERN_MODULE, id);
}

/* The same file is the same module wherever and whenever it is mapped. */
static void define(struct module *m, const char *name, struct build_id *build_id)
{
	const char *path = name && name[0] ? name : program;
	uint64_t hash;
	bool fresh;

	module_build_id(m, build_id);
	hash = hash64(path, strlen(path)) ^ hash64(build_id->byte, sizeof(build_id->byte));
	m->id = intern_name(INTERN_MODULE, hash, &fresh);
	if (m->id && fresh)
		put_definition(m->id, path, build_id);
}

/* --- what is known already ----------------------------------------------------------------------------------------------- */

static struct module unpack(const uint64_t word[KNOWN_WORDS])
{
	return (struct module){
		.begin = word[KNOWN_BEGIN],
		.end = word[KNOWN_END],
		.bias = word[KNOWN_BIAS],
		.unwind_header = word[KNOWN_HEADER],
		.identity = word[KNOWN_IDENTITY],
		.id = (uint32_t)word[KNOWN_ID],
		.direct = atomic_load_explicit(&find_object, memory_order_relaxed) != NULL,
	};
}

static bool read_known(struct known *k, uint64_t identity, struct module *m)
{
	uint32_t seq = atomic_load_explicit(&k->seq, memory_order_acquire);
	uint64_t word[KNOWN_WORDS];
	int i;

	if (!seq || seq & 1)
		return false;
	for (i = 0; i < KNOWN_WORDS; i++)
		word[i] = atomic_load_explicit(&k->word[i], memory_order_acquire);
	if (word[KNOWN_IDENTITY] != identity || atomic_load_explicit(&k->seq, memory_order_relaxed) != seq)
		return false;
	/* another file may have come to the very place of the one before: its build id is another one */
	if (word[KNOWN_STAMP_AT] && *(const uint64_t *)word[KNOWN_STAMP_AT] != word[KNOWN_STAMP])
		return false;
	*m = unpack(word);
	return true;
}

static void write_known(struct known *k, const uint64_t word[KNOWN_WORDS])
{
	uint32_t seq = atomic_load_explicit(&k->seq, memory_order_relaxed);
	int i;

	/* another thread, or the code we interrupted, writes it: not remembered this time */
	if (seq & 1 || !atomic_compare_exchange_strong_explicit(&k->seq, &seq, seq + 1, memory_order_relaxed,
								memory_order_relaxed))
		return;
	for (i = 0; i < KNOWN_WORDS; i++) /* release: who sees a new word sees the odd number */
		atomic_store_explicit(&k->word[i], word[i], memory_order_release);
	atomic_store_explicit(&k->seq, seq + 2, memory_order_release);
}

static void remember(struct known *k, const struct module *m, const struct build_id *build_id)
{
	uint64_t word[KNOWN_WORDS] = {
		[KNOWN_BEGIN] = m->begin,	   [KNOWN_END] = m->end,	   [KNOWN_BIAS] = m->bias,
		[KNOWN_HEADER] = m->unwind_header, [KNOWN_IDENTITY] = m->identity, [KNOWN_ID] = m->id,
	};

	/* the first page is there whatever is mapped at that place */
	if (build_id->bytes >= 8 && build_id->at % 8 == 0 && build_id->at + 8 <= m->begin + 4096) {
		word[KNOWN_STAMP_AT] = build_id->at;
		memcpy(&word[KNOWN_STAMP], build_id->byte, 8);
	}
	write_known(k, word);
}

static bool find_direct(uintptr_t pc, struct module *m)
{
	struct build_id build_id;
	struct found found;
	struct known *set;
	uint64_t identity;
	uint32_t i;

	if (atomic_load_explicit(&find_object, memory_order_relaxed)((void *)pc, &found) || !found.link_map)
		return false;
	identity = hash64(&found.map_start, offsetof(struct found, reserved) - offsetof(struct found, map_start));
	identity = (identity ^ intern_mark()) | 1;
	set = known[((uintptr_t)found.map_start >> 12) % KNOWN_SETS];
	for (i = 0; i < KNOWN_WAYS; i++) {
		if (!read_known(&set[i], identity, m))
			continue;
		if (m->id && !intern_name_is_told(INTERN_MODULE, m->id))
			define(m, found.link_map->l_name, &build_id);
		return true;
	}
	*m = (struct module){
		.begin = (uintptr_t)found.map_start,
		.end = (uintptr_t)found.map_end,
		.bias = found.link_map->l_addr,
		.unwind_header = (uintptr_t)found.unwind_header,
		.identity = identity,
		.direct = true,
	};
	define(m, found.link_map->l_name, &build_id);
	remember(&set[identity % KNOWN_WAYS], m, &build_id);
	return true;
}

/* --- old glibc: a list ----------------------------------------------------------------------------------------------------- */

struct listing {
	uint64_t (*word)[KNOWN_WORDS];
	uint32_t count;
};

/* Under the loader's lock: nothing that waits. Names are looked at here, where they are sure to be there. */
static int list_one(struct dl_phdr_info *info, size_t size, void *arg)
{
	struct listing *listing = arg;
	struct module m = { .begin = UINTPTR_MAX, .bias = info->dlpi_addr };
	struct build_id build_id;
	uint64_t facts[6] = { 0 };
	uint32_t at;
	int i;

	for (i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *part = &info->dlpi_phdr[i];
		uintptr_t begin = info->dlpi_addr + part->p_vaddr;

		if (part->p_type == PT_GNU_EH_FRAME)
			m.unwind_header = begin;
		if (part->p_type != PT_LOAD)
			continue;
		m.begin = begin < m.begin ? begin & ~(uintptr_t)4095 : m.begin;
		m.end = begin + part->p_memsz > m.end ? begin + part->p_memsz : m.end;
	}
	if (m.begin >= m.end || listing->count == LISTED_MAX)
		return 0;
	define(&m, info->dlpi_name, &build_id);
	facts[0] = m.begin, facts[1] = m.end, facts[2] = m.unwind_header, facts[3] = m.id;
	m.identity = hash64(facts, sizeof(facts)) | 1;
	for (at = listing->count++; at && listing->word[at - 1][KNOWN_BEGIN] > m.begin; at--)
		memcpy(listing->word[at], listing->word[at - 1], sizeof(listing->word[at]));
	memset(listing->word[at], 0, sizeof(listing->word[at]));
	listing->word[at][KNOWN_BEGIN] = m.begin;
	listing->word[at][KNOWN_END] = m.end;
	listing->word[at][KNOWN_BIAS] = m.bias;
	listing->word[at][KNOWN_HEADER] = m.unwind_header;
	listing->word[at][KNOWN_IDENTITY] = m.identity;
	listing->word[at][KNOWN_ID] = m.id;
	return 0;
}

static void list_all(void)
{
	struct listing listing = { .count = 0 };
	uint32_t seq, i;
	int j;

	listing.word = malloc(LISTED_MAX * sizeof(*listing.word));
	if (!listing.word)
		return;
	got_each_object(list_one, &listing);
	seq = atomic_load_explicit(&list.seq, memory_order_relaxed);
	atomic_store_explicit(&list.seq, seq + 1, memory_order_relaxed);
	atomic_store_explicit(&list.count, listing.count, memory_order_release);
	for (i = 0; i < listing.count; i++)
		for (j = 0; j < KNOWN_WORDS; j++)
			atomic_store_explicit(&list.word[i][j], listing.word[i][j], memory_order_release);
	atomic_store_explicit(&list.seq, seq + 2, memory_order_release);
	free(listing.word);
}

void modules_refresh(uint64_t generation)
{
	static uint64_t listed_at;

	if (atomic_load_explicit(&find_object, memory_order_relaxed) || generation == listed_at)
		return;
	listed_at = generation;
	list_all();
}

static uint64_t listed(uint32_t i, enum known_word word)
{
	return atomic_load_explicit(&list.word[i][word], memory_order_acquire);
}

static bool search_list(uintptr_t pc, uint64_t word[KNOWN_WORDS])
{
	uint32_t low = 0, high = atomic_load_explicit(&list.count, memory_order_acquire);
	int j;

	while (low < high) {
		uint32_t middle = (low + high) / 2;

		if (pc < listed(middle, KNOWN_BEGIN)) {
			high = middle;
		} else if (pc >= listed(middle, KNOWN_END)) {
			low = middle + 1;
		} else {
			for (j = 0; j < KNOWN_WORDS; j++)
				word[j] = listed(middle, (enum known_word)j);
			return true;
		}
	}
	return false;
}

static bool find_listed(uintptr_t pc, struct module *m)
{
	uint64_t word[KNOWN_WORDS];
	int tries;

	for (tries = 0; tries < RETRIES; tries++) {
		uint32_t seq = atomic_load_explicit(&list.seq, memory_order_acquire);
		bool hit = !(seq & 1) && search_list(pc, word);

		if (seq & 1 || atomic_load_explicit(&list.seq, memory_order_relaxed) != seq)
			continue;
		if (hit)
			*m = unpack(word);
		return hit;
	}
	return false;
}

/* --- for all ----------------------------------------------------------------------------------------------------------------- */

bool modules_direct(void)
{
	return atomic_load_explicit(&find_object, memory_order_relaxed) != NULL;
}

bool module_find(uintptr_t pc, struct module *m)
{
	return atomic_load_explicit(&find_object, memory_order_relaxed) ? find_direct(pc, m) : find_listed(pc, m);
}

bool module_own(uintptr_t pc)
{
	return pc >= own_begin && pc < own_end;
}

static int own_one(struct dl_phdr_info *info, size_t size, void *arg)
{
	uintptr_t self = (uintptr_t)&own_one;
	bool here = false;
	uintptr_t begin = UINTPTR_MAX, end = 0;
	int i;

	for (i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *part = &info->dlpi_phdr[i];
		uintptr_t at = info->dlpi_addr + part->p_vaddr;

		if (part->p_type != PT_LOAD)
			continue;
		begin = at < begin ? at : begin;
		end = at + part->p_memsz > end ? at + part->p_memsz : end;
		here |= self >= at && self < at + part->p_memsz;
	}
	if (here && info->dlpi_name[0]) {
		own_begin = begin;
		own_end = end;
	}
	return here;
}

void modules_start(bool old_glibc)
{
	int (*find)(void *pc, struct found *found) = NULL;
	ssize_t len;

	if (!program[0]) {
		len = readlink("/proc/self/exe", program, sizeof(program) - 1);
		program[len > 0 ? len : 0] = 0;
		got_each_object(own_one, NULL);
	}
	if (!old_glibc && dlsym)
		*(void **)&find = dlsym(RTLD_DEFAULT, "_dl_find_object");
	atomic_store_explicit(&find_object, find, memory_order_relaxed);
	if (!find)
		list_all();
}
