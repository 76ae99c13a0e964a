/* Asks the kernel what tests may require of it: each line is a name of crates/rockmill-skip, and "yes" or why not.
   Raw system calls with numbers written out: the headers of a machine are older than its kernel may be. See scripts/has. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { IO_URING_SETUP = 425 };
enum { MAP_CREATE = 0, PROG_LOAD = 5, PROG_RUN = 10, MAP_ARENA = 33, MMAPABLE = 1 << 10, PROG_SYSCALL = 31, SLEEPABLE = 16 };

static void say(const char *name, const char *step) {
  if (step == NULL)
    printf("%s: yes\n", name);
  else
    printf("%s: %s: %s\n", name, step, strerror(errno));
}

static const char *ring(void) {
  uint32_t parameters[30] = {0};
  int fd = (int)syscall(IO_URING_SETUP, 8, parameters);
  if (fd < 0) return "io_uring_setup";
  close(fd);
  return NULL;
}

static void put32(unsigned char *attr, int at, uint32_t v) { memcpy(attr + at, &v, 4); }
static void put64(unsigned char *attr, int at, uint64_t v) { memcpy(attr + at, &v, 8); }

static uint64_t instruction(uint8_t op, uint8_t to, uint8_t from, int16_t offset, int32_t constant) {
  return (uint64_t)op | (uint64_t)(from << 4 | to) << 8 | (uint64_t)(uint16_t)offset << 16 | (uint64_t)(uint32_t)constant << 32;
}

/* A sleepable program that reads a word of an arena. */
static const char *arena(void) {
  unsigned char attr[144] = {0};
  put32(attr, 0, MAP_ARENA);
  put32(attr, 12, 4);
  put32(attr, 16, MMAPABLE);
  int map = (int)syscall(SYS_bpf, MAP_CREATE, attr, 72);
  if (map < 0) return "a BPF arena (Linux 6.9, CAP_BPF)";
  unsigned char *memory = mmap(NULL, 4 * 4096, PROT_READ | PROT_WRITE, MAP_SHARED, map, 0);
  if (memory == MAP_FAILED) return "mmap of a BPF arena";
  memory[0] = 1;
  uint64_t program[] = {
      instruction(0x18, 1, 1, 0, map), 0,                         /* r1 = the map */
      instruction(0xb4, 2, 0, 0, (int32_t)(uintptr_t)memory),     /* w2 = the memory's address, as programs see it */
      instruction(0xbf, 2, 2, 1, 1),                              /* r2 = cast to what the kernel maps */
      instruction(0x71, 0, 2, 0, 0),                              /* r0 = its first byte */
      instruction(0x95, 0, 0, 0, 0),
  };
  memset(attr, 0, sizeof attr);
  put32(attr, 0, PROG_SYSCALL);
  put32(attr, 4, sizeof program / 8);
  put64(attr, 8, (uintptr_t)program);
  put64(attr, 16, (uintptr_t) "GPL");
  put32(attr, 44, SLEEPABLE);
  int loaded = (int)syscall(SYS_bpf, PROG_LOAD, attr, sizeof attr);
  if (loaded < 0) return "loading a program";
  memset(attr, 0, sizeof attr);
  put32(attr, 0, (uint32_t)loaded);
  if (syscall(SYS_bpf, PROG_RUN, attr, 80) < 0) return "running a program";
  uint32_t returned;
  memcpy(&returned, attr + 4, 4);
  errno = EIO;
  return returned == 1 ? NULL : "what a program read of an arena";
}

static const char *looped(void) {
  static char text[64 << 20];
  FILE *types = fopen("/sys/kernel/btf/vmlinux", "rb");
  if (types == NULL) return "/sys/kernel/btf/vmlinux";
  size_t len = fread(text, 1, sizeof text, types);
  fclose(types);
  errno = ENOSYS;
  return memmem(text, len, "io_uring_bpf_ops", 16) ? NULL : "io_uring_bpf_ops among the kernel's types (Linux 7.1)";
}

static const char *counter(void) {
  FILE *id = fopen("/sys/kernel/tracing/events/raw_syscalls/sys_enter/id", "r");
  if (id == NULL) id = fopen("/sys/kernel/debug/tracing/events/raw_syscalls/sys_enter/id", "r");
  unsigned long long event;
  if (id == NULL || fscanf(id, "%llu", &event) != 1) return "the tracepoint of system calls";
  fclose(id);
  unsigned char attr[64] = {0};
  put32(attr, 0, 2);
  put32(attr, 4, sizeof attr);
  put64(attr, 8, event);
  return syscall(SYS_perf_event_open, attr, 0, -1, -1, 0UL) < 0 ? "perf_event_open" : NULL;
}

int main(void) {
  const char *rings = ring(), *arenas;
  say("uring", rings);
  say("kernel", arenas = arena());
  say("kernel-loop", rings ? ring() : arenas ? arena() : looped());
  say("perf", counter());
  return 0;
}
