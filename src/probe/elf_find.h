/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Dynamic symbols of an ELF file by name: where a uprobe goes, where a variable lies. Stripped files keep them. The file is
 * a job's and may hold anything, also change meanwhile: it is read with pread, every offset is checked. Used by kinds.
 */
#ifndef PROBE_ELF_FIND_H
#define PROBE_ELF_FIND_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** struct elf_find - one symbol that is looked for; the caller sets name and zeroes the rest */
struct elf_find {
	const char *name;
	bool found;
	bool old; /* only a version for old callers (name@VERSION) was found */
	uint64_t value; /* as in the file, without the load address */
	uint64_t bytes;
	uint64_t offset; /* of it in the file; 0 = it is not in any segment of the file */
};

/**
 * elf_find - look for @count symbols at once
 * @base: gets what is to be taken off an address in memory, together with the start of the file's first mapping, to get
 *	values as in the file: value = address - first mapping + @base. May be NULL.
 *
 * Of several versions of a name the default one is taken. Context: tool. Return: how many were found, or -errno with
 * @err: -ENOEXEC not such a file of this machine, -EIO cut off, -ENOMEM.
 */
int elf_find(int fd, struct elf_find *finds, size_t count, uint64_t *base, struct st_err *err);

#endif
