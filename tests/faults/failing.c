/* Preloaded: the n-th call that changes a regular file fails, as on a disk with a bad block, or that and all later writes
 * do, as on a full one. TEST_FAIL_AT=n counts from 0, TEST_FAIL_ERRNO is what it fails with. With TEST_NO_LOCKS there are
 * no locks, as on some shared file systems. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

static atomic_long calls;

static int fails(int writes) {
  const char *at = getenv("TEST_FAIL_AT"), *what = getenv("TEST_FAIL_ERRNO");
  if (!at || !what) return 0;
  long call = atomic_fetch_add(&calls, 1), first = atol(at);
  int error = atoi(what);
  if (error == ENOSPC ? !writes || call < first : call != first) return 0;
  errno = error;
  return 1;
}

static int regular(int fd) {
  struct stat found;
  return fd > 2 && fstat(fd, &found) == 0 && S_ISREG(found.st_mode);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t write(int fd, const void *bytes, size_t count) {
  return regular(fd) && fails(1) ? -1 : REAL(write)(fd, bytes, count);
}
ssize_t pwrite(int fd, const void *bytes, size_t count, off_t at) {
  return regular(fd) && fails(1) ? -1 : REAL(pwrite)(fd, bytes, count, at);
}
ssize_t pwrite64(int fd, const void *bytes, size_t count, off64_t at) {
  return regular(fd) && fails(1) ? -1 : REAL(pwrite64)(fd, bytes, count, at);
}
int flock(int fd, int how) {
  if (!getenv("TEST_NO_LOCKS")) return REAL(flock)(fd, how);
  errno = ENOLCK;
  return -1;
}
int fsync(int fd) { return fails(0) ? -1 : REAL(fsync)(fd); }
int ftruncate(int fd, off_t length) { return fails(length > 0) ? -1 : REAL(ftruncate)(fd, length); }
int ftruncate64(int fd, off64_t length) { return fails(length > 0) ? -1 : REAL(ftruncate64)(fd, length); }
int fchmod(int fd, mode_t mode) { return fails(0) ? -1 : REAL(fchmod)(fd, mode); }
int rename(const char *from, const char *to) { return fails(0) ? -1 : REAL(rename)(from, to); }
