/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * See comm.h. Everything here runs inside the job's call with the GIL held, so only functions of the interpreter are used
 * that cannot run Python code on the objects they get: look-ups of interned texts in module dictionaries, walks over
 * dictionaries by position (no hash, no comparison), and C getters of exact torch.Tensor objects.
 */
#include "agent/python/comm.h"

#include "agent/agent.h"
#include "agent/python/python_api.h"
#include "safe/clock.h"
#include "wire/op_family.h"

#include <stdio.h>
#include <string.h>
#include <sys/types.h>

/* Where a call's arguments are: positions in the signatures of torch 1.8 ... 2.x, which agree. */
enum form { FORM_NONE, FORM_TENSOR, FORM_LIST, FORM_P2P };

static const struct comm_op {
	const char *name;
	enum form form;
	int8_t tensor_at;
	int8_t group_at;
	const char *tensor; /* parameter's name; the group's is always `group` */
} ops[] = {
	{ "all_reduce", FORM_TENSOR, 0, 2, "tensor" },
	{ "all_reduce_coalesced", FORM_LIST, 0, 2, "tensors" },
	{ "all_reduce_multigpu", FORM_LIST, 0, 2, "tensor_list" },
	{ "all_gather", FORM_TENSOR, 1, 2, "tensor" },
	{ "all_gather_into_tensor", FORM_TENSOR, 1, 2, "input_tensor" },
	{ "_all_gather_base", FORM_TENSOR, 1, 2, "input_tensor" },
	{ "all_gather_coalesced", FORM_LIST, 1, 2, "input_tensor_list" },
	{ "all_gather_multigpu", FORM_LIST, 1, 2, "input_tensor_list" },
	{ "all_gather_object", FORM_NONE, 0, 2, NULL },
	{ "reduce_scatter", FORM_TENSOR, 0, 3, "output" },
	{ "reduce_scatter_tensor", FORM_TENSOR, 0, 3, "output" },
	{ "_reduce_scatter_base", FORM_TENSOR, 0, 3, "output" },
	{ "reduce_scatter_multigpu", FORM_LIST, 0, 3, "output_tensor_list" },
	{ "broadcast", FORM_TENSOR, 0, 2, "tensor" },
	{ "broadcast_multigpu", FORM_LIST, 0, 2, "tensor_list" },
	{ "broadcast_object_list", FORM_NONE, 0, 2, NULL },
	{ "reduce", FORM_TENSOR, 0, 3, "tensor" },
	{ "reduce_multigpu", FORM_LIST, 0, 3, "tensor_list" },
	{ "gather", FORM_TENSOR, 0, 3, "tensor" },
	{ "gather_object", FORM_NONE, 0, 3, NULL },
	{ "scatter", FORM_TENSOR, 0, 3, "tensor" },
	{ "scatter_object_list", FORM_NONE, 0, 3, NULL },
	{ "all_to_all", FORM_LIST, 1, 2, "input_tensor_list" },
	{ "all_to_all_single", FORM_TENSOR, 1, 4, "input" },
	{ "barrier", FORM_NONE, 0, 0, NULL },
	{ "monitored_barrier", FORM_NONE, 0, 0, NULL },
	{ "send", FORM_TENSOR, 0, 2, "tensor" },
	{ "recv", FORM_TENSOR, 0, 2, "tensor" },
	{ "isend", FORM_TENSOR, 0, 2, "tensor" },
	{ "irecv", FORM_TENSOR, 0, 2, "tensor" },
	{ "send_object_list", FORM_NONE, 0, 2, NULL },
	{ "recv_object_list", FORM_NONE, 0, 2, NULL },
	{ "batch_isend_irecv", FORM_P2P, 0, -1, "p2p_op_list" },
};
#define OP_COUNT (sizeof(ops) / sizeof(ops[0]))

/* What is looked up again and again, interned once under the GIL; and torch's own objects, referenced for good. */
enum key {
	KEY_GROUP,
	KEY_TENSOR,
	KEY_DTYPE,
	KEY_NUMEL,
	KEY_RANK,
	KEY_PG_NAMES,
	KEY_PG_RANKS,
	KEY_P2POP,
	KEY_HAS_FUNCTION,
	KEY_TENSOR_TYPE,
	KEY_PARAMETER_TYPE,
	KEY_MODULE_C10D,
	KEY_MODULE_C,
	KEY_MODULE_TORCH,
	KEY_MODULE_PARAMETER,
	KEY_COUNT
};
static const char *const key_texts[KEY_COUNT] = {
	[KEY_GROUP] = "group",
	[KEY_TENSOR] = "tensor",
	[KEY_DTYPE] = "dtype",
	[KEY_NUMEL] = "numel",
	[KEY_RANK] = "rank",
	[KEY_PG_NAMES] = "_pg_names",
	[KEY_PG_RANKS] = "_pg_group_ranks",
	[KEY_P2POP] = "P2POp",
	[KEY_HAS_FUNCTION] = "_has_torch_function_unary",
	[KEY_TENSOR_TYPE] = "Tensor",
	[KEY_PARAMETER_TYPE] = "Parameter",
	[KEY_MODULE_C10D] = "torch.distributed.distributed_c10d",
	[KEY_MODULE_C] = "torch._C",
	[KEY_MODULE_TORCH] = "torch",
	[KEY_MODULE_PARAMETER] = "torch.nn.parameter",
};

#define GROUPS 256u
#define DTYPES 64u

static struct {
	struct pyobj *key[KEY_COUNT];
	struct pyobj *c10d; /* __dict__ of torch.distributed.distributed_c10d */
	struct pyobj *p2pop, *tensor_type, *parameter_type, *has_function;
	/* groups by the address of torch's object, checked against torch's own table at each use */
	struct comm_group {
		const struct pyobj *object;
		ssize_t at; /* position in _pg_names */
		uint32_t name;
		uint32_t collectives; /* calls so far */
		uint32_t p2p;
		uint32_t note; /* pool name of what was said about it */
		const struct pyobj *ranks; /* its entry of _pg_group_ranks, NULL = it had none */
		ssize_t ranks_at, size; /* position there, ranks in it */
	} groups[GROUPS];
	uint32_t group_count;
	uint32_t evict; /* next to go when the table is full */
	struct {
		const struct pyobj *object; /* lives as long as torch */
		uint32_t name;
	} dtypes[DTYPES];
	const struct pool_header *head; /* the pool whose names are meant */
	bool hinted;
} comm;

static const struct comm_op *op_find(const char *name)
{
	size_t i;

	for (i = 0; i < OP_COUNT; i++)
		if (!strcmp(ops[i].name, name))
			return &ops[i];
	return NULL;
}

bool comm_knows(const char *op)
{
	return op_find(op) != NULL;
}

/* op_find() with a memory: the same few functions come again and again. */
static const struct comm_op *op_of(const struct stage_fn *fn)
{
	static struct {
		const struct stage_fn *fn;
		const struct comm_op *op;
	} seen[64];
	size_t at = ((uintptr_t)fn >> 4) % 64;

	if (seen[at].fn != fn) {
		seen[at].op = fn->op ? op_find(fn->op) : NULL;
		seen[at].fn = fn;
	}
	return seen[at].op;
}

/* ---- torch's objects ------------------------------------------------------------------------------------------------ */

static struct pyobj *module_dict(enum key name)
{
	struct pyobj *module = py.PyDict_GetItemWithError(py.PyImport_GetModuleDict(), comm.key[name]);

	return module ? py.PyModule_GetDict(module) : NULL;
}

static struct pyobj *module_item(enum key module, enum key name)
{
	struct pyobj *dict = module_dict(module);
	struct pyobj *item = dict ? py.PyDict_GetItemWithError(dict, comm.key[name]) : NULL;

	if (item)
		py.Py_IncRef(item); /* for good: compared by address from now on */
	return item;
}

static bool keys_make(void)
{
	int i;

	for (i = 0; i < KEY_COUNT; i++) {
		if (!comm.key[i])
			comm.key[i] = py.PyUnicode_InternFromString(key_texts[i]);
		if (!comm.key[i])
			return false;
	}
	return true;
}

/* Looked for until torch.distributed is there; the rest of torch is imported by then. */
static bool torch_find(void)
{
	if (comm.c10d)
		return true;
	if (!keys_make())
		return false;
	comm.c10d = module_dict(KEY_MODULE_C10D);
	if (!comm.c10d)
		return false;
	comm.p2pop = module_item(KEY_MODULE_C10D, KEY_P2POP);
	comm.has_function = module_item(KEY_MODULE_C, KEY_HAS_FUNCTION);
	comm.tensor_type = module_item(KEY_MODULE_TORCH, KEY_TENSOR_TYPE);
	comm.parameter_type = module_item(KEY_MODULE_PARAMETER, KEY_PARAMETER_TYPE);
	return true;
}

/* An argument by position or name, borrowed; NULL when it was not given. */
static struct pyobj *argument(struct pyobj *const *args, size_t count, struct pyobj *kwnames, int at, const char *name,
			      struct pyobj *interned)
{
	ssize_t i, names;

	if (at >= 0 && (size_t)at < count)
		return args[at];
	if (!kwnames || !name)
		return NULL;
	names = py.PyTuple_Size(kwnames);
	for (i = 0; i < names; i++) {
		struct pyobj *key = py.PyTuple_GetItem(kwnames, i);

		if (key == interned || !py.PyUnicode_CompareWithASCIIString(key, name))
			return args[count + (size_t)i];
	}
	return NULL;
}

static struct pyobj *first_of(struct pyobj *list)
{
	if (list->type == py.PyList_Type)
		return py.PyList_Size(list) > 0 ? py.PyList_GetItem(list, 0) : NULL;
	if (list->type == py.PyTuple_Type)
		return py.PyTuple_Size(list) > 0 ? py.PyTuple_GetItem(list, 0) : NULL;
	return NULL;
}

static uint32_t intern_object(struct pyobj *text, size_t skip)
{
	ssize_t len = 0;
	const char *utf8 = text && text->type == py.PyUnicode_Type ? py.PyUnicode_AsUTF8AndSize(text, &len) : NULL;

	return utf8 && (size_t)len > skip ? pool_intern(&agent.pool, utf8 + skip, (size_t)len - skip) : 0;
}

/* ---- tensors -------------------------------------------------------------------------------------------------------- */

static uint32_t dtype_name(struct pyobj *dtype)
{
	size_t i, at = ((uintptr_t)dtype >> 4) % DTYPES;
	struct pyobj *text;

	for (i = 0; i < DTYPES; i++, at = (at + 1) % DTYPES) {
		if (comm.dtypes[at].object == dtype)
			return comm.dtypes[at].name;
		if (comm.dtypes[at].object)
			continue;
		text = py.PyObject_Repr(dtype); /* C code of torch's: "torch.float32" */
		if (!text)
			return 0;
		comm.dtypes[at].name = intern_object(text, strlen("torch."));
		comm.dtypes[at].object = dtype;
		py.Py_DecRef(text);
		return comm.dtypes[at].name;
	}
	return 0;
}

/* Exact tensors and parameters without a torch function mode: their getters are C code then. */
static bool plain_tensor(struct pyobj *tensor)
{
	struct pyobj *answer;
	bool plain;

	if (!comm.has_function || !tensor || (tensor->type != comm.tensor_type && tensor->type != comm.parameter_type))
		return false;
	answer = py.PyObject_CallFunctionObjArgs(comm.has_function, tensor, NULL);
	plain = answer == py._Py_FalseStruct;
	if (answer)
		py.Py_DecRef(answer);
	return plain;
}

static void read_tensor(struct pyobj *tensor, struct comm_call *call)
{
	struct pyobj *value;
	long count;

	if (!plain_tensor(tensor))
		return;
	value = py.PyObject_GetAttr(tensor, comm.key[KEY_DTYPE]);
	if (value) {
		call->dtype = dtype_name(value);
		py.Py_DecRef(value);
	}
	value = py.PyObject_CallMethodObjArgs(tensor, comm.key[KEY_NUMEL], NULL);
	if (value) {
		count = py.PyLong_AsLong(value);
		call->count = count > 0 ? (uint64_t)count : 0;
		py.Py_DecRef(value);
	}
}

/* An attribute of a P2POp, new reference. Its class keeps them in the instance's dictionary. */
static struct pyobj *p2p_attr(struct pyobj *op, enum key key)
{
	return op && op->type == comm.p2pop ? py.PyObject_GenericGetAttr(op, comm.key[key]) : NULL;
}

/* ---- groups --------------------------------------------------------------------------------------------------------- */

/* A dictionary's entry by its key object's identity; position in *at. Return: the value, borrowed. */
static struct pyobj *dict_find(struct pyobj *dict, const struct pyobj *object, ssize_t *at)
{
	struct pyobj *key, *value;
	ssize_t next = 0;

	if (!dict || dict->type != py.PyDict_Type)
		return NULL;
	for (*at = 0; py.PyDict_Next(dict, &next, &key, &value); *at = next)
		if (key == object)
			return value;
	return NULL;
}

/* Ranks as "0-3,8-14:2" (every second), cut with "..." where they do not fit. */
static size_t ranks_text(struct pyobj *ranks, char *out, size_t room)
{
	struct pyobj *key, *value;
	long first = -1, last = -1, stride = 0;
	ssize_t next = 0;
	size_t used = 0;
	bool more;

	do {
		long rank = 0;

		more = py.PyDict_Next(ranks, &next, &key, &value);
		if (more)
			rank = py.PyLong_AsLong(key);
		if (more && first >= 0 && rank > last && (!stride || rank - last == stride)) {
			stride = rank - last;
			last = rank;
			continue;
		}
		if (first >= 0) {
			if (used + 80 > room)
				return used + (size_t)snprintf(out + used, room - used, ",...");
			used += (size_t)snprintf(out + used, room - used, "%s%ld", used ? "," : "", first);
			if (last - first == stride && stride > 1) /* two ranks are no series */
				used += (size_t)snprintf(out + used, room - used, ",%ld", last);
			else if (last > first)
				used += (size_t)snprintf(out + used, room - used, "-%ld", last);
			if (stride > 1 && last - first > stride)
				used += (size_t)snprintf(out + used, room - used, ":%ld", stride);
		}
		first = last = rank;
		stride = 0;
	} while (more);
	return used;
}

/* Says who is in a group, so that files of several ranks can be joined: once, and again when torch made it anew of others. */
static void note_group(struct comm_group *group)
{
	struct pyobj *all = py.PyDict_GetItemWithError(comm.c10d, comm.key[KEY_PG_RANKS]);
	struct rec_note note = { .head = { .bytes = sizeof(note), .type = REC_NOTE } };
	struct pyobj *ranks;
	char text[900];
	size_t used;
	ssize_t at;

	ranks = dict_find(all, group->object, &at);
	group->ranks = NULL;
	if (!ranks || ranks->type != py.PyDict_Type)
		return;
	group->ranks = ranks;
	group->ranks_at = at;
	group->size = py.PyDict_Size(ranks);
	used = (size_t)snprintf(text, sizeof(text), "group %s: ranks ", pool_name(agent.pool.head, group->name));
	if (used > sizeof(text) / 2)
		return;
	used += ranks_text(ranks, text + used, sizeof(text) - used);
	note.head.step = (uint32_t)atomic_load_explicit(&agent.pool.head->step, memory_order_relaxed);
	note.at_ns = clock_mono_ns();
	note.text = pool_intern(&agent.pool, text, used);
	if (note.text == group->note)
		return;
	group->note = note.text;
	pool_put(&agent.pool, &note, sizeof(note), POOL_SRC_NOTE);
}

/* The default group's rank() and size, once: they outrank the environment. torch enters that group first. */
static void hint_rank(struct pyobj *names)
{
	struct pyobj *object, *ranks, *rank, *value;
	ssize_t at = 0;
	long number;

	if (comm.hinted || !py.PyDict_Next(names, &at, &object, &value))
		return;
	comm.hinted = true;
	ranks = dict_find(py.PyDict_GetItemWithError(comm.c10d, comm.key[KEY_PG_RANKS]), object, &at);
	rank = py.PyObject_CallMethodObjArgs(object, comm.key[KEY_RANK], NULL); /* a bound C++ function */
	if (!rank)
		return;
	number = py.PyLong_AsLong(rank);
	py.Py_DecRef(rank);
	if (number >= 0 && ranks && ranks->type == py.PyDict_Type)
		agent_rank_hint((uint32_t)number, (uint32_t)py.PyDict_Size(ranks));
}

static struct comm_group *group_new(const struct pyobj *object, ssize_t at, uint32_t name)
{
	struct comm_group *group;
	uint32_t i;

	/* torch made an object for this name again (destroyed and initialised once more): the same group to us */
	for (i = 0; i < comm.group_count; i++)
		if (comm.groups[i].name == name) {
			comm.groups[i].object = object;
			comm.groups[i].at = at;
			note_group(&comm.groups[i]);
			return &comm.groups[i];
		}
	if (comm.group_count < GROUPS)
		group = &comm.groups[comm.group_count++];
	else /* jobs that make groups without end: a forgotten one counts from 1 again */
		group = &comm.groups[comm.evict++ % GROUPS];
	*group = (struct comm_group){ .object = object, .at = at, .name = name };
	note_group(group);
	return group;
}

/* Has it the ranks that were told? A group made anew may have the old one's name, address and place among the names. */
static bool ranks_hold(const struct comm_group *group)
{
	struct pyobj *all, *key, *value;
	ssize_t next = group->ranks_at;

	if (!group->ranks)
		return true;
	all = py.PyDict_GetItemWithError(comm.c10d, comm.key[KEY_PG_RANKS]);
	return all && all->type == py.PyDict_Type && py.PyDict_Next(all, &next, &key, &value) && key == group->object &&
	       value == group->ranks && py.PyDict_Size(value) == group->size;
}

/* Is the group still the one torch means by that object? Objects die and addresses come again. */
static bool group_holds(const struct comm_group *group, struct pyobj *names)
{
	struct pyobj *key, *value;
	ssize_t next = group->at, len = 0;
	const char *known, *text;

	if (!py.PyDict_Next(names, &next, &key, &value) || key != group->object || value->type != py.PyUnicode_Type)
		return false;
	known = pool_name(agent.pool.head, group->name);
	text = py.PyUnicode_AsUTF8AndSize(value, &len);
	return text && !strncmp(known, text, (size_t)len) && !known[len] && ranks_hold(group);
}

static struct comm_group *group_of(struct pyobj *object, struct pyobj *names)
{
	struct pyobj *value;
	uint32_t i, name;
	ssize_t at = 0;

	for (i = 0; i < comm.group_count; i++)
		if (comm.groups[i].object == object && group_holds(&comm.groups[i], names))
			return &comm.groups[i];
	value = dict_find(names, object, &at);
	name = intern_object(value, 0);
	if (!name)
		return NULL;
	return group_new(object, at, name);
}

static void read_group(const struct comm_op *op, struct pyobj *object, struct comm_call *call)
{
	struct pyobj *names = py.PyDict_GetItemWithError(comm.c10d, comm.key[KEY_PG_NAMES]);
	struct pyobj *value;
	struct comm_group *group;
	ssize_t next = 0;

	if (!names || names->type != py.PyDict_Type)
		return;
	hint_rank(names);
	if (object && (object->type == py.PyBaseObject_Type || object->type == py.PyLong_Type)) {
		call->outside = true; /* GroupMember.NON_GROUP_MEMBER */
		return;
	}
	/* no group means the default one, which torch enters first */
	if ((!object || object == py._Py_NoneStruct) && !py.PyDict_Next(names, &next, &object, &value))
		return;
	group = group_of(object, names);
	if (!group)
		return;
	call->group = group->name;
	if (op_family_p2p(op_family_of(op->name, strlen(op->name))))
		call->seq = ++group->p2p;
	else
		call->seq = ++group->collectives;
}

/* A promoted child has a pool, and names, of its own. */
static void adopt_pool(void)
{
	memset(comm.groups, 0, sizeof(comm.groups));
	memset(comm.dtypes, 0, sizeof(comm.dtypes));
	comm.group_count = 0;
	comm.hinted = false;
	comm.head = agent.pool.head;
}

void comm_hint_rank(void)
{
	struct pyobj *names;

	if (!py.minor || py.PyErr_Occurred())
		return;
	if (comm.head != agent.pool.head)
		adopt_pool();
	if (!comm.hinted && torch_find()) {
		names = py.PyDict_GetItemWithError(comm.c10d, comm.key[KEY_PG_NAMES]);
		if (names && names->type == py.PyDict_Type)
			hint_rank(names);
	}
	if (py.PyErr_Occurred())
		py.PyErr_Clear();
}

static void read_p2p(const struct comm_op *op, struct pyobj *list, struct comm_call *call)
{
	struct pyobj *first = list ? first_of(list) : NULL;
	struct pyobj *tensor = p2p_attr(first, KEY_TENSOR);
	struct pyobj *group = p2p_attr(first, KEY_GROUP);

	read_tensor(tensor, call);
	if (first)
		read_group(op, group, call);
	if (tensor)
		py.Py_DecRef(tensor);
	if (group)
		py.Py_DecRef(group);
}

void comm_read(const struct stage_fn *fn, void *const *args, size_t nargsf, void *kwnames, struct comm_call *call)
{
	const struct comm_op *op = op_of(fn);
	struct pyobj *const *given = (struct pyobj *const *)args;
	size_t count = nargsf & ~((size_t)1 << (8 * sizeof(size_t) - 1)); /* PY_VECTORCALL_ARGUMENTS_OFFSET */
	struct pyobj *tensor;

	*call = (struct comm_call){ 0 };
	if (!op || !args || !py.minor || py.PyErr_Occurred())
		return;
	if (comm.head != agent.pool.head)
		adopt_pool();
	if (torch_find()) {
		tensor = argument(given, count, kwnames, op->tensor_at, op->tensor, NULL);
		if (op->form == FORM_P2P)
			read_p2p(op, tensor, call);
		else
			read_group(op, argument(given, count, kwnames, op->group_at, "group", comm.key[KEY_GROUP]),
				   call);
		if (op->form == FORM_TENSOR)
			read_tensor(tensor, call);
		else if (op->form == FORM_LIST && tensor)
			read_tensor(first_of(tensor), call);
	}
	if (py.PyErr_Occurred())
		py.PyErr_Clear(); /* ours: there was none before */
}
