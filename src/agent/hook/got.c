/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Rewriting of GOT slots; see got.h. */
#include "agent/hook/got.h"

#include "safe/clock.h"

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <link.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define PATH_BYTES 1024
#define BUCKETS 256

#if defined(__x86_64__)
#define RELOC_JUMP_SLOT R_X86_64_JUMP_SLOT
#define RELOC_GLOB_DAT R_X86_64_GLOB_DAT
#define RELOC_ABS R_X86_64_64
#elif defined(__aarch64__)
#define RELOC_JUMP_SLOT R_AARCH64_JUMP_SLOT
#define RELOC_GLOB_DAT R_AARCH64_GLOB_DAT
#define RELOC_ABS R_AARCH64_ABS64
#else
#error "GOT slots: this processor's relocation types are not known here"
#endif

/* What the listing keeps of an object. */
struct object {
	uintptr_t base;
	uintptr_t end; /* behind its last mapped byte */
	uintptr_t relro, relro_end; /* read-only after relocation; 0 = none */
	char path[PATH_BYTES];
};

struct listing {
	struct object *objects;
	size_t count, room;
	bool short_of_room;
};

/* The tables of one object's dynamic section. */
struct tables {
	const ElfW(Sym) * symbols;
	const char *strings;
	size_t string_bytes;
	const ElfW(Rela) * plt, *rela;
	size_t plt_count, rela_count;
	const ElfW(Half) * versym;
	const ElfW(Verneed) * verneed;
	size_t verneed_count;
};

struct pass {
	const struct got_want *wants;
	size_t count;
	bool install;
	int16_t bucket[BUCKETS]; /* first want of a hash, -1 = none */
	int16_t *chain; /* next want of the same hash */
	struct got_count now; /* of the object being patched */
};

/* ---- fork ------------------------------------------------------------------------------------------------------------- */

#define LISTING_PAUSE_NS 20000
#define FORK_WAIT_NS 1000000000u

/* Held by our threads for microseconds. No mutex: older C libraries know no wait with an end outside of libpthread. */
static _Atomic uint32_t in_listing;
static __thread bool prepared __attribute__((tls_model("initial-exec")));

static bool listing_enter(uint64_t wait_ns)
{
	const struct timespec pause = { .tv_nsec = LISTING_PAUSE_NS };
	uint64_t begin_ns = clock_mono_ns();
	uint32_t nobody = 0;

	while (!atomic_compare_exchange_strong_explicit(&in_listing, &nobody, 1, memory_order_acquire,
							memory_order_relaxed)) {
		if (clock_mono_ns() - begin_ns > wait_ns)
			return false;
		nanosleep(&pause, NULL);
		nobody = 0;
	}
	return true;
}

static void listing_leave(void)
{
	atomic_store_explicit(&in_listing, 0, memory_order_release);
}

int got_each_object(int (*each)(struct dl_phdr_info *info, size_t size, void *arg), void *arg)
{
	int ret;

	listing_enter(UINT64_MAX);
	ret = dl_iterate_phdr(each, arg);
	listing_leave();
	return ret;
}

void got_fork_prepare(void)
{
	/* a thread of the job that stays inside dl_iterate_phdr keeps ours in there, too: no fork waits for it */
	prepared = listing_enter(FORK_WAIT_NS);
}

void got_fork_parent(void)
{
	if (prepared)
		listing_leave();
	prepared = false;
}

void got_fork_child(void)
{
	got_fork_parent();
}

/* ---- listing ---------------------------------------------------------------------------------------------------------- */

static void measure(struct object *object, const struct dl_phdr_info *info)
{
	int i;

	for (i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *part = &info->dlpi_phdr[i];
		uintptr_t begin = info->dlpi_addr + part->p_vaddr, end = begin + part->p_memsz;

		if (part->p_type == PT_LOAD && end > object->end)
			object->end = end;
		if (part->p_type == PT_GNU_RELRO) {
			object->relro = begin;
			object->relro_end = end;
		}
	}
}

/* Under the loader's lock: copies, nothing else. */
static int list_one(struct dl_phdr_info *info, size_t size, void *arg)
{
	struct listing *listing = arg;
	struct object *object;

	if (listing->count == listing->room || strlen(info->dlpi_name) >= PATH_BYTES) {
		listing->short_of_room = listing->count == listing->room;
		return listing->short_of_room;
	}
	object = &listing->objects[listing->count++];
	*object = (struct object){ .base = info->dlpi_addr };
	strcpy(object->path, info->dlpi_name);
	measure(object, info);
	return 0;
}

static int list_objects(struct listing *listing)
{
	size_t room = 256;

	for (;; room *= 2) {
		*listing = (struct listing){ .objects = malloc(room * sizeof(struct object)), .room = room };
		if (!listing->objects)
			return -ENOMEM;
		got_each_object(list_one, listing);
		if (!listing->short_of_room)
			return 0;
		free(listing->objects);
	}
}

static int read_adds(struct dl_phdr_info *info, size_t size, void *arg)
{
	uint64_t *sum = arg;

	if (size >= offsetof(struct dl_phdr_info, dlpi_subs) + sizeof(info->dlpi_subs))
		*sum = info->dlpi_adds + (info->dlpi_subs << 32);
	return 1;
}

uint64_t got_generation(void)
{
	uint64_t sum = 0;

	got_each_object(read_adds, &sum);
	return sum;
}

/* Objects whose calls are not ours to see: the C library's parts, the loader, and what unwinds through us. */
static bool left_out(const struct object *object)
{
	static const char *const names[] = { "libc.so.",    "libc-2.",	  "ld-linux",	"ld-2.",
					     "libpthread",  "libdl.so.",  "libdl-2.",	"librt.so.",
					     "libgcc_s.so", "linux-vdso", "linux-gate", "libsysTrace.so" };
	const char *base = strrchr(object->path, '/');
	uintptr_t self = (uintptr_t)&left_out;
	size_t i;

	if (self >= object->base && self < object->end)
		return true;
	base = base ? base + 1 : object->path;
	for (i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (!strncmp(base, names[i], strlen(names[i])))
			return true;
	return false;
}

/* ---- one object ------------------------------------------------------------------------------------------------------- */

/* The loader stores absolute addresses in most dynamic sections, offsets in some. */
static const void *address(uintptr_t base, ElfW(Addr) value)
{
	return (const void *)(value < base ? base + value : value);
}

static bool read_tables(uintptr_t base, const ElfW(Dyn) * dyn, struct tables *t)
{
	size_t plt_bytes = 0, rela_bytes = 0, relative = 0;

	*t = (struct tables){ 0 };
	for (; dyn->d_tag != DT_NULL; dyn++) {
		switch (dyn->d_tag) {
		case DT_SYMTAB:
			t->symbols = address(base, dyn->d_un.d_ptr);
			break;
		case DT_STRTAB:
			t->strings = address(base, dyn->d_un.d_ptr);
			break;
		case DT_STRSZ:
			t->string_bytes = dyn->d_un.d_val;
			break;
		case DT_JMPREL:
			t->plt = address(base, dyn->d_un.d_ptr);
			break;
		case DT_PLTRELSZ:
			plt_bytes = dyn->d_un.d_val;
			break;
		case DT_PLTREL:
			if (dyn->d_un.d_val != DT_RELA)
				return false;
			break;
		case DT_RELA:
			t->rela = address(base, dyn->d_un.d_ptr);
			break;
		case DT_RELASZ:
			rela_bytes = dyn->d_un.d_val;
			break;
		case DT_RELACOUNT:
			relative = dyn->d_un.d_val;
			break;
		case DT_VERSYM:
			t->versym = address(base, dyn->d_un.d_ptr);
			break;
		case DT_VERNEED:
			t->verneed = address(base, dyn->d_un.d_ptr);
			break;
		case DT_VERNEEDNUM:
			t->verneed_count = dyn->d_un.d_val;
			break;
		default:
			break;
		}
	}
	t->plt_count = t->plt ? plt_bytes / sizeof(*t->plt) : 0;
	t->rela_count = t->rela ? rela_bytes / sizeof(*t->rela) : 0;
	/* relocations without a symbol come first, and are nearly all of a large library's */
	if (relative <= t->rela_count) {
		t->rela += relative;
		t->rela_count -= relative;
	}
	return t->symbols && t->strings;
}

/* Does the object ask for that version of the symbol? Objects without versions take what they get. */
static bool version_fits(const struct tables *t, uint32_t symbol, const char *version)
{
	const ElfW(Verneed) *need = t->verneed;
	uint16_t index;
	size_t i, j;

	if (!version || !t->versym || !need)
		return true;
	index = t->versym[symbol] & 0x7fff;
	for (i = 0; i < t->verneed_count; i++) {
		const ElfW(Vernaux) *aux = (const void *)((const char *)need + need->vn_aux);

		for (j = 0; j < need->vn_cnt; j++) {
			if ((aux->vna_other & 0x7fff) == index)
				return !strcmp(t->strings + aux->vna_name, version);
			aux = (const void *)((const char *)aux + aux->vna_next);
		}
		need = (const void *)((const char *)need + need->vn_next);
	}
	return index < 2; /* unversioned */
}

static unsigned hash_of(const char *name)
{
	unsigned hash = 5381;

	for (; *name; name++)
		hash = hash * 33 + (unsigned char)*name;
	return hash % BUCKETS;
}

static const struct got_want *find_want(const struct pass *pass, const struct tables *t, uint32_t symbol)
{
	const ElfW(Sym) *sym = &t->symbols[symbol];
	const char *name;
	int i;

	if (sym->st_name >= t->string_bytes || sym->st_shndx != SHN_UNDEF)
		return NULL; /* who defines the function may call it */
	name = t->strings + sym->st_name;
	for (i = pass->bucket[hash_of(name)]; i >= 0; i = pass->chain[i])
		if (!strcmp(pass->wants[i].name, name) && version_fits(t, symbol, pass->wants[i].version))
			return &pass->wants[i];
	return NULL;
}

static bool store(const struct object *object, void **slot, void *value)
{
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), at = (uintptr_t)slot & ~(page - 1);
	bool sealed = (uintptr_t)slot >= (object->relro & ~(page - 1)) &&
		      (uintptr_t)slot < (object->relro_end & ~(page - 1));

	if (sealed && mprotect((void *)at, page, PROT_READ | PROT_WRITE))
		return false;
	/* one aligned store: a caller on another thread sees the old address or the new one */
	__atomic_store_n(slot, value, __ATOMIC_RELEASE);
	if (sealed)
		mprotect((void *)at, page, PROT_READ);
	return true;
}

static bool belongs(const struct got_want *want, const struct object *object)
{
	uintptr_t only = (uintptr_t)want->only;

	return !want->off && (!only || (only >= object->base && only < object->end));
}

static void patch_slot(struct pass *pass, const struct object *object, const struct got_want *want, void **slot)
{
	void *held = __atomic_load_n(slot, __ATOMIC_ACQUIRE);
	bool install = pass->install && belongs(want, object);
	void *to = install ? want->wrapper : want->real;
	/* a slot that was never called through still points into its own object, to the code that binds it */
	bool unbound = (uintptr_t)held >= object->base && (uintptr_t)held < object->end;

	if (held == to) {
		pass->now.already += install || !pass->install;
		return;
	}
	if (install ? held != want->real && !unbound : held != want->wrapper) {
		pass->now.foreign += install;
		return;
	}
	if (store(object, slot, to))
		pass->now.changed++;
	else
		pass->now.refused++;
}

static void patch_relocs(struct pass *pass, const struct object *object, const struct tables *t,
			 const ElfW(Rela) * rela, size_t count)
{
	size_t i;

	for (i = 0; i < count; i++) {
		uint32_t type = ELF64_R_TYPE(rela[i].r_info), symbol = (uint32_t)ELF64_R_SYM(rela[i].r_info);
		const struct got_want *want;

		if (!symbol ||
		    (type != RELOC_JUMP_SLOT && type != RELOC_GLOB_DAT && (type != RELOC_ABS || rela[i].r_addend)))
			continue;
		want = find_want(pass, t, symbol);
		if (want && want->real && want->wrapper)
			patch_slot(pass, object, want, (void **)(object->base + rela[i].r_offset));
	}
}

/* With a reference on the object: relocated, and it stays. */
static void patch_object(struct pass *pass, const struct object *object)
{
	void *handle = dlopen(object->path[0] ? object->path : NULL, RTLD_NOLOAD | RTLD_LAZY);
	struct link_map *map = NULL;
	struct tables tables;

	if (!handle) {
		pass->now.gone++;
		return;
	}
	if (dlinfo(handle, RTLD_DI_LINKMAP, &map) || !map || map->l_addr != object->base) {
		pass->now.gone++; /* another one of that name by now */
	} else if (read_tables(object->base, map->l_ld, &tables)) {
		patch_relocs(pass, object, &tables, tables.plt, tables.plt_count);
		patch_relocs(pass, object, &tables, tables.rela, tables.rela_count);
		pass->now.objects++;
	}
	dlclose(handle);
}

/* ---- all objects ------------------------------------------------------------------------------------------------------ */

static void *look_up(void *scope, const struct got_want *want)
{
	return want->version ? dlvsym(scope, want->name, want->version) : dlsym(scope, want->name);
}

int got_resolve(struct got_want *want)
{
	const ElfW(Sym) *symbol = NULL;
	Dl_info info;

	want->real = look_up(RTLD_DEFAULT, want);
	/* a program that is not position-independent stands in for a function whose address it takes: not the function */
	if (want->real && dladdr1 && dladdr1(want->real, &info, (void **)&symbol, RTLD_DL_SYMENT) && symbol &&
	    symbol->st_shndx == SHN_UNDEF)
		want->real = look_up(RTLD_NEXT, want);
	return want->real ? 0 : -ENOENT;
}

static void add(struct got_count *sum, const struct got_count *one)
{
	sum->objects += one->objects;
	sum->changed += one->changed;
	sum->already += one->already;
	sum->foreign += one->foreign;
	sum->refused += one->refused;
	sum->gone += one->gone;
}

int got_apply(const struct got_want *wants, size_t count, bool install, struct got_count *sum, got_each each, void *arg)
{
	struct pass pass = { .wants = wants, .count = count, .install = install };
	struct listing listing;
	size_t i;
	int ret;

	*sum = (struct got_count){ 0 };
	if (!dlopen || !dlclose || !dlinfo || count > INT16_MAX)
		return -ENOSYS;
	pass.chain = malloc((count ? count : 1) * sizeof(*pass.chain));
	ret = pass.chain ? list_objects(&listing) : -ENOMEM;
	if (ret < 0) {
		free(pass.chain);
		return ret;
	}
	memset(pass.bucket, 0xff, sizeof(pass.bucket));
	for (i = 0; i < count; i++) {
		unsigned hash = hash_of(wants[i].name);

		pass.chain[i] = pass.bucket[hash];
		pass.bucket[hash] = (int16_t)i;
	}
	for (i = 0; i < listing.count; i++) {
		if (left_out(&listing.objects[i]))
			continue;
		pass.now = (struct got_count){ 0 };
		patch_object(&pass, &listing.objects[i]);
		add(sum, &pass.now);
		if (each && (pass.now.changed || pass.now.already || pass.now.foreign || pass.now.refused))
			each(arg, listing.objects[i].path, &pass.now);
	}
	free(listing.objects);
	free(pass.chain);
	return 0;
}
