/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * Root's tools that read what jobs wrote first become the user it belongs to (design 5): what a job left behind is
 * untrusted input, and the place for the result may be full of its user's links. Used by recover and the converters.
 */
#ifndef CLI_BECOME_H
#define CLI_BECOME_H

#include "base/err.h"

#include <sys/types.h>

/** become_user - take this user and group and no other, for good. Context: tool, as root. Return: 0 or -errno with @err. */
int become_user(uid_t uid, gid_t gid, struct st_err *err);

/**
 * become_owner_of - as root: become the owner of a file, of a directory, or of the first file of another user in it
 *
 * Links are not followed, @path is the link's owner's where it is one; what belongs to root, or is not there, changes nothing. Does nothing for other users.
 * Context: tool. Return: 1 = it is another user now, 0 = nothing changed, or -errno with @err.
 */
int become_owner_of(const char *path, struct st_err *err);

/**
 * become_borrow - as root: read with the rights of become_owner_of() for now
 *
 * For programs that put their results where only root may. Affects what files may be opened, not who may be asked for
 * more: become_root() takes root's rights back, become_borrow_again() gives them up once more. All three do nothing for
 * other users and for what is root's own. Context: tool. Return: 1 = another user's rights, 0 = nothing changed, or
 * -errno with @err.
 */
int become_borrow(const char *path, struct st_err *err);
void become_root(void);
int become_borrow_again(void);

/** become_reader - become_owner_of() for a converter, which says so on stderr. Context: tool. Return: enum cmd_exit. */
int become_reader(const char *path);

#endif
