/* A network link between two network namespaces, with a rate and a delay, where the kernel has no netem.
   link NAMESPACE GBPS MICROSECONDS: makes a device `link0` here and one in NAMESPACE (a path, as of
   `ip netns`), says "ready", and moves packets between them until it is ended. Each direction has a thread and a wire of
   its own: a packet leaves when the wire is free, occupies it for as long as its bytes take at the rate, with the
   frames, gaps and headers that it would have on Ethernet, and arrives the delay after that. Where the wire is behind,
   packets wait in the sender's queue, as before a network card. They are lost only where the receiver has no room.
   The devices take packets of up to 64 KiB from TCP, which real cards would split (TSO). See scripts/link. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <linux/virtio_net.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

/* Bytes of a packet with the header of the device; packets that are between the two ends at most, which limits the rate
   of small ones. At 25 Gb/s, 50 us are 156 KB: three large packets, or a hundred acknowledgements. */
enum { PACKET_MAX = 65536 + 256, PACKETS_MAX = 1024 };
/* How far the wire may be booked ahead. */
enum { AHEAD_NANOS = 50000 };
/* Preamble, frame, checksum and gap of Ethernet. */
enum { FRAME = 8 + 14 + 4 + 12 };

struct packet {
  int64_t due;
  ssize_t bytes;
  unsigned char data[PACKET_MAX];
};

struct wire {
  int from, to;
  uint64_t packets, bytes;
  int64_t late, late_most; /* Nanoseconds that packets arrived too late, as a sum and at most. */
  struct packet *queue;
};

static double nanos_per_byte;
static int64_t delay;

static int64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void die(const char *what) {
  fprintf(stderr, "link: %s: %s\n", what, strerror(errno));
  exit(1);
}

/* Bytes on the wire: each segment of a large packet has headers and a frame of its own. */
static int64_t on_the_wire(const struct packet *p) {
  struct virtio_net_hdr h;
  memcpy(&h, p->data, sizeof h);
  int64_t bytes = p->bytes - (int64_t)sizeof h, segments = 1;
  if (h.gso_type != VIRTIO_NET_HDR_GSO_NONE && h.gso_size > 0 && bytes > h.hdr_len) {
    segments = (bytes - h.hdr_len + h.gso_size - 1) / h.gso_size;
    bytes += (segments - 1) * h.hdr_len;
  }
  return bytes + segments * FRAME;
}

static void *move(void *of) {
  struct wire *w = of;
  unsigned first = 0, count = 0;
  int64_t busy_until = 0;
  /* As exact as the kernel's timers are, and before all else that wants the core: a real link does not wait for one. */
  prctl(PR_SET_TIMERSLACK, 1);
  struct sched_param p = {.sched_priority = 1};
  errno = pthread_setschedparam(pthread_self(), SCHED_FIFO, &p);
  if (errno != 0) perror("link: not before all else (SCHED_FIFO)");
  for (;;) {
    int64_t t = now();
    while (count > 0 && w->queue[first].due <= t) {
      struct packet *p = &w->queue[first];
      if (write(w->to, p->data, p->bytes) < 0 && errno != EAGAIN && errno != ENOBUFS && errno != EIO) die("write");
      int64_t late = now() - p->due;
      w->late += late;
      if (late > w->late_most) w->late_most = late;
      first = (first + 1) % PACKETS_MAX;
      count--;
    }
    int room = count < PACKETS_MAX && busy_until <= t + AHEAD_NANOS;
    if (room) {
      struct packet *p = &w->queue[(first + count) % PACKETS_MAX];
      p->bytes = read(w->from, p->data, PACKET_MAX);
      if (p->bytes > 0) {
        t = now();
        int64_t bytes = on_the_wire(p);
        busy_until = (busy_until > t ? busy_until : t) + (int64_t)(bytes * nanos_per_byte);
        p->due = busy_until + delay;
        w->packets++;
        w->bytes += bytes;
        count++;
        continue;
      }
      if (p->bytes < 0 && errno != EAGAIN && errno != EIO) die("read");
    }
    int64_t next = count > 0 ? w->queue[first].due : INT64_MAX;
    if (!room && count < PACKETS_MAX && busy_until - AHEAD_NANOS < next) next = busy_until - AHEAD_NANOS;
    int64_t wait = next == INT64_MAX ? 100000000 : next - now();
    if (wait <= 0) continue;
    struct timespec timeout = {wait / 1000000000, wait % 1000000000};
    struct pollfd fd = {.fd = room ? w->from : -1, .events = POLLIN};
    if (ppoll(&fd, 1, &timeout, NULL) < 0 && errno != EINTR) die("poll");
  }
  return NULL;
}

static int device(void) {
  int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) die("/dev/net/tun");
  struct ifreq r = {0};
  strcpy(r.ifr_name, "link0");
  r.ifr_flags = IFF_TUN | IFF_NO_PI | IFF_VNET_HDR;
  if (ioctl(fd, TUNSETIFF, &r) < 0) die("TUNSETIFF");
  if (ioctl(fd, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6) < 0) die("TUNSETOFFLOAD");
  return fd;
}

static void say(const char *way, const struct wire *w) {
  double late = w->packets ? (double)w->late / (double)w->packets / 1e3 : 0;
  fprintf(stderr, "link: %s: %lu packets, %.1f MB on the wire, late by %.1f us (%.0f at most)\n", way,
          (unsigned long)w->packets, (double)w->bytes / 1e6, late, (double)w->late_most / 1e3);
}

int main(int argc, char **argv) {
  if (argc != 4) {
    fprintf(stderr, "usage: link NAMESPACE GBPS MICROSECONDS\n");
    return 2;
  }
  double gbps = atof(argv[2]), micros = atof(argv[3]);
  if (!(gbps > 0) || !(micros >= 0 && micros <= 1e6)) {
    fprintf(stderr, "link: a rate above 0 Gb/s, and a delay of up to a second\n");
    return 2;
  }
  nanos_per_byte = 8 / gbps;
  delay = (int64_t)(micros * 1e3);
  sigset_t ends;
  sigemptyset(&ends);
  sigaddset(&ends, SIGTERM);
  /* Not Ctrl-C, which is for the command. */
  sigprocmask(SIG_BLOCK, &ends, NULL);
  int here = device();
  int other = open(argv[1], O_RDONLY | O_CLOEXEC);
  if (other < 0 || setns(other, CLONE_NEWNET) < 0) die(argv[1]);
  int there = device();
  struct wire wires[2] = {{.from = here, .to = there}, {.from = there, .to = here}};
  pthread_t threads[2];
  for (int i = 0; i < 2; i++) {
    wires[i].queue = calloc(PACKETS_MAX, sizeof(struct packet));
    if (wires[i].queue == NULL) die("memory");
    errno = pthread_create(&threads[i], NULL, move, &wires[i]);
    if (errno != 0) die("thread");
  }
  puts("ready");
  fflush(stdout);
  int signal;
  sigwait(&ends, &signal);
  struct rusage r;
  getrusage(RUSAGE_SELF, &r);
  say("to the other side", &wires[0]);
  say("from there", &wires[1]);
  fprintf(stderr, "link: %.2f s of CPU\n", (double)r.ru_utime.tv_sec + (double)r.ru_stime.tv_sec +
          (double)(r.ru_utime.tv_usec + r.ru_stime.tv_usec) / 1e6);
  return 0;
}
