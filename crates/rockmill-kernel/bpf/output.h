/* SPDX-License-Identifier: GPL-2.0-only OR MIT
 *
 * What a merge loop gives: records and the keys that they name, and the status that a call ends with.
 */
#ifndef ROCKMILL_OUTPUT_H
#define ROCKMILL_OUTPUT_H

#include "order.h"

/* Whether there is room for what a step may give. */
INLINE u32 has_room(ptr c)
{
	return LD32(c + CTL_RECORD_COUNT) + 2 <= LD32(c + CTL_RECORDS_MAX) &&
	       LD32(c + CTL_KEYS_END) - LD32(c + CTL_KEYS) >= 2 * (LD32(c + CTL_KEY_MAX) + SLACK);
}

/* Writes a record for a key in the arena, which is copied behind the others. The place of its copy; 0 when cut. */
INLINE u64 emit(ptr c, u32 key, u32 len, ptr r, u32 kind)
{
	u32 count = LD32(c + CTL_RECORD_COUNT);
	ptr rec = AT(LD32(c + CTL_RECORDS) + REC_BYTES * count);
	u32 at = LD32(c + CTL_KEYS);

	if (copy(c, at, key, len))
		return 0;
	ST32(rec + REC_KIND, kind);
	ST32(rec + REC_RUN, LD32(r + RUN_NUMBER));
	ST32(rec + REC_BLOCK, LD32(r + RUN_TAKEN) - 1);
	ST32(rec + REC_KEY, at);
	ST32(rec + REC_KEY_LEN, len);
	ST32(rec + REC_VALUE, LD32(r + RUN_VALUE));
	ST32(rec + REC_VALUE_LEN, LD32(r + RUN_VALUE_LEN));
	ST32(c + CTL_KEYS, at + len);
	ST32(c + CTL_RECORD_COUNT, count + 1);
	return at;
}

/* True when no snapshot sees the older of two sequence numbers and not the newer one. FAILED_CUT otherwise possible. */
FRAME u64 same_stripe(ptr c, u64 older, u64 newer)
{
	u32 low = LD32(c + CTL_ZERO), high = LD32(c + CTL_SNAPSHOT_COUNT);
	u32 at = LD32(c + CTL_SNAPSHOTS), count = high, middle;

	/* The first snapshot at or above the older one. */
	while (low < high && can_loop) {
		middle = (low + high) / 2;
		if (LD64(AT(at + 8 * middle)) < older)
			low = middle + 1;
		else
			high = middle;
	}
	if (low < high)
		return FAILED_CUT;
	return low >= count || LD64(AT(at + 8 * low)) >= newer;
}

/* True when the run's entry is at or behind the part's end. FAILED_CUT. */
INLINE u64 at_end(ptr c, ptr r)
{
	u32 len = LD32(c + CTL_END_LEN);
	u64 order;

	if (len == NONE || LD64(r + RUN_PREFIX) < LD64(c + CTL_END_PREFIX))
		return 0;
	order = compare_user(c, LD32(r + RUN_KEY), LD32(r + RUN_KEY_LEN) - 8, LD32(c + CTL_END_KEY), len);
	return order == FAILED_CUT ? FAILED_CUT : order != 0;
}

/* The status of a call that ends with this failure. CTL_RUN names the run already. */
INLINE u64 status_of(ptr c, u64 failed)
{
	if (failed == FAILED_DRY)
		return STATUS_DRY;
	if (failed == FAILED_CORRUPT)
		return STATUS_CORRUPT;
	if (failed == ENDED)
		return STATUS_END;
	if (HAS_COMPARE && failed == FAILED_ORDER)
		ST32(c + CTL_DETAIL, REASON_ORDER);
	else
		ST32(c + CTL_DETAIL,
		     failed == FAILED_KEY ? REASON_KEY : failed == FAILED_BLOCK ? REASON_BLOCK : REASON_CUT);
	return STATUS_HAND_OVER;
}

/*
 * At the end of a call: the next one uses the room for keys anew, so the last key looked at moves to a slot of its own.
 * 0 or FAILED_CUT, with its reason in DETAIL.
 */
INLINE u64 keep_last_key(ptr c)
{
	u32 at = LD32(c + CTL_LAST_SLOT);

	if (!(LD32(c + CTL_CHAIN) & CHAIN_HAVE) || LD32(c + CTL_LAST_KEY) == at)
		return 0;
	if (copy(c, at, LD32(c + CTL_LAST_KEY), LD32(c + CTL_LAST_LEN))) {
		ST32(c + CTL_DETAIL, REASON_CUT);
		return FAILED_CUT;
	}
	ST32(c + CTL_LAST_KEY, at);
	return 0;
}

#endif
