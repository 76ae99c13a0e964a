// SPDX-License-Identifier: GPL-2.0-only OR MIT
/* A custom order: user keys in descending order, like the store's ReverseBytewiseComparator. */
#define ROCKMILL_COMPARATOR "rocksdb.ReverseBytewiseComparator"
#include "rockmill_program.h"

static int compare(const struct rockmill_job *job, u32 a, u32 a_len, u32 b, u32 b_len)
{
	return rockmill_bytewise(job, b, b_len, a, a_len);
}

#include "rockmill_object.h"
