/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Names for addresses; see symbols.h. Symbol tables and lines are read by libdw. */
#include "trace/symbols.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#ifdef HAVE_DW
#include <elfutils/libdwfl.h>
#endif

#define PATH_BYTES 4352

struct symbols_file {
	struct symbols_file *next;
	struct symbols *owner;
	char *path, *build_id;
	char problem[PATH_BYTES]; /* "" = none so far */
	bool tried;
#ifdef HAVE_DW
	Dwfl *dwfl;
	Dwfl_Module *module;
	Dwarf_Addr bias;
#endif
};

struct text {
	struct text *next;
	char at[];
};

struct symbols {
	const char *const *dirs;
	size_t dir_count;
	bool given_only;
	struct symbols_file *files;
	struct text *texts; /* names in their written form */
	char *(*demangle)(const char *, char *, size_t *, int *);
};

struct symbols *symbols_new(const char *const *dirs, size_t count)
{
	struct symbols *s = calloc(1, sizeof(*s));
	void *library;

	if (!s)
		return NULL;
	s->dirs = dirs;
	s->dir_count = count;
	library = dlopen("libstdc++.so.6", RTLD_LAZY); /* for C++ names; never closed */
	if (library)
		*(void **)&s->demangle = dlsym(library, "__cxa_demangle");
	return s;
}

void symbols_given_only(struct symbols *s)
{
	s->given_only = true;
}

void symbols_free(struct symbols *s)
{
	if (!s)
		return;
	while (s->files) {
		struct symbols_file *file = s->files;

		s->files = file->next;
#ifdef HAVE_DW
		if (file->dwfl)
			dwfl_end(file->dwfl);
#endif
		free(file->path);
		free(file->build_id);
		free(file);
	}
	while (s->texts) {
		struct text *text = s->texts;

		s->texts = text->next;
		free(text);
	}
	free(s);
}

struct symbols_file *symbols_file(struct symbols *s, const char *path, const char *build_id)
{
	struct symbols_file *file;

	for (file = s->files; file; file = file->next)
		if (!strcmp(file->path, path) && !strcmp(file->build_id, build_id))
			return file;
	file = calloc(1, sizeof(*file));
	if (!file)
		return NULL;
	file->path = strdup(path);
	file->build_id = strdup(build_id);
	if (!file->path || !file->build_id) {
		free(file->path);
		free(file->build_id);
		free(file);
		return NULL;
	}
	file->owner = s;
	file->next = s->files;
	return s->files = file;
}

void symbols_report(const struct symbols *s, void (*line)(void *arg, const char *text), void *arg)
{
	const struct symbols_file *file;

	for (file = s->files; file; file = file->next)
		if (file->problem[0])
			line(arg, file->problem);
}

#ifdef HAVE_DW

static char *debug_path; /* NULL: elfutils' own list of places */

static const Dwfl_Callbacks callbacks = {
	.find_elf = dwfl_build_id_find_elf,
	.find_debuginfo = dwfl_standard_find_debuginfo,
	.section_address = dwfl_offline_section_address,
	.debuginfo_path = &debug_path,
};

/* Is it the build that was recorded? */
static bool same_build(struct symbols_file *file, Dwfl_Module *module)
{
	const unsigned char *bits;
	GElf_Addr where;
	int i, bytes = dwfl_module_build_id(module, &bits, &where);
	char hex[129];

	if (!file->build_id[0])
		return true;
	for (i = 0; i < bytes && i < 64; i++)
		snprintf(hex + 2 * i, 3, "%02x", bits[i]);
	return bytes > 0 && !strcmp(hex, file->build_id);
}

/* Return: it is the file. A file of another build is noted, any other failure is none: it need not be there. */
static bool try_path(struct symbols_file *file, const char *path)
{
	GElf_Addr bias;
	struct stat st;
	Dwfl *dwfl;

	if (stat(path, &st) || !S_ISREG(st.st_mode) || access(path, R_OK))
		return false;
	dwfl = dwfl_begin(&callbacks);
	if (!dwfl)
		return false;
	dwfl_report_begin(dwfl);
	file->module = dwfl_report_offline(dwfl, path, path, -1);
	dwfl_report_end(dwfl, NULL, NULL);
	if (file->module && !same_build(file, file->module)) {
		snprintf(file->problem, sizeof(file->problem),
			 "%s is another build than the one that ran (build id %s)", path, file->build_id);
	} else if (file->module && dwfl_module_getelf(file->module, &bias)) {
		file->problem[0] = 0;
		file->bias = bias;
		file->dwfl = dwfl;
		return true;
	}
	dwfl_end(dwfl);
	file->module = NULL;
	return false;
}

static bool try_by_id(struct symbols_file *file, const char *dir, const char *format)
{
	char path[PATH_BYTES];

	if (strlen(file->build_id) < 3)
		return false;
	snprintf(path, sizeof(path), format, dir, file->build_id, file->build_id + 2);
	return try_path(file, path);
}

static bool try_directory(struct symbols_file *file, const char *dir)
{
	static const char *const forms[] = { "%s/.build-id/%.2s/%s.debug", "%s/.build-id/%.2s/%s", "%s/%.2s/%s.debug",
					     "%s/%.2s%s/debuginfo", "%s/%.2s%s/executable" };
	const char *base = strrchr(file->path, '/');
	char path[PATH_BYTES];
	size_t i;

	for (i = 0; i < sizeof(forms) / sizeof(forms[0]); i++)
		if (try_by_id(file, dir, forms[i]))
			return true;
	snprintf(path, sizeof(path), "%s/%s.debug", dir, base ? base + 1 : file->path);
	if (try_path(file, path))
		return true;
	snprintf(path, sizeof(path), "%s/%s", dir, base ? base + 1 : file->path);
	if (try_path(file, path))
		return true;
	snprintf(path, sizeof(path), "%s/%s", dir, file->path);
	return try_path(file, path);
}

static void open_file(struct symbols_file *file)
{
	size_t i;

	file->tried = true;
	for (i = 0; i < file->owner->dir_count; i++)
		if (try_directory(file, file->owner->dirs[i]))
			return;
	if (!file->owner->given_only &&
	    (try_by_id(file, "/usr/lib/debug", "%s/.build-id/%.2s/%s.debug") || try_path(file, file->path)))
		return;
	if (!file->problem[0] && file->path[0] != '[') /* the kernel's part has no file */
		snprintf(file->problem, sizeof(file->problem),
			 "%s is not here (build id %s): give --symbols a directory that has it", file->path,
			 file->build_id[0] ? file->build_id : "unknown");
}

static const char *keep(struct symbols *s, const char *name, size_t len)
{
	struct text *text = malloc(sizeof(*text) + len + 1);

	if (!text)
		return name;
	memcpy(text->at, name, len);
	text->at[len] = 0;
	text->next = s->texts;
	s->texts = text;
	return text->at;
}

/* C++ names as they are written, others without the version of the symbol. */
static const char *written_form(struct symbols *s, const char *name)
{
	const char *version = strchr(name, '@');
	char *form = NULL;
	int status = -1;

	if (s->demangle && name[0] == '_' && name[1] == 'Z')
		form = s->demangle(name, NULL, NULL, &status);
	if (form && !status)
		name = keep(s, form, strlen(form));
	else if (version)
		name = keep(s, name, (size_t)(version - name));
	free(form);
	return name;
}

bool symbols_find(struct symbols_file *file, uint64_t address, struct symbol *symbol)
{
	Dwarf_Addr at = address + file->bias;
	Dwfl_Line *line;
	GElf_Off offset;
	GElf_Sym sym;
	const char *name;
	int number = 0;

	*symbol = (struct symbol){ 0 };
	if (!file->tried)
		open_file(file);
	if (!file->module)
		return false;
	at = address + file->bias;
	name = dwfl_module_addrinfo(file->module, at, &offset, &sym, NULL, NULL, NULL);
	/* the symbol before is not it, where a table was stripped to what is exported */
	if (name && (offset < sym.st_size || !sym.st_size)) {
		symbol->function = written_form(file->owner, name);
		symbol->offset = offset;
	}
	line = dwfl_module_getsrc(file->module, at);
	if (line) {
		symbol->file = dwfl_lineinfo(line, NULL, &number, NULL, NULL, NULL);
		symbol->line = number > 0 ? (unsigned int)number : 0;
	}
	return symbol->function || symbol->file;
}

#else

bool symbols_find(struct symbols_file *file, uint64_t address, struct symbol *symbol)
{
	*symbol = (struct symbol){ 0 };
	if (!file->tried)
		snprintf(file->problem, sizeof(file->problem), "%s: this build has no libdw: addresses stay numbers",
			 file->path);
	file->tried = true;
	return false;
}

#endif
