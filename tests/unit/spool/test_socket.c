/* SPDX-License-Identifier: MulanPSL-2.0 */
/* Which control sockets count as left behind, and that nothing else is removed. */
#include "helpers.h"

#include "base/fault.h"
#include "spool/socket.h"

#include <sys/socket.h>
#include <sys/un.h>

static char noted[16][256];
static int noted_errors[16], noted_count;

static void note_socket(void *ctx, const char *path, int error)
{
	(void)ctx;
	assert_true(noted_count < 16);
	snprintf(noted[noted_count], sizeof(noted[0]), "%s", strrchr(path, '/') + 1);
	noted_errors[noted_count++] = error;
}

static int sweep(bool dry_run)
{
	struct socket_sweep what = { .dir = root, .dry_run = dry_run, .report = note_socket };

	noted_count = 0;
	return socket_sweep(&what);
}

static const char *path_of(const char *name)
{
	static char path[128];

	snprintf(path, sizeof(path), "%s/%s", root, name);
	return path;
}

static bool there(const char *name)
{
	struct stat st;

	return !lstat(path_of(name), &st);
}

/* A socket of that name, old enough to be judged. Return: its descriptor; closed, the name is a dead one's. */
static int make(const char *name, bool listens)
{
	const struct timespec old[2] = { { .tv_sec = 1000 }, { .tv_sec = 1000 } };
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	snprintf(addr.sun_path, sizeof(addr.sun_path), "%s/%s", root, name);
	assert_int_equal(bind(fd, (struct sockaddr *)&addr, sizeof(addr)), 0);
	if (listens)
		assert_int_equal(listen(fd, 4), 0);
	assert_int_equal(utimensat(AT_FDCWD, addr.sun_path, old, AT_SYMLINK_NOFOLLOW), 0);
	return fd;
}

/* The pid of a process that has ended. */
static uint32_t dead_pid(void)
{
	pid_t pid = fork();

	if (!pid)
		_exit(0);
	waitpid(pid, NULL, 0);
	return (uint32_t)pid;
}

static void name_of(char *name, size_t room, uint32_t pid)
{
	snprintf(name, room, "sysTrace_%u.sock", pid);
}

static void dead_ones_go(void **state)
{
	char name[64], other[64];
	uint32_t pid = dead_pid();

	(void)state;
	name_of(name, sizeof(name), pid);
	snprintf(other, sizeof(other), "sysTrace_%u-4026532999.sock", pid); /* of a pid namespace that is not ours */
	close(make(name, true));
	close(make(other, false));
	assert_int_equal(sweep(true), 2);
	assert_true(there(name) && there(other));
	assert_int_equal(sweep(false), 2);
	assert_int_equal(noted_count, 2);
	assert_false(there(name) || there(other));
	assert_int_equal(sweep(false), 0);
}

static void others_stay(void **state)
{
	char name[64], own[64];
	uint32_t pid = dead_pid();
	int live, fd;

	(void)state;
	name_of(name, sizeof(name), pid);
	live = make(name, true); /* somebody listens, whoever it is */
	name_of(own, sizeof(own), (uint32_t)getpid());
	close(make(own, true)); /* dead, but a process of that number lives */
	close(make("other.sock", true));
	close(make("sysTrace_7.sock.bak", true));
	close(make("sysTrace_x.sock", true));
	close(make("sysTrace_07.sock", true));
	run("ln -s other.sock %s/sysTrace_4194301.sock", root);
	run("touch -d @1000 %s/sysTrace_4194302.sock", root);
	run("mkdir %s/sysTrace_4194303.sock", root);
	fd = open(path_of("sysTrace_4194302.sock"), O_RDONLY);
	assert_int_equal(sweep(false), 0);
	assert_int_equal(noted_count, 0);
	assert_true(there(name) && there(own) && there("other.sock") && there("sysTrace_7.sock.bak") &&
		    there("sysTrace_x.sock") && there("sysTrace_07.sock") && there("sysTrace_4194301.sock") &&
		    there("sysTrace_4194302.sock") && there("sysTrace_4194303.sock"));
	close(fd);
	close(live);
}

static void young_ones_stay(void **state)
{
	char name[64];

	(void)state;
	name_of(name, sizeof(name), dead_pid());
	close(make(name, false));
	run("touch -h -d '1 hour' %s", path_of(name)); /* a clock that was put back: still not old */
	assert_int_equal(sweep(false), 0);
	assert_true(there(name));
}

static void another_users_stays(void **state)
{
	char name[64];

	(void)state;
	if (geteuid() != 0)
		skip();
	name_of(name, sizeof(name), dead_pid());
	close(make(name, true));
	assert_int_equal(lchown(path_of(name), 65534, 65534), 0);
	assert_int_equal(sweep(false), 0);
	assert_true(there(name));
	assert_false(socket_is_dead(path_of(name)));
}

static void one_process(void **state)
{
	char dead[64], live[64], with_ns[64];
	int fd;

	(void)state;
	name_of(dead, sizeof(dead), 4194301);
	name_of(live, sizeof(live), 4194302);
	snprintf(with_ns, sizeof(with_ns), "sysTrace_4194301-77.sock");
	close(make(dead, true));
	close(make(with_ns, true));
	fd = make(live, true);
	assert_true(socket_is_dead(path_of(dead)));
	assert_false(socket_is_dead(path_of(live)));
	assert_false(socket_is_dead(path_of("not there")));
	socket_remove(root, 4194301, 77);
	socket_remove(root, 4194302, 77);
	assert_false(there(dead) || there(with_ns));
	assert_true(there(live));
	close(fd);
}

static void long_paths(void **state)
{
	char dir[200], path[256];
	int fd;

	(void)state;
	snprintf(dir, sizeof(dir), "%s/%0100d", root, 1);
	assert_int_equal(mkdir(dir, 0700), 0);
	fd = make("sysTrace_4194301.sock", true);
	snprintf(path, sizeof(path), "%s/sysTrace_4194301.sock", dir);
	assert_int_equal(rename(path_of("sysTrace_4194301.sock"), path), 0);
	assert_false(socket_is_dead(path));
	close(fd);
	assert_true(socket_is_dead(path));
}

static void no_directory(void **state)
{
	struct socket_sweep what = { .dir = "/nowhere/at/all" };

	(void)state;
	assert_int_equal(socket_sweep(&what), -ENOENT);
}

#ifdef ST_FAULTS
/* What fails leaves the socket where it is. */
static void faults(void **state)
{
	char name[64];

	(void)state;
	name_of(name, sizeof(name), dead_pid());
	close(make(name, true));
	fault_arm("socket.sweep", 1, 1, EMFILE);
	assert_int_equal(sweep(false), -EMFILE);
	fault_arm("socket.probe", 1, 1, EMFILE);
	assert_int_equal(sweep(false), 0);
	assert_int_equal(noted_count, 0);
	fault_arm("socket.unlink", 1, 1, EACCES);
	assert_int_equal(sweep(false), 0);
	assert_int_equal(noted_count, 1);
	assert_int_equal(noted_errors[0], -EACCES);
	assert_true(there(name));
	fault_arm("", 0, 0, 0);
	assert_int_equal(sweep(false), 1);
}
#endif

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(dead_ones_go, setup, teardown),
		cmocka_unit_test_setup_teardown(others_stay, setup, teardown),
		cmocka_unit_test_setup_teardown(young_ones_stay, setup, teardown),
		cmocka_unit_test_setup_teardown(another_users_stays, setup, teardown),
		cmocka_unit_test_setup_teardown(one_process, setup, teardown),
		cmocka_unit_test_setup_teardown(long_paths, setup, teardown),
		cmocka_unit_test_setup_teardown(no_directory, setup, teardown),
#ifdef ST_FAULTS
		cmocka_unit_test_setup_teardown(faults, setup, teardown),
#endif
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
