/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Who this process is; see identity.h. Called by the io thread, and by the first step or collective through agent.h. */
#include "agent/identity.h"

#include "agent/env.h"
#include "agent/parent.h"
#include "safe/siglog.h"
#include "base/num.h"
#include "safe/pool.h"
#include "spool/owner.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

struct identity identity;

/* rank and world size of torch's default group: 1 + rank in the upper half, so that 0 means none */
static _Atomic uint64_t hint;
static _Atomic int bind_lock;

/* A file of /proc as text; empty when it cannot be read. */
static size_t read_text(const char *path, char *out, size_t room)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	size_t used = 0;
	ssize_t got = 1;

	while (fd >= 0 && used < room - 1 && got > 0) {
		got = read(fd, out + used, room - 1 - used);
		if (got > 0)
			used += (size_t)got;
	}
	if (fd >= 0)
		close(fd);
	out[used] = 0;
	return used;
}

/* --- parsers --------------------------------------------------------------------------------------------------------- */

static const char *base_name(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? slash + 1 : path;
}

/* The argument that names the job: "python -u -m pkg.train" -> "pkg.train", "python -X dev t.py" -> "t.py". */
void identity_parse_job(const char *cmdline, size_t len, char *out, size_t room)
{
	const char *end = cmdline + len;
	const char *arg, *next;
	const char *name = len ? base_name(cmdline) : "";

	snprintf(out, room, "%s", name);
	if (strncmp(name, "python", 6))
		return;
	for (arg = cmdline + strlen(cmdline) + 1; arg < end; arg = next) {
		next = arg + strlen(arg) + 1;
		if (*arg != '-') {
			snprintf(out, room, "%s", base_name(arg));
			return;
		}
		if (!strncmp(arg, "-m", 2) || !strcmp(arg, "-c")) {
			if (arg[2])
				arg += 2;
			else if (arg[1] == 'm' && next < end)
				arg = next;
			snprintf(out, room, "%s", arg);
			return;
		}
		if (!strcmp(arg, "-X") || !strcmp(arg, "-W")) /* these take a word of their own */
			next = next < end ? next + strlen(next) + 1 : end;
	}
}

void identity_parse_nspid(const char *status, char *out, size_t room)
{
	const char *line = strstr(status, "\nNSpid:");
	size_t used = 0;

	out[0] = 0;
	if (!line)
		return;
	for (line += 7; *line && *line != '\n' && used + 1 < room; line++) {
		if (*line >= '0' && *line <= '9')
			out[used++] = *line;
		else if (used && out[used - 1] != ' ')
			out[used++] = ' ';
	}
	while (used && out[used - 1] == ' ')
		used--;
	out[used] = 0;
}

uint32_t identity_parse_ppid(const char *stat)
{
	const char *end = strrchr(stat, ')'); /* the name may hold brackets and blanks itself */
	unsigned int parent;
	char state;

	return end && sscanf(end + 1, " %c %u", &state, &parent) == 2 ? parent : 0;
}

void identity_default_iface(const char *route, char *out, size_t room)
{
	unsigned int best = ~0u;

	out[0] = 0;
	while ((route = strchr(route, '\n'))) {
		unsigned int dest, gateway, flags, refs, use, metric, mask;
		char iface[64];

		route++;
		if (sscanf(route, "%63s %x %x %x %u %u %u %x", iface, &dest, &gateway, &flags, &refs, &use, &metric,
			   &mask) != 8)
			continue;
		if (dest || mask || metric >= best)
			continue;
		best = metric;
		snprintf(out, room, "%s", iface);
	}
}

void identity_run(int (*get)(const char *name, char *out, size_t room), uint64_t launcher_start_unix, char *out,
		  size_t room)
{
	char id[80], more[40];

	if (get("SYSTRACE_RUN_ID", id, sizeof(id)) > 0) {
		snprintf(out, room, "%s", id);
		return;
	}
	/* "none" is torchrun's default: every job has it */
	if (get("TORCHELASTIC_RUN_ID", id, sizeof(id)) > 0 && strcmp(id, "none")) {
		if (get("TORCHELASTIC_RESTART_COUNT", more, sizeof(more)) <= 0)
			snprintf(more, sizeof(more), "0");
		snprintf(out, room, "%s.%s", id, more);
		return;
	}
	if (get("SLURM_JOB_ID", id, sizeof(id)) > 0) {
		snprintf(out, room, "slurm-%s", id);
		return;
	}
	if (get("MASTER_ADDR", id, sizeof(id)) > 0) {
		if (get("MASTER_PORT", more, sizeof(more)) <= 0)
			snprintf(more, sizeof(more), "0");
		snprintf(out, room, "%s:%s@%llu", id, more, (unsigned long long)launcher_start_unix);
		return;
	}
	snprintf(out, room, "%s:%u@%llu", identity.host, identity.pid, (unsigned long long)identity.proc_start_unix);
}

/* --- what is fixed --------------------------------------------------------------------------------------------------- */

/* Seconds; the line comes behind one for each processor and one with a number for each interrupt. */
static uint64_t boot_unix(void)
{
	char text[8192 + 1];
	int fd = open("/proc/stat", O_RDONLY | O_CLOEXEC);
	size_t kept = 0;
	uint64_t secs = 0;
	ssize_t got;

	while (fd >= 0 && !secs && (got = read(fd, text + kept, sizeof(text) - 1 - kept)) > 0) {
		const char *line;

		text[kept + (size_t)got] = 0;
		line = strstr(text, "\nbtime ");
		if (line && strchr(line + 1, '\n'))
			secs = strtoull(line + 7, NULL, 10);
		/* a line cut by the end of the buffer is looked at again with the next part */
		kept += (size_t)got;
		got = kept > 32 ? 32 : (ssize_t)kept;
		memmove(text, text + kept - (size_t)got, (size_t)got);
		kept = (size_t)got;
	}
	if (fd >= 0)
		close(fd);
	return secs;
}

static uint64_t start_unix(uint64_t start_ticks)
{
	return boot_unix() + start_ticks / (uint64_t)sysconf(_SC_CLK_TCK);
}

static void find_ip(char *out, size_t room)
{
	struct ifreq req = { 0 };
	char route[4096];
	int fd;

	snprintf(out, room, "127.0.0.1");
	read_text("/proc/net/route", route, sizeof(route));
	identity_default_iface(route, req.ifr_name, sizeof(req.ifr_name));
	if (!req.ifr_name[0])
		return;
	fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return;
	if (!ioctl(fd, SIOCGIFADDR, &req)) {
		struct sockaddr_in addr;

		memcpy(&addr, &req.ifr_addr, sizeof(addr));
		inet_ntop(AF_INET, &addr.sin_addr, out, (socklen_t)room);
	}
	close(fd);
}

void identity_start(void)
{
	struct owner self;
	char text[4096];
	size_t len;

	identity.pid = (uint32_t)getpid();
	identity.uid = (uint32_t)getuid();
	if (gethostname(identity.host, sizeof(identity.host) - 1) || !identity.host[0])
		snprintf(identity.host, sizeof(identity.host), "localhost");
	read_text("/proc/self/status", text, sizeof(text));
	identity_parse_nspid(text, identity.pids, sizeof(identity.pids));
	if (!identity.pids[0])
		snprintf(identity.pids, sizeof(identity.pids), "%u", identity.pid);
	owner_self(&self);
	snprintf(identity.boot_id, sizeof(identity.boot_id), "%s", self.boot_id);
	identity.pidns = self.pidns;
	identity.proc_start = self.start;
	identity.proc_start_unix = start_unix(identity.proc_start);
	len = read_text("/proc/self/cmdline", text, sizeof(text));
	identity_parse_job(text, len, identity.job, sizeof(identity.job));
	if (env.given[ENV_HOST_IP])
		snprintf(identity.ip, sizeof(identity.ip), "%s", env.text[ENV_HOST_IP]);
	else
		find_ip(identity.ip, sizeof(identity.ip));
}

/* --- what is bound late ---------------------------------------------------------------------------------------------- */

void identity_hint(uint32_t rank, uint32_t world_size)
{
	atomic_store_explicit(&hint, ((uint64_t)rank + 1) << 32 | world_size, memory_order_relaxed);
}

static bool first_number(const char *const *names, uint32_t *out)
{
	uint64_t number;
	char text[32];

	for (; *names; names++) {
		if (env_peek(*names, text, sizeof(text)) <= 0)
			continue;
		if (!num_u64(text, &number) && number <= UINT32_MAX) {
			*out = (uint32_t)number;
			return true;
		}
		siglog(SIGLOG_WARN, "identity", "%s='%s' is not a number and was ignored", *names, text);
	}
	return false;
}

/* Start of whoever started us: the ranks of one launcher on one host share it. */
static uint64_t launcher_start(void)
{
	char text[1024];
	uint32_t parent;
	uint64_t ticks;

	read_text("/proc/self/stat", text, sizeof(text));
	parent = identity_parse_ppid(text);
	if (parent <= 1)
		return identity.proc_start_unix;
	if (owner_proc_start(parent, &ticks, NULL) < 0)
		return identity.proc_start_unix;
	return start_unix(ticks);
}

static void bind_rank(void)
{
	uint64_t group = atomic_load_explicit(&hint, memory_order_relaxed);

	identity.rank = 0;
	identity.local_rank = 0;
	identity.world_size = 0;
	identity.source = RANK_UNKNOWN;
	first_number(env_world_names, &identity.world_size);
	if (group) {
		identity.rank = (uint32_t)(group >> 32) - 1;
		identity.world_size = (uint32_t)group;
		identity.source = RANK_BY_GROUP;
	} else if (first_number(env_rank_names, &identity.rank)) {
		identity.source = RANK_BY_ENV;
	}
	identity.rank_known = identity.source != RANK_UNKNOWN;
	first_number(env_local_rank_names, &identity.local_rank);
}

static void copy_text(char *to, size_t room, struct msg_text text)
{
	size_t n = text.bytes < room ? text.bytes : room - 1;

	memcpy(to, text.at, n);
	to[n] = 0;
}

/* Who we are; called under bind_lock. */
static void bind_all(void)
{
	static uint8_t bytes[POOL_ORIGIN];
	struct msg_origin rank;

	if (!parent_origin(bytes, &rank)) {
		bind_rank();
		identity_run(env_peek, launcher_start(), identity.run, sizeof(identity.run));
		return;
	}
	copy_text(identity.run, sizeof(identity.run), rank.run);
	identity.rank = rank.rank;
	identity.rank_known = rank.rank_known;
	identity.local_rank = rank.local_rank;
	identity.world_size = rank.world_size;
	identity.source = rank.rank_known ? RANK_BY_PARENT : RANK_UNKNOWN;
}

void identity_bind(void)
{
	int free_word = 0;

	if (atomic_load_explicit(&identity.bound, memory_order_acquire))
		return;
	/* a second caller goes on with what is there: it never waits inside the job */
	if (!atomic_compare_exchange_strong_explicit(&bind_lock, &free_word, 1, memory_order_acquire,
						     memory_order_relaxed))
		return;
	bind_all();
	/* release: who sees bound sees the rest */
	atomic_store_explicit(&identity.bound, true, memory_order_release);
	siglog(SIGLOG_INFO, "identity", "run %s rank %u%s of %u on %s", identity.run, identity.rank,
	       identity.rank_known ? "" : " (unknown)", identity.world_size, identity.host);
}

void identity_guess(void)
{
	int free_word = 0;

	if (atomic_load_explicit(&identity.bound, memory_order_acquire) ||
	    !atomic_compare_exchange_strong_explicit(&bind_lock, &free_word, 1, memory_order_acquire,
						     memory_order_relaxed))
		return;
	bind_all();
	atomic_store_explicit(&bind_lock, 0, memory_order_release);
}

void identity_unbind(void)
{
	atomic_store_explicit(&identity.bound, false, memory_order_relaxed);
	atomic_store_explicit(&bind_lock, 0, memory_order_release);
}

void identity_bind_again(void)
{
	identity_unbind();
	identity_start();
}

bool identity_late_hint(uint32_t *rank)
{
	uint64_t group = atomic_load_explicit(&hint, memory_order_relaxed);

	if (!group || !atomic_load_explicit(&identity.bound, memory_order_acquire))
		return false;
	*rank = (uint32_t)(group >> 32) - 1;
	return *rank != identity.rank || !identity.rank_known;
}
