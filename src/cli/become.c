/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Giving up root; see become.h. cmd_recover.c does it in a child for each user, converters once and for good. */
#include "cli/become.h"
#include "cli/command.h"

#include <errno.h>
#include <ftw.h>
#include <grp.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define OPEN_DIRECTORIES 16

int become_user(uid_t uid, gid_t gid, struct st_err *err)
{
	if (setgroups(0, NULL) || setresgid(gid, gid, gid) || setresuid(uid, uid, uid))
		return err_set(err, -errno, "cannot become user %u: %s", (unsigned int)uid, strerror(errno));
	return 0;
}

static struct stat owner; /* nftw has no argument for its callback */

static int look(const char *path, const struct stat *st, int type, struct FTW *where)
{
	if (type == FTW_NS || type == FTW_SL || !st->st_uid)
		return 0;
	owner = *st;
	return 1;
}

int become_owner_of(const char *path, struct st_err *err)
{
	int ret;

	if (geteuid() != 0 || strcmp(path, "-") == 0)
		return 0;
	if (nftw(path, look, OPEN_DIRECTORIES, FTW_PHYS) != 1)
		return 0;
	ret = become_user(owner.st_uid, owner.st_gid, err);
	return ret < 0 ? ret : 1;
}

int become_reader(const char *path)
{
	struct st_err err = { 0 };
	int ret = become_owner_of(path, &err);

	if (ret < 0)
		return cmd_error("%s", err.text);
	if (ret > 0)
		cmd_note("%s belongs to user %u: going on with that user's rights", path, (unsigned int)geteuid());
	return CMD_OK;
}
