# SPDX-License-Identifier: MulanPSL-2.0
"""Plugin Mutex: known waits are reproduced with lock and owner, counts of all calls are kept, what did not wait is not
stored, answers of the functions stay as they are; the file is a Chrome trace as it stands."""

import glob
import json
import os
import subprocess

import ctl
import harness as h

h.require(h.AGENT, h.SYSTRACE, "gcc", "nm")

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
static sem_t sem, held, tried;
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
	while (sem_wait(&tried))
		;
	sleep_ms(200);
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
	sem_post(&tried);
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

/* Known waits: the lock is held 5 ms by another thread each time; prints its tid and what each wait took by our clock. */
static sem_t asked;

static void *hold_5_ms(void *arg)
{
	int i;

	*(int *)arg = (int)syscall(SYS_gettid);
	for (i = 0; i < 40; i++) {
		pthread_mutex_lock(&m);
		sem_post(&held);
		sleep_ms(5);
		pthread_mutex_unlock(&m);
		while (sem_wait(&asked))
			;
	}
	return NULL;
}

__attribute__((noinline)) static void known_waits(void)
{
	struct timespec begin, end;
	pthread_t thread;
	int tid = 0, i;

	MUST(!pthread_create(&thread, NULL, hold_5_ms, &tid));
	for (i = 0; i < 40; i++) {
		while (sem_wait(&held))
			;
		clock_gettime(CLOCK_MONOTONIC, &begin);
		pthread_mutex_lock(&m);
		clock_gettime(CLOCK_MONOTONIC, &end);
		pthread_mutex_unlock(&m);
		printf("%p %d %lld %lld\n", (void *)&m, tid, begin.tv_sec * 1000000000LL + begin.tv_nsec,
		       end.tv_sec * 1000000000LL + end.tv_nsec);
		sem_post(&asked);
	}
	pthread_join(thread, NULL);
	fflush(stdout);
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
	sem_init(&tried, 0, 0);
	sem_init(&asked, 0, 0);
	sigaction(SIGUSR1, &act, NULL);
	puts("ready");
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin)) {
		if (!strcmp(line, "work\n"))
			work();
		if (!strcmp(line, "known\n"))
			known_waits();
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
			while (!sem_trywait(&sem)) /* of the last signals */
				;
		}
		puts("done");
		fflush(stdout);
	}
	return 0;
}
"""


class Host:
    def __init__(self, budget="100"):
        self.tmp = h.tmpdir()
        self.env = h.preload_env(self.tmp, SYSTRACE_ENABLE="1", RANK="3", SYSTRACE_BUDGET_PCT=budget)
        program = h.compile_c(PROGRAM, os.path.join(self.tmp, "program"), "-O2", "-pthread", "-w")
        self.process = h.start([program], env=self.env, stdin=subprocess.PIPE)
        self.line()
        self.sock = ctl.socket_of(self.env["SYSTRACE_SOCKET_DIR"], self.process.pid)
        h.wait_for(lambda: os.path.exists(self.sock), what="the control socket")

    def line(self):
        line = self.process.stdout.readline().decode().strip()
        if not line:
            raise h.CheckFailed("the program ended: %s" % h.finish(self.process))
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
    h.check(wait["dur"] >= 1000, "a wait for a lock that is held 200 ms: %s" % wait)
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
    # a machine that is too busy for the two seconds that the end may take leaves it to recover
    h.run([h.SYSTRACE, "recover", "--spool", host.env["SYSTRACE_SPOOL_PATH"]])
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


def test_waits_of_5_ms():
    """As long as the program's own clock says, for the thread that held the lock; the tables say it, too."""
    host = Host()
    host.ask("enable")
    lines = [line.split() for line in host.do("known")]
    host.ask("disable")
    events = host.events()
    host.quit()
    lock, owner = lines[0][0], int(lines[0][1])
    # the holder waits as well where the other one was quicker
    waits = [e for e in slices(events, "pthread_mutex_lock", lock=lock) if e["tid"] == host.process.pid]
    measured = [(int(begin) / 1000, int(end) / 1000) for _, _, begin, end in lines]
    measured = [(begin, end) for begin, end in measured if end - begin > 500]
    h.check(len(measured) >= 5, "waits of the program: %s" % measured)
    for begin, end in measured:
        wait, = [e for e in waits if begin <= e["ts"] <= end]
        h.check(abs(end - begin - wait["dur"]) <= 0.1 * (end - begin), "took %.1f us, recorded %s" % (end - begin, wait))
        h.check_equal(wait["args"]["owner_tid"], owner, "who held it")
    # the lock is the program's "m", by the symbol table
    module, at = waits[0]["args"]["lock_at"].split("+")
    with open(h.find_one(host.tmp, "stacks/stacks_rank3_%d.json" % host.process.pid)) as f:
        paths = {e["module"]: e["path"] for e in json.load(f)["stack_entries"] if "module" in e}
    h.check_equal(paths[int(module)], os.path.join(host.tmp, "program"), "the lock's module")
    symbols = dict(line.split()[::-2] for line in h.run(["nm", paths[int(module)]]).ok().out.splitlines()
                   if len(line.split()) == 3)
    h.check_equal(int(at, 16), int(symbols["m"], 16), "the lock's place in it")
    module, at = waits[0]["args"]["caller_at"].split("+")
    caller = max((int(value, 16), name) for name, value in symbols.items() if int(value, 16) <= int(at, 16))
    h.check_equal((paths[int(module)], caller[1]), (os.path.join(host.tmp, "program"), "known_waits"), "the caller")
    out = h.run([h.SYSTRACE, "convert", "mutex", "--input", host.tmp, "--json"], env=h.tool_env(host.tmp)).ok().out
    data = json.loads(out)
    row, = [r for r in data["locks"] if r["address"] == lock]
    h.check_equal(row["owners"][0]["tid"], owner, "who was waited for longest")
    h.check_equal(row["place"], "m@program", "the lock's name")
    h.check(any(c["place"].startswith("known_waits@") for c in row["callers"]), "who waited: %s" % row["callers"])
    durations = sorted(e["dur"] for e in slices(events, "pthread_mutex_lock", lock=lock))
    h.check_equal(row["recorded"], len(durations), "waits for the lock")
    for key, part in (("p50_us", 0.5), ("p99_us", 0.99)):
        want = durations[int(len(durations) * part)]
        h.check(want <= row[key] + 0.001 and row[key] <= 1.14 * want, "%s of the lock: %s, want %s" % (key, row[key], want))
    row, = [r for r in data["functions"] if r["name"] == "pthread_mutex_lock"]
    h.check(row["calls"] >= 80, "calls of a function: %s" % row)
    text = h.run([h.SYSTRACE, "convert", "mutex", "--input", host.tmp], env=h.tool_env(host.tmp)).ok().out
    h.check("held by %d " % owner in text and lock in text, "tables: %s" % text)
    trace = os.path.join(host.tmp, "out.json")
    h.run([h.SYSTRACE, "convert", "mutex", "--input", host.tmp, "--output", trace], env=h.tool_env(host.tmp)).ok()
    with open(trace) as f:
        made = [e for e in json.load(f)["traceEvents"] if e["ph"] == "X" and e["name"] == "pthread_mutex_lock"]
    h.check_equal(len(made), len(slices(events, "pthread_mutex_lock")), "slices")


def test_over_budget():
    """Four threads that do nothing but lock: at the default of 1 % it gives up, step by step, and the file says so."""
    host = Host(budget="1")
    host.do("storm")
    host.ask("enable")

    def status():
        return ctl.ask(host.sock, "status")
    h.wait_for(lambda: status().get("plugin.mutex.backed_off"), what="a first step")
    first = float(status().get("plugin.mutex.cost_pct"))
    h.check(first > 1, "cost when it backed off: %s" % first)
    h.wait_for(lambda: status().get("plugin.mutex.state") == "off" or float(status().get("plugin.mutex.cost_pct")) < 1,
               timeout=60, what="a cost within the budget")
    h.wait_for(lambda: status().get("hooks.slots") == "0", what="hooks that are out")
    before = int(status().get("plugin.mutex.calls"))
    host.do("calm")
    h.check_equal(int(status().get("plugin.mutex.calls")), before, "calls counted after it")
    ctl.ask(host.sock, "flush")
    notes = [e["args"]["text"] for e in host.events() if e["name"] == "note"]
    h.check(len(notes) >= 2 and "more than SYSTRACE_BUDGET_PCT=1: only waits of 10 us" in notes[0], "notes: %s" % notes)
    h.check("switched off" in notes[-1], "notes: %s" % notes)
    out = h.run([h.SYSTRACE, "convert", "mutex", "--input", host.tmp], env=h.tool_env(host.tmp)).ok()
    h.check("switched off" in out.err, "the converter's notes: %r" % out)
    host.quit()


if __name__ == "__main__":
    h.main(test_waits_of_5_ms, test_over_budget, test_known_waits, test_all_stored, test_storm_and_switches, test_spinning_is_one_slice, test_counts_at_the_end, test_killed)
