// Owns: what the process under test does to the files below one directory: it is written down, with order
// and bytes, and chosen calls fail.
// May call: the kernel, by system call only.
// Never: sync for real (the disk is the test's); let a call through that the log could not replay.
//
// Preloaded. HOLDFAST_SHIM_ROOT: the directory. HOLDFAST_SHIM_LOG: the log, appended to by this process and by
// the test. HOLDFAST_SHIM_SYNC_US: how long a sync takes. HOLDFAST_SHIM_KILL: once this file is there the process
// kills itself between two calls, so that the log is exact.
// HOLDFAST_SHIM_DISK: a directory; if it has a file named like the inode of one whose pages are to be forgotten, then that
// is what the disk holds, and reads give it from then on. HOLDFAST_SHIM_REMEMBERS: a part of the paths of files whose
// pages are never forgotten.
// HOLDFAST_SHIM_FAIL=kind:n:what:times:part makes the n-th call of a kind (open, write, fsync, rename, change: any
// of them that changes something) fail, of those with `part` in the path, counted from the moment when the file
// HOLDFAST_SHIM_ARM is there; times 0: from then on for ever; a part that ends in '+' holds for the
// first failure, and everything fails after it. what: EIO, ENOSPC, EROFS, or SHORT, a short write.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { CREATE = 1, WRITE, LENGTH, SYNC_BEGIN, SYNC_END, RENAME, UNLINK, MKDIR, MARK, BEYOND, FAILED };

#define MAGIC 0x52544648u
#define FILES_COUNT_MAX 65536

struct head {
    uint32_t magic, kind;
    uint64_t ino, a, b;
    uint32_t path_bytes, data_bytes;
};

static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static char root[PATH_MAX], kill_file[PATH_MAX], arm_file[PATH_MAX], disk_dir[PATH_MAX], remembers[64];
static size_t root_bytes;
static int log_fd = -1, armed, full, widens;
static long sync_us;
static uint64_t tokens;
static uint64_t known[FILES_COUNT_MAX];
static char fail_kind[16], fail_what[16], fail_part[64];
static long fail_at, fail_times = 1, fail_seen;

static void begin(void) {
    const char *text = getenv("HOLDFAST_SHIM_ROOT");
    if (!text || !realpath(text, root)) return;
    root_bytes = strlen(root);
    if ((text = getenv("HOLDFAST_SHIM_KILL"))) snprintf(kill_file, sizeof kill_file, "%s", text);
    if ((text = getenv("HOLDFAST_SHIM_ARM"))) snprintf(arm_file, sizeof arm_file, "%s", text);
    if ((text = getenv("HOLDFAST_SHIM_DISK"))) snprintf(disk_dir, sizeof disk_dir, "%s", text);
    if ((text = getenv("HOLDFAST_SHIM_REMEMBERS"))) snprintf(remembers, sizeof remembers, "%s", text);
    if ((text = getenv("HOLDFAST_SHIM_SYNC_US"))) sync_us = atol(text);
    if ((text = getenv("HOLDFAST_SHIM_FAIL"))
        && sscanf(text, "%15[^:]:%ld:%15[^:]:%ld:%63s", fail_kind, &fail_at, fail_what, &fail_times, fail_part) != 5) abort();
    size_t bytes = strlen(fail_part);
    if (bytes && fail_part[bytes - 1] == '+') fail_part[bytes - 1] = 0, widens = 1;
    text = getenv("HOLDFAST_SHIM_LOG");
    if (!text) abort();
    log_fd = (int)syscall(SYS_openat, AT_FDCWD, text, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (log_fd < 0) abort();
}

static void note(uint32_t kind, uint64_t ino, uint64_t a, uint64_t b, const char *path, const void *data, size_t bytes) {
    struct head head = { MAGIC, kind, ino, a, b, path ? (uint32_t)strlen(path) : 0, (uint32_t)bytes };
    struct iovec all[3] = { { &head, sizeof head }, { (void *)path, head.path_bytes }, { (void *)data, bytes } };
    size_t wanted = sizeof head + head.path_bytes + bytes;
    if ((size_t)syscall(SYS_writev, log_fd, all, 3) != wanted) abort();
}

// One call at a time, but for syncs, which others may write beside.
static void enter(void) {
    pthread_once(&once, begin);
    pthread_mutex_lock(&turn);
    if (kill_file[0] && syscall(SYS_faccessat, AT_FDCWD, kill_file, F_OK) == 0)
        for (;;) syscall(SYS_kill, getpid(), SIGKILL);
}

static void leave(void) {
    int kept = errno;
    pthread_mutex_unlock(&turn);
    errno = kept;
}

static int is_known(uint64_t ino) {
    for (size_t at = ino % FILES_COUNT_MAX; known[at]; at = (at + 1) % FILES_COUNT_MAX)
        if (known[at] == ino) return 1;
    return 0;
}

static void know(uint64_t ino) {
    if (is_known(ino)) return;
    if (++full > FILES_COUNT_MAX / 2) abort();
    size_t at = ino % FILES_COUNT_MAX;
    while (known[at]) at = (at + 1) % FILES_COUNT_MAX;
    known[at] = ino;
}

// The inode of a watched file, or 0.
static uint64_t watched(int fd) {
    struct stat stat;
    int kept = errno;
    uint64_t ino = 0;
    if (log_fd >= 0 && fd != log_fd && fstat(fd, &stat) == 0 && (S_ISREG(stat.st_mode) || S_ISDIR(stat.st_mode))
        && is_known(stat.st_ino))
        ino = stat.st_ino;
    errno = kept;
    return ino;
}

// The whole path, with its directory resolved; whether it is below the root.
static int below(int dir, const char *path, char *whole) {
    char joined[PATH_MAX * 2], link[64], holder[PATH_MAX];
    if (log_fd < 0 || !path) return 0;
    int kept = errno, inside = 0;
    if (path[0] == '/') {
        snprintf(joined, sizeof joined, "%s", path);
    } else if (dir == AT_FDCWD) {
        if (!getcwd(holder, sizeof holder)) return 0;
        snprintf(joined, sizeof joined, "%s/%s", holder, path);
    } else {
        snprintf(link, sizeof link, "/proc/self/fd/%d", dir);
        ssize_t n = readlink(link, holder, sizeof holder - 1);
        if (n <= 0) return 0;
        holder[n] = 0;
        snprintf(joined, sizeof joined, "%s/%s", holder, path);
    }
    size_t bytes = strlen(joined);
    while (bytes > 1 && joined[bytes - 1] == '/') joined[--bytes] = 0;
    char *last = strrchr(joined, '/');
    char name[NAME_MAX + 1];
    snprintf(name, sizeof name, "%s", last + 1);
    *last = 0;
    if (realpath(joined[0] ? joined : "/", holder)) {
        snprintf(whole, PATH_MAX * 2, "%s/%s", holder, name);
        inside = strncmp(whole, root, root_bytes) == 0 && (whole[root_bytes] == '/' || !whole[root_bytes]);
    }
    errno = kept;
    return inside;
}

static const char *path_of(int fd, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, PATH_MAX - 1);
    path[n > 0 ? n : 0] = 0;
    return path;
}

// The error that this call is to meet, 0 for none, -1 for a short write.
static int fault(const char *kind, const char *path, int fd) {
    char whole[PATH_MAX];
    if (!fail_at || (strcmp(kind, fail_kind) != 0 && strcmp("change", fail_kind) != 0)) return 0;
    if (!armed && syscall(SYS_faccessat, AT_FDCWD, arm_file, F_OK) != 0) return 0;
    armed = 1;
    if (!path) path = path_of(fd, whole);
    if (!strstr(path, fail_part)) return 0;
    fail_seen++;
    if (fail_seen < fail_at || (fail_times && fail_seen >= fail_at + fail_times)) return 0;
    if (widens) fail_part[0] = 0;
    note(FAILED, 0, (uint64_t)fail_seen, 0, path, kind, strlen(kind));
    if (strcmp(fail_what, "SHORT") == 0) return -1;
    return strcmp(fail_what, "ENOSPC") == 0 ? ENOSPC : strcmp(fail_what, "EROFS") == 0 ? EROFS : EIO;
}

static int opens(int dir, const char *path, int flags, mode_t mode) {
    char whole[PATH_MAX * 2];
    enter();
    int inside = below(dir, path, whole), error = 0;
    int changes = (flags & O_ACCMODE) != O_RDONLY;
    if (inside && (changes || strcmp("change", fail_kind) != 0)) error = fault("open", whole, -1);
    struct stat before, after;
    int there = inside && fstatat(dir, path, &before, 0) == 0;
    int fd = -1;
    if (error > 0) errno = error;
    else fd = (int)syscall(SYS_openat, dir, path, flags | O_LARGEFILE, mode);
    if (fd >= 0 && inside && fstat(fd, &after) == 0) {
        know(after.st_ino);
        if (!there) note(CREATE, after.st_ino, 0, 0, whole, NULL, 0);
        else if (flags & O_TRUNC) note(LENGTH, after.st_ino, 0, 0, NULL, NULL, 0);
    }
    leave();
    return fd;
}

static mode_t mode_of(int flags, va_list rest) {
    return (flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(rest, mode_t) : 0;
}
#define OPEN(name)                                       \
    int name(const char *path, int flags, ...) {         \
        va_list rest;                                    \
        va_start(rest, flags);                           \
        mode_t mode = mode_of(flags, rest);              \
        va_end(rest);                                    \
        return opens(AT_FDCWD, path, flags, mode);       \
    }
#define OPENAT(name)                                     \
    int name(int dir, const char *path, int flags, ...) { \
        va_list rest;                                    \
        va_start(rest, flags);                           \
        mode_t mode = mode_of(flags, rest);              \
        va_end(rest);                                    \
        return opens(dir, path, flags, mode);            \
    }
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)
int creat(const char *path, mode_t mode) { return opens(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode); }
int creat64(const char *path, mode_t mode) { return creat(path, mode); }

// `at` below 0: where the file stands.
static ssize_t writes(int fd, const struct iovec *parts, int count, off_t at) {
    uint64_t ino = watched(fd);
    if (!ino) {
        return at < 0 ? syscall(SYS_writev, fd, parts, count) : syscall(SYS_pwritev, fd, parts, count, at, 0);
    }
    size_t bytes = 0;
    for (int i = 0; i < count; i++) bytes += parts[i].iov_len;
    char *data = malloc(bytes ? bytes : 1);
    if (!data) abort();
    size_t used = 0;
    for (int i = 0; i < count; i++) {
        memcpy(data + used, parts[i].iov_base, parts[i].iov_len);
        used += parts[i].iov_len;
    }
    enter();
    int error = fault("write", NULL, fd);
    ssize_t n = -1;
    if (error > 0) {
        errno = error;
    } else {
        size_t wanted = error < 0 && bytes > 1 ? bytes / 2 : bytes;
        n = at < 0 ? syscall(SYS_write, fd, data, wanted) : syscall(SYS_pwrite64, fd, data, wanted, at);
    }
    if (n > 0) {
        off_t start = at < 0 ? syscall(SYS_lseek, fd, 0, SEEK_CUR) - n : at;
        note(WRITE, ino, (uint64_t)start, 0, NULL, data, (size_t)n);
    }
    leave();
    free(data);
    return n;
}

ssize_t write(int fd, const void *data, size_t bytes) {
    pthread_once(&once, begin);
    if (!watched(fd)) return syscall(SYS_write, fd, data, bytes);
    struct iovec part = { (void *)data, bytes };
    return writes(fd, &part, 1, -1);
}
ssize_t pwrite64(int fd, const void *data, size_t bytes, off64_t at) {
    pthread_once(&once, begin);
    struct iovec part = { (void *)data, bytes };
    return writes(fd, &part, 1, at);
}
ssize_t pwrite(int fd, const void *data, size_t bytes, off_t at) { return pwrite64(fd, data, bytes, at); }
ssize_t writev(int fd, const struct iovec *parts, int count) {
    pthread_once(&once, begin);
    return writes(fd, parts, count, -1);
}
ssize_t pwritev64(int fd, const struct iovec *parts, int count, off64_t at) {
    pthread_once(&once, begin);
    return writes(fd, parts, count, at);
}
ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t at) { return pwritev64(fd, parts, count, at); }

int ftruncate64(int fd, off64_t bytes) {
    uint64_t ino = (pthread_once(&once, begin), watched(fd));
    enter();
    int error = ino ? fault("write", NULL, fd) : 0, result = -1;
    if (error > 0) errno = error;
    else result = (int)syscall(SYS_ftruncate, fd, bytes);
    if (result == 0 && ino) note(LENGTH, ino, (uint64_t)bytes, 0, NULL, NULL, 0);
    leave();
    return result;
}
int ftruncate(int fd, off_t bytes) { return ftruncate64(fd, bytes); }

static int syncs(int fd, long call) {
    uint64_t ino = (pthread_once(&once, begin), watched(fd));
    if (!ino) return (int)syscall(call, fd);
    enter();
    uint64_t token = ((uint64_t)getpid() << 32) | ++tokens;
    note(SYNC_BEGIN, ino, token, 0, NULL, NULL, 0);
    leave();
    struct timespec pause = { sync_us / 1000000, sync_us % 1000000 * 1000 };
    nanosleep(&pause, NULL);
    enter();
    int error = fault("fsync", NULL, fd);
    note(SYNC_END, ino, token, error > 0, NULL, NULL, 0);
    if (error > 0) errno = error;
    leave();
    return error > 0 ? -1 : 0;
}
int fsync(int fd) { return syncs(fd, SYS_fsync); }
int fdatasync(int fd) { return syncs(fd, SYS_fdatasync); }

static int renames(int from_dir, const char *from, int to_dir, const char *to, unsigned flags) {
    char whole_from[PATH_MAX * 2], whole_to[PATH_MAX * 2];
    enter();
    int a = below(from_dir, from, whole_from), b = below(to_dir, to, whole_to);
    int error = a || b ? fault("rename", whole_to, -1) : 0, result = -1;
    if (error > 0) errno = error;
    else result = (int)syscall(SYS_renameat2, from_dir, from, to_dir, to, flags);
    if (result == 0 && (a || b)) {
        if (!a || !b || flags) note(BEYOND, 0, 0, 0, "rename", NULL, 0);
        else note(RENAME, 0, 0, 0, whole_from, whole_to, strlen(whole_to));
    }
    leave();
    return result;
}
int rename(const char *from, const char *to) { return renames(AT_FDCWD, from, AT_FDCWD, to, 0); }
int renameat(int a, const char *from, int b, const char *to) { return renames(a, from, b, to, 0); }
int renameat2(int a, const char *from, int b, const char *to, unsigned flags) { return renames(a, from, b, to, flags); }

int unlinkat(int dir, const char *path, int flags) {
    char whole[PATH_MAX * 2];
    enter();
    int inside = below(dir, path, whole), error = inside ? fault("unlink", whole, -1) : 0, result = -1;
    if (error > 0) errno = error;
    else result = (int)syscall(SYS_unlinkat, dir, path, flags);
    if (result == 0 && inside) note(UNLINK, 0, 0, 0, whole, NULL, 0);
    leave();
    return result;
}
int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }

int mkdirat(int dir, const char *path, mode_t mode) {
    char whole[PATH_MAX * 2];
    struct stat made;
    enter();
    int inside = below(dir, path, whole), error = inside ? fault("mkdir", whole, -1) : 0, result = -1;
    if (error > 0) errno = error;
    else result = (int)syscall(SYS_mkdirat, dir, path, mode);
    if (result == 0 && inside && fstatat(dir, path, &made, 0) == 0) {
        know(made.st_ino);
        note(MKDIR, made.st_ino, 0, 0, whole, NULL, 0);
    }
    leave();
    return result;
}
int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }

// What the log cannot replay. Where another way exists it is refused, and the caller takes that; the test
// refuses a log that says that one went through.
ssize_t copy_file_range(int in, off64_t *a, int out, off64_t *b, size_t bytes, unsigned flags) {
    if ((pthread_once(&once, begin), watched(out))) return errno = ENOSYS, -1;
    return syscall(SYS_copy_file_range, in, a, out, b, bytes, flags);
}
ssize_t sendfile64(int out, int in, off64_t *at, size_t bytes) {
    if ((pthread_once(&once, begin), watched(out))) return errno = EINVAL, -1;
    return syscall(SYS_sendfile, out, in, at, bytes);
}
ssize_t sendfile(int out, int in, off_t *at, size_t bytes) { return sendfile64(out, in, at, bytes); }
int fallocate64(int fd, int mode, off64_t at, off64_t bytes) {
    if ((pthread_once(&once, begin), watched(fd))) return errno = EOPNOTSUPP, -1;
    return (int)syscall(SYS_fallocate, fd, mode, at, bytes);
}
int fallocate(int fd, int mode, off_t at, off_t bytes) { return fallocate64(fd, mode, at, bytes); }
int posix_fallocate64(int fd, off64_t at, off64_t bytes) { return fallocate64(fd, 0, at, bytes) ? errno : 0; }
int posix_fallocate(int fd, off_t at, off_t bytes) { return posix_fallocate64(fd, at, bytes); }
// The kernel drops the pages of a file: what it could not write is gone.
int posix_fadvise64(int fd, off64_t at, off64_t bytes, int advice) {
    char held[PATH_MAX + 32], own[64], path[PATH_MAX], data[65536];
    uint64_t ino = (pthread_once(&once, begin), watched(fd));
    if (!ino || advice != POSIX_FADV_DONTNEED || !disk_dir[0])
        return syscall(SYS_fadvise64, fd, at, bytes, advice) ? errno : 0;
    if (remembers[0] && strstr(path_of(fd, path), remembers)) return 0;
    snprintf(held, sizeof held, "%s/%lu", disk_dir, (unsigned long)ino);
    snprintf(own, sizeof own, "/proc/self/fd/%d", fd);
    enter();
    int from = (int)syscall(SYS_openat, AT_FDCWD, held, O_RDONLY | O_CLOEXEC);
    if (from >= 0) {
        int to = (int)syscall(SYS_openat, AT_FDCWD, own, O_WRONLY | O_TRUNC | O_CLOEXEC);
        ssize_t n;
        while (to >= 0 && (n = syscall(SYS_read, from, data, sizeof data)) > 0)
            if (syscall(SYS_write, to, data, n) != n) abort();
        if (to < 0) abort();
        syscall(SYS_close, to);
        syscall(SYS_close, from);
        syscall(SYS_unlinkat, AT_FDCWD, held, 0);
    }
    leave();
    return 0;
}
int posix_fadvise(int fd, off_t at, off_t bytes, int advice) { return posix_fadvise64(fd, at, bytes, advice); }
static void beyond(int watches, const char *what) {
    if (watches) note(BEYOND, 0, 0, 0, what, NULL, 0);
}
void *mmap64(void *to, size_t bytes, int protection, int flags, int fd, off64_t at) {
    pthread_once(&once, begin);
    beyond((flags & MAP_SHARED) && (protection & PROT_WRITE) && fd >= 0 && watched(fd), "mmap");
    return (void *)syscall(SYS_mmap, to, bytes, protection, flags, fd, at);
}
void *mmap(void *to, size_t bytes, int protection, int flags, int fd, off_t at) {
    return mmap64(to, bytes, protection, flags, fd, at);
}
int linkat(int a, const char *from, int b, const char *to, int flags) {
    char whole[PATH_MAX * 2];
    pthread_once(&once, begin);
    beyond(below(b, to, whole), "link");
    return (int)syscall(SYS_linkat, a, from, b, to, flags);
}
int link(const char *from, const char *to) { return linkat(AT_FDCWD, from, AT_FDCWD, to, 0); }
int truncate64(const char *path, off64_t bytes) {
    char whole[PATH_MAX * 2];
    pthread_once(&once, begin);
    beyond(below(AT_FDCWD, path, whole), "truncate");
    return (int)syscall(SYS_truncate, path, bytes);
}
int truncate(const char *path, off_t bytes) { return truncate64(path, bytes); }
