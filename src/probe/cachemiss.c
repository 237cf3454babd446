/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * The plugin CacheMiss: `perf stat` with the user's arguments, its text as the result. What this machine cannot count is
 * found out before, by one short run, so that the answer to `enable` tells it.
 */
#include "base/near.h"
#include "base/num.h"
#include "probe/child.h"
#include "probe/out.h"
#include "probe/probe.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/capability.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK_MS 5000 /* for the short run */
#define BEGIN_MS 200 /* a perf that refuses its arguments ends at once */
#define END_MS 5000 /* it prints on SIGINT */
#define OUTPUT_MAX (1u << 20)

struct counting {
	struct probe_session *session;
	struct child child;
	int fd; /* the result */
	char name[100];
	struct counting *next;
};

static struct {
	struct counting *list;
	struct probe_stats stats;
} cachemiss;

static const char no_perf[] = "perf is not installed: install it (Debian: apt-get install linux-perf; Ubuntu: apt-get "
			      "install linux-tools-$(uname -r); openEuler: dnf install perf), then try again";

static int cachemiss_check(struct st_err *err)
{
	static const int caps[] = { 38 /* CAP_PERFMON */, -1 }, instead[] = { CAP_SYS_ADMIN, -1 };
	char path[512];
	int ret = probe_need_caps("counting hardware events of other processes", caps, instead, err);

	if (ret < 0)
		return ret;
	return child_find("perf", path, sizeof(path)) < 0 ? err_set(err, -ENOENT, "%s", no_perf) : 0;
}

/* --- arguments ----------------------------------------------------------------------------------------------------- */

/* Value of an option: "-e x", "-ex", "--event x", "--event=x"; @at is moved to its last word. NULL = another word. */
static const char *option_value(const struct child_words *words, size_t *at, const char *brief, const char *full)
{
	const char *word = words->list[*at];
	size_t len = strlen(full);

	if (strcmp(word, brief) == 0 || strcmp(word, full) == 0)
		return *at + 1 < words->count ? words->list[++*at] : NULL;
	if (strncmp(word, full, len) == 0 && word[len] == '=')
		return word + len + 1;
	return strncmp(word, brief, 2) == 0 && word[1] != '-' ? word + 2 : NULL;
}

struct asked {
	struct child_words words; /* of args */
	char *events; /* all of -e, separated by commas; malloc()ed */
	const char *pids; /* of -p; NULL = the machine */
	bool narrowed; /* to something else than the machine: threads, CPUs, cgroups */
	bool timeout;
};

static int add_events(struct asked *asked, const char *more)
{
	char *both = NULL;

	if (asprintf(&both, "%s%s%s", asked->events ? asked->events : "", asked->events ? "," : "", more) < 0)
		return -ENOMEM;
	free(asked->events);
	asked->events = both;
	return 0;
}

static int read_words(struct asked *asked, struct st_err *err)
{
	const struct child_words *words = &asked->words;
	const char *value;

	for (size_t i = 0; i < words->count; i++) {
		const char *word = words->list[i];

		if ((value = option_value(words, &i, "-e", "--event"))) {
			if (add_events(asked, value) < 0)
				return err_set(err, -ENOMEM, "out of memory");
		} else if ((value = option_value(words, &i, "-p", "--pid"))) {
			asked->pids = value;
		} else if (option_value(words, &i, "-o", "--output") || strcmp(word, "--append") == 0 ||
			   strncmp(word, "--log-fd", 8) == 0) {
			return err_set(err, -EINVAL,
				       "args: leave out %s: the result goes to CacheMiss/ in the dump directory", word);
		} else {
			asked->timeout |= strcmp(word, "--timeout") == 0 || strncmp(word, "--timeout=", 10) == 0;
			asked->narrowed |= strncmp(word, "-t", 2) == 0 || strncmp(word, "--tid", 5) == 0 ||
					   strncmp(word, "-C", 2) == 0 || strncmp(word, "--cpu", 5) == 0 ||
					   strncmp(word, "-a", 2) == 0 || strncmp(word, "--all-cpus", 10) == 0;
		}
	}
	return asked->events ? 0 : err_set(err, -EINVAL, "args: -e says no events");
}

static void asked_free(struct asked *asked)
{
	child_words_free(&asked->words);
	free(asked->events);
}

static int add_words(struct child_words *words, const char *const *list, struct st_err *err)
{
	for (; *list; list++)
		if (child_words_add(words, *list) < 0)
			return err_set(err, -ENOMEM, "out of memory");
	return 0;
}

/* --- what this machine counts --------------------------------------------------------------------------------------- */

/* Run a short command and keep what it says. Return: descriptor of a file in memory, or -errno. */
static int run_short(const struct child_words *words, bool errors, int *status, struct st_err *err)
{
	int fd = memfd_create("perf", MFD_CLOEXEC), ret;
	struct child child;

	if (fd < 0)
		return err_set(err, -errno, "cannot make a file in memory: %s", strerror(errno));
	ret = child_start(&child, words, -1, errors ? -1 : fd, errors ? fd : -1, SIGKILL, err);
	if (ret == 0 && !child_wait(&child, CHECK_MS)) {
		child_end(&child, SIGKILL, 0);
		ret = err_set(err, -ETIMEDOUT, "perf does not answer");
	}
	if (ret < 0) {
		close(fd);
		return ret;
	}
	*status = child.status;
	return fd;
}

static char *file_text(int fd)
{
	off_t bytes = lseek(fd, 0, SEEK_END);
	char *text = malloc((size_t)(bytes > 0 && bytes < OUTPUT_MAX ? bytes : 0) + 1);
	ssize_t got;

	if (!text)
		return NULL;
	got = bytes > 0 && bytes < OUTPUT_MAX ? pread(fd, text, (size_t)bytes, 0) : 0;
	text[got > 0 ? got : 0] = '\0';
	return text;
}

/* perf lists only those that the machine counts, but knows these everywhere. */
static const char *const generic[] = {
	"branches",
	"branch-instructions",
	"branch-misses",
	"bus-cycles",
	"cache-misses",
	"cache-references",
	"cpu-cycles",
	"cycles",
	"instructions",
	"ref-cycles",
	"stalled-cycles-backend",
	"stalled-cycles-frontend",
	"L1-dcache-loads",
	"L1-dcache-load-misses",
	"L1-dcache-stores",
	"L1-icache-loads",
	"L1-icache-load-misses",
	"LLC-loads",
	"LLC-load-misses",
	"LLC-stores",
	"LLC-store-misses",
	"branch-loads",
	"branch-load-misses",
	"dTLB-loads",
	"dTLB-load-misses",
	"iTLB-loads",
	"iTLB-load-misses",
	"node-loads",
	"node-load-misses",
};

/* The nearest of perf's own names to one that it refused. */
static void nearest(const char *perf, const char *event, char *found, size_t room)
{
	const char *const list[] = { perf, "list", "--raw-dump", NULL };
	struct near near = { .word = event };
	struct child_words words = { 0 };
	char *text = NULL, *word, *rest = NULL;
	int fd, status;

	*found = '\0';
	fd = add_words(&words, list, NULL) < 0 ? -1 : run_short(&words, false, &status, NULL);
	child_words_free(&words);
	if (fd < 0)
		return;
	text = file_text(fd);
	for (word = text ? strtok_r(text, " \n", &rest) : NULL; word; word = strtok_r(NULL, " \n", &rest))
		near_offer(&near, word);
	for (size_t i = 0; i < sizeof(generic) / sizeof(generic[0]); i++)
		near_offer(&near, generic[i]);
	if (near.best)
		snprintf(found, room, "%s", near.best);
	free(text);
	close(fd);
}

/* Which of the events does perf refuse? It stops at the first one and gives up all of them. */
static int find_refused(const char *perf, const char *events, const char *said, struct st_err *err)
{
	char *copy = strdup(events), *word, *rest = NULL, near[80];
	struct child_words words = { 0 };
	int fd, status = 0;

	for (word = copy ? strtok_r(copy, ",", &rest) : NULL; word; word = strtok_r(NULL, ",", &rest)) {
		const char *const list[] = { perf, "stat", "-x,", "-e", word, "--", "true", NULL };

		fd = add_words(&words, list, NULL) < 0 ? -1 : run_short(&words, true, &status, NULL);
		child_words_free(&words);
		if (fd < 0)
			break;
		close(fd);
		if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
			continue;
		nearest(perf, word, near, sizeof(near));
		err_set(err, -ENOENT, "perf knows no event '%.60s'%s%s%s", word, *near ? "; did you mean " : "", near,
			*near ? "?" : "; `perf list` shows those that it knows");
		free(copy);
		return err->code;
	}
	free(copy);
	return err_set(err, -EINVAL, "perf stat refuses %.120s: %.200s", events, said);
}

/* Lines of perf stat -x,: value,unit,event,... with <not supported> or <not counted> as values. */
static void sort_lines(char *text, char *missing, size_t room, unsigned *counted)
{
	char *line, *rest = NULL;
	size_t used = 0;

	for (line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
		char *unit = strchr(line, ','), *event = unit ? strchr(unit + 1, ',') : NULL;

		if (!event)
			continue;
		event++;
		event[strcspn(event, ",")] = '\0';
		if (strncmp(line, "<not supported>", 15) != 0)
			(*counted)++;
		else if (used < room)
			used += (size_t)snprintf(missing + used, room - used, "%s%s", used ? ", " : "", event);
	}
}

/* Return: 0, with @note about events that cannot be counted; -ENOTSUP when none can. */
static int try_events(const char *perf, const char *events, char *note, struct st_err *err)
{
	const char *const list[] = { perf, "stat", "-x,", "-e", events, "--", "true", NULL };
	struct child_words words = { 0 };
	char said[300], missing[160] = "", *text;
	unsigned counted = 0;
	int fd, status = 0, ret = 0;

	fd = add_words(&words, list, err) < 0 ? err->code : run_short(&words, true, &status, err);
	child_words_free(&words);
	if (fd < 0)
		return fd;
	if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
		child_said(fd, 0, said, sizeof(said));
		close(fd);
		return find_refused(perf, events, said, err);
	}
	text = file_text(fd);
	close(fd);
	if (text)
		sort_lines(text, missing, sizeof(missing), &counted);
	free(text);
	if (*missing && !counted)
		ret = err_set(
			err, -ENOTSUP,
			"this machine does not count %s: it has no hardware counters (a virtual machine needs a "
			"virtual PMU, a BIOS may hide them); software events such as context-switches,page-faults "
			"are counted everywhere",
			missing);
	else if (*missing)
		snprintf(note, 256, "not counted on this machine: %s", missing);
	return ret;
}

/* --- sessions -------------------------------------------------------------------------------------------------------- */

static int rank_of(const char *pids, uint32_t *pid, uint32_t *rank)
{
	static const char *const names[] = { "RANK=",	   "RANK_ID=",	"OMPI_COMM_WORLD_RANK=",
					     "PMIX_RANK=", "PMI_RANK=", "SLURM_PROCID=" };
	char path[40], *text, *end;
	uint64_t number;
	size_t bytes;
	int fd;

	if (num_u64_n(pids, strcspn(pids, ","), &number) < 0 || !number || number > INT32_MAX)
		return -EINVAL;
	*pid = (uint32_t)number;
	*rank = 0;
	snprintf(path, sizeof(path), "/proc/%" PRIu32 "/environ", *pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -ESRCH;
	text = calloc(1, OUTPUT_MAX + 2);
	bytes = 0;
	for (ssize_t got; text && bytes < OUTPUT_MAX && (got = read(fd, text + bytes, OUTPUT_MAX - bytes)) > 0;)
		bytes += (size_t)got;
	close(fd);
	for (size_t n = sizeof(names) / sizeof(names[0]); text && n-- > 0;) /* the first one wins */
		for (end = text; end < text + bytes; end += strlen(end) + 1)
			if (strncmp(end, names[n], strlen(names[n])) == 0 &&
			    num_u64(end + strlen(names[n]), &number) == 0)
				*rank = (uint32_t)number;
	free(text);
	return 0;
}

static int name_result(struct counting *mine, const struct asked *asked, struct st_err *err)
{
	const struct probe_target *host = mine->session->targets[0];
	uint32_t pid = host->inner_pid, rank = host->origin.rank;
	int ret = asked->pids ? rank_of(asked->pids, &pid, &rank) : 0;

	if (ret == -EINVAL)
		return err_set(err, ret, "args: -p %.60s is not a list of process ids such as 1234,5678", asked->pids);
	if (ret < 0)
		return err_set(err, ret, "args: there is no process %" PRIu32, pid);
	snprintf(mine->name, sizeof(mine->name), "CacheMiss_%" PRIu32 "_rank_%" PRIu32 ".txt", pid, rank);
	return 0;
}

/* perf stat, the user's words, and what they leave open: the end, and whom to count. */
static int make_words(struct child_words *words, const char *perf, const struct counting *mine,
		      const struct asked *asked, struct st_err *err)
{
	const char *const begin[] = { perf, "stat", NULL };
	char timeout[40];
	const char *const limit[] = { "--timeout", timeout, NULL }, *const all[] = { "-a", NULL };
	int ret = add_words(words, begin, err);

	snprintf(timeout, sizeof(timeout), "%" PRIu64, mine->session->timing.duration_ns / 1000000);
	if (ret == 0 && !asked->timeout && mine->session->timing.duration_ns)
		ret = add_words(words, limit, err);
	if (ret == 0 && !asked->pids && !asked->narrowed)
		ret = add_words(words, all, err);
	for (size_t i = 0; i < asked->words.count && ret == 0; i++)
		if (child_words_add(words, asked->words.list[i]) < 0)
			ret = err_set(err, -ENOMEM, "out of memory");
	return ret;
}

static void perf_ended(int fd, void *arg)
{
	struct counting *mine = arg;

	probe_unwatch(fd);
	child_wait(&mine->child, 0);
	probe_session_end(mine->session);
}

/* Return: 0, or -errno: it ended at once, with its own words. */
static int begin_perf(struct counting *mine, const struct child_words *words, struct st_err *err)
{
	char said[300];
	int ret;

	mine->fd = probe_out_fd(mine->session->targets[0], "CacheMiss", mine->name, err);
	if (mine->fd < 0)
		return mine->fd;
	ret = child_start(&mine->child, words, -1, -1, mine->fd, SIGINT, err);
	if (ret == 0 && child_wait(&mine->child, BEGIN_MS) &&
	    (!WIFEXITED(mine->child.status) || WEXITSTATUS(mine->child.status) != 0))
		ret = err_set(err, -EIO, "perf stat ended at once: %.300s",
			      child_said(mine->fd, 0, said, sizeof(said)));
	if (ret < 0)
		probe_out_unmake(mine->session->targets[0], "CacheMiss", mine->fd);
	return ret;
}

static int begin(struct counting *mine, char *note, struct st_err *err)
{
	struct child_words words = { 0 };
	struct asked asked = { 0 };
	char perf[512];
	int ret;

	if (child_find("perf", perf, sizeof(perf)) < 0)
		return err_set(err, -ENOENT, "%s", no_perf);
	ret = child_words_split(&asked.words, probe_param(mine->session, "args"), err);
	if (ret == 0)
		ret = read_words(&asked, err);
	if (ret == 0)
		ret = name_result(mine, &asked, err);
	if (ret == 0)
		ret = try_events(perf, asked.events, note, err);
	if (ret == 0)
		ret = make_words(&words, perf, mine, &asked, err);
	if (ret == 0)
		ret = begin_perf(mine, &words, err);
	child_words_free(&words);
	asked_free(&asked);
	return ret;
}

static int cachemiss_start(struct probe_session *session, char *note, struct st_err *err)
{
	struct counting *mine = calloc(1, sizeof(*mine));
	int ret;

	if (!mine)
		return err_set(err, -ENOMEM, "out of memory");
	mine->session = session;
	mine->child.pid_fd = -1;
	ret = begin(mine, note, err);
	if (ret < 0) {
		free(mine);
		return ret;
	}
	session->own = mine;
	mine->next = cachemiss.list;
	cachemiss.list = mine;
	if (!mine->child.pid)
		probe_session_end(session);
	else if (probe_watch(mine->child.pid_fd, perf_ended, mine) < 0)
		probe_log("the end of perf is noticed when CacheMiss is disabled only: out of memory");
	return 0;
}

static void cachemiss_stop(struct probe_session *session)
{
	struct counting *mine = session->own, **at = &cachemiss.list;
	char said[300];
	off_t bytes;

	while (*at != mine)
		at = &(*at)->next;
	*at = mine->next;
	if (mine->child.pid_fd >= 0)
		probe_unwatch(mine->child.pid_fd);
	if (!child_end(&mine->child, SIGINT, END_MS))
		probe_log("CacheMiss: perf did not end and was killed; %s is not whole", mine->name);
	bytes = lseek(mine->fd, 0, SEEK_END);
	if (bytes <= 0) {
		probe_log("CacheMiss: perf wrote nothing into %s (is the disk full?)", mine->name);
		cachemiss.stats.failures++;
	} else if (!strstr(child_said(mine->fd, 0, said, sizeof(said)), "elapsed")) {
		probe_log("CacheMiss: %s does not look whole: ...%s", mine->name, said);
	}
	cachemiss.stats.bytes += bytes > 0 ? (uint64_t)bytes : 0;
	cachemiss.stats.records++;
	if (session->timing.sync)
		fsync(mine->fd);
	close(mine->fd);
	free(mine);
	session->own = NULL;
}

static void cachemiss_remove(struct probe_session *session, struct probe_target *target)
{
}

static void cachemiss_status(struct probe_stats *stats)
{
	*stats = cachemiss.stats;
	if (cachemiss.list)
		snprintf(stats->text, sizeof(stats->text), "perf stat runs (pid %d)", (int)cachemiss.list->child.pid);
}

const struct probe_kind probe_cachemiss = {
	.plugin = PLUGIN_CACHEMISS,
	.group = "cachemiss",
	.targets = PROBE_HOST,
	.check = cachemiss_check,
	.start = cachemiss_start,
	.stop = cachemiss_stop,
	.remove = cachemiss_remove,
	.status = cachemiss_status,
};
