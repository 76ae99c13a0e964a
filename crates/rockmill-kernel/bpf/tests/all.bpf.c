// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * For tests: an order, a filter and a merge of operands (append.h) in one object, each with a loop of its own. Letters
 * order without regard to their case, so that keys of different bytes are the same user key. Values that begin with `x`
 * are removed, those that begin with `?` are left to the store's filter, and so is every value of level 1.
 */
#define ROCKMILL_COMPARATOR "test.NoCase"
#define ROCKMILL_FILTER "test.Marks"
#define ROCKMILL_MERGE "{id=StringAppendOperator;delimiter=,;}"
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

#include "tests/append.h"
#include "rockmill_object.h"
