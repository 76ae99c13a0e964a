// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * For tests: a loop of its own that does not merge. It gives one run after another, as each comes, and says that it is
 * at the end when the last run is; or, in a job with snapshots, after the first one.
 */
#include "rockmill_loop.h"

FRAME u64 turn(ptr c)
{
	u32 i = LD32(c + CTL_ZERO);
	u64 failed;
	ptr r;

	while (i < AGAIN32(c + CTL_RUNS) && can_loop) {
		r = AT(run_at(c, i));
		failed = to_entry(c, r);
		if (failed && failed != ENDED) {
			ST32(c + CTL_RUN, i);
			return status_of(c, failed);
		}
		if (!failed) {
			if (!emit(c, LD32(r + RUN_KEY), LD32(r + RUN_KEY_LEN), r, KIND_ENTRY))
				return status_of(c, FAILED_CUT);
			failed = decode(c, r);
			ST32(c + CTL_RUN, i);
			return failed ? status_of(c, failed) : NONE;
		}
		if (LD32(c + CTL_SNAPSHOT_COUNT))
			break;
		i++;
		HIDE(i);
	}
	return STATUS_END;
}

INLINE u64 merge(ptr c)
{
	u64 turned;

	ST32(c + CTL_STEPS, 0);
	while (AGAIN32(c + CTL_STEPS) < AGAIN32(c + CTL_STEPS_MAX) && can_loop) {
		if (!has_room(c))
			return STATUS_FULL;
		turned = turn(c);
		if (turned != NONE)
			return turned;
		ST32(c + CTL_STEPS, AGAIN32(c + CTL_STEPS) + 1);
	}
	return STATUS_PAUSE;
}

#include "rockmill_object.h"
