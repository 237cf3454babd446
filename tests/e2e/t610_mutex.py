# SPDX-License-Identifier: MulanPSL-2.0
"""Plugin Mutex: known waits are reproduced with lock and owner, counts of all calls are kept, what did not wait is not
stored, answers of the functions stay as they are; the file is a Chrome trace as it stands."""

import glob
import json
import os
import subprocess

import ctl
import harness as h

h.require(h.AGENT, "gcc")

PROGRAM = r"""
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER, free_m = PTHREAD_MUTEX_INITIALIZER;
static pthread_rwlock_t rw = PTHREAD_RWLOCK_INITIALIZER;
static pthread_cond_t c = PTHREAD_COND_INITIALIZER;
static pthread_spinlock_t spin;
static sem_t sem, held;
static volatile int go;

static void sleep_ms(long ms)
{
	struct timespec ts = { ms / 1000, ms % 1000 * 1000000 };

	nanosleep(&ts, NULL);
}

static void after_ms(struct timespec *ts, long ms)
{
	clock_gettime(CLOCK_REALTIME, ts);
	ts->tv_nsec += ms * 1000000;
	ts->tv_sec += ts->tv_nsec / 1000000000;
	ts->tv_nsec %= 1000000000;
}

static void *holder(void *arg)
{
	pthread_mutex_lock(&m);
	*(int *)arg = (int)syscall(SYS_gettid);
	sem_post(&held);
	sleep_ms(50);
	pthread_mutex_unlock(&m);
	return NULL;
}

#define MUST(what) do { if (!(what)) { fprintf(stderr, "line %d: %s\n", __LINE__, #what); abort(); } } while (0)

static void work(void)
{
	struct timespec ts;
	pthread_t thread;
	int tid = 0, i;

	MUST(!pthread_create(&thread, NULL, holder, &tid));
	while (sem_wait(&held))
		;
	MUST(pthread_mutex_trylock(&m) == EBUSY);
	MUST(!pthread_mutex_lock(&m));
	pthread_mutex_unlock(&m);
	pthread_join(thread, NULL);
	printf("%p %d\n", (void *)&m, tid);
	fflush(stdout);
	for (i = 0; i < 1000; i++) {
		MUST(!pthread_mutex_lock(&free_m));
		MUST(!pthread_mutex_unlock(&free_m));
	}
	after_ms(&ts, 20);
	MUST(sem_timedwait(&sem, &ts) == -1 && errno == ETIMEDOUT);
	errno = 77;
	MUST(sem_trywait(&sem) == -1 && errno == EAGAIN);
	sem_post(&sem);
	errno = 77;
	MUST(sem_wait(&sem) == 0 && errno == 77);
	pthread_mutex_lock(&free_m);
	after_ms(&ts, 20);
	MUST(pthread_cond_timedwait(&c, &free_m, &ts) == ETIMEDOUT);
	pthread_mutex_unlock(&free_m);
	MUST(!pthread_rwlock_rdlock(&rw));
	MUST(pthread_rwlock_trywrlock(&rw) == EBUSY);
	after_ms(&ts, 20);
	MUST(pthread_rwlock_timedwrlock(&rw, &ts) == ETIMEDOUT);
	pthread_rwlock_unlock(&rw);
	MUST(!pthread_rwlock_wrlock(&rw));
	MUST(pthread_rwlock_wrlock(&rw) == EDEADLK);
	pthread_rwlock_unlock(&rw);
	MUST(!pthread_spin_lock(&spin));
	MUST(pthread_spin_trylock(&spin) == EBUSY);
	pthread_spin_unlock(&spin);
}

/* Threads, forks and signals at once; ends when told. */
static void on_signal(int number)
{
	int saved = errno;

	sem_post(&sem);
	write(-1, "", 0);
	errno = saved;
}

static void *storm(void *arg)
{
	while (go) {
		pthread_mutex_lock(&m);
		pthread_mutex_unlock(&m);
		pthread_rwlock_rdlock(&rw);
		pthread_rwlock_unlock(&rw);
		while (!sem_trywait(&sem))
			;
	}
	return NULL;
}

static void *signals(void *arg)
{
	pthread_t *threads = arg;

	while (go) {
		pthread_kill(threads[rand() % 4], SIGUSR1);
		sleep_ms(1);
	}
	return NULL;
}

int main(void)
{
	struct sigaction act = { .sa_handler = on_signal, .sa_flags = SA_RESTART };
	pthread_t threads[5];
	char line[64];
	int i;

	pthread_spin_init(&spin, 0);
	sem_init(&sem, 0, 0);
	sem_init(&held, 0, 0);
	sigaction(SIGUSR1, &act, NULL);
	puts("ready");
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin)) {
		if (!strcmp(line, "work\n"))
			work();
		if (!strcmp(line, "spin\n")) {
			pthread_spin_lock(&spin);
			for (i = 0; i < 5000; i++)
				MUST(pthread_spin_trylock(&spin) == EBUSY);
			pthread_spin_unlock(&spin);
			MUST(pthread_mutex_trylock(&free_m) == 0);
			MUST(pthread_mutex_trylock(&free_m) == EBUSY);
			pthread_mutex_unlock(&free_m);
		}
		if (!strcmp(line, "storm\n")) {
			go = 1;
			for (i = 0; i < 4; i++)
				pthread_create(&threads[i], NULL, storm, NULL);
			pthread_create(&threads[4], NULL, signals, threads);
		}
		if (!strcmp(line, "calm\n")) {
			go = 0;
			pthread_join(threads[4], NULL);
			for (i = 0; i < 4; i++)
				pthread_join(threads[i], NULL);
		}
		puts("done");
		fflush(stdout);
	}
	return 0;
}
"""


class Host:
    def __init__(self):
        self.tmp = h.tmpdir()
        self.env = h.preload_env(self.tmp, SYSTRACE_ENABLE="1", RANK="3", SYSTRACE_BUDGET_PCT="100")
        program = h.compile_c(PROGRAM, os.path.join(self.tmp, "program"), "-O2", "-pthread", "-w")
        self.process = h.start([program], env=self.env, stdin=subprocess.PIPE)
        self.line()
        self.sock = ctl.socket_of(self.env["SYSTRACE_SOCKET_DIR"], self.process.pid)
        h.wait_for(lambda: os.path.exists(self.sock), what="the control socket")

    def line(self):
        line = self.process.stdout.readline().decode().strip()
        h.check(line, "the program ended: %s" % (self.process.poll(),))
        return line

    def do(self, word):
        """Lines that it printed before its "done"."""
        self.process.stdin.write(word.encode() + b"\n")
        self.process.stdin.flush()
        lines = []
        while True:
            lines.append(self.line())
            if lines[-1] == "done":
                return lines[:-1]

    def ask(self, verb, **keys):
        answer = ctl.ask(self.sock, verb, plugin="Mutex", **keys)
        h.check_equal(answer.code, 0, "%s: %s" % (verb, answer.text))

    def events(self):
        """Of the file and of closed segments, also where a slow disk has sent them elsewhere."""
        found = glob.glob(os.path.join(self.tmp, "**/Mutex_%d_rank_3.json*" % self.process.pid), recursive=True)
        h.check(found, "no file of this process")
        events = []
        for path in found:
            with open(path) as f:
                events += json.load(f)["traceEvents"]
        return events

    def quit(self):
        self.process.stdin.close()
        self.process.stdin = None
        h.finish(self.process).ok()


def slices(events, name, **args):
    return [e for e in events if e["ph"] == "X" and e["name"] == name
            and all(e["args"].get(k) == v for k, v in args.items())]


def calls(events, name):
    return sum(e["args"]["calls"] for e in events if e["name"] == "calls: " + name)


def test_known_waits():
    host = Host()
    host.do("work")
    host.ask("enable")
    lock, owner = host.do("work")[0].split()
    host.ask("disable")
    host.do("work")
    events = host.events()
    host.quit()
    wait, = slices(events, "pthread_mutex_lock", lock=lock)
    h.check_equal(wait["args"]["owner_tid"], int(owner), "who held it")
    h.check(wait["dur"] >= 1000, "a wait for a lock that is held 50 ms: %s" % wait)
    h.check_equal(len(slices(events, "pthread_mutex_trylock", lock=lock, errno=16)), 1, "a failed trylock")
    h.check_equal(len(slices(events, "sem_timedwait", errno=110)), 1, "a timeout of a semaphore")
    h.check_equal(len(slices(events, "sem_trywait", errno=11)), 1, "a failed trywait")
    h.check_equal(len(slices(events, "pthread_cond_timedwait", errno=110)), 1, "a timeout of a condition")
    h.check_equal(len(slices(events, "pthread_rwlock_timedwrlock", errno=110)), 1, "a timeout of a lock")
    for name in ("sem_timedwait", "pthread_cond_timedwait", "pthread_rwlock_timedwrlock"):
        h.check(slices(events, name)[0]["dur"] >= 19000, "%s waits 20 ms at least" % name)
    h.check_equal(len(slices(events, "pthread_spin_trylock", errno=16)), 1, "a failed spin_trylock")
    h.check_equal(calls(events, "pthread_mutex_lock"), 1003, "all calls are counted")
    h.check_equal(calls(events, "pthread_mutex_trylock"), 1, "calls of trylock")
    h.check(len(slices(events, "pthread_mutex_lock")) < 20, "what did not wait is not stored")


def test_all_stored():
    host = Host()
    host.ask("enable", min_us="0")
    host.do("work")
    host.ask("disable")
    events = host.events()
    host.quit()
    h.check_equal(len(slices(events, "pthread_mutex_lock")), 1003, "min_us=0 stores all")


def test_storm_and_switches():
    host = Host()
    host.do("storm")
    for i in range(50):
        host.ask("enable", min_us=str(0 if i % 10 == 9 else 1))
        host.ask("disable")
    host.do("calm")
    host.do("work")
    h.check(calls(host.events(), "pthread_mutex_lock") > 0, "calls were counted")
    host.quit()


def test_spinning_is_one_slice():
    host = Host()
    host.ask("enable")
    host.do("spin")
    host.ask("disable")
    events = host.events()
    host.quit()
    spins = slices(events, "pthread_spin_trylock", errno=16)
    h.check_equal(sum(e["args"].get("failures", 1) for e in spins), 5000, "failures in %d slices" % len(spins))
    h.check(len(spins) < 1000, "a spin is not one slice a failure: %d" % len(spins))
    h.check_equal(calls(events, "pthread_spin_trylock"), 5000, "calls")


def test_counts_at_the_end():
    host = Host()
    host.ask("enable")
    host.do("work")
    host.quit()
    h.check_equal(calls(host.events(), "pthread_mutex_lock"), 1003, "calls of a capture that the process's end cuts")


def test_killed():
    host = Host()
    host.ask("enable", min_us="0")
    host.do("work")
    host.process.kill()
    host.process.wait()
    h.run([h.SYSTRACE, "recover", "--spool", host.env["SYSTRACE_SPOOL_PATH"]]).ok()
    events = host.events()
    h.check_equal(len(slices(events, "pthread_mutex_lock")), 1003, "all that was recorded before the kill")


if __name__ == "__main__":
    h.main(test_known_waits, test_all_stored, test_storm_and_switches, test_spinning_is_one_slice, test_counts_at_the_end, test_killed)
