/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Orders to probes; see probe_order.h. */
#include "cli/probe_order.h"

#include "cli/probe_client.h"
#include "cli/probe_targets.h"
#include "cli/smi.h"
#include "cli/term.h"
#include "probe/frame.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SHOWN_PIDS 6
#define AGENT_WAIT_NS 3000000000ull
#define REQUEST_BYTES (CTL_FRAME_BYTES + CTL_MAX_PAYLOAD)

/** struct party - the processes of one order */
struct party {
	pid_t pids[PROBE_TARGETS_MAX];
	size_t count;
	struct ctl_call *calls; /* to their agents; .target NULL = no agent */
	struct probe_target *list[PROBE_TARGETS_MAX];
	size_t described;
	int fds[PROBE_SEND_FDS];
	size_t fd_count;
};

/* --- which processes ---------------------------------------------------------------------------------------------------- */

static bool has_agent(const struct probe_order *order, pid_t pid)
{
	const struct target *target = targets_get(order->targets, pid);

	return target && target->kind == TARGET_AGENT;
}

static void add(struct party *party, pid_t pid)
{
	for (size_t i = 0; i < party->count; i++)
		if (party->pids[i] == pid)
			return;
	if (party->count < PROBE_TARGETS_MAX)
		party->pids[party->count++] = pid;
}

static int choose_every(struct party *party, const struct probe_order *order, struct st_err *err)
{
	for (size_t i = 0; i < order->pid_count; i++)
		add(party, order->pids[i]);
	for (size_t i = 0; i < order->targets->count && !order->pid_count; i++)
		if (order->targets->list[i].kind == TARGET_AGENT)
			add(party, order->targets->list[i].pid);
	if (!party->count)
		party->count = smi_pids(party->pids, PROBE_TARGETS_MAX);
	if (party->count)
		return 0;
	return err_set(err, -ENOENT,
		       "no process has libsysTrace.so loaded, and neither npu-smi nor nvidia-smi shows one; say which: "
		       "sysTrace_cli enable %s pid=<pid>",
		       plugin_specs[order->kind->plugin].name);
}

/* Where files of the whole machine go: to the agent with the lowest rank, judged when all have answered; else here. */
static void choose_host(struct party *party, const struct probe_order *order)
{
	for (size_t i = 0; i < order->targets->count; i++)
		if (order->targets->list[i].kind == TARGET_AGENT)
			add(party, order->targets->list[i].pid);
	if (!party->count)
		party->pids[party->count++] = 0;
}

static int choose(struct party *party, const struct probe_order *order, struct st_err *err)
{
	if (order->kind->targets == PROBE_HOST) {
		choose_host(party, order);
		return 0;
	}
	if (order->kind->targets == PROBE_EVERY)
		return choose_every(party, order, err);
	for (size_t i = 0; i < order->pid_count; i++)
		if (!has_agent(order, order->pids[i]))
			add(party, order->pids[i]);
	if (!order->pid_count)
		return choose_every(party, order, err);
	return party->count ? 0 : err_set(err, -ENOENT, "every process has an agent, which records it itself");
}

/* --- describing them ----------------------------------------------------------------------------------------------------- */

/* The agents know rank, dump path and format better than /proc; one that does not answer is described from there. */
static int ask_agents(struct party *party, const struct probe_order *order)
{
	uint8_t request[CTL_FRAME_BYTES];
	struct ctl_call *asked = calloc(party->count + 1, sizeof(*asked));
	struct ctl_msg msg;
	size_t count = 0;

	party->calls = calloc(party->count + 1, sizeof(*party->calls));
	if (!asked || !party->calls) {
		free(asked);
		return -ENOMEM;
	}
	for (size_t i = 0; i < party->count; i++)
		if (has_agent(order, party->pids[i]))
			asked[count++].target = targets_get(order->targets, party->pids[i]);
	ctl_begin(&msg, request, sizeof(request), CTL_STATUS, (uint32_t)getpid());
	if (count)
		ctl_exchange(asked, count, request, (uint32_t)ctl_finish(&msg),
			     order->timeout_ns < AGENT_WAIT_NS ? order->timeout_ns : AGENT_WAIT_NS);
	for (size_t i = 0, k = 0; i < party->count; i++)
		if (has_agent(order, party->pids[i]))
			party->calls[i] = asked[k++];
	free(asked);
	return 0;
}

static int describe(struct party *party, const struct probe_order *order, char *remark, size_t room, struct st_err *err)
{
	for (size_t i = 0; i < party->count; i++) {
		bool agent = party->calls[i].target != NULL;
		struct probe_target *target = probe_target_of(party->pids[i], agent ? &party->calls[i] : NULL, err);

		if (!target && err->code == -ESRCH && party->count > 1) {
			snprintf(remark, room, "; process %d has ended", (int)party->pids[i]);
			if (party->described || i + 1 < party->count)
				*err = (struct st_err){ 0 };
			continue;
		}
		if (!target)
			return err->code;
		party->list[party->described++] = target;
	}
	return party->described ? 0 : err->code;
}

static void keep_lowest_rank(struct party *party)
{
	size_t best = 0;

	for (size_t i = 1; i < party->described; i++)
		if (party->list[i]->origin.local_rank < party->list[best]->origin.local_rank)
			best = i;
	for (size_t i = 0; i < party->described; i++)
		if (i != best)
			probe_target_drop(party->list[i]);
	party->list[0] = party->list[best];
	party->described = 1;
}

static int add_fd(struct party *party, int fd)
{
	struct stat one, other;

	if (fstat(fd, &one) < 0)
		return -errno;
	for (size_t i = 0; i < party->fd_count; i++)
		if (fstat(party->fds[i], &other) == 0 && one.st_dev == other.st_dev && one.st_ino == other.st_ino)
			return (int)i;
	if (party->fd_count == PROBE_SEND_FDS)
		return -E2BIG;
	party->fds[party->fd_count] = fd;
	return (int)party->fd_count++;
}

static bool wants_steps(const struct probe_order *order)
{
	for (size_t i = 0; i < order->pair_count; i++)
		if (strcmp(order->pairs[i].key, "start_step") == 0 || strcmp(order->pairs[i].key, "steps") == 0)
			return true;
	return false;
}

static int put_targets(struct party *party, const struct probe_order *order, struct ctl_msg *msg, struct st_err *err)
{
	for (size_t i = 0; i < party->described; i++) {
		struct probe_target sent = *party->list[i];

		sent.dir_fd = add_fd(party, party->list[i]->dir_fd);
		sent.pool_fd = -1;
		if (sent.dir_fd >= 0 && party->list[i]->pool_fd >= 0 && wants_steps(order)) {
			sent.pool_fd = add_fd(party, party->list[i]->pool_fd);
			if (sent.pool_fd < 0)
				sent.dir_fd = sent.pool_fd;
		}
		if (sent.dir_fd < 0)
			return err_set(err, sent.dir_fd,
				       "too many dump directories in one order; give fewer processes with pid=");
		probe_target_put(msg, &sent);
	}
	return 0;
}

/* --- asking ------------------------------------------------------------------------------------------------------------- */

static void name_targets(const struct party *party, const struct probe_kind *kind, const char *remark, const char *note,
			 char *out, size_t room)
{
	size_t used;

	if (kind->targets == PROBE_HOST)
		used = (size_t)snprintf(out, room, "writes to %s", party->list[0]->dump_path);
	else
		used = (size_t)snprintf(out, room, "process%s", party->described == 1 ? " " : "es ");
	for (size_t i = 0; i < party->described && used < room && kind->targets != PROBE_HOST; i++) {
		const struct probe_target *target = party->list[i];

		if (i == SHOWN_PIDS) {
			used += (size_t)snprintf(out + used, room - used, " and %zu more", party->described - i);
			break;
		}
		used += (size_t)snprintf(out + used, room - used, "%s%d", i ? ", " : "", (int)target->pid);
		if (target->origin.rank_known && used < room)
			used += (size_t)snprintf(out + used, room - used, " rank %u", target->origin.rank);
	}
	if (used < room)
		snprintf(out + used, room - used, "%s%s%s", remark, *note ? "; " : "", note);
}

static int send_enable(struct party *party, const struct probe_order *order, const char *remark, struct probe_ack *ack)
{
	uint8_t *request = malloc(REQUEST_BYTES);
	struct ctl_call call = { .fd = -1 };
	struct ctl_msg msg;
	int bytes;

	if (!request)
		return err_set(&ack->err, -ENOMEM, "out of memory");
	ctl_begin(&msg, request, REQUEST_BYTES, CTL_ENABLE, (uint32_t)getpid());
	ctl_add(&msg, CTL_KEY_PLUGIN, plugin_specs[order->kind->plugin].name);
	for (size_t i = 0; i < order->pair_count; i++)
		ctl_add(&msg, order->pairs[i].key, order->pairs[i].value);
	if (put_targets(party, order, &msg, &ack->err) == 0) {
		bytes = ctl_finish(&msg);
		if (bytes < 0)
			err_set(&ack->err, bytes, "the parameters are too long, or there are too many processes");
		else
			probe_client_ask(order->kind->group, true, request, (uint32_t)bytes, party->fds,
					 party->fd_count, order->timeout_ns, &call);
	}
	if (call.err.code)
		ack->err = call.err;
	if (ack->err.code == 0)
		name_targets(party, order->kind, remark, call.text, ack->text, sizeof(ack->text));
	free(call.payload);
	free(request);
	return ack->err.code;
}

static int enable(const struct probe_order *order, struct probe_ack *ack)
{
	struct party *party = calloc(1, sizeof(*party));
	char remark[64] = "";
	int ret;

	if (!party)
		return err_set(&ack->err, -ENOMEM, "out of memory");
	ret = order->kind->check ? order->kind->check(&ack->err) : 0;
	if (ret == 0)
		ret = choose(party, order, &ack->err);
	if (ret == 0)
		ret = ask_agents(party, order);
	if (ret == 0)
		ret = describe(party, order, remark, sizeof(remark), &ack->err);
	if (ret == 0 && order->kind->targets == PROBE_HOST)
		keep_lowest_rank(party);
	if (ret == 0)
		ret = send_enable(party, order, remark, ack);
	else if (!ack->err.code)
		err_set(&ack->err, ret, "out of memory");
	for (size_t i = 0; i < party->described; i++)
		probe_target_drop(party->list[i]);
	if (party->calls)
		ctl_calls_free(party->calls, party->count);
	free(party->calls);
	free(party);
	return ret;
}

static int disable(const struct probe_order *order, struct probe_ack *ack)
{
	uint8_t request[64 * 1024];
	struct ctl_call call = { .fd = -1 };
	struct ctl_msg msg;
	int bytes;

	ctl_begin(&msg, request, sizeof(request), CTL_DISABLE, (uint32_t)getpid());
	ctl_add(&msg, CTL_KEY_PLUGIN, plugin_specs[order->kind->plugin].name);
	for (size_t i = 0; i < order->pid_count; i++)
		ctl_addf(&msg, "target", "%d", (int)order->pids[i]);
	bytes = ctl_finish(&msg);
	if (bytes < 0)
		return err_set(&ack->err, bytes, "too many processes in one order");
	probe_client_ask(order->kind->group, false, request, (uint32_t)bytes, NULL, 0, order->timeout_ns, &call);
	if (call.err.code == -ENOENT)
		snprintf(ack->text, sizeof(ack->text), "was off");
	else if (call.err.code)
		ack->err = call.err;
	else
		snprintf(ack->text, sizeof(ack->text), "%s", call.text);
	free(call.payload);
	return ack->err.code;
}

int probe_order_run(const struct probe_order *order, struct probe_ack *ack)
{
	*ack = (struct probe_ack){ .asked = true };
	probe_socket_path(order->kind->group, ack->shown, sizeof(ack->shown));
	return order->verb == CTL_ENABLE ? enable(order, ack) : disable(order, ack);
}

/* --- printing ------------------------------------------------------------------------------------------------------------ */

void probe_ack_print(struct probe_ack *ack)
{
	bool ok = ack->err.code == 0;
	const char *text = ok ? ack->text : ack->err.text;

	term_clean(ack->text);
	term_clean(ack->err.text);
	printf("[ACK] %s: %s%s%s", term_clean(ack->shown), term_on(stdout, ok ? TERM_GREEN : TERM_RED),
	       ok ? "SUCCESS" : "FAILED", term_off(stdout));
	if (*text)
		printf(ok ? " (%s)" : ": %s", text);
	putchar('\n');
}

void probe_ack_json(const struct probe_ack *ack)
{
	printf("{\"socket\": ");
	term_json_string(stdout, ack->shown);
	printf(", \"ok\": %s, \"text\": ", ack->err.code ? "false" : "true");
	term_json_string(stdout, ack->err.code ? ack->err.text : ack->text);
	putchar('}');
}

/* --- status ------------------------------------------------------------------------------------------------------------- */

/* Ask the probe of the n-th group there is. Return: false = no such group. */
static bool ask_group(size_t n, uint64_t timeout_ns, const char **group, struct ctl_call *call)
{
	uint8_t request[CTL_FRAME_BYTES];
	struct ctl_msg msg;
	size_t seen = 0;

	for (size_t i = 0; probe_kinds[i]; i++) {
		bool first = true;

		for (size_t k = 0; k < i; k++)
			first &= strcmp(probe_kinds[k]->group, probe_kinds[i]->group) != 0;
		if (!first || seen++ != n)
			continue;
		*group = probe_kinds[i]->group;
		ctl_begin(&msg, request, sizeof(request), CTL_STATUS, (uint32_t)getpid());
		*call = (struct ctl_call){ .fd = -1 };
		probe_client_ask(*group, false, request, (uint32_t)ctl_finish(&msg), NULL, 0, timeout_ns, call);
		return true;
	}
	return false;
}

/* One line per entry of a repeated key. */
static void print_each(const struct ctl_call *call, const char *key)
{
	struct ctl_entry entry;
	uint32_t at = 0;
	char text[512];

	while (ctl_next(call->payload, call->frame.payload_bytes, &at, &entry) == 1) {
		if (entry.key_bytes != strlen(key) || memcmp(entry.key, key, entry.key_bytes) != 0)
			continue;
		snprintf(text, sizeof(text), "%.*s", (int)entry.value_bytes, entry.value);
		printf("    %s\n", term_clean(text));
	}
}

static uint64_t number(const struct ctl_call *call, const char *key)
{
	char text[32];

	return ctl_call_get(call, key, text, sizeof(text)) ? strtoull(text, NULL, 10) : 0;
}

/* Sum of plugin.<name>.<part> over all plugins of the probe. */
static uint64_t sum_of(const struct ctl_call *call, const char *part)
{
	struct ctl_entry entry;
	uint32_t at = 0;
	uint64_t sum = 0;
	size_t len = strlen(part);

	while (ctl_next(call->payload, call->frame.payload_bytes, &at, &entry) == 1)
		if (entry.key_bytes > len + 8 && memcmp(entry.key, "plugin.", 7) == 0 &&
		    entry.key[entry.key_bytes - len - 1] == '.' &&
		    memcmp(entry.key + entry.key_bytes - len, part, len) == 0)
			sum += strtoull(entry.value, NULL, 10);
	return sum;
}

static void print_probe(const char *group, const struct ctl_call *call)
{
	char cost[32] = "?";

	ctl_call_get(call, "cost_pct", cost, sizeof(cost));
	printf("  %s: pid %llu, %s %% of one CPU, %.1f MB and %.1f MB of kernel buffers, %llu records (%.1f MB), %llu lost\n",
	       group, (unsigned long long)number(call, "pid"), cost, (double)number(call, "memory_bytes") / 1e6,
	       (double)sum_of(call, "buffer_bytes") / 1e6, (unsigned long long)sum_of(call, "records"),
	       (double)sum_of(call, "bytes") / 1e6, (unsigned long long)sum_of(call, "lost"));
	print_each(call, "session");
	print_each(call, "note");
}

size_t probe_report_print(uint64_t timeout_ns)
{
	struct ctl_call call;
	const char *group;
	size_t count = 0;

	for (size_t n = 0; ask_group(n, timeout_ns, &group, &call); n++) {
		if (call.err.code == 0) {
			if (!count++)
				printf("\n%sPROBES%s\n", term_on(stdout, TERM_BOLD), term_off(stdout));
			print_probe(group, &call);
		}
		free(call.payload);
	}
	return count;
}

static void print_probe_json(const struct ctl_call *call)
{
	struct ctl_entry entry;
	uint32_t at = 0;
	bool first = true;
	char text[600];

	putchar('{');
	while (ctl_next(call->payload, call->frame.payload_bytes, &at, &entry) == 1) {
		if (entry.key_bytes == 4 && memcmp(entry.key, "code", 4) == 0)
			continue;
		/* session and note repeat: their first one stands for itself, further ones get a number */
		printf("%s", first ? "" : ", ");
		first = false;
		snprintf(text, sizeof(text), "%.*s", (int)entry.key_bytes, entry.key);
		if (strcmp(text, "session") == 0 || strcmp(text, "note") == 0)
			snprintf(text + strlen(text), 16, ".%u", at);
		term_json_string(stdout, text);
		fputs(": ", stdout);
		snprintf(text, sizeof(text), "%.*s", (int)entry.value_bytes, entry.value);
		term_json_string(stdout, text);
	}
	putchar('}');
}

size_t probe_report_json(uint64_t timeout_ns)
{
	struct ctl_call call;
	const char *group;
	size_t count = 0;

	for (size_t n = 0; ask_group(n, timeout_ns, &group, &call); n++) {
		if (call.err.code == 0) {
			printf("%s\n  ", count++ ? "," : "");
			print_probe_json(&call);
		}
		free(call.payload);
	}
	return count;
}
