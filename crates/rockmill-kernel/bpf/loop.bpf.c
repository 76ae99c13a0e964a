// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * The driver `loop` (Linux 7.1): the kernel calls this while a thread sits in io_uring_enter. One such call of the
 * thread's fills an output buffer, however many steps that takes; between two steps signals are seen.
 */
#include "merge.h"

struct iou_ctx;

/* The kernel's: the ring's region (0: the one that user space registered), size bytes of it. */
extern u8 *bpf_io_uring_get_region(struct iou_ctx *ring, u32 region, const u64 size);

#define REGION_BYTES 4096
#define CONTINUE 0
#define STOP 1

SECTION("struct_ops") int loop_step(u64 *arguments)
{
	struct iou_ctx *ring = (struct iou_ctx *)arguments[0];
	u8 *region = bpf_io_uring_get_region(ring, 0, REGION_BYTES);
	ptr c;

	NAME_ARENA();
	if (!region)
		return STOP;
	/* The region says where the control block is, and counts the steps of the call. */
	c = AT(*(volatile u32 *)region);
	*(volatile u32 *)(region + 4) += 1;
	ST64(c + CTL_WORK, 0);
	return merge(c) == STATUS_PAUSE ? CONTINUE : STOP;
}

#ifndef ROCKMILL_OBJECT
char licence[] SECTION("license") = "Dual MIT/GPL";
#endif
