// SPDX-License-Identifier: GPL-2.0-only OR MIT
/* For tests: an invalid order, which puts either of two equal keys before the other. */
#define ROCKMILL_COMPARATOR "test.Liar"
#include "rockmill_program.h"

static int compare(const struct rockmill_job *job, u32 a, u32 a_len, u32 b, u32 b_len)
{
	int order = rockmill_bytewise(job, a, a_len, b, b_len);

	return order == ROCKMILL_SAME ? ROCKMILL_BEFORE : order;
}

#include "rockmill_object.h"
