/* SPDX-License-Identifier: GPL-2.0-only OR MIT
 *
 * The merge itself, the same for every driver: blocks of sorted runs in, records in order out.
 *
 *  1. Each run has its current entry: its key is written out in the run's slot, its value stays in the block. The key's
 *     prefix, eight bytes of the user key as a number, orders most keys without a look at them.
 *  2. The run with the smallest entry gives it: the key is copied behind the keys given before, and a record names key
 *     and value. It goes on as long as its entries come before those of all others (galloping).
 *  3. Then the smallest is looked for again (order.h): among few runs by going over their marks, among many in a heap.
 *     Among few, which run is next is known before: it is the one that was the smallest of the others.
 *  4. A version goes without a record if no reader can tell (FLAG_DROP): one right behind a value or tombstone of the
 *     same user key and stripe; at the bottom (FLAG_BOTTOM), a tombstone that every reader sees, and what is behind it.
 *     Single deletes, merge operands and anything else go to user space as they are, and so does what is behind them.
 *     If such a one comes behind a dropped tombstone, the tombstone is given before it after all.
 *     An object that combines merge operands (FLAG_COMBINE) makes one record of the newest ones of a user key, as long
 *     as they are of one stripe; not after any other version of it.
 *  5. Where a run gave a whole block while no other gave anything, its next block is given as one record if all its
 *     prefixes are below the others' and the part's end, and its first user key is new (FLAG_PASS).
 *
 * Every value read from a block is checked against the block's end before it is used. What lies outside of the arena
 * cannot be named at all: addresses have 32 bits and are relative to it.
 *
 * Most steps are alike, and quick does those without a call; all others are step's.
 *
 * A call ends at STEPS_MAX entries or WORK_MAX bytes of keys, or when there is no room, or a run is dry. It goes on
 * where it ended: PHASE says what comes next, and all else is in the control block and the runs.
 */
#ifndef ROCKMILL_MERGE_H
#define ROCKMILL_MERGE_H

#include "info.h"
#include "output.h"

/*
 * Nothing is known of what functions of a user's own take: such a program looks at the clock now and then, and ends a
 * call after so many nanoseconds. (A helper of the kernel's, bpf_ktime_get_ns.)
 */
#define OWN_CALL_NANOS 10000000ull
static u64 (*const monotonic_nanos)(void) = (void *)5;

#ifdef ROCKMILL_FILTER
/* What the filter says of the current entry of a run, a value. ROCKMILL_KEEP, REMOVE or ASK; FAILED_CUT. */
FRAME u64 filter_user(ptr c, ptr r)
{
	u32 key_len = LD32(r + RUN_KEY_LEN) - 8, value_len = LD32(r + RUN_VALUE_LEN);
	u64 said;

	ST64(c + CTL_WORK, LD64(c + CTL_WORK) + key_len + value_len);
	said = (u32)filter((const struct rockmill_job *)c, LD32(r + RUN_KEY), key_len, LD32(r + RUN_VALUE), value_len);
	return said > ROCKMILL_ASK ? FAILED_CUT : said;
}
#endif

#ifdef ROCKMILL_MERGE
/*
 * Makes the current entry of a run, a merge operand, part of the newer one that the record at OPERAND is. 0 when that is
 * done, 1 when they stay apart; FAILED_CUT.
 */
FRAME u64 combine_user(ptr c, ptr r)
{
	ptr rec = AT(LD32(c + CTL_OPERAND));
	u32 newer_len = LD32(rec + REC_VALUE_LEN), older_len = LD32(r + RUN_VALUE_LEN), into = LD32(c + CTL_KEYS), len;

	ST64(c + CTL_WORK, LD64(c + CTL_WORK) + newer_len + older_len);
	len = combine((const struct rockmill_job *)c, into, LD32(rec + REC_VALUE), newer_len, LD32(r + RUN_VALUE),
		      older_len);
	if (len == ROCKMILL_APART)
		return 1;
	if (len > COMBINED_MAX)
		return FAILED_CUT;
	ST32(rec + REC_VALUE, into);
	ST32(rec + REC_VALUE_LEN, len);
	ST32(c + CTL_KEYS, into + COMBINED_MAX);
	ST64(c + CTL_COMBINED, LD64(c + CTL_COMBINED) + 1);
	return 0;
}
#endif

/* To the first entry of a run that is not before the beginning of the part. */
FRAME u64 prime_run(ptr c, ptr r)
{
	u32 n = LD32(c + CTL_ZERO), len = LD32(c + CTL_BEGIN_LEN);
	u64 failed;

	while (n < TAIL_ENTRIES_MAX && can_loop) {
		n++;
		HIDE(n);
		if (LD32(r + RUN_STATE) == STATE_NEED) {
			failed = take_block(r);
			if (failed == ENDED)
				return 0;
			if (failed)
				return failed;
		}
		failed = decode(c, r);
		if (failed)
			return failed;
		if (LD32(r + RUN_STATE) != STATE_HAS)
			continue;
		if (len == NONE)
			return 0;
		failed = compare_user(c, LD32(r + RUN_KEY), LD32(r + RUN_KEY_LEN) - 8, LD32(c + CTL_BEGIN_KEY), len);
		if (failed == FAILED_CUT)
			return failed;
		if (failed)
			return 0;
	}
	return FAILED_CUT;
}

/* Gives every run its first entry, and orders them. */
FRAME u64 prime(ptr c)
{
	u32 i = LD32(c + CTL_ZERO), table = LD32(c + CTL_RUN_TABLE);
	u32 order = LD32(c + CTL_ORDER), live = LD32(c + CTL_ZERO), run;
	ptr r;
	u64 failed;

	while (i < AGAIN32(c + CTL_RUNS) && can_loop) {
		run = table + RUN_BYTES * i;
		r = AT(run);
		if (LD32(r + RUN_STATE) == STATE_NEED) {
			failed = prime_run(c, r);
			if (failed) {
				ST32(c + CTL_RUN, i);
				return failed;
			}
		}
		if (LD32(r + RUN_STATE) == STATE_HAS) {
			ST32(AT(order + 4 * live), run);
			live++;
		}
		i++;
		HIDE(i);
	}
	if (i < AGAIN32(c + CTL_RUNS))
		return FAILED_CUT;
	ST32(c + CTL_LIVE, live);
	ST32(c + CTL_CURRENT, 0);
	ST32(c + CTL_PHASE, PHASE_PICK);
	return live <= LD32(c + CTL_LINEAR_MAX) ? build_marks(c) : build_heap(c);
}

/* Decodes on to the last entry of the run's block. 0 or as decode. */
FRAME u64 decode_rest(ptr c, ptr r)
{
	u32 n = LD32(c + CTL_ZERO);
	u64 failed;

	while (n < TAIL_ENTRIES_MAX && can_loop) {
		if (LD32(r + RUN_POS) >= LD32(r + RUN_END))
			return 0;
		failed = decode(c, r);
		if (failed)
			return failed;
		n++;
		HIDE(n);
	}
	return n < TAIL_ENTRIES_MAX ? FAILED_CUT : FAILED_BLOCK;
}

/*
 * The current run begins its next block: 0 with an entry, ENDED, OFFERED with the block's last entry as the current
 * one where the block may be given as a whole, or a failure.
 */
FRAME u64 next_block(ptr c, ptr r)
{
	u32 self = LD32(r + RUN_SELF), alone = LD32(c + CTL_BEGAN) == self, key = LD32(r + RUN_KEY);
	ptr desc;
	u64 failed = take_block(r), others, end;

	if (failed)
		return failed;
	ST32(c + CTL_BEGAN, self);
	failed = decode(c, r);
	if (failed)
		return failed;
	if (LD32(r + RUN_STATE) != STATE_HAS)
		return FAILED_CORRUPT;
	if (!alone || !(LD32(c + CTL_FLAGS) & FLAG_PASS))
		return 0;
	desc = AT(LD32(r + RUN_DESCS) + DESC_BYTES * ((LD32(r + RUN_TAKEN) - 1) & LD32(r + RUN_DESC_MASK)));
	if (!(LD32(desc + DESC_FLAGS) & DESC_WHOLE))
		return 0;
	others = others_head(c, self);
	end = LD64(c + CTL_END_PREFIX);
	others = end < others ? end : others;
	if (LD64(r + RUN_PREFIX) >= others || LD32(c + CTL_LAST_LEN) <= 8)
		return 0;
	/* A further version of the last user key has to be looked at. */
	failed = compare_bytes(c, key, LD32(r + RUN_KEY_LEN) - 8, LD32(c + CTL_LAST_KEY), LD32(c + CTL_LAST_LEN) - 8);
	if (failed == FAILED_CUT)
		return failed;
	if (failed == 1)
		return 0;
	ST32(r + RUN_POS, LD32(desc + DESC_RESTART));
	ST32(r + RUN_KEY_LEN, 0);
	failed = decode_rest(c, r);
	if (failed == FAILED_CUT || failed == FAILED_BLOCK || failed == FAILED_KEY)
		return failed;
	if (!failed && LD64(r + RUN_PREFIX) < others)
		return OFFERED;
	/* Back to its beginning; damage shows when the merge comes to it. */
	ST32(r + RUN_POS, LD32(desc + DESC_AT));
	ST32(r + RUN_KEY_LEN, 0);
	return decode(c, r);
}

/*
 * Whether the current entry is of the same user key as the one looked at before: 0 it is not, 1 byte for byte, 2 it
 * counts as the same though its bytes differ. FAILED_CUT.
 */
INLINE u64 same_as_last(ptr c, u32 key, u32 len, u64 prefix)
{
	u32 last = LD32(c + CTL_LAST_KEY), last_len = LD32(c + CTL_LAST_LEN);
	u64 order = 0;

	if (!(LD32(c + CTL_CHAIN) & CHAIN_HAVE))
		return 0;
	if (prefix == LD64(c + CTL_LAST_PREFIX) && len == last_len) {
		order = compare_bytes(c, key, len - 8, last, last_len - 8);
		if (order == 1 || order == FAILED_CUT)
			return order;
	}
#if HAS_COMPARE && (HAS_FILTER || HAS_MERGE)
	if (LD32(c + CTL_FLAGS) & (FLAG_FILTER | FLAG_COMBINE)) {
		order = compare_user(c, key, len - 8, last, last_len - 8);
		if (order == FAILED_CUT)
			return order;
		return order == 1 ? 2 : 0;
	}
#endif
	return 0;
}

/* Gives the current run's entry, or drops it. 0 or FAILED_. There is room for two records and keys. */
INLINE u64 give(ptr c, ptr r)
{
	u32 key = LD32(r + RUN_KEY), len = LD32(r + RUN_KEY_LEN), chain = LD32(c + CTL_CHAIN);
	u32 last = LD32(c + CTL_LAST_KEY), last_len = LD32(c + CTL_LAST_LEN), flags = LD32(c + CTL_FLAGS);
	u64 prefix = LD64(r + RUN_PREFIX), tag = LD64(AT(key + len - 8)), seq = tag >> 8, same, hidden;
	u32 type = tag & 0xff, kind = KIND_ENTRY, removed = 0, at;

	same = same_as_last(c, key, len, prefix);
	if (same == FAILED_CUT)
		return FAILED_CUT;
#if HAS_MERGE
	/* Another's order may be wrong: what comes after operands that are one now must be older than all of them. */
	if (HAS_COMPARE && same == 1 && (chain & CHAIN_OPERANDS) && seq > LD64(c + CTL_LAST_SEQ))
		return FAILED_ORDER;
	/* An operand after others of the same stripe, the newest of which this call gave. */
	if (same == 1 && type == 2 && (chain & CHAIN_OPERANDS) && LD32(c + CTL_OPERAND) && seq < LD64(c + CTL_LAST_SEQ)) {
		hidden = same_stripe(c, seq, LD64(c + CTL_LAST_SEQ));
		if (hidden == FAILED_CUT)
			return FAILED_CUT;
		if (hidden) {
			hidden = combine_user(c, r);
			if (hidden == FAILED_CUT)
				return FAILED_CUT;
			if (!hidden) {
				ST64(c + CTL_LAST_SEQ, seq);
				ST64(c + CTL_ENTRIES, LD64(c + CTL_ENTRIES) + 1);
				return 0;
			}
		}
	}
#endif
	if (same == 1) {
		if ((flags & FLAG_DROP) && (chain & CHAIN_SIMPLE)) {
			/* Another's order may be wrong: what is dropped must be older all the same. */
			if (HAS_COMPARE && seq > LD64(c + CTL_LAST_SEQ))
				return FAILED_ORDER;
			if (type > 1) {
				if (chain & CHAIN_TOMB) {
					/* What follows is not for this program to decide: the tombstone comes first. */
					at = emit(c, last, last_len, r, KIND_ENTRY);
					if (!at)
						return FAILED_CUT;
					at = LD32(c + CTL_RECORDS) + REC_BYTES * (LD32(c + CTL_RECORD_COUNT) - 1);
					ST32(AT(at) + REC_VALUE_LEN, 0);
					ST64(c + CTL_OBSOLETE, LD64(c + CTL_OBSOLETE) - 1);
				}
				chain = CHAIN_HAVE;
			} else {
				hidden = chain & CHAIN_TOMB ? 1 : same_stripe(c, seq, LD64(c + CTL_LAST_SEQ));
				if (hidden == FAILED_CUT)
					return FAILED_CUT;
				if (hidden) {
					ST64(c + CTL_LAST_SEQ, seq);
					ST64(c + CTL_HIDDEN, LD64(c + CTL_HIDDEN) + 1);
					ST64(c + CTL_ENTRIES, LD64(c + CTL_ENTRIES) + 1);
					return 0;
				}
			}
		}
	} else if (same == 2) {
		chain = CHAIN_HAVE;
	} else {
		chain = type > 1 ? CHAIN_HAVE : CHAIN_HAVE | CHAIN_SIMPLE;
		kind = KIND_NEW;
#if HAS_FILTER
		/* The newest version of its user key, if that is a value. */
		if (type == 1 && (flags & FLAG_FILTER)) {
			hidden = filter_user(c, r);
			if (hidden == FAILED_CUT)
				return FAILED_CUT;
			if (hidden == ROCKMILL_ASK) {
				chain = CHAIN_HAVE;
			} else if (hidden == ROCKMILL_REMOVE) {
				/* A tombstone from here on. */
				type = 0;
				removed = 1;
				ST64(c + CTL_FILTERED, LD64(c + CTL_FILTERED) + 1);
			} else {
				kind = KIND_KEPT;
			}
		}
#endif
	}
	/* Whether a tombstone given before stays depends on there being something behind it. */
	if (type == 0 && (chain & (CHAIN_SIMPLE | CHAIN_DELETION)) == CHAIN_SIMPLE && (flags & FLAG_DROP) &&
	    (flags & FLAG_BOTTOM) && seq <= LD64(c + CTL_EARLIEST)) {
		at = LD32(c + CTL_KEYS);
		if (copy(c, at, key, len))
			return FAILED_CUT;
		ST32(c + CTL_KEYS, at + len);
		ST64(c + CTL_OBSOLETE, LD64(c + CTL_OBSOLETE) + 1);
		chain |= CHAIN_TOMB;
	} else {
		at = emit(c, key, len, r, kind);
		if (!at)
			return FAILED_CUT;
		if (HAS_FILTER && removed)
			ST32(AT(LD32(c + CTL_RECORDS) + REC_BYTES * (LD32(c + CTL_RECORD_COUNT) - 1)) + REC_VALUE_LEN, 0);
		chain = type ? chain & ~(u32)CHAIN_DELETION : chain | CHAIN_DELETION;
	}
	if (HAS_FILTER && removed)
		ST64(AT(at + len - 8), seq << 8);
#if HAS_MERGE
	if (type == 2 && (flags & FLAG_COMBINE) && (!same || (chain & CHAIN_OPERANDS))) {
		chain |= CHAIN_OPERANDS;
		ST32(c + CTL_OPERAND, LD32(c + CTL_RECORDS) + REC_BYTES * (LD32(c + CTL_RECORD_COUNT) - 1));
	} else {
		chain &= ~(u32)CHAIN_OPERANDS;
	}
#endif
	ST32(c + CTL_LAST_KEY, at);
	ST32(c + CTL_LAST_LEN, len);
	ST64(c + CTL_LAST_PREFIX, prefix);
	ST64(c + CTL_LAST_SEQ, seq);
	ST32(c + CTL_CHAIN, chain);
	ST64(c + CTL_ENTRIES, LD64(c + CTL_ENTRIES) + 1);
	return 0;
}

/* Gives the block on whose last entry the current run stands. 0 or FAILED_CUT. */
FRAME u64 give_block(ptr c, ptr r)
{
	u32 count = LD32(c + CTL_RECORD_COUNT);
	ptr rec = AT(LD32(c + CTL_RECORDS) + REC_BYTES * count);
	u32 at = LD32(c + CTL_KEYS), key = LD32(r + RUN_KEY), len = LD32(r + RUN_KEY_LEN);

	if (copy(c, at, key, len))
		return FAILED_CUT;
	ST32(rec + REC_KIND, KIND_BLOCK);
	ST32(rec + REC_RUN, LD32(r + RUN_NUMBER));
	ST32(rec + REC_BLOCK, LD32(r + RUN_TAKEN) - 1);
	ST32(rec + REC_KEY, at);
	ST32(rec + REC_KEY_LEN, len);
	ST32(rec + REC_VALUE, 0);
	ST32(rec + REC_VALUE_LEN, 0);
	ST32(c + CTL_KEYS, at + len);
	ST32(c + CTL_RECORD_COUNT, count + 1);
	/* Its versions were not looked at: none behind it is for this program to drop. */
	ST32(c + CTL_LAST_KEY, at);
	ST32(c + CTL_LAST_LEN, len);
	ST64(c + CTL_LAST_PREFIX, LD64(r + RUN_PREFIX));
	ST32(c + CTL_CHAIN, CHAIN_HAVE);
	ST32(r + RUN_STATE, STATE_NEED);
	return 0;
}

/* The status for a failure. */
FRAME u64 fail(ptr c, u64 failed)
{
	u32 current = LD32(c + CTL_CURRENT);

	if (LD32(c + CTL_PHASE) != PHASE_PRIME && current)
		ST32(c + CTL_RUN, LD32(AT(current) + RUN_NUMBER));
	return status_of(c, failed);
}

/* One entry or block: STATUS_ of the call when it has to end, NONE otherwise. */
FRAME u64 step(ptr c)
{
	u32 phase = LD32(c + CTL_PHASE), max;
	ptr r = AT(LD32(c + CTL_CURRENT));
	u64 failed;

	if (phase == PHASE_STEP) {
		if (LD32(r + RUN_STATE) == STATE_HAS) {
			failed = decode(c, r);
			if (failed)
				return fail(c, failed);
		}
		if (LD32(r + RUN_STATE) == STATE_NEED) {
			/* A whole block needs room for its record. */
			max = LD32(c + CTL_RECORDS_MAX);
			if (LD32(c + CTL_RECORD_COUNT) >= max)
				return STATUS_FULL;
			failed = next_block(c, r);
			if (failed == OFFERED) {
				failed = give_block(c, r);
				return failed ? fail(c, failed) : NONE;
			}
			if (failed && failed != ENDED)
				return fail(c, failed);
		}
		if (LD32(r + RUN_STATE) == STATE_HAS && (mark_of(c, LD64(r + RUN_PREFIX)) | MARK_PLACE) < LD64(c + CTL_OTHERS))
			phase = PHASE_GIVE;
		else
			phase = PHASE_PICK;
		ST32(c + CTL_PHASE, phase);
	}
	if (phase == PHASE_PICK) {
		failed = pick(c);
		if (failed)
			return fail(c, failed);
		ST32(c + CTL_PHASE, PHASE_GIVE);
		r = AT(LD32(c + CTL_CURRENT));
	}
	failed = at_end(c, r);
	if (failed)
		return failed == FAILED_CUT ? fail(c, failed) : STATUS_END;
	failed = give(c, r);
	if (failed)
		return fail(c, failed);
	ST32(c + CTL_PHASE, PHASE_STEP);
	return NONE;
}

/*
 * One step where nothing is out of the ordinary: the current run's next entry is decoded, the run that has the smallest
 * then is the current one, and its entry, a value of a new user key, is given. True when that is done; otherwise a part
 * of it is, as PHASE says.
 */
INLINE u32 quick(ptr c)
{
	ptr r = AT(LD32(c + CTL_CURRENT)), rec;
	u32 phase = LD32(c + CTL_PHASE), kind = KIND_NEW, key, len, count, at, to;
	u64 prefix, tag, mark, others;

	if (LD32(c + CTL_LIVE) > LD32(c + CTL_LINEAR_MAX))
		return 0;
	if (phase == PHASE_STEP) {
		if (LD32(r + RUN_STATE) != STATE_HAS || !decode_usual(c, r))
			return 0;
		mark = mark_of(c, LD64(r + RUN_PREFIX));
		others = LD64(c + CTL_OTHERS);
		if ((mark | MARK_PLACE) >= others) {
			/*
			 * The others' smallest comes before it, unless the difference does not show. Then the smallest
			 * of those that are left has to be found, but nobody waits for that.
			 */
			at = LD32(c + CTL_AT);
			ST64(AT(LD32(c + CTL_MARKS) + 8 * at), mark | at);
			if (mark <= (others | MARK_PLACE) || make_current(c, others & MARK_PLACE) <= (others | MARK_PLACE)) {
				ST32(c + CTL_PHASE, PHASE_PICK);
				return 0;
			}
			ST32(c + CTL_BEGAN, 0);
			r = AT(LD32(c + CTL_CURRENT));
		}
		ST32(c + CTL_PHASE, PHASE_GIVE);
	} else if (phase != PHASE_GIVE) {
		return 0;
	}
	key = LD32(r + RUN_KEY);
	len = LD32(r + RUN_KEY_LEN);
	prefix = LD64(r + RUN_PREFIX);
	tag = LD64(AT(key + len - 8));
	if (prefix == LD64(c + CTL_LAST_PREFIX) || prefix >= LD64(c + CTL_END_PREFIX) || (tag & 0xff) != 1 || len > 32)
		return 0;
#if HAS_FILTER
	if (LD32(c + CTL_FLAGS) & FLAG_FILTER) {
		/* All that is not to be kept is looked at again, by give. */
		if (filter_user(c, r) != ROCKMILL_KEEP)
			return 0;
		kind = KIND_KEPT;
	}
#endif
	count = LD32(c + CTL_RECORD_COUNT);
	to = LD32(c + CTL_KEYS);
	rec = AT(LD32(c + CTL_RECORDS) + REC_BYTES * count);
	copy_short(to, key, len);
	ST32(rec + REC_KIND, kind);
	ST32(rec + REC_RUN, LD32(r + RUN_NUMBER));
	ST32(rec + REC_BLOCK, LD32(r + RUN_TAKEN) - 1);
	ST32(rec + REC_KEY, to);
	ST32(rec + REC_KEY_LEN, len);
	ST32(rec + REC_VALUE, LD32(r + RUN_VALUE));
	ST32(rec + REC_VALUE_LEN, LD32(r + RUN_VALUE_LEN));
	ST32(c + CTL_KEYS, to + len);
	ST32(c + CTL_RECORD_COUNT, count + 1);
	ST32(c + CTL_LAST_KEY, to);
	ST32(c + CTL_LAST_LEN, len);
	ST64(c + CTL_LAST_PREFIX, prefix);
	ST64(c + CTL_LAST_SEQ, tag >> 8);
	ST32(c + CTL_CHAIN, CHAIN_HAVE | CHAIN_SIMPLE);
	ST64(c + CTL_ENTRIES, LD64(c + CTL_ENTRIES) + 1);
	ST32(c + CTL_PHASE, PHASE_STEP);
	return 1;
}

/* Whether the call has done its share, in bytes compared or, where functions of a user's own are at work, in time. */
INLINE u32 has_done(ptr c, u32 steps)
{
	if (LD64(c + CTL_WORK) >= LD64(c + CTL_WORK_MAX))
		return 1;
	return HAS_OWN && !(steps & 31) && monotonic_nanos() - LD64(c + CTL_CALLED) > OWN_CALL_NANOS;
}

/* Steps until one is out of the ordinary, or the call is to end. A frame of its own: the verifier forgets all of it. */
FRAME u64 quick_steps(ptr c)
{
	u32 n = LD32(c + CTL_STEPS);

	while (n < AGAIN32(c + CTL_STEPS_MAX) && can_loop) {
		if (!has_room(c) || has_done(c, n) || !quick(c))
			break;
		n++;
		HIDE(n);
	}
	ST32(c + CTL_STEPS, n);
	return 0;
}

/* One call: merges until something has to be done outside. The status. */
INLINE u64 merge(ptr c)
{
	u64 status = STATUS_PAUSE, failed;

	if (HAS_OWN)
		ST64(c + CTL_CALLED, monotonic_nanos());
	/* The records of the call before were taken. */
	if (HAS_MERGE)
		ST32(c + CTL_OPERAND, 0);
	ST32(c + CTL_STEPS, 0);
	if (LD32(c + CTL_PHASE) == PHASE_PRIME) {
		failed = prime(c);
		if (failed)
			return fail(c, failed);
	}
	/* If the kernel ends this loop, the next call goes on. */
	while (AGAIN32(c + CTL_STEPS) < AGAIN32(c + CTL_STEPS_MAX) && can_loop) {
		if (!HAS_COMPARE)
			quick_steps(c);
		if (!has_room(c)) {
			status = STATUS_FULL;
			break;
		}
		if (has_done(c, AGAIN32(c + CTL_STEPS)))
			break;
		failed = step(c);
		if (failed != NONE) {
			status = failed;
			break;
		}
		ST32(c + CTL_STEPS, AGAIN32(c + CTL_STEPS) + 1);
	}
	if (keep_last_key(c))
		status = STATUS_HAND_OVER;
	return status;
}

#endif
