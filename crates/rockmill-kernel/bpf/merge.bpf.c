// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * The driver `run`: user space calls the merge with BPF_PROG_RUN, once for each output buffer or dry run.
 */
#include "merge.h"

struct context {
	u32 control; /* in: address of the control block */
	u32 status;  /* out: STATUS_ */
};

SECTION("syscall") int run(struct context *context)
{
	NAME_ARENA();
	context->status = merge(AT(context->control));
	return 0;
}

#ifndef ROCKMILL_OBJECT
char licence[] SECTION("license") = "Dual MIT/GPL";
#endif
