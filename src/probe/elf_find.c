/* SPDX-License-Identifier: MulanPSL-2.0 */
/* See elf_find.h. 64 bit, of this machine's byte order. */
#include "probe/elf_find.h"

#include "safe/rawio.h"

#include <elf.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define TABLE_MAX (256u << 20) /* bytes of one table: the largest libraries have some ten MiB of names */
#define HIDDEN 0x8000u /* of a version: not for new callers */

struct image {
	int fd;
	Elf64_Ehdr head;
	Elf64_Phdr *segments;
	Elf64_Shdr *sections;
	size_t section_count;
	Elf64_Sym *symbols;
	size_t symbol_count;
	char *names;
	size_t names_bytes;
	uint16_t *versions; /* one per symbol; NULL = none */
};

/* Part of the file in memory of our own, with a NUL behind it. */
static void *read_part(int fd, uint64_t offset, uint64_t bytes)
{
	uint8_t *data;

	if (bytes > TABLE_MAX || offset > INT64_MAX - bytes) {
		errno = EFBIG;
		return NULL;
	}
	data = malloc(bytes + 1);
	if (!data)
		return NULL;
	if (sys_pread_all(fd, data, bytes, offset) != (ssize_t)bytes) {
		free(data);
		errno = EIO;
		return NULL;
	}
	data[bytes] = 0;
	return data;
}

static int read_headers(struct image *image)
{
	const Elf64_Ehdr *head = &image->head;

	if (sys_pread_all(image->fd, &image->head, sizeof(image->head), 0) != (ssize_t)sizeof(image->head) ||
	    memcmp(head->e_ident, ELFMAG, SELFMAG) != 0 || head->e_ident[EI_CLASS] != ELFCLASS64 ||
	    head->e_ident[EI_DATA] != (__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? ELFDATA2LSB : ELFDATA2MSB) ||
	    head->e_phentsize != sizeof(Elf64_Phdr) || head->e_shentsize != sizeof(Elf64_Shdr) || !head->e_shnum)
		return -ENOEXEC;
	image->segments = read_part(image->fd, head->e_phoff, (uint64_t)head->e_phnum * sizeof(Elf64_Phdr));
	image->sections = read_part(image->fd, head->e_shoff, (uint64_t)head->e_shnum * sizeof(Elf64_Shdr));
	image->section_count = head->e_shnum;
	return image->segments && image->sections ? 0 : -errno;
}

static int read_tables(struct image *image)
{
	const Elf64_Shdr *symbols = NULL, *versions = NULL, *names;

	for (size_t i = 0; i < image->section_count; i++) {
		if (image->sections[i].sh_type == SHT_DYNSYM && !symbols)
			symbols = &image->sections[i];
		if (image->sections[i].sh_type == SHT_GNU_versym && !versions)
			versions = &image->sections[i];
	}
	if (!symbols)
		return 0; /* a static program */
	if (symbols->sh_link >= image->section_count)
		return -ENOEXEC;
	names = &image->sections[symbols->sh_link];
	image->symbols = read_part(image->fd, symbols->sh_offset, symbols->sh_size);
	image->symbol_count = symbols->sh_size / sizeof(Elf64_Sym);
	image->names = read_part(image->fd, names->sh_offset, names->sh_size);
	image->names_bytes = names->sh_size;
	if (versions && versions->sh_size / sizeof(uint16_t) >= image->symbol_count)
		image->versions = read_part(image->fd, versions->sh_offset, versions->sh_size);
	return image->symbols && image->names ? 0 : -errno;
}

static uint64_t file_offset(const struct image *image, uint64_t value)
{
	for (size_t i = 0; i < image->head.e_phnum; i++) {
		const Elf64_Phdr *segment = &image->segments[i];

		if (segment->p_type == PT_LOAD && value >= segment->p_vaddr &&
		    value - segment->p_vaddr < segment->p_filesz)
			return value - segment->p_vaddr + segment->p_offset;
	}
	return 0;
}

static uint64_t first_address(const struct image *image)
{
	for (size_t i = 0; i < image->head.e_phnum; i++)
		if (image->segments[i].p_type == PT_LOAD)
			return image->segments[i].p_vaddr - image->segments[i].p_offset;
	return 0;
}

static int look(const struct image *image, struct elf_find *finds, size_t count)
{
	int found = 0;

	for (size_t i = 0; i < image->symbol_count; i++) {
		const Elf64_Sym *symbol = &image->symbols[i];
		bool old = image->versions && (image->versions[i] & HIDDEN);

		if (symbol->st_shndx == SHN_UNDEF || !symbol->st_value || symbol->st_name >= image->names_bytes)
			continue;
		for (size_t k = 0; k < count; k++) {
			struct elf_find *find = &finds[k];

			if ((find->found && !(find->old && !old)) ||
			    strcmp(image->names + symbol->st_name, find->name) != 0)
				continue;
			found += !find->found;
			find->found = true;
			find->old = old;
			find->value = symbol->st_value;
			find->bytes = symbol->st_size;
			find->offset = file_offset(image, symbol->st_value);
		}
	}
	return found;
}

int elf_find(int fd, struct elf_find *finds, size_t count, uint64_t *base, struct st_err *err)
{
	struct image image = { .fd = fd };
	int ret = read_headers(&image);

	if (ret == 0)
		ret = read_tables(&image);
	if (ret == 0)
		ret = look(&image, finds, count);
	if (ret < 0)
		err_set(err, ret, "not a program or library of this machine that can be read: %s", strerror(-ret));
	else if (base)
		*base = first_address(&image);
	free(image.segments);
	free(image.sections);
	free(image.symbols);
	free(image.names);
	free(image.versions);
	return ret;
}
