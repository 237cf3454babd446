/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Object files by /proc/self/maps; see maps.h. Lines come in the order of addresses. */
#include "agent/stack/maps.h"

#include "agent/stack/memory.h"
#include "base/hash64.h"

#include <elf.h>
#include <errno.h>
#include <inttypes.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PAGE 4096u
#define HEADERS_MAX 64

struct mapped {
	struct module module;
	char *path;
	bool runs; /* has code */
	bool read; /* its headers were looked at */
};

static struct mapped *list;
static size_t count, room;

void maps_free(void)
{
	while (count)
		free(list[--count].path);
	free(list);
	list = NULL;
	room = 0;
}

static bool begins_object(uintptr_t at)
{
	char magic[SELFMAG];

	return memory_copy(magic, at, sizeof(magic)) && !memcmp(magic, ELFMAG, SELFMAG);
}

static struct mapped *add(uintptr_t begin, const char *path)
{
	struct mapped *more;

	if (count == room) {
		more = realloc(list, (room ? 2 * room : 256) * sizeof(*list));
		if (!more)
			return NULL;
		list = more;
		room = room ? 2 * room : 256;
	}
	list[count] = (struct mapped){ .module.begin = begin, .path = strdup(path) };
	return list[count].path ? &list[count++] : NULL;
}

/* `7f00-7f01 r-xp 00001000 fd:00 1234   /usr/lib/libx.so` */
static int take_line(char *line)
{
	struct mapped *last = count ? &list[count - 1] : NULL;
	uintptr_t begin, end;
	uint64_t offset;
	char rights[8];
	int at = 0;
	char *path, *gone;

	if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %7s %" SCNx64 " %*s %*s %n", &begin, &end, rights, &offset, &at) <
		    4 ||
	    !at)
		return 0;
	path = line + at;
	path[strcspn(path, "\n")] = 0;
	if (path[0] != '/' && strcmp(path, "[vdso]"))
		return 0;
	gone = strstr(path, " (deleted)");
	if (gone)
		*gone = 0;
	if (!last || strcmp(last->path, path) || (!offset && begins_object(begin))) {
		if (!begins_object(begin))
			return 0; /* a mapped file that is none */
		last = add(begin, path);
	}
	if (!last)
		return -ENOMEM;
	last->module.end = end;
	last->runs |= rights[2] == 'x';
	return 0;
}

int maps_read(void)
{
	char line[4400];
	FILE *file;
	int ret = 0;

	maps_free();
	file = fopen("/proc/self/maps", "re");
	if (!file)
		return -errno;
	while (ret == 0 && fgets(line, sizeof(line), file))
		ret = take_line(line);
	fclose(file);
	return ret;
}

/* Where the object lies by its own headers. */
static void read_headers(struct mapped *mapped, uint32_t id)
{
	struct module *m = &mapped->module;
	ElfW(Phdr) part[HEADERS_MAX];
	ElfW(Addr) lowest = UINTPTR_MAX, header = 0;
	struct build_id build_id;
	uint64_t facts[4];
	ElfW(Ehdr) head;
	int i;

	mapped->read = true;
	m->id = id;
	m->identity = 1;
	if (!memory_copy(&head, m->begin, sizeof(head)) || head.e_phentsize != sizeof(part[0]) ||
	    head.e_phnum > HEADERS_MAX || !memory_copy(part, m->begin + head.e_phoff, head.e_phnum * sizeof(part[0])))
		return;
	for (i = 0; i < head.e_phnum; i++) {
		if (part[i].p_type == PT_LOAD && part[i].p_vaddr < lowest)
			lowest = part[i].p_vaddr;
		if (part[i].p_type == PT_GNU_EH_FRAME)
			header = part[i].p_vaddr;
	}
	if (lowest == UINTPTR_MAX)
		return;
	m->bias = m->begin - (lowest & ~(ElfW(Addr))(PAGE - 1));
	m->unwind_header = header ? m->bias + header : 0;
	module_build_id(m, &build_id);
	facts[0] = m->begin;
	facts[1] = m->unwind_header;
	facts[2] = hash64(mapped->path, strlen(mapped->path));
	facts[3] = hash64(build_id.byte, sizeof(build_id.byte));
	m->identity = hash64(facts, sizeof(facts)) | 1;
}

bool maps_find(uintptr_t pc, struct module *m)
{
	size_t low = 0, high = count;

	while (low < high) {
		size_t middle = (low + high) / 2;
		struct mapped *mapped = &list[middle];

		if (pc < mapped->module.begin) {
			high = middle;
		} else if (pc >= mapped->module.end) {
			low = middle + 1;
		} else {
			if (!mapped->read)
				read_headers(mapped, (uint32_t)middle + 1);
			*m = mapped->module;
			return mapped->runs;
		}
	}
	return false;
}

const char *maps_path(uint32_t id)
{
	return id && id <= count ? list[id - 1].path : "";
}

void maps_build_id(uint32_t id, struct build_id *build_id)
{
	*build_id = (struct build_id){ .bytes = 0 };
	if (id && id <= count)
		module_build_id(&list[id - 1].module, build_id);
}
