// SPDX-License-Identifier: GPL-2.0-only OR MIT
/* For tests: a filter that spends a long time on each value, and keeps it. */
#define ROCKMILL_FILTER "test.Slow"
#include "rockmill_program.h"

#define STEPS 20000

static int filter(const struct rockmill_job *job, u32 key, u32 key_len, u32 value, u32 value_len)
{
	u32 i = rockmill_zero(job), n = rockmill_zero(job) + STEPS, sum = 0;

	(void)value_len;
	while (i < n && can_loop) {
		/* A plain sum has a range that grows with each turn, so the verifier would examine every turn. */
		sum = 31 * sum + (rockmill_byte(value + (i & 7)) ^ rockmill_byte(key + i % key_len));
		i++;
		HIDE(i);
	}
	return i < n ? ROCKMILL_CUT : sum == 1 ? ROCKMILL_ASK : ROCKMILL_KEEP;
}

#include "rockmill_object.h"
