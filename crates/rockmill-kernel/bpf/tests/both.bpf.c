// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * For tests: an order and a filter in one object, each with its own loop. The order ignores the case of letters, so
 * that keys of different bytes are the same user key. The filter removes values that begin with `x`, and leaves those
 * that begin with `?`, and every value of level 1, to the store's filter.
 */
#define ROCKMILL_COMPARATOR "test.NoCase"
#define ROCKMILL_FILTER "test.Marks"
#include "rockmill_program.h"

INLINE u32 lower(u32 byte)
{
	return byte >= 'A' && byte <= 'Z' ? byte + 32 : byte;
}

static int compare(const struct rockmill_job *job, u32 a, u32 a_len, u32 b, u32 b_len)
{
	u32 i = rockmill_zero(job), n = a_len < b_len ? a_len : b_len, x, y;

	while (i < n && can_loop) {
		x = lower(rockmill_byte(a + i));
		y = lower(rockmill_byte(b + i));
		if (x != y)
			return x < y ? ROCKMILL_BEFORE : ROCKMILL_BEHIND;
		i++;
		HIDE(i);
	}
	if (i < n)
		return ROCKMILL_CUT;
	return a_len < b_len ? ROCKMILL_BEFORE : a_len > b_len ? ROCKMILL_BEHIND : ROCKMILL_SAME;
}

static int filter(const struct rockmill_job *job, u32 key, u32 key_len, u32 value, u32 value_len)
{
	(void)key;
	(void)key_len;
	if (!value_len)
		return ROCKMILL_KEEP;
	if (rockmill_level(job) == 1 || rockmill_byte(value) == '?')
		return ROCKMILL_ASK;
	return rockmill_byte(value) == 'x' ? ROCKMILL_REMOVE : ROCKMILL_KEEP;
}

#include "rockmill_object.h"
