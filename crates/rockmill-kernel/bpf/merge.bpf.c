// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * The driver `run`: user space calls the merge with BPF_PROG_RUN, once for each output buffer or dry run.
 */
#ifndef ROCKMILL_OWN_LOOP
#include "merge.h"
#endif

struct context {
	u32 control; /* in: address of the control block */
	u32 status;  /* out: STATUS_ */
};

SECTION("syscall") int run(struct context *context)
{
	ptr c;

	NAME_ARENA();
	c = AT(context->control);
	context->status = merge(c);
	ST32(c + CTL_STATUS, context->status);
	return 0;
}

#ifndef ROCKMILL_OBJECT
char licence[] SECTION("license") = "Dual MIT/GPL";
#endif
