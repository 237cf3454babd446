/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * See comm.h. Everything here runs inside the job's call with the GIL held, so only functions of the interpreter are used
 * that cannot run Python code on the objects they get: look-ups of interned texts in module dictionaries, walks over
 * dictionaries by position (no hash, no comparison), and C getters of exact torch.Tensor objects.
 */
#include "agent/comm.h"

#include "agent/agent.h"
#include "safe/clock.h"
#include "wire/op_family.h"

#include <dlfcn.h>
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

/* First words of every object in the interpreters we serve (64 bit, not free-threaded: python/ refuses the others). */
struct py_object {
	ssize_t refcnt;
	struct py_object *type;
};

static struct {
	struct py_object *(*err_occurred)(void);
	void (*err_clear)(void);
	void (*inc_ref)(struct py_object *);
	void (*dec_ref)(struct py_object *);
	struct py_object *(*intern)(const char *);
	const char *(*utf8)(struct py_object *, ssize_t *);
	int (*compare_ascii)(struct py_object *, const char *);
	struct py_object *(*modules)(void);
	struct py_object *(*module_dict)(struct py_object *);
	struct py_object *(*dict_get)(struct py_object *, struct py_object *);
	int (*dict_next)(struct py_object *, ssize_t *, struct py_object **, struct py_object **);
	ssize_t (*dict_size)(struct py_object *);
	ssize_t (*tuple_size)(struct py_object *);
	struct py_object *(*tuple_get)(struct py_object *, ssize_t);
	ssize_t (*list_size)(struct py_object *);
	struct py_object *(*list_get)(struct py_object *, ssize_t);
	struct py_object *(*get_attr)(struct py_object *, struct py_object *);
	struct py_object *(*generic_get_attr)(struct py_object *, struct py_object *);
	struct py_object *(*call_method)(struct py_object *, struct py_object *, ...);
	struct py_object *(*call)(struct py_object *, ...);
	struct py_object *(*repr)(struct py_object *);
	long (*as_long)(struct py_object *);
	struct py_object *list_type, *tuple_type, *dict_type, *none, *falsy, *unicode_type, *object_type, *long_type;
} py;
static _Atomic bool prepared;

static const struct {
	const char *name;
	void *slot;
} symbols[] = {
	{ "PyErr_Occurred", &py.err_occurred },
	{ "PyErr_Clear", &py.err_clear },
	{ "Py_IncRef", &py.inc_ref },
	{ "Py_DecRef", &py.dec_ref },
	{ "PyUnicode_InternFromString", &py.intern },
	{ "PyUnicode_AsUTF8AndSize", &py.utf8 },
	{ "PyUnicode_CompareWithASCIIString", &py.compare_ascii },
	{ "PyImport_GetModuleDict", &py.modules },
	{ "PyModule_GetDict", &py.module_dict },
	{ "PyDict_GetItemWithError", &py.dict_get },
	{ "PyDict_Next", &py.dict_next },
	{ "PyDict_Size", &py.dict_size },
	{ "PyTuple_Size", &py.tuple_size },
	{ "PyTuple_GetItem", &py.tuple_get },
	{ "PyList_Size", &py.list_size },
	{ "PyList_GetItem", &py.list_get },
	{ "PyObject_GetAttr", &py.get_attr },
	{ "PyObject_GenericGetAttr", &py.generic_get_attr },
	{ "PyObject_CallMethodObjArgs", &py.call_method },
	{ "PyObject_CallFunctionObjArgs", &py.call },
	{ "PyObject_Repr", &py.repr },
	{ "PyLong_AsLong", &py.as_long },
	{ "PyList_Type", &py.list_type },
	{ "PyTuple_Type", &py.tuple_type },
	{ "PyDict_Type", &py.dict_type },
	{ "_Py_NoneStruct", &py.none },
	{ "_Py_FalseStruct", &py.falsy },
	{ "PyUnicode_Type", &py.unicode_type },
	{ "PyBaseObject_Type", &py.object_type },
	{ "PyLong_Type", &py.long_type },
};

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
	bool tried;
	struct py_object *key[KEY_COUNT];
	struct py_object *c10d; /* __dict__ of torch.distributed.distributed_c10d */
	struct py_object *p2pop, *tensor_type, *parameter_type, *has_function;
	/* groups by the address of torch's object, checked against torch's own table at each use; never taken out */
	struct comm_group {
		const struct py_object *object;
		ssize_t at; /* position in _pg_names */
		uint32_t name;
		uint32_t collectives; /* calls so far */
		uint32_t p2p;
	} groups[GROUPS];
	uint32_t group_count;
	struct {
		const struct py_object *object; /* lives as long as torch */
		uint32_t name;
	} dtypes[DTYPES];
	const struct pool_header *head; /* the pool whose names are meant */
	bool hinted;
} comm;

void comm_prepare(void)
{
	size_t i;

	if (atomic_load_explicit(&prepared, memory_order_acquire))
		return;
	for (i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
		void *address = dlsym(RTLD_DEFAULT, symbols[i].name);

		if (!address)
			return;
		memcpy(symbols[i].slot, &address, sizeof(address));
	}
	/* release: whoever sees the word sees the functions */
	atomic_store_explicit(&prepared, true, memory_order_release);
}

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

static struct py_object *module_dict(enum key name)
{
	struct py_object *module = py.dict_get(py.modules(), comm.key[name]);

	return module ? py.module_dict(module) : NULL;
}

static struct py_object *module_item(enum key module, enum key name)
{
	struct py_object *dict = module_dict(module);
	struct py_object *item = dict ? py.dict_get(dict, comm.key[name]) : NULL;

	if (item)
		py.inc_ref(item); /* for good: compared by address from now on */
	return item;
}

/* Once, in the first collective: all of torch is imported by then. */
static bool torch_find(void)
{
	int i;

	if (comm.tried)
		return comm.c10d != NULL;
	comm.tried = true;
	for (i = 0; i < KEY_COUNT; i++) {
		comm.key[i] = py.intern(key_texts[i]);
		if (!comm.key[i])
			return false;
	}
	comm.p2pop = module_item(KEY_MODULE_C10D, KEY_P2POP);
	comm.has_function = module_item(KEY_MODULE_C, KEY_HAS_FUNCTION);
	comm.tensor_type = module_item(KEY_MODULE_TORCH, KEY_TENSOR_TYPE);
	comm.parameter_type = module_item(KEY_MODULE_PARAMETER, KEY_PARAMETER_TYPE);
	comm.c10d = module_dict(KEY_MODULE_C10D);
	return comm.c10d != NULL;
}

/* An argument by position or name, borrowed; NULL when it was not given. */
static struct py_object *argument(struct py_object *const *args, size_t count, struct py_object *kwnames, int at,
				  const char *name, struct py_object *interned)
{
	ssize_t i, names;

	if (at >= 0 && (size_t)at < count)
		return args[at];
	if (!kwnames || !name)
		return NULL;
	names = py.tuple_size(kwnames);
	for (i = 0; i < names; i++) {
		struct py_object *key = py.tuple_get(kwnames, i);

		if (key == interned || !py.compare_ascii(key, name))
			return args[count + (size_t)i];
	}
	return NULL;
}

static struct py_object *first_of(struct py_object *list)
{
	if (list->type == py.list_type)
		return py.list_size(list) > 0 ? py.list_get(list, 0) : NULL;
	if (list->type == py.tuple_type)
		return py.tuple_size(list) > 0 ? py.tuple_get(list, 0) : NULL;
	return NULL;
}

static uint32_t intern_object(struct py_object *text, size_t skip)
{
	ssize_t len = 0;
	const char *utf8 = text && text->type == py.unicode_type ? py.utf8(text, &len) : NULL;

	return utf8 && (size_t)len > skip ? pool_intern(&agent.pool, utf8 + skip, (size_t)len - skip) : 0;
}

/* ---- tensors -------------------------------------------------------------------------------------------------------- */

static uint32_t dtype_name(struct py_object *dtype)
{
	size_t i, at = ((uintptr_t)dtype >> 4) % DTYPES;
	struct py_object *text;

	for (i = 0; i < DTYPES; i++, at = (at + 1) % DTYPES) {
		if (comm.dtypes[at].object == dtype)
			return comm.dtypes[at].name;
		if (comm.dtypes[at].object)
			continue;
		text = py.repr(dtype); /* C code of torch's: "torch.float32" */
		if (!text)
			return 0;
		comm.dtypes[at].name = intern_object(text, strlen("torch."));
		comm.dtypes[at].object = dtype;
		py.dec_ref(text);
		return comm.dtypes[at].name;
	}
	return 0;
}

/* Exact tensors and parameters without a torch function mode: their getters are C code then. */
static bool plain_tensor(struct py_object *tensor)
{
	struct py_object *answer;
	bool plain;

	if (!comm.has_function || !tensor || (tensor->type != comm.tensor_type && tensor->type != comm.parameter_type))
		return false;
	answer = py.call(comm.has_function, tensor, NULL);
	plain = answer == py.falsy;
	if (answer)
		py.dec_ref(answer);
	return plain;
}

static void read_tensor(struct py_object *tensor, struct comm_call *call)
{
	struct py_object *value;
	long count;

	if (!plain_tensor(tensor))
		return;
	value = py.get_attr(tensor, comm.key[KEY_DTYPE]);
	if (value) {
		call->dtype = dtype_name(value);
		py.dec_ref(value);
	}
	value = py.call_method(tensor, comm.key[KEY_NUMEL], NULL);
	if (value) {
		count = py.as_long(value);
		call->count = count > 0 ? (uint64_t)count : 0;
		py.dec_ref(value);
	}
}

/* An attribute of a P2POp, new reference. Its class keeps them in the instance's dictionary. */
static struct py_object *p2p_attr(struct py_object *op, enum key key)
{
	return op && op->type == comm.p2pop ? py.generic_get_attr(op, comm.key[key]) : NULL;
}

/* ---- groups --------------------------------------------------------------------------------------------------------- */

/* A dictionary's entry by its key object's identity; position in *at. Return: the value, borrowed. */
static struct py_object *dict_find(struct py_object *dict, const struct py_object *object, ssize_t *at)
{
	struct py_object *key, *value;
	ssize_t next = 0;

	if (!dict || dict->type != py.dict_type)
		return NULL;
	for (*at = 0; py.dict_next(dict, &next, &key, &value); *at = next)
		if (key == object)
			return value;
	return NULL;
}

/* Ranks as "0-3,8-14:2" (every second), cut with "..." where they do not fit. */
static size_t ranks_text(struct py_object *ranks, char *out, size_t room)
{
	struct py_object *key, *value;
	long first = -1, last = -1, stride = 0;
	ssize_t next = 0;
	size_t used = 0;
	bool more;

	do {
		long rank = 0;

		more = py.dict_next(ranks, &next, &key, &value);
		if (more)
			rank = py.as_long(key);
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

/* Says once per group and process who is in it, so that files of several ranks can be joined. */
static void note_group(const struct comm_group *group)
{
	struct py_object *all = py.dict_get(comm.c10d, comm.key[KEY_PG_RANKS]);
	struct rec_note note = { .head = { .bytes = sizeof(note), .type = REC_NOTE } };
	struct py_object *ranks;
	char text[900];
	size_t used;
	ssize_t at;

	ranks = dict_find(all, group->object, &at);
	if (!ranks || ranks->type != py.dict_type)
		return;
	used = (size_t)snprintf(text, sizeof(text), "group %s: ranks ", pool_name(agent.pool.head, group->name));
	if (used > sizeof(text) / 2)
		return;
	used += ranks_text(ranks, text + used, sizeof(text) - used);
	note.head.step = (uint32_t)atomic_load_explicit(&agent.pool.head->step, memory_order_relaxed);
	note.at_ns = clock_mono_ns();
	note.text = pool_intern(&agent.pool, text, used);
	pool_put(&agent.pool, &note, sizeof(note), POOL_SRC_NOTE);
}

/* The default group's rank() and size, once: they outrank the environment. torch enters that group first. */
static void hint_rank(struct py_object *names)
{
	struct py_object *object, *ranks, *rank, *value;
	ssize_t at = 0;
	long number;

	if (comm.hinted || !py.dict_next(names, &at, &object, &value))
		return;
	comm.hinted = true;
	ranks = dict_find(py.dict_get(comm.c10d, comm.key[KEY_PG_RANKS]), object, &at);
	rank = py.call_method(object, comm.key[KEY_RANK], NULL); /* a bound C++ function */
	if (!rank)
		return;
	number = py.as_long(rank);
	py.dec_ref(rank);
	if (number >= 0 && ranks && ranks->type == py.dict_type)
		agent_rank_hint((uint32_t)number, (uint32_t)py.dict_size(ranks));
}

static struct comm_group *group_new(const struct py_object *object, ssize_t at, uint32_t name)
{
	struct comm_group *group;
	uint32_t i;

	/* torch made an object for this name again (destroyed and initialised once more): the same group to us */
	for (i = 0; i < comm.group_count; i++)
		if (comm.groups[i].name == name) {
			comm.groups[i].object = object;
			comm.groups[i].at = at;
			return &comm.groups[i];
		}
	if (comm.group_count == GROUPS)
		return NULL;
	group = &comm.groups[comm.group_count++];
	*group = (struct comm_group){ .object = object, .at = at, .name = name };
	note_group(group);
	return group;
}

/* Is the group still the one torch means by that object? Objects die and addresses come again. */
static bool group_holds(const struct comm_group *group, struct py_object *names)
{
	struct py_object *key, *value;
	ssize_t next = group->at, len = 0;
	const char *known, *text;

	if (!py.dict_next(names, &next, &key, &value) || key != group->object || value->type != py.unicode_type)
		return false;
	known = pool_name(agent.pool.head, group->name);
	text = py.utf8(value, &len);
	return text && !strncmp(known, text, (size_t)len) && !known[len];
}

static struct comm_group *group_of(struct py_object *object, struct py_object *names)
{
	struct py_object *value;
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

static void read_group(const struct comm_op *op, struct py_object *object, struct comm_call *call)
{
	struct py_object *names = py.dict_get(comm.c10d, comm.key[KEY_PG_NAMES]);
	struct py_object *value;
	struct comm_group *group;
	ssize_t next = 0;

	if (!names || names->type != py.dict_type)
		return;
	hint_rank(names);
	if (object && (object->type == py.object_type || object->type == py.long_type)) {
		call->outside = true; /* GroupMember.NON_GROUP_MEMBER */
		return;
	}
	/* no group means the default one, which torch enters first */
	if ((!object || object == py.none) && !py.dict_next(names, &next, &object, &value))
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

static void read_p2p(const struct comm_op *op, struct py_object *list, struct comm_call *call)
{
	struct py_object *first = list ? first_of(list) : NULL;
	struct py_object *tensor = p2p_attr(first, KEY_TENSOR);
	struct py_object *group = p2p_attr(first, KEY_GROUP);

	read_tensor(tensor, call);
	if (first)
		read_group(op, group, call);
	if (tensor)
		py.dec_ref(tensor);
	if (group)
		py.dec_ref(group);
}

void comm_read(const struct stage_fn *fn, void *const *args, size_t nargsf, void *kwnames, struct comm_call *call)
{
	const struct comm_op *op = op_of(fn);
	struct py_object *const *given = (struct py_object *const *)args;
	size_t count = nargsf & ~((size_t)1 << (8 * sizeof(size_t) - 1)); /* PY_VECTORCALL_ARGUMENTS_OFFSET */
	struct py_object *tensor;

	*call = (struct comm_call){ 0 };
	if (!op || !args || !atomic_load_explicit(&prepared, memory_order_acquire) || py.err_occurred())
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
	if (py.err_occurred())
		py.err_clear(); /* ours: there was none before */
}
