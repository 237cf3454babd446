/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Giving up root; see become.h. cmd_recover.c does it in a child for each user, converters once and for good. */
#include "cli/become.h"
#include "cli/command.h"

#include <errno.h>
#include <ftw.h>
#include <grp.h>
#include <limits.h>
#include <stdbool.h>
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
	/* a link within is nobody's word; one that is the path itself leads where its owner says */
	if (type == FTW_NS || (type == FTW_SL && where->level) || !st->st_uid)
		return 0;
	owner = *st;
	return 1;
}

/* Is there another user's file? It is in owner then. */
static bool is_of_others(const char *path)
{
	return geteuid() == 0 && strcmp(path, "-") != 0 && nftw(path, look, OPEN_DIRECTORIES, FTW_PHYS) == 1;
}

int become_owner_of(const char *path, struct st_err *err)
{
	int ret;

	if (!is_of_others(path))
		return 0;
	ret = become_user(owner.st_uid, owner.st_gid, err);
	return ret < 0 ? ret : 1;
}

/* --- for now --------------------------------------------------------------------------------------------------------- */

static struct {
	bool borrowed; /* owner's rights are to be used, or are used now */
	gid_t groups[NGROUPS_MAX];
	int count; /* of root's own groups */
	gid_t gid; /* root's own */
} loan;

int become_borrow_again(void)
{
	if (!loan.borrowed)
		return 0;
	/* the user last: until then it takes root's rights */
	if (setgroups(0, NULL) || setegid(owner.st_gid) || seteuid(owner.st_uid)) {
		int ret = -errno;

		become_root();
		return ret;
	}
	return 1;
}

int become_borrow(const char *path, struct st_err *err)
{
	int ret;

	loan.borrowed = is_of_others(path);
	if (!loan.borrowed)
		return 0;
	loan.gid = getegid();
	loan.count = getgroups(NGROUPS_MAX, loan.groups);
	ret = loan.count < 0 ? -errno : become_borrow_again();
	return ret < 0 ? err_set(err, ret, "cannot take the rights of user %u: %s", (unsigned int)owner.st_uid,
				 strerror(-ret))
		       : ret;
}

void become_root(void)
{
	if (!loan.borrowed || seteuid(0))
		return; /* it can't be refused: root is the saved user */
	if (setegid(loan.gid) || (loan.count >= 0 && setgroups((size_t)loan.count, loan.groups)))
		cmd_note("cannot take back root's groups: %s", strerror(errno));
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
