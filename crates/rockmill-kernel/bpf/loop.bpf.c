// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * The driver `loop` (Linux 7.1): the kernel calls this while a thread is in io_uring_enter. The ring is the one that
 * the thread reads and writes with. One call of io_uring_enter submits all that is queued, fills an output buffer (in
 * as many steps as that takes), and waits for the reads that a dry run needs. Between two steps, signals are handled
 * and completions are posted.
 */
#ifndef ROCKMILL_OWN_LOOP
#include "merge.h"
#endif

struct iou_ctx;
struct iou_loop_params {
	u32 cq_wait_idx; /* total completions that the kernel waits for before the next step */
};

/* The kernel's: submits nr operations, or fewer if there are fewer. Returns how many, or an error. */
extern int bpf_io_uring_submit_sqes(struct iou_ctx *ring, u32 nr);
/* The kernel's: a region of the ring, size bytes of it. */
extern u8 *bpf_io_uring_get_region(struct iou_ctx *ring, u32 region, const u64 size);

#define REGION_OWN 0 /* the one that user space registered */
#define REGION_CQ 1
/* Enough for the completions of a ring with 128 places. */
#define CQ_BYTES 8192

#define CONTINUE 0
#define STOP 1

/* So many steps at most, and the caller has a look: a loop of a user's own might pause for ever. */
#define STEPS_MAX 1024

#define AT32(place) (*(volatile u32 *)(place))

/* Submits what is queued. 0 if that was all of it. */
INLINE u32 hand_on(struct iou_ctx *ring, u8 *region)
{
	u32 pending = AT32(region + RING_PENDING);
	int done;

	if (!pending)
		return 0;
	done = bpf_io_uring_submit_sqes(ring, pending);
	AT32(region + RING_PENDING) = 0;
	if (done >= 0)
		AT32(region + RING_SUBMITTED) = done;
	else
		AT32(region + RING_ERROR) = -done;
	return done < 0 || (u32)done < pending;
}

/*
 * How many of the completions that were not taken yet are awaited. Inline, because one object has this together with
 * `run`.
 */
INLINE u64 arrived(u8 *region, u8 *cq, u32 tail)
{
	u32 i = AT32(region + RING_HEAD), at = AT32(region + RING_CQES_AT), mask = AT32(region + RING_MASK);
	u64 place, count = 0;

	while (i != tail && can_loop) {
		place = at + 16 * (u64)(i & mask);
		if (place > CQ_BYTES - 16)
			break;
		place = *(volatile u64 *)(cq + place);
		if (place < RING_PLACES_MAX && *(volatile u8 *)(region + RING_PLACES + place))
			count++;
		i++;
		HIDE(i);
	}
	return count;
}

SECTION("struct_ops") int loop_step(u64 *arguments)
{
	struct iou_ctx *ring = (struct iou_ctx *)arguments[0];
	struct iou_loop_params *params = (struct iou_loop_params *)arguments[1];
	u8 *region = bpf_io_uring_get_region(ring, REGION_OWN, RING_BYTES), *cq;
	u32 head, mode, wanted, tail, at;
	u64 status;
	ptr c;

	NAME_ARENA();
	if (!region)
		return STOP;
	AT32(region + RING_STEPS) += 1;
	head = AT32(region + RING_HEAD);
	mode = AT32(region + RING_MODE);
	c = AT(AT32(region + RING_CONTROL));
	/* By default there is nothing to wait for. */
	params->cq_wait_idx = head;
	if (!AT32(region + RING_PHASE)) {
		if (hand_on(ring, region)) {
			/* The caller handles the error. What was not submitted cannot be waited for. */
			AT32(region + RING_AWAITED) = 0;
			AT32(region + RING_WAIT) = 0;
		}
		if (mode == MODE_MERGE) {
			ST64(c + CTL_WORK, 0);
			status = merge(c);
			ST32(c + CTL_STATUS, status);
			if (status == STATUS_PAUSE)
				return AT32(region + RING_STEPS) % STEPS_MAX ? CONTINUE : STOP;
			if (!AT32(region + RING_BUSY))
				return STOP;
			if (status != STATUS_DRY)
				AT32(region + RING_AWAITED) = 0;
			AT32(region + RING_PHASE) = 1;
			return CONTINUE;
		}
		AT32(region + RING_PHASE) = 1;
		params->cq_wait_idx = head + AT32(region + RING_WAIT);
		return CONTINUE;
	}
	wanted = AT32(region + RING_AWAITED);
	at = AT32(region + RING_TAIL_AT);
	if ((mode == MODE_MERGE && !wanted) || !at || at > CQ_BYTES - 4)
		return STOP;
	cq = bpf_io_uring_get_region(ring, REGION_CQ, CQ_BYTES);
	if (!cq)
		return STOP;
	tail = AT32(cq + at);
	if (mode != MODE_MERGE) {
		wanted = AT32(region + RING_WAIT);
		if (tail - head >= wanted)
			return STOP;
		params->cq_wait_idx = head + wanted;
		return CONTINUE;
	}
	if (arrived(region, cq, tail) >= wanted)
		return STOP;
	params->cq_wait_idx = tail + 1;
	return CONTINUE;
}

#ifndef ROCKMILL_OBJECT
char licence[] SECTION("license") = "Dual MIT/GPL";
#endif
