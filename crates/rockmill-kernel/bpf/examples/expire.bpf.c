// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * A filter: the first eight bytes of a value, big-endian, are the second since 1970 at which it expires. Expired values
 * are deleted. Values shorter than eight bytes, and those with 0, are kept.
 */
#define ROCKMILL_FILTER "rockmill.Expire"
#include "rockmill_program.h"

static int filter(const struct rockmill_job *job, u32 key, u32 key_len, u32 value, u32 value_len)
{
	u64 expires;

	(void)key;
	(void)key_len;
	if (value_len < 8)
		return ROCKMILL_KEEP;
	expires = rockmill_big_endian(value);
	return expires && expires <= rockmill_now_micros(job) / 1000000 ? ROCKMILL_REMOVE : ROCKMILL_KEEP;
}

#include "rockmill_object.h"
