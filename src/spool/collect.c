/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Moving local segments to the dump path; see collect.h. */
#include "spool/collect.h"
#include "base/fault.h"
#include "safe/rawio.h"
#include "spool/dir.h"
#include "spool/out_name.h"
#include "spool/whose.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEPTH 8
#define BLOCK (256u * 1024u)
#define NAME_TRIES 10000

/* struct walk - one run; the paths are those of the file it is at */
struct walk {
	const struct collect_options *options;
	char from[POOL_PATH];
	char to[POOL_PATH];
	size_t from_root, to_root; /* lengths of the two roots */
	int depth;
	int moved;
	char block[BLOCK], other[BLOCK];
};

static void report(struct walk *w, enum collect_verdict verdict, uint64_t bytes, const char *text)
{
	struct collect_report r = {
		.verdict = verdict,
		.from = w->from,
		.to = verdict == COLLECT_MOVED ? w->to : "",
		.bytes = bytes,
		.text = text,
	};

	w->moved += verdict == COLLECT_MOVED;
	if (w->options->report)
		w->options->report(w->options->ctx, &r);
}

/* --- what a name says ------------------------------------------------------------------------------------------------ */

/* The suffix of a documented name, ".timeline" of "box--00000.timeline.3"; the whole rest when it is none of ours. */
static size_t stem_bytes(const char *name)
{
	static const char *const suffixes[] = { ".timeline.ext.json", ".timeline", ".csv", ".json", ".pb" };
	size_t i;

	for (i = 0; i < sizeof(suffixes) / sizeof(suffixes[0]); i++) {
		const char *at = strstr(name, suffixes[i]);
		char after = at ? at[strlen(suffixes[i])] : 0;

		if (at && (!after || after == '.'))
			return (size_t)(at - name);
	}
	return strlen(name);
}

/* Is it a closed segment, "...timeline.3", or a file moved aside? Digits, perhaps with -<n>, behind the last dot. */
static bool is_closed(const char *name)
{
	const char *dot = strrchr(name, '.');

	return dot && dot[1] >= '0' && dot[1] <= '9' && strspn(dot + 1, "0123456789-") == strlen(dot + 1);
}

static bool ends_with(const char *text, const char *end)
{
	size_t a = strlen(text), b = strlen(end);

	return a >= b && !strcmp(text + a - b, end);
}

/* --- may it go? ------------------------------------------------------------------------------------------------------- */

static bool waits_for_recover(const struct walk *w, const struct whose *whose)
{
	const char *place = w->options->spool && w->options->spool[0] ? w->options->spool : SPOOL_PLACE;
	char path[POOL_PATH];
	struct stat st;

	snprintf(path, sizeof(path), "%s/sysTrace.%u/%llu-%u-%llu/pool", place, (unsigned int)geteuid(),
		 (unsigned long long)whose->pidns, whose->pid, (unsigned long long)whose->proc_start);
	return sys_lstat(path, &st) == 0;
}

/* What the file at w->from waits for; COLLECT_MOVED: nothing. */
static enum collect_verdict readiness(const struct walk *w, int fd, const char *name, struct whose *whose)
{
	char owner[POOL_PATH];

	snprintf(owner, sizeof(owner), "%s", w->from);
	if (ends_with(owner, ".meta.json"))
		owner[strlen(owner) - strlen(".meta.json")] = 0;
	whose_file(fd, owner, whose);
	if (is_closed(name))
		return COLLECT_MOVED;
	if (whose_writes(owner, whose))
		return COLLECT_LIVE;
	return whose->known && waits_for_recover(w, whose) ? COLLECT_WAITS : COLLECT_MOVED;
}

/* --- copying ---------------------------------------------------------------------------------------------------------- */

static int copy_file(struct walk *w, int fd, const char *part, const struct stat *st)
{
	struct timespec times[2] = { st->st_atim, st->st_mtim }; /* readers and renaming go by the last write */
	uint64_t at = 0;
	ssize_t n;
	int out, ret = 0;

	unlink(part);
	out = FAULT("collect.create") ? -1 : open(part, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
	if (out < 0)
		return -errno;
	while (ret == 0 && (n = sys_pread_all(fd, w->block, BLOCK, at)) > 0) {
		ret = FAULT("collect.write") ? -errno : sys_write_all(out, w->block, (size_t)n);
		at += (uint64_t)n;
	}
	if (ret == 0 && n < 0)
		ret = (int)n;
	if (ret == 0 && (futimens(out, times) || fsync(out)))
		ret = -errno;
	if (close(out) && ret == 0) /* NFS tells of a full disk here */
		ret = -errno;
	if (ret < 0)
		unlink(part);
	return ret;
}

/* The copy of a run that was killed before it unlinked the original? */
static bool same_content(struct walk *w, int fd, const char *path)
{
	int other = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
	uint64_t at = 0;
	ssize_t a = 1, b = 1;

	while (other >= 0 && a > 0 && a == b) {
		a = sys_pread_all(fd, w->block, BLOCK, at);
		b = sys_pread_all(other, w->other, BLOCK, at);
		if (a > 0 && a == b && memcmp(w->block, w->other, (size_t)a) != 0)
			b = -1;
		at += a > 0 ? (uint64_t)a : 0;
	}
	if (other >= 0)
		close(other);
	return other >= 0 && a == 0 && b == 0;
}

static bool same_process(const char *path, const struct whose *whose)
{
	struct whose other = { 0 };
	int fd = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);

	if (fd < 0)
		return false;
	whose_file(fd, path, &other);
	close(fd);
	return whose->known && whose_same(whose, &other);
}

/*
 * Where it goes when w->to is taken. By the same process (what it wrote before it left the slow path): the next segment
 * number. By another: -<pid> before the suffix, and a number if that is taken as well.
 */
static int next_name(struct walk *w, const char *first, const char *name, const struct whose *whose, int try)
{
	size_t dir = strlen(first) - strlen(name), stem = stem_bytes(name);
	char pid[32] = "";
	int n;

	if (!same_process(first, whose))
		snprintf(pid, sizeof(pid), "-%u", whose->pid);
	if (is_closed(name) || !pid[0] || try > 1) {
		char base[POOL_PATH];

		snprintf(base, sizeof(base), "%s", name);
		if (is_closed(base))
			*strrchr(base, '.') = 0;
		n = snprintf(w->to, sizeof(w->to), "%.*s%.*s%s%s.%d", (int)dir, first, (int)stem, base, pid,
			     base + stem, try);
	} else {
		n = snprintf(w->to, sizeof(w->to), "%.*s%.*s%s%s", (int)dir, first, (int)stem, name, pid, name + stem);
	}
	return n < (int)sizeof(w->to) ? 0 : -ENAMETOOLONG;
}

static int settle_name(struct walk *w, int fd, const char *part, const char *name, const struct whose *whose)
{
	char first[POOL_PATH];
	int try, ret = out_rename(part, w->to);

	snprintf(first, sizeof(first), "%s", w->to);
	for (try = 1; ret == -EEXIST && try < NAME_TRIES; try++) {
		if (same_content(w, fd, w->to)) {
			unlink(part);
			return 0;
		}
		ret = next_name(w, first, name, whose, try);
		if (ret == 0)
			ret = out_rename(part, w->to);
	}
	return ret;
}

/* The sidecar goes where its file went; it stays here as well until the file is gone, for it says whose that is. */
static int copy_sidecar(struct walk *w)
{
	char from[POOL_PATH + 16], to[POOL_PATH + 16], part[POOL_PATH + 32];
	struct stat st;
	int fd, ret;

	snprintf(from, sizeof(from), "%s.meta.json", w->from);
	fd = open(from, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0)
		return 0;
	snprintf(to, sizeof(to), "%s.meta.json", w->to);
	snprintf(part, sizeof(part), "%s.part", to);
	ret = sys_fstat(fd, &st);
	if (ret == 0 && S_ISREG(st.st_mode))
		ret = copy_file(w, fd, part, &st);
	if (ret == 0 && (FAULT("collect.sidecar") || rename(part, to)))
		ret = -errno;
	close(fd);
	return ret;
}

static int unlink_both(const struct walk *w)
{
	char sidecar[POOL_PATH + 16];

	if ((FAULT("collect.unlink") || unlink(w->from)) && errno != ENOENT)
		return -errno;
	snprintf(sidecar, sizeof(sidecar), "%s.meta.json", w->from);
	unlink(sidecar);
	return 0;
}

static int move_file(struct walk *w, int fd, const char *name, const struct whose *whose, const struct stat *st)
{
	char part[POOL_PATH + 32];
	int ret;

	/* the pid keeps two of us apart */
	snprintf(part, sizeof(part), "%s.%u.part", w->to, (unsigned int)getpid());
	ret = copy_file(w, fd, part, st);
	if (ret < 0)
		return ret;
	if (strncmp(w->to + w->to_root, "/meta/", 6) == 0)
		ret = rename(part, w->to) ? -errno : 0; /* written anew as a whole: the newest counts */
	else
		ret = settle_name(w, fd, part, name, whose);
	if (ret < 0) {
		unlink(part);
		return ret;
	}
	ret = copy_sidecar(w);
	return ret == 0 ? unlink_both(w) : ret;
}

/* --- the tree --------------------------------------------------------------------------------------------------------- */

static void collect_file(struct walk *w, int dir, const char *name)
{
	enum collect_verdict verdict;
	struct whose whose;
	char text[160] = "";
	struct stat st;
	int fd, ret;

	fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0)
		return; /* gone meanwhile, or a link */
	ret = sys_fstat(fd, &st);
	if (ret < 0 || !S_ISREG(st.st_mode)) {
		close(fd);
		return;
	}
	verdict = readiness(w, fd, name, &whose);
	if (verdict == COLLECT_MOVED && !w->options->dry_run) {
		ret = move_file(w, fd, name, &whose, &st);
		if (ret < 0) {
			verdict = COLLECT_FAILED;
			snprintf(text, sizeof(text), "cannot move: %s", strerror(-ret));
		}
	}
	close(fd);
	report(w, verdict, (uint64_t)st.st_size, text);
}

static bool has_main_file(const struct walk *w, const char *name)
{
	char main_file[2 * POOL_PATH];
	struct stat st;

	snprintf(main_file, sizeof(main_file), "%s/%.*s", w->from, (int)(strlen(name) - strlen(".meta.json")), name);
	return sys_lstat(main_file, &st) == 0;
}

struct level {
	struct walk *walk;
	int dir;
};

static int walk_dir(struct walk *w, int dir);

static int visit(void *ctx, const char *name, uint64_t inode)
{
	struct level *level = ctx;
	struct walk *w = level->walk;
	size_t from = strlen(w->from), to = strlen(w->to);
	int sub;

	(void)inode;
	if (ends_with(name, ".part") || (ends_with(name, ".meta.json") && has_main_file(w, name)))
		return 0;
	if (snprintf(w->from + from, sizeof(w->from) - from, "/%s", name) >= (int)(sizeof(w->from) - from) - 40 ||
	    snprintf(w->to + to, sizeof(w->to) - to, "/%s", name) >= (int)(sizeof(w->to) - to) - 40) {
		report(w, COLLECT_FAILED, 0, "path too long");
	} else {
		sub = openat(level->dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
		if (sub < 0) {
			collect_file(w, level->dir, name);
		} else {
			if (w->depth < DEPTH)
				walk_dir(w, sub);
			close(sub);
		}
	}
	w->from[from] = 0;
	w->to[to] = 0;
	return 0;
}

static int walk_dir(struct walk *w, int dir)
{
	struct level level = { .walk = w, .dir = dir };
	int ret;

	if (!w->options->dry_run)
		mkdir(w->to, 0755);
	w->depth++;
	ret = sys_dir_each(dir, visit, &level);
	w->depth--;
	return ret;
}

int collect_run(const struct collect_options *options, struct st_err *err)
{
	struct walk *w;
	int dir, ret;

	if (options->from[0] != '/' || options->to[0] != '/' || strlen(options->from) >= POOL_PATH / 2 ||
	    strlen(options->to) >= POOL_PATH / 2)
		return err_set(err, -EINVAL, "both directories must be absolute paths of less than %d bytes",
			       POOL_PATH / 2);
	dir = open(options->from, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (dir < 0)
		return err_set(err, -errno, "cannot open %s: %s", options->from, strerror(errno));
	w = calloc(1, sizeof(*w));
	if (!w) {
		close(dir);
		return err_set(err, -ENOMEM, "out of memory");
	}
	w->options = options;
	snprintf(w->from, sizeof(w->from), "%s", options->from);
	snprintf(w->to, sizeof(w->to), "%s", options->to);
	w->from_root = strlen(w->from);
	w->to_root = strlen(w->to);
	ret = walk_dir(w, dir);
	close(dir);
	if (ret < 0)
		err_set(err, ret, "cannot read %s: %s", options->from, strerror(-ret));
	else
		ret = w->moved;
	free(w);
	return ret;
}
