/* Loaded before the C library (LD_PRELOAD): sees every change that a process makes below one folder.
 *
 * After `torture_arm` each change (a file opened for writing, written, truncated, synced, renamed or removed, a folder
 * made or removed) is counted. At the chosen one the process is killed or gets an error; or all changes are written to
 * a log, with a copy of each file when it is synced, from which the state after a power loss is put together.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { OFF, COUNT, KILL, FAIL_FROM };

static int mode = OFF, error_code, log_file = -1;
static long at, count, synced;
static char root[PATH_MAX], shadow[PATH_MAX];
static long clock_jump;

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

void torture_arm(const char *folder, int what, long which, int error, int log, const char *copies) {
  snprintf(root, sizeof root, "%s", folder);
  snprintf(shadow, sizeof shadow, "%s", copies);
  mode = what; at = which; error_code = error; log_file = log; count = 0; synced = 0;
}
long torture_count(void) { return count; }
void torture_jump(long seconds) { clock_jump = seconds; }

static void note(const char *operation, const char *a, const char *b) {
  if (log_file < 0) return;
  char line[3 * PATH_MAX];
  int length = snprintf(line, sizeof line, "%s\t%s\t%s\n", operation, a, b ? b : "");
  syscall(SYS_write, log_file, line, (size_t)length);
}

/* The absolute path of a name below a folder's descriptor; 0 when it lies outside the root. */
static int place(int folder, const char *name, char *out) {
  if (mode == OFF && log_file < 0) return 0;
  if (!name) return 0;
  if (name[0] == '/') {
    snprintf(out, PATH_MAX, "%s", name);
  } else {
    char link[64], base[PATH_MAX];
    if (folder == AT_FDCWD) snprintf(link, sizeof link, "/proc/self/cwd");
    else snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
    ssize_t length = readlink(link, base, sizeof base - 1);
    if (length < 0) return 0;
    base[length] = 0;
    if (snprintf(out, PATH_MAX, "%s/%s", base, name) >= PATH_MAX) return 0;
  }
  return strncmp(out, root, strlen(root)) == 0;
}
static int place_of(int descriptor, char *out) {
  if ((mode == OFF && log_file < 0) || descriptor == log_file) return 0;
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  ssize_t length = readlink(link, out, PATH_MAX - 1);
  if (length < 0) return 0;
  out[length] = 0;
  return strncmp(out, root, strlen(root)) == 0;
}

/* One more change; nonzero when it is to fail. What frees room does not fail on a full disk. */
static int change(int frees) {
  if (mode == OFF) return 0;
  long number = __sync_add_and_fetch(&count, 1);
  if (mode == KILL && number == at) { raise(SIGKILL); }
  if (mode == FAIL_FROM && number >= at && !(frees && error_code == ENOSPC)) { errno = error_code; return 1; }
  return 0;
}

static void copy_synced(int descriptor, const char *path) {
  if (log_file < 0) return;
  char number[32], copy[2 * PATH_MAX], link[64], buffer[65536];
  snprintf(number, sizeof number, "%ld", __sync_add_and_fetch(&synced, 1));
  snprintf(copy, sizeof copy, "%s/%s", shadow, number);
  snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  int from = (int)syscall(SYS_openat, AT_FDCWD, link, O_RDONLY, 0);
  int to = (int)syscall(SYS_openat, AT_FDCWD, copy, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  ssize_t read_bytes;
  while (from >= 0 && to >= 0 && (read_bytes = syscall(SYS_read, from, buffer, sizeof buffer)) > 0)
    syscall(SYS_write, to, buffer, (size_t)read_bytes);
  if (from >= 0) syscall(SYS_close, from);
  if (to >= 0) syscall(SYS_close, to);
  note("sync", path, number);
}

static int opened(int folder, const char *name, int flags) {
  char path[PATH_MAX];
  int writes = (flags & O_ACCMODE) != O_RDONLY || (flags & O_CREAT);
  if (!writes || (flags & O_TMPFILE) == O_TMPFILE || !place(folder, name, path)) return 0;
  if (change(0)) return -1;
  note(flags & O_TRUNC ? "truncate" : "open", path, NULL);
  return 0;
}
#define OPEN_MODE(flags) \
  mode_t bits = 0; \
  if ((flags) & (O_CREAT | O_TMPFILE)) { va_list rest; va_start(rest, flags); bits = va_arg(rest, mode_t); va_end(rest); }

int open(const char *name, int flags, ...) {
  OPEN_MODE(flags)
  return opened(AT_FDCWD, name, flags) ? -1 : REAL(open)(name, flags, bits);
}
int open64(const char *name, int flags, ...) {
  OPEN_MODE(flags)
  return opened(AT_FDCWD, name, flags) ? -1 : REAL(open64)(name, flags, bits);
}
int openat(int folder, const char *name, int flags, ...) {
  OPEN_MODE(flags)
  return opened(folder, name, flags) ? -1 : REAL(openat)(folder, name, flags, bits);
}
int openat64(int folder, const char *name, int flags, ...) {
  OPEN_MODE(flags)
  return opened(folder, name, flags) ? -1 : REAL(openat64)(folder, name, flags, bits);
}

static int written(int descriptor) {
  char path[PATH_MAX];
  if (!place_of(descriptor, path)) return 0;
  if (change(0)) return 1;
  note("write", path, NULL);
  return 0;
}
ssize_t write(int descriptor, const void *data, size_t size) {
  return written(descriptor) ? -1 : REAL(write)(descriptor, data, size);
}
ssize_t pwrite64(int descriptor, const void *data, size_t size, off64_t offset) {
  return written(descriptor) ? -1 : REAL(pwrite64)(descriptor, data, size, offset);
}
ssize_t writev(int descriptor, const struct iovec *parts, int number) {
  return written(descriptor) ? -1 : REAL(writev)(descriptor, parts, number);
}
int ftruncate64(int descriptor, off64_t size) { return written(descriptor) ? -1 : REAL(ftruncate64)(descriptor, size); }

static int sync_file(int descriptor) {
  char path[PATH_MAX];
  if (!place_of(descriptor, path)) return 0;
  if (change(0)) return 1;
  struct stat facts;
  if (!fstat(descriptor, &facts) && S_ISDIR(facts.st_mode)) note("syncdir", path, NULL);
  else copy_synced(descriptor, path);
  return 0;
}
int fsync(int descriptor) { return sync_file(descriptor) ? -1 : REAL(fsync)(descriptor); }
int fdatasync(int descriptor) { return sync_file(descriptor) ? -1 : REAL(fdatasync)(descriptor); }

static int moved(int from_folder, const char *from, int to_folder, const char *to, const char *how) {
  char a[PATH_MAX], b[PATH_MAX];
  if (!place(from_folder, from, a) || !place(to_folder, to, b)) return 0;
  if (change(1)) return 1;
  note(how, a, b);
  return 0;
}
int rename(const char *from, const char *to) {
  return moved(AT_FDCWD, from, AT_FDCWD, to, "rename") ? -1 : REAL(rename)(from, to);
}
int renameat(int from_folder, const char *from, int to_folder, const char *to) {
  return moved(from_folder, from, to_folder, to, "rename") ? -1 : REAL(renameat)(from_folder, from, to_folder, to);
}
int renameat2(int from_folder, const char *from, int to_folder, const char *to, unsigned int flags) {
  return moved(from_folder, from, to_folder, to, flags & 2 ? "exchange" : "rename")
             ? -1 : REAL(renameat2)(from_folder, from, to_folder, to, flags);
}

static int removed(int folder, const char *name, const char *how) {
  char path[PATH_MAX];
  if (!place(folder, name, path)) return 0;
  if (change(1)) return 1;
  note(how, path, NULL);
  return 0;
}
int unlink(const char *name) { return removed(AT_FDCWD, name, "unlink") ? -1 : REAL(unlink)(name); }
int rmdir(const char *name) { return removed(AT_FDCWD, name, "rmdir") ? -1 : REAL(rmdir)(name); }
int unlinkat(int folder, const char *name, int flags) {
  return removed(folder, name, flags & AT_REMOVEDIR ? "rmdir" : "unlink") ? -1 : REAL(unlinkat)(folder, name, flags);
}

static int made(int folder, const char *name) {
  char path[PATH_MAX];
  if (!place(folder, name, path) || access(path, F_OK) == 0) return 0;
  if (change(0)) return 1;
  note("mkdir", path, NULL);
  return 0;
}
int mkdir(const char *name, mode_t bits) { return made(AT_FDCWD, name) ? -1 : REAL(mkdir)(name, bits); }
int mkdirat(int folder, const char *name, mode_t bits) { return made(folder, name) ? -1 : REAL(mkdirat)(folder, name, bits); }

int clock_gettime(clockid_t clock, struct timespec *now) {
  int result = (int)syscall(SYS_clock_gettime, clock, now);
  if (clock_jump && clock == CLOCK_REALTIME) {
    static long calls;
    now->tv_sec += (__sync_add_and_fetch(&calls, 1) * 7919) % (2 * clock_jump) - clock_jump;
  }
  return result;
}
