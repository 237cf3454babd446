/* SPDX-License-Identifier: MulanPSL-2.0 */
/*
 * A program that ends, forks, closes or is interrupted in the way its first argument names; one row of a table each. The
 * end-to-end tests t42x run it with and without the agent and want the same from both. It says on stdout what happened.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef AT_MINSIGSTKSZ
#define AT_MINSIGSTKSZ 51
#endif

extern char **environ;
static char **args; /* behind the way's name */

static void say(const char *text)
{
	if (write(1, text, strlen(text)) < 0)
		_exit(99);
}

static void nap(long ms)
{
	struct timespec ts = { .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000 };

	while (nanosleep(&ts, &ts) && errno == EINTR)
		;
}

/* Status of a child as a shell would tell it. */
static int status_of(pid_t pid)
{
	int status;

	while (waitpid(pid, &status, 0) != pid)
		if (errno != EINTR)
			return 98;
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void farewell(void)
{
	say("atexit\n");
}

/* ---- ends ----------------------------------------------------------------------------------------------------------- */

static int end_return(void)
{
	return 7;
}

static int end_exit(void)
{
	exit(3);
}

static int end__exit(void)
{
	_exit(4);
}

static int end_quick_exit(void)
{
	quick_exit(5);
}

static int end_abort(void)
{
	abort();
}

static int end_segv(void)
{
	raise(SIGSEGV);
	return 1;
}

static int end_term(void)
{
	raise(SIGTERM);
	return 1;
}

static int end_kill(void)
{
	raise(SIGKILL);
	return 1;
}

static int end_exec(void)
{
	execl("/bin/sh", "sh", "-c", "echo exec; exit 9", NULL);
	return 1;
}

static void *exit_here(void *unused)
{
	exit(8);
}

static int end_in_thread(void)
{
	pthread_t thread;

	pthread_create(&thread, NULL, exit_here, NULL);
	pause();
	return 1;
}

static void *thread_last(void *unused)
{
	nap(100);
	say("last thread\n");
	return NULL;
}

/* The process ends when its last thread does: ours must not count. */
static int end_last_thread(void)
{
	pthread_t thread;

	pthread_create(&thread, NULL, thread_last, NULL);
	pthread_exit(NULL);
}

static void exit_again(void)
{
	_exit(6);
}

static int end_in_atexit(void)
{
	atexit(exit_again);
	exit(1);
}

/* Double fork; the daemon outlives its parents and writes to the file named by the argument. */
static int end_daemon(void)
{
	pid_t pid = fork();
	int fd;

	if (pid)
		return status_of(pid);
	setsid();
	if (fork())
		exit(2);
	nap(300);
	fd = open(args[0], O_WRONLY | O_CREAT | O_TRUNC, 0644);
	if (fd < 0 || write(fd, "daemon\n", 7) != 7)
		abort();
	close(fd);
	exit(0);
}

/* The library itself, opened and closed like a plug-in, several times. */
static int end_dlclose(void)
{
	int i;

	for (i = 0; i < 3; i++) {
		void *library = dlopen(args[0], RTLD_NOW);

		if (!library || dlclose(library)) {
			say(dlerror());
			return 1;
		}
		nap(20);
	}
	/* it stays, since its threads and what it registered need it */
	say(dlopen(args[0], RTLD_NOW | RTLD_NOLOAD) ? "stays\n" : "gone\n");
	return 11;
}

/* ---- forks ---------------------------------------------------------------------------------------------------------- */

static int fork_exit(void)
{
	pid_t pid = fork();

	if (!pid)
		exit(21);
	return status_of(pid);
}

static int fork_vfork(void)
{
	pid_t pid = vfork();

	if (!pid) {
		execl("/bin/sh", "sh", "-c", "echo vfork; exit 22", NULL);
		_exit(1);
	}
	return status_of(pid);
}

static int fork_spawn(void)
{
	char *const argv[] = { "sh", "-c", "echo spawned; exit 23", NULL };
	pid_t pid;

	if (posix_spawn(&pid, "/bin/sh", NULL, NULL, argv, environ))
		return 1;
	return status_of(pid);
}

static int fork_system(void)
{
	return WEXITSTATUS(system("echo system; exit 24"));
}

/* No atfork handler runs in these two. */
static int fork__Fork(void)
{
	pid_t (*bare)(void) = (pid_t(*)(void))dlsym(RTLD_DEFAULT, "_Fork");
	pid_t pid;

	if (!bare)
		return 25;
	pid = bare();
	if (!pid)
		exit(25);
	return status_of(pid);
}

static int fork_clone(void)
{
	pid_t pid = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);

	if (!pid)
		exit(26);
	return status_of(pid);
}

/* In a pid namespace within another one, so that both are number 1 of theirs. */
static int inner(void *unused)
{
	say(getpid() == 1 ? "inner is 1\n" : "inner is not 1\n");
	exit(27);
}

static int outer(void *unused)
{
	static char stack[256 * 1024] __attribute__((aligned(16)));
	pid_t pid;
	int status;

	/* loaded again in here, with a pid of 1 */
	if (args[0]) {
		args[-1] = "same_pid_inner";
		execv("/proc/self/exe", args - 2);
		return 97;
	}
	pid = clone(inner, stack + sizeof(stack), CLONE_NEWPID | SIGCHLD, NULL);
	if (pid < 0)
		return 77;
	status = status_of(pid);
	nap(300);
	say(access(getenv("SOCKET_OF_1") ? getenv("SOCKET_OF_1") : "/", F_OK) ? "socket gone\n" : "socket there\n");
	return status;
}

static int fork_same_pid(void)
{
	static char stack[256 * 1024] __attribute__((aligned(16)));
	pid_t pid = clone(outer, stack + sizeof(stack), CLONE_NEWPID | SIGCHLD, NULL);

	return pid < 0 ? 77 : status_of(pid);
}

static int fork_same_pid_inner(void)
{
	args[0] = NULL;
	nap(300); /* the agent's socket is made by its thread */
	return outer(NULL);
}

static _Atomic int busy;

static void *allocate(void *unused)
{
	while (busy)
		free(malloc(1000));
	return NULL;
}

/* Argument: how many. */
static int fork_many(void)
{
	int i, n = atoi(args[0]), bad = 0;
	pthread_t threads[4];

	busy = 1;
	for (i = 0; i < 4; i++)
		pthread_create(&threads[i], NULL, allocate, NULL);
	for (i = 0; i < n; i++) {
		pid_t pid = fork();

		if (!pid) {
			free(malloc(1000));
			if (i % 2)
				_exit(0);
			exit(0);
		}
		bad += pid < 0 || status_of(pid) != 0;
	}
	busy = 0;
	for (i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	return bad ? 1 : 28;
}

/* ---- descriptors ---------------------------------------------------------------------------------------------------- */

#define NUMBERS 200

/* Close everything, take every number, and look at the end whether anybody else wrote into or closed one of them. */
static int files_reuse(void)
{
	char path[4096];
	off_t bytes = 0;
	int i, round, fd, fds[NUMBERS], moved = 0, lost = 0;

	for (round = 0; round < 20; round++) {
		for (i = 3; i < 1024; i++)
			close(i);
		for (i = 0; i < NUMBERS; i++) {
			snprintf(path, sizeof(path), "%s/own%d", args[0], i);
			fd = open(path, O_RDWR | O_CREAT, 0644);
			moved += fd != 3 + i; /* somebody held a lower number just then */
			fds[i] = fd;
		}
		nap(25);
		for (i = 0; i < NUMBERS; i++) {
			bytes += lseek(fds[i], 0, SEEK_END);
			lost += fcntl(fds[i], F_GETFD) < 0;
		}
	}
	/* in a table that is shared, a number may be taken for the moment of a write */
	printf("%s, %d lost, %ld bytes\n", moved && !getenv("HOST_SHARED_TABLE") ? "moved" : "in place", lost,
	       (long)bytes);
	return 31;
}

/* How many can be opened under a limit, and that the limit is met exactly. */
static int files_limit(void)
{
	struct rlimit limit = { 64, 64 };
	int n = 0;

	setrlimit(RLIMIT_NOFILE, &limit);
	while (open("/dev/null", O_RDONLY) >= 0)
		n++;
	printf("%d opened, then %s\n", n, strerror(errno));
	nap(500);
	return 32;
}

/* A lock of the kind that any close() of the file, by any thread with this descriptor table, gives up. */
static int files_locks(void)
{
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
	int fd = open(args[0], O_RDWR | O_CREAT, 0644);
	int i, lost = 0;

	if (fcntl(fd, F_SETLK, &lock))
		return 1;
	for (i = 0; i < 50; i++) {
		pid_t pid = fork();

		if (!pid) {
			struct flock test = { .l_type = F_WRLCK, .l_whence = SEEK_SET };

			_exit(fcntl(open(args[0], O_RDWR), F_GETLK, &test) || test.l_type == F_UNLCK);
		}
		lost += status_of(pid);
		nap(20);
	}
	printf("%d times lost\n", lost);
	return 33;
}

/*
 * A server of the job's. In a process where our threads share its descriptors, one that takes the numbers of ours must
 * not lose its clients to us. Argument: where to listen (abstract).
 */
static int files_server(void)
{
	struct {
		sa_family_t family;
		char name[64];
	} address = { AF_UNIX, "" };
	socklen_t bytes;
	int i, fd, served = 0;

	snprintf(address.name + 1, sizeof(address.name) - 1, "%s", args[0]);
	bytes = (socklen_t)(sizeof(sa_family_t) + 1 + strlen(args[0]));
	nap(300);
	for (i = 3; i < 1024; i++)
		close(i);
	fd = socket(AF_UNIX, SOCK_STREAM, 0); /* number 3, ... */
	for (i = 0; i < 40; i++)
		dup(fd); /* ... and every other one is the same listening socket */
	if (bind(fd, (void *)&address, bytes) || listen(fd, 100))
		return 1;
	for (i = 0; i < 30; i++) {
		int client = socket(AF_UNIX, SOCK_STREAM, 0);

		connect(client, (void *)&address, bytes);
		nap(30);
		fcntl(fd, F_SETFL, O_NONBLOCK);
		served += accept(fd, NULL, NULL) >= 0;
		close(client);
	}
	printf("%d served\n", served);
	return 34;
}

/* ---- signals -------------------------------------------------------------------------------------------------------- */

static _Atomic unsigned long caught, strangers;
static pid_t own_threads[64];
static _Atomic int own_count;

static void register_thread(void)
{
	int i = own_count;

	own_threads[i] = (pid_t)syscall(SYS_gettid);
	own_count = i + 1; /* last: a handler looks at whole entries only */
}

static void count_signal(int sig)
{
	pid_t tid = (pid_t)syscall(SYS_gettid);
	int i;

	caught++;
	for (i = 0; i < own_count; i++)
		if (own_threads[i] == tid)
			return;
	strangers++;
}

static void *spin(void *unused)
{
	register_thread();
	while (busy)
		caught += 0;
	return NULL;
}

/* Timers and kill() from the first instruction of main to the end: none arrives on a thread that is not the program's. */
static int signal_storm(void)
{
	struct itimerval often = { { 0, 200 }, { 0, 200 } };
	struct sigaction action = { .sa_handler = count_signal, .sa_flags = SA_RESTART };
	pthread_t thread;
	int i, sig;

	register_thread();
	for (sig = 1; sig < 64; sig++)
		if (sig != SIGKILL && sig != SIGSTOP && sig != SIGCHLD && sig != 32 && sig != 33)
			sigaction(sig, &action, NULL);
	busy = 1;
	pthread_create(&thread, NULL, spin, NULL);
	while (own_count < 2)
		sched_yield();
	setitimer(ITIMER_PROF, &often, NULL);
	setitimer(ITIMER_REAL, &often, NULL);
	setitimer(ITIMER_VIRTUAL, &often, NULL);
	for (i = 0; i < 300; i++) {
		kill(getpid(), SIGUSR1 + i % 2 * (SIGUSR2 - SIGUSR1));
		kill(getpid(), SIGRTMIN + i % 8);
		nap(1);
	}
	memset(&often, 0, sizeof(often));
	setitimer(ITIMER_PROF, &often, NULL);
	setitimer(ITIMER_REAL, &often, NULL);
	setitimer(ITIMER_VIRTUAL, &often, NULL);
	busy = 0;
	pthread_join(thread, NULL);
	printf("%s, %lu on strangers\n", caught > 500 ? "many" : "few", strangers);
	return 41;
}

/* Everything stays blocked here; a signal nobody takes must not end in one of our threads. */
static int signal_blocked(void)
{
	sigset_t all, pending;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, NULL);
	signal(SIGUSR1, count_signal);
	kill(getpid(), SIGUSR1);
	nap(300);
	sigpending(&pending);
	printf("%s, %lu caught\n", sigismember(&pending, SIGUSR1) ? "pending" : "gone", caught);
	return 42;
}

/* An alternative stack of the smallest size that the kernel takes, and @more; a guard page below it. */
static void tiny_stack(size_t more)
{
	size_t bytes = getauxval(AT_MINSIGSTKSZ) ? getauxval(AT_MINSIGSTKSZ) : 2048;
	stack_t stack = { 0 };
	char *area = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	bytes += more;
	mprotect(area, 1 << 19, PROT_NONE);
	stack.ss_sp = area + (1 << 19);
	stack.ss_size = bytes;
	/* right above the guard page, so that an overflow is a fault */
	if (sigaltstack(&stack, NULL))
		abort();
}

static void on_tiny_stack(void (*handler)(int), size_t more)
{
	struct sigaction action = { .sa_handler = handler, .sa_flags = SA_ONSTACK | SA_NODEFER };

	tiny_stack(more);
	sigaction(SIGUSR1, &action, NULL);
}

static void handler_exit(int sig)
{
	exit(43);
}

/* exit() in a handler; argument: bytes of stack beyond the kernel's least. */
static int signal_exit(void)
{
	on_tiny_stack(handler_exit, (size_t)atoi(args[0]));
	raise(SIGUSR1);
	return 1;
}

static void handler_fork(int sig)
{
	pid_t pid = fork();

	if (!pid)
		_exit(0);
	caught += status_of(pid) == 0;
}

static int signal_fork(void)
{
	struct itimerval often = { { 0, 3000 }, { 0, 3000 } };
	int i;

	on_tiny_stack(handler_fork, (size_t)atoi(args[0]));
	for (i = 0; i < 20; i++)
		raise(SIGUSR1);
	printf("%lu\n", caught);
	signal(SIGALRM, handler_fork); /* and while other things go on */
	setitimer(ITIMER_REAL, &often, NULL);
	for (i = 0; i < 2000; i++)
		free(malloc((size_t)i * 10));
	nap(100);
	memset(&often, 0, sizeof(often));
	setitimer(ITIMER_REAL, &often, NULL);
	return 44;
}

/* The end comes while handlers run and the destructors wait. */
static int signal_at_end(void)
{
	struct itimerval often = { { 0, 100 }, { 0, 100 } };
	struct sigaction action = { .sa_handler = count_signal };

	register_thread();
	sigaction(SIGALRM, &action, NULL);
	setitimer(ITIMER_REAL, &often, NULL);
	exit(45);
}

/* ---- the table ------------------------------------------------------------------------------------------------------ */

static const struct {
	const char *name;
	int (*go)(void);
} ways[] = {
	{ "return", end_return },
	{ "exit", end_exit },
	{ "_exit", end__exit },
	{ "quick_exit", end_quick_exit },
	{ "abort", end_abort },
	{ "segv", end_segv },
	{ "term", end_term },
	{ "kill", end_kill },
	{ "exec", end_exec },
	{ "in_thread", end_in_thread },
	{ "last_thread", end_last_thread },
	{ "in_atexit", end_in_atexit },
	{ "daemon", end_daemon },
	{ "dlclose", end_dlclose },
	{ "fork", fork_exit },
	{ "vfork", fork_vfork },
	{ "spawn", fork_spawn },
	{ "system", fork_system },
	{ "_Fork", fork__Fork },
	{ "clone", fork_clone },
	{ "same_pid", fork_same_pid },
	{ "same_pid_inner", fork_same_pid_inner },
	{ "many", fork_many },
	{ "reuse", files_reuse },
	{ "limit", files_limit },
	{ "locks", files_locks },
	{ "server", files_server },
	{ "storm", signal_storm },
	{ "blocked", signal_blocked },
	{ "handler_exit", signal_exit },
	{ "handler_fork", signal_fork },
	{ "at_end", signal_at_end },
};

int main(int argc, char **argv)
{
	const char *wait_ms = getenv("HOST_WAIT_MS"); /* until the agent's threads have settled; 0: at once */
	size_t i;

	setvbuf(stdout, NULL, _IOLBF, 0);
	if (argc < 2)
		return 96;
	args = argv + 2;
	if (getenv("HOST_SAY_FAREWELL"))
		atexit(farewell);
	nap(wait_ms ? atol(wait_ms) : 0);
	for (i = 0; i < sizeof(ways) / sizeof(ways[0]); i++)
		if (!strcmp(ways[i].name, argv[1]))
			return ways[i].go();
	return 95;
}
