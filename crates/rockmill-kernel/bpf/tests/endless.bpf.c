// SPDX-License-Identifier: GPL-2.0-only OR MIT
/* For tests: a filter that searches for a byte without a bound. The kernel's verifier must refuse it. */
#define ROCKMILL_FILTER "endless"
#include "rockmill_program.h"

static int filter(const struct rockmill_job *job, u32 key, u32 key_len, u32 value, u32 value_len)
{
	u32 i = rockmill_zero(job);

	(void)key;
	(void)key_len;
	while (rockmill_byte(value + i) != 'x')
		i++;
	return i < value_len ? ROCKMILL_REMOVE : ROCKMILL_KEEP;
}

#include "rockmill_object.h"
