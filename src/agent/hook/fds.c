/* SPDX-License-Identifier: MulanPSL-2.0 */
/* The table of descriptors; see fds.h. Hooks of the IO plugin write and read it, systrace/hook fills gaps. */
#include "agent/hook/fds.h"

#include "agent/agent.h"
#include "safe/clock.h"
#include "safe/rawio.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define VERIFY_NS 1000000000u
#define SOCKETS_A_TICK 8

/* Odd seq: somebody writes it. A reader that sees it change takes the descriptor for unknown. */
struct slot {
	_Atomic uint32_t seq;
	_Atomic uint8_t wanted;
	struct fds_name name;
};

static _Atomic(struct slot *) slots; /* set once, before a hook records */
static _Atomic bool any_wanted;
static struct slot cwd; /* the same protocol */
static _Atomic bool cwd_known;

int fds_init(void)
{
	void *area;

	if (atomic_load_explicit(&slots, memory_order_relaxed))
		return 0;
	area = mmap(NULL, FDS_MAX * sizeof(struct slot), PROT_READ | PROT_WRITE,
		    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (area == MAP_FAILED)
		return -errno;
	atomic_store_explicit(&slots, area, memory_order_release);
	return 0;
}

static struct slot *slot_of(int fd)
{
	struct slot *all = atomic_load_explicit(&slots, memory_order_acquire);

	return all && fd >= 0 && fd < FDS_MAX ? &all[fd] : NULL;
}

/* @seen: only if nobody wrote since it was read; NULL = as it is now. */
static bool slot_write(struct slot *slot, const struct fds_name *name, const uint32_t *seen)
{
	uint32_t seq = seen ? *seen : atomic_load_explicit(&slot->seq, memory_order_relaxed);

	/* a writer that was interrupted by us, or that a fork has cut off: its slot stays unknown */
	if ((seq & 1) || !atomic_compare_exchange_strong_explicit(&slot->seq, &seq, seq + 1, memory_order_acquire,
								  memory_order_relaxed))
		return false;
	slot->name.kind = name->kind;
	slot->name.bytes = name->bytes;
	memcpy(slot->name.text, name->text, name->bytes);
	atomic_store_explicit(&slot->wanted, 0, memory_order_relaxed);
	atomic_store_explicit(&slot->seq, seq + 2, memory_order_release);
	return true;
}

static bool slot_read(struct slot *slot, struct fds_name *name)
{
	uint32_t seq = atomic_load_explicit(&slot->seq, memory_order_acquire);

	name->kind = slot->name.kind;
	name->bytes = slot->name.bytes <= IO_TEXT_MAX ? slot->name.bytes : 0;
	memcpy(name->text, slot->name.text, name->bytes);
	atomic_thread_fence(memory_order_acquire);
	if (!(seq & 1) && atomic_load_explicit(&slot->seq, memory_order_relaxed) == seq)
		return name->kind != FDS_UNKNOWN;
	name->kind = FDS_UNKNOWN;
	name->bytes = 0;
	return false;
}

void fds_set(int fd, const struct fds_name *name)
{
	struct slot *slot = slot_of(fd);

	if (slot)
		slot_write(slot, name, NULL);
}

void fds_clear(int fd)
{
	struct slot *slot = slot_of(fd);
	struct fds_name none;

	none.kind = FDS_UNKNOWN;
	none.bytes = 0;
	if (slot)
		slot_write(slot, &none, NULL);
}

/* Append; of what is too long the end is kept, and the mark at its begin says so. */
static void append(struct fds_name *name, const char *text, size_t len)
{
	size_t room = IO_TEXT_MAX - name->bytes;

	if (len > room) {
		size_t keep = len < IO_TEXT_MAX - 3 ? IO_TEXT_MAX - 3 - len : 0;

		memmove(name->text + 3, name->text + name->bytes - keep, keep);
		if (!keep) {
			text += len - (IO_TEXT_MAX - 3);
			len = IO_TEXT_MAX - 3;
		}
		memcpy(name->text, "...", 3);
		name->bytes = (uint8_t)(3 + keep);
	}
	memcpy(name->text + name->bytes, text, len);
	name->bytes = (uint8_t)(name->bytes + len);
}

static size_t put_decimal(char *to, uint32_t value)
{
	char digits[10];
	size_t n = 0, i;

	do
		digits[n++] = (char)('0' + value % 10);
	while (value /= 10);
	for (i = 0; i < n; i++)
		to[i] = digits[n - 1 - i];
	return n;
}

static bool in_child(void)
{
	return atomic_load_explicit(&agent.pool.guard->generation, memory_order_relaxed) > 1;
}

/* A forked child has no systrace/hook: one system call, the first time that a descriptor is used that nobody knows. */
static void look_up_once(struct slot *slot, int fd, struct fds_name *name)
{
	char link[32] = "/proc/self/fd/", path[IO_TEXT_MAX + 32];
	ssize_t n;

	link[14 + put_decimal(link + 14, (uint32_t)fd)] = 0;
	n = readlink(link, path, sizeof(path));
	if (n <= 0)
		return;
	name->kind = n > 8 && !memcmp(path, "socket:[", 8) ? FDS_SOCKET : FDS_FILE;
	append(name, path, (size_t)n);
	slot_write(slot, name, NULL);
}

void fds_get(int fd, struct fds_name *name)
{
	struct slot *slot = slot_of(fd);

	name->kind = FDS_UNKNOWN;
	name->bytes = 0;
	if (!slot || slot_read(slot, name) || atomic_load_explicit(&slot->wanted, memory_order_relaxed))
		return;
	atomic_store_explicit(&slot->wanted, 1, memory_order_relaxed);
	if (in_child())
		look_up_once(slot, fd, name);
	else
		atomic_store_explicit(&any_wanted, true, memory_order_release);
}

void fds_cwd_changed(void)
{
	atomic_store_explicit(&cwd_known, false, memory_order_release);
}

void fds_path(int dir, const char *path, struct fds_name *name)
{
	size_t len = strnlen(path, 4096);

	name->kind = FDS_UNKNOWN;
	name->bytes = 0;
	if (path[0] != '/' && dir == AT_FDCWD && atomic_load_explicit(&cwd_known, memory_order_acquire))
		slot_read(&cwd, name);
	else if (path[0] != '/' && dir != AT_FDCWD)
		fds_get(dir, name);
	while (name->bytes && len >= 2 && path[0] == '.' && path[1] == '/') {
		path += 2;
		len -= 2;
	}
	if (name->bytes && name->text[name->bytes - 1] != '/')
		append(name, "/", 1);
	append(name, path, len);
	name->kind = FDS_FILE;
}

/* --- addresses ------------------------------------------------------------------------------------------------------- */

static size_t put_hex(char *to, uint32_t value)
{
	size_t n = 0;
	int shift;

	for (shift = 12; shift >= 0; shift -= 4) {
		uint32_t digit = value >> shift & 15;

		if (digit || n || !shift)
			to[n++] = "0123456789abcdef"[digit];
	}
	return n;
}

static size_t put_ipv4(char *to, const uint8_t *byte)
{
	size_t n = 0;
	int i;

	for (i = 0; i < 4; i++) {
		n += put_decimal(to + n, byte[i]);
		to[n++] = '.';
	}
	return n - 1;
}

/* The longest run of zeros is not looked for: "::" stands for the first one. */
static size_t put_ipv6(char *to, const uint8_t *byte)
{
	static const uint8_t mapped[12] = { [10] = 0xff, [11] = 0xff };
	bool gap = false;
	size_t n = 0;
	int i;

	if (!memcmp(byte, mapped, sizeof(mapped)))
		return put_ipv4(to, byte + 12);
	to[n++] = '[';
	for (i = 0; i < 8; i++) {
		uint32_t word = (uint32_t)byte[2 * i] << 8 | byte[2 * i + 1];

		if (!word && !gap) {
			gap = true;
			to[n++] = ':';
			if (!i)
				to[n++] = ':';
			while (i < 7 && !byte[2 * i + 2] && !byte[2 * i + 3])
				i++;
			continue;
		}
		n += put_hex(to + n, word);
		if (i < 7)
			to[n++] = ':';
	}
	to[n++] = ']';
	return n;
}

static void peer_ip(const uint8_t *byte, bool six, uint32_t port, struct fds_name *name)
{
	size_t n = six ? put_ipv6(name->text, byte) : put_ipv4(name->text, byte);

	name->text[n++] = ':';
	n += put_decimal(name->text + n, port);
	name->bytes = (uint8_t)n;
}

void fds_peer(const void *address, uint32_t bytes, struct fds_name *name)
{
	const struct sockaddr *any = address;

	name->kind = FDS_SOCKET;
	name->bytes = 0;
	if (!address || bytes < sizeof(any->sa_family))
		return;
	if (any->sa_family == AF_INET && bytes >= sizeof(struct sockaddr_in)) {
		const struct sockaddr_in *in = address;

		peer_ip((const uint8_t *)&in->sin_addr, false, ntohs(in->sin_port), name);
	} else if (any->sa_family == AF_INET6 && bytes >= sizeof(struct sockaddr_in6)) {
		const struct sockaddr_in6 *in = address;

		peer_ip((const uint8_t *)&in->sin6_addr, true, ntohs(in->sin6_port), name);
	} else if (any->sa_family == AF_UNIX) {
		const struct sockaddr_un *un = address;
		size_t len = bytes - offsetof(struct sockaddr_un, sun_path);

		append(name, "unix:", 5);
		if (len && len <= sizeof(un->sun_path) && !un->sun_path[0])
			append(name, "@", 1), append(name, un->sun_path + 1, strnlen(un->sun_path + 1, len - 1));
		else if (len && len <= sizeof(un->sun_path))
			append(name, un->sun_path, strnlen(un->sun_path, len));
	}
}

/* --- systrace/hook --------------------------------------------------------------------------------------------------- */

/* One line of /proc/net/tcp or tcp6: is it that socket's? Then its other end. */
static bool peer_in_line(const char *line, unsigned long inode, bool six, struct fds_name *name)
{
	unsigned int word[4] = { 0 }, port;
	unsigned long its;
	int n = six ? sscanf(line, " %*d: %*[0-9A-F]:%*x %8x%8x%8x%8x:%x %*x %*x:%*x %*x:%*x %*x %*u %*u %lu", &word[0],
			     &word[1], &word[2], &word[3], &port, &its)
		    : sscanf(line, " %*d: %*[0-9A-F]:%*x %8x:%x %*x %*x:%*x %*x:%*x %*x %*u %*u %lu", &word[0], &port,
			     &its);

	if (n != (six ? 6 : 3) || its != inode)
		return false;
	peer_ip((const uint8_t *)word, six, port, name);
	return true;
}

/* "socket:[123]" becomes its peer, where that is a TCP connection; else it stays. */
static void find_peer(struct fds_name *name)
{
	static const char *const tables[] = { "/proc/self/net/tcp", "/proc/self/net/tcp6" };
	unsigned long inode = strtoul(name->text + strlen("socket:["), NULL, 10);
	char line[512];
	int six;

	for (six = 0; six < 2; six++) {
		FILE *table = fopen(tables[six], "re");
		bool found = false;

		while (table && !found && fgets(line, sizeof(line), table))
			found = peer_in_line(line, inode, six, name);
		if (table)
			fclose(table);
		if (found)
			return;
	}
}

/* Has a descriptor become another file since the last look, without a hook having seen it? */
static bool is_another(int fd, uint32_t seq, const char *link)
{
	static struct {
		uint32_t seq;
		uint64_t ino;
	} seen[FDS_MAX]; /* systrace/hook's alone */
	struct stat st;
	bool another;

	if (sys_stat(link, &st) < 0)
		return false;
	another = seen[fd].seq == seq && seen[fd].ino != st.st_ino;
	seen[fd].seq = seq;
	seen[fd].ino = st.st_ino;
	return another;
}

/* Return: 1 a socket whose peer was looked for, 0, or -errno of a descriptor that is not there. */
static int look_up(int fd, bool verify)
{
	struct slot *slot = slot_of(fd);
	uint32_t seq = atomic_load_explicit(&slot->seq, memory_order_acquire);
	struct fds_name name = { .kind = FDS_FILE }, old;
	char link[64], path[IO_TEXT_MAX + 32];
	bool socket;
	ssize_t n;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	if (slot_read(slot, &old) && (!verify || !is_another(fd, seq, link)))
		return 0;
	n = readlink(link, path, sizeof(path) - 1);
	if (n < 0)
		return -errno;
	path[n] = 0;
	socket = !strncmp(path, "socket:[", 8);
	append(&name, path, (size_t)n);
	if (socket) {
		name.kind = FDS_SOCKET;
		name.text[name.bytes] = 0;
		find_peer(&name);
	}
	slot_write(slot, &name, &seq);
	return socket;
}

static void look_up_cwd(void)
{
	char path[4096];
	struct fds_name name = { .kind = FDS_FILE };

	/* known first: a chdir that comes meanwhile makes it unknown again */
	atomic_store_explicit(&cwd_known, true, memory_order_release);
	if (!getcwd(path, sizeof(path)) || path[0] != '/') {
		atomic_store_explicit(&cwd_known, false, memory_order_release);
		return;
	}
	append(&name, path, strlen(path));
	slot_write(&cwd, &name, NULL);
}

static int visit(void *ctx, const char *text, uint64_t inode)
{
	bool *verify = ctx;
	char *end;
	long fd = strtol(text, &end, 10);

	if (!*end && fd >= 0 && fd < FDS_MAX)
		look_up((int)fd, *verify);
	return 0;
}

static void look_up_all(bool verify)
{
	int dir = open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (dir < 0)
		return;
	sys_dir_each(dir, visit, &verify);
	close(dir);
}

static void look_up_wanted(void)
{
	int fd, sockets = 0;

	for (fd = 0; fd < FDS_MAX; fd++) {
		if (!atomic_load_explicit(&slot_of(fd)->wanted, memory_order_relaxed))
			continue;
		if (sockets == SOCKETS_A_TICK) {
			atomic_store_explicit(&any_wanted, true, memory_order_relaxed);
			return;
		}
		atomic_store_explicit(&slot_of(fd)->wanted, 0, memory_order_relaxed);
		sockets += look_up(fd, false) > 0;
	}
}

void fds_tick(bool all)
{
	static uint64_t verified_ns; /* systrace/hook's alone */
	uint64_t now_ns = clock_mono_ns();

	if (!slot_of(0))
		return;
	if (all || !atomic_load_explicit(&cwd_known, memory_order_acquire))
		look_up_cwd();
	if (atomic_exchange_explicit(&any_wanted, false, memory_order_acquire))
		look_up_wanted();
	if (!all && now_ns - verified_ns < VERIFY_NS)
		return;
	look_up_all(true);
	verified_ns = now_ns;
}
