// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * For tests: loops of its own that never come to an end. It asks to be called again, or, in a job with snapshots, for a
 * block that it has.
 */
#include "rockmill_loop.h"

INLINE u64 merge(ptr c)
{
	ST32(c + CTL_RUN, 0);
	return LD32(c + CTL_SNAPSHOT_COUNT) ? STATUS_DRY : STATUS_PAUSE;
}

#include "rockmill_object.h"
