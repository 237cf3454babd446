/* SPDX-License-Identifier: MulanPSL-2.0 */
/* See op_family.h. Names are compared by their letters alone, in lower case, after the library's prefix. */
#include "wire/op_family.h"

#include <string.h>

static const char *const base_names[OP_FAMILY_COUNT] = {
	[OP_UNKNOWN] = "",
	[OP_ALL_REDUCE] = "all_reduce",
	[OP_ALL_GATHER] = "all_gather",
	[OP_REDUCE_SCATTER] = "reduce_scatter",
	[OP_BROADCAST] = "broadcast",
	[OP_REDUCE] = "reduce",
	[OP_GATHER] = "gather",
	[OP_SCATTER] = "scatter",
	[OP_ALL_TO_ALL] = "all_to_all",
	[OP_BARRIER] = "barrier",
	[OP_SEND] = "send",
	[OP_RECV] = "recv",
	[OP_BATCH_P2P] = "batch_isend_irecv",
};

/* Stems: what is left of a name after its prefix and with its letters alone begins with one of these ... */
static const struct stem {
	const char *text;
	enum op_family family;
} stems[] = {
	/* longer ones before their own beginnings */
	{ "batchisendirecv", OP_BATCH_P2P },
	{ "batchsendrecv", OP_BATCH_P2P },
	{ "sendrecv", OP_BATCH_P2P },
	{ "allreduce", OP_ALL_REDUCE },
	{ "allgather", OP_ALL_GATHER },
	{ "alltoall", OP_ALL_TO_ALL },
	{ "reducescatter", OP_REDUCE_SCATTER },
	{ "reduce", OP_REDUCE },
	{ "broadcast", OP_BROADCAST },
	{ "bcast", OP_BROADCAST },
	{ "monitoredbarrier", OP_BARRIER },
	{ "barrier", OP_BARRIER },
	{ "gather", OP_GATHER },
	{ "scatter", OP_SCATTER },
	{ "isend", OP_SEND },
	{ "send", OP_SEND },
	{ "irecv", OP_RECV },
	{ "receive", OP_RECV },
	{ "recv", OP_RECV },
};

/* ... and goes on with nothing but these: other words (`reduce_lr`, `scatter_add`) are no communication. */
static const char *const tails[] = {
	"base", "coalesced", "intotensor", "inplace", "list",	   "multigpu", "object",
	"out",	"single",    "tensor",	   "async",   "anysource", "vc",       "v",
};

static const char *const prefixes[] = { "hccl", "nccl", "rccl", "lccl", "mccl", "gloo", "mpi" };

#define NAME_MAX_LETTERS 96

/* Letters in lower case; what stands after the last ':' only. Return: how many. */
static size_t letters_of(const char *name, size_t len, char *out)
{
	size_t i, n = 0;

	for (i = 0; i < len && name[i] != '('; i++) {
		char c = name[i];

		if (c == ':')
			n = 0;
		else if (c >= 'A' && c <= 'Z')
			c = (char)(c - 'A' + 'a');
		if (c >= 'a' && c <= 'z' && n < NAME_MAX_LETTERS)
			out[n++] = c;
	}
	out[n] = 0;
	return n;
}

static bool skip(const char **text, const char *word)
{
	size_t len = strlen(word);

	if (strncmp(*text, word, len))
		return false;
	*text += len;
	return true;
}

static bool only_tails(const char *text)
{
	size_t i;

	while (*text) {
		for (i = 0; i < sizeof(tails) / sizeof(tails[0]); i++)
			if (skip(&text, tails[i]))
				break;
		if (i == sizeof(tails) / sizeof(tails[0]))
			return false;
	}
	return true;
}

enum op_family op_family_of(const char *name, size_t len)
{
	char letters[NAME_MAX_LETTERS + 1];
	const char *rest = letters;
	bool kernel = false;
	size_t i;

	if (!letters_of(name, len, letters))
		return OP_UNKNOWN;
	for (i = 0; i < sizeof(prefixes) / sizeof(prefixes[0]); i++)
		if (skip(&rest, prefixes[i])) {
			/* a kernel's name goes on with algorithm, protocol, function and type */
			kernel = skip(&rest, "devkernel") || skip(&rest, "kernel");
			break;
		}
	for (i = 0; i < sizeof(stems) / sizeof(stems[0]); i++)
		if (skip(&rest, stems[i].text))
			return kernel || only_tails(rest) ? stems[i].family : OP_UNKNOWN;
	return OP_UNKNOWN;
}

const char *op_family_name(enum op_family family)
{
	return (unsigned)family < OP_FAMILY_COUNT ? base_names[family] : "";
}
