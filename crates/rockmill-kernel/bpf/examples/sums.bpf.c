// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * A merge with a loop of its own (rockmill_loop.h): the simplest one, which looks at all runs for each entry, and sums
 * counters, as UInt64AddOperator has them. The operands of a counter become one, as with counters.bpf.c; and they become
 * a value with the value that they were added to, which combine() there is never shown.
 */
#define ROCKMILL_MERGE "UInt64AddOperator"
#include "rockmill_loop.h"

#define VALUE 1
#define OPERAND 2

INLINE u64 number(u32 at, u32 len)
{
	return len == 8 ? rockmill_little_endian(at) : 0;
}

/* Finds the run whose entry comes first: CTL_CURRENT. 0, ENDED or a failure. */
FRAME u64 find_first(ptr c)
{
	u32 i = LD32(c + CTL_ZERO), run, first;
	u64 failed, order;

	ST32(c + CTL_CURRENT, 0);
	ST64(c + CTL_WORK, LD64(c + CTL_WORK) + 8 * LD32(c + CTL_RUNS));
	while (i < AGAIN32(c + CTL_RUNS) && can_loop) {
		run = run_at(c, i);
		failed = to_entry(c, AT(run));
		if (failed && failed != ENDED) {
			ST32(c + CTL_RUN, i);
			return failed;
		}
		if (!failed) {
			first = AGAIN32(c + CTL_CURRENT);
			order = first ? before(c, AT(run), AT(first)) : 0;
			if (order == FAILED_CUT)
				return FAILED_CUT;
			if (!order)
				ST32(c + CTL_CURRENT, run);
		}
		i++;
		HIDE(i);
	}
	if (i < AGAIN32(c + CTL_RUNS))
		return FAILED_CUT;
	return AGAIN32(c + CTL_CURRENT) ? 0 : ENDED;
}

/*
 * Adds a run's entry to the record of the newest operand of its user key. With a value, the sum is a value: nothing
 * older is added.
 */
FRAME u64 add(ptr c, ptr r, u32 type)
{
	ptr record = AT(LD32(c + CTL_OPERAND)), tag = AT(LD32(record + REC_KEY) + LD32(record + REC_KEY_LEN) - 8);
	u32 into = LD32(c + CTL_KEYS);
	u64 sum = number(LD32(record + REC_VALUE), LD32(record + REC_VALUE_LEN));

	sum += number(LD32(r + RUN_VALUE), LD32(r + RUN_VALUE_LEN));
	ST64(AT(into), sum);
	ST32(c + CTL_KEYS, into + 8);
	ST32(record + REC_VALUE, into);
	ST32(record + REC_VALUE_LEN, 8);
	if (type == VALUE) {
		ST8(tag, VALUE);
		ST32(c + CTL_OPERAND, 0);
	}
	ST64(c + CTL_COMBINED, LD64(c + CTL_COMBINED) + 1);
	return 0;
}

/* Gives a run's entry, or adds it to the operand before. 0 or FAILED_CUT. */
FRAME u64 give(ptr c, ptr r)
{
	u32 key = LD32(r + RUN_KEY), len = LD32(r + RUN_KEY_LEN), at;
	u64 tag = LD64(AT(key + len - 8)), seq = tag >> 8, type = tag & 0xff, same = 0;

	if (len == LD32(c + CTL_LAST_LEN)) {
		same = compare_bytes(c, key, len - 8, LD32(c + CTL_LAST_KEY), len - 8);
		if (same == FAILED_CUT)
			return FAILED_CUT;
		same = same == ROCKMILL_SAME;
	}
	if (same && LD32(c + CTL_OPERAND) && (type == VALUE || type == OPERAND)) {
		/* No snapshot may see the older of the two and not the newer one. */
		u64 together = same_stripe(c, seq, LD64(c + CTL_LAST_SEQ));

		if (together == FAILED_CUT)
			return FAILED_CUT;
		if (together) {
			ST64(c + CTL_LAST_SEQ, seq);
			return add(c, r, type);
		}
	}
	at = emit(c, key, len, r, KIND_ENTRY);
	if (!at)
		return FAILED_CUT;
	/* What comes behind another version of its user key is for the store to decide. */
	if (!same && type == OPERAND && (LD32(c + CTL_FLAGS) & FLAG_COMBINE))
		ST32(c + CTL_OPERAND, LD32(c + CTL_RECORDS) + REC_BYTES * (LD32(c + CTL_RECORD_COUNT) - 1));
	else
		ST32(c + CTL_OPERAND, 0);
	ST32(c + CTL_LAST_KEY, at);
	ST32(c + CTL_LAST_LEN, len);
	ST64(c + CTL_LAST_SEQ, seq);
	ST32(c + CTL_CHAIN, CHAIN_HAVE);
	return 0;
}

/* One entry: NONE, or the status that the call ends with. */
FRAME u64 turn(ptr c)
{
	u64 failed = find_first(c);
	ptr r;

	if (failed)
		return status_of(c, failed);
	r = AT(LD32(c + CTL_CURRENT));
	failed = at_end(c, r);
	if (failed)
		return failed == FAILED_CUT ? status_of(c, failed) : STATUS_END;
	failed = give(c, r);
	if (failed)
		return status_of(c, failed);
	/* Behind it. */
	failed = decode(c, r);
	if (!failed)
		return NONE;
	ST32(c + CTL_RUN, LD32(r + RUN_NUMBER));
	return status_of(c, failed);
}

INLINE u64 merge(ptr c)
{
	u64 status = STATUS_PAUSE, turned;

	/* The records of the call before are gone: nothing is added to them. */
	ST32(c + CTL_OPERAND, 0);
	ST32(c + CTL_STEPS, 0);
	while (AGAIN32(c + CTL_STEPS) < AGAIN32(c + CTL_STEPS_MAX) && can_loop) {
		if (LD64(c + CTL_WORK) >= LD64(c + CTL_WORK_MAX))
			break;
		if (!has_room(c)) {
			status = STATUS_FULL;
			break;
		}
		turned = turn(c);
		if (turned != NONE) {
			status = turned;
			break;
		}
		ST32(c + CTL_STEPS, AGAIN32(c + CTL_STEPS) + 1);
	}
	return keep_last_key(c) ? STATUS_HAND_OVER : status;
}

#include "rockmill_object.h"
