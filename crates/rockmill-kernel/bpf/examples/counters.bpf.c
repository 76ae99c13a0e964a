// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * A merge that sums counters: operands are numbers of eight bytes, little-endian, and become their sum, as
 * UInt64AddOperator has it. One of any other length counts as 0.
 */
#define ROCKMILL_MERGE "UInt64AddOperator"
#include "rockmill_program.h"

static u32 combine(const struct rockmill_job *job, u32 into, u32 newer, u32 newer_len, u32 older, u32 older_len)
{
	u64 sum = 0;

	(void)job;
	if (newer_len == 8)
		sum += rockmill_little_endian(newer);
	if (older_len == 8)
		sum += rockmill_little_endian(older);
	rockmill_put_little_endian(into, sum);
	return 8;
}

#include "rockmill_object.h"
