/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Finding or mounting tracefs, and small files; see tracefs.h. */
#include "probe/ftrace/tracefs.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

/* --- small files -------------------------------------------------------------------------------------------------- */

int file_read(int dir, const char *path, char **data, size_t *bytes)
{
	size_t room = 4096, used = 0;
	char *text = NULL, *more;
	ssize_t got;
	int fd, ret;

	fd = openat(dir, path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	do {
		if (!text || room - used < 4096) {
			room *= 2;
			more = realloc(text, room + 1);
			if (!more) {
				ret = -ENOMEM;
				goto out;
			}
			text = more;
		}
		got = read(fd, text + used, room - used);
		if (got > 0)
			used += (size_t)got;
	} while (got > 0 || (got < 0 && errno == EINTR));
	if (got < 0) {
		ret = -errno;
		goto out;
	}
	text[used] = '\0';
	*data = text;
	if (bytes)
		*bytes = used;
	close(fd);
	return 0;
out:
	close(fd);
	free(text);
	return ret;
}

int file_read_line(int dir, const char *path, char *line, size_t room)
{
	ssize_t got;
	int fd, ret = 0;

	fd = openat(dir, path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	got = read(fd, line, room - 1);
	if (got < 0) {
		ret = -errno;
		got = 0;
	}
	line[got] = '\0';
	line[strcspn(line, "\n")] = '\0';
	close(fd);
	return ret;
}

int file_write(int dir, const char *path, const char *text)
{
	size_t bytes = strlen(text);
	ssize_t done;
	int fd, ret = 0;

	/* O_TRUNC as the shell's `>`: set_event is emptied by it. Never O_CREAT. */
	fd = openat(dir, path, O_WRONLY | O_TRUNC | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	do
		done = write(fd, text, bytes);
	while (done < 0 && errno == EINTR);
	if (done < 0)
		ret = -errno;
	else if ((size_t)done != bytes)
		ret = -EIO;
	close(fd);
	return ret;
}

bool file_exists(int dir, const char *path)
{
	return faccessat(dir, path, F_OK, 0) == 0;
}

/* --- the file system ---------------------------------------------------------------------------------------------- */

/* In mountinfo blanks and backslashes of paths are written as \040 and the like. */
static void unescape(char *text)
{
	char *to = text;

	for (; *text; text++) {
		if (text[0] == '\\' && text[1] && text[2] && text[3]) {
			*to++ = (char)((text[1] - '0') * 64 + (text[2] - '0') * 8 + (text[3] - '0'));
			text += 3;
		} else {
			*to++ = *text;
		}
	}
	*to = '\0';
}

/* Where is one mounted? The whole of it only: `/` must be the root within the file system (field 4). */
static bool find_mounted(char *path, size_t room)
{
	char *line = NULL;
	size_t line_room = 0;
	bool found = false;
	FILE *mounts;

	mounts = fopen("/proc/self/mountinfo", "re");
	if (!mounts)
		return false;
	while (!found && getline(&line, &line_room, mounts) > 0) {
		char root[256], where[256];
		const char *type = strstr(line, " - ");

		if (!type || strncmp(type + 3, "tracefs ", 8) != 0)
			continue;
		if (sscanf(line, "%*s %*s %*s %255s %255s", root, where) != 2 || strcmp(root, "/") != 0)
			continue;
		unescape(where);
		found = snprintf(path, room, "%s", where) < (int)room && access(where, R_OK | X_OK) == 0;
	}
	free(line);
	fclose(mounts);
	return found;
}

/* Mounted on a directory of ours and detached right away: the descriptor alone keeps it, kill -9 leaves nothing. */
static int mount_for_us(struct tracefs *fs, struct st_err *err)
{
	const char *base = access("/run", W_OK) == 0 ? "/run" : "/tmp";
	char path[64];
	int ret = 0;

	snprintf(path, sizeof(path), "%s/systrace-tracefs-XXXXXX", base);
	if (!mkdtemp(path))
		return err_set(err, -errno, "cannot make a directory in %s to mount tracefs on: %s", base,
			       strerror(errno));
	if (mount("systrace", path, "tracefs", MS_NOSUID | MS_NOEXEC | MS_NODEV, NULL) < 0) {
		ret = -errno;
		if (ret == -ENODEV)
			err_set(err, ret, "this kernel has no tracefs (CONFIG_FTRACE); events cannot be recorded");
		else
			err_set(err, ret,
				"tracefs is not mounted and cannot be mounted here: %s; run on the host, or "
				"`mount -t tracefs nodev /sys/kernel/tracing` there and give it to the container",
				strerror(-ret));
		rmdir(path);
		return ret;
	}
	fs->fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fs->fd < 0)
		ret = err_set(err, -errno, "cannot open tracefs at %s: %s", path, strerror(errno));
	umount2(path, MNT_DETACH);
	rmdir(path);
	return ret;
}

int tracefs_open(struct tracefs *fs, const char *path, struct st_err *err)
{
	char found[sizeof(fs->path)];

	*fs = (struct tracefs){ .fd = -1 };
	if (!path && geteuid() != 0)
		return err_set(err, -EPERM, "recording kernel events needs root (CAP_SYS_ADMIN); run it with sudo");
	if (!path && !find_mounted(found, sizeof(found)))
		return mount_for_us(fs, err);
	if (!path)
		path = found;
	snprintf(fs->path, sizeof(fs->path), "%s", path);
	fs->fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fs->fd < 0)
		return err_set(err, -errno, "cannot open tracefs at %s: %s", path, strerror(errno));
	if (!file_exists(fs->fd, "instances"))
		return err_set(err, -ENODEV, "%s is not a tracefs with instances (Linux 3.10 or newer)", path);
	return 0;
}

void tracefs_close(struct tracefs *fs)
{
	if (fs->fd >= 0)
		close(fs->fd);
	fs->fd = -1;
}
