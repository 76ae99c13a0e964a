/* SPDX-License-Identifier: GPL-2.0-only OR MIT
 *
 * The merge itself, the same for every driver: blocks of sorted runs in, records in order out.
 *
 *  1. Each run has its current entry: its key is written out in the run's slot, its value stays in the block. A head,
 *     eight bytes of the user key as a number, orders most keys without a look at them.
 *  2. The run with the smallest entry gives it: the key is copied behind the keys given before, and a record names key
 *     and value. As long as its heads stay below those of all others it goes on (galloping).
 *  3. Then the smallest is looked for again: among few runs by going over their heads, among many in a heap.
 *  4. A version goes without a record if no reader can tell (FLAG_DROP): one right behind a value or tombstone of the
 *     same user key and stripe; at the bottom (FLAG_BOTTOM), a tombstone that every reader sees, and what is behind it.
 *     Single deletes, merge operands and anything else go to user space as they are, and so does what is behind them.
 *     If such a one comes behind a dropped tombstone, the tombstone is given before it after all.
 *  5. Where a run gave a whole block while no other gave anything, its next block is given as one record if all its
 *     heads are below the others' and the part's end, and its first user key is new (FLAG_PASS).
 *
 * Every value read from a block is checked against the block's end before it is used. What lies outside of the arena
 * cannot be named at all: addresses have 32 bits and are relative to it.
 *
 * A call ends at STEPS_MAX entries or WORK_MAX bytes of keys, or when there is no room, or a run is dry. It goes on
 * where it ended: PHASE says what comes next, and all else is in the control block and the runs.
 */
#ifndef ROCKMILL_MERGE_H
#define ROCKMILL_MERGE_H

#include "rockmill_program.h"

/* What the functions below return beside 0. */
#define FAILED_CORRUPT 1
#define FAILED_DRY 2
#define FAILED_CUT 3
#define FAILED_KEY 4
#define FAILED_BLOCK 5
#define OFFERED 6
#define ENDED 7
#define FAILED_ORDER 8

#define MAX64 0xffffffffffffffffull
/* Entries behind the last restart point that are decoded to find a block's last key: below the kernel's limit. */
#define TAIL_ENTRIES_MAX 60000u

/* What this object is, for its loader (src/object.rs). */
struct rockmill_info {
	u32 interface;
	char comparator[64];
	char filter[64];
};

#ifdef ROCKMILL_COMPARATOR
#define HAS_COMPARE 1
#else
#define HAS_COMPARE 0
#endif
#ifdef ROCKMILL_FILTER
#define HAS_FILTER 1
#else
#define HAS_FILTER 0
#endif

const struct rockmill_info rockmill_info SECTION("rockmill") = {
	.interface = INTERFACE,
#ifdef ROCKMILL_COMPARATOR
	.comparator = ROCKMILL_COMPARATOR,
#endif
#ifdef ROCKMILL_FILTER
	.filter = ROCKMILL_FILTER,
#endif
};

/*
 * Nothing is known of what functions of a user's own take: such a program looks at the clock now and then, and ends a
 * call after so many nanoseconds. (A helper of the kernel's, bpf_ktime_get_ns.)
 */
#define OWN_CALL_NANOS 10000000ull
static u64 (*const monotonic_nanos)(void) = (void *)5;

/* Copies n bytes, or up to seven more, from src to dst. 0, or FAILED_CUT. */
FRAME u64 copy_long(ptr c, u32 dst, u32 src, u32 n)
{
	u32 i = LD32(c + CTL_ZERO);

	ST64(c + CTL_WORK, LD64(c + CTL_WORK) + n);
	while (i < n && can_loop) {
		ST64(AT(dst + i), LD64(AT(src + i)));
		i += 8;
		HIDE(i);
	}
	return i < n ? FAILED_CUT : 0;
}

INLINE u64 copy(ptr c, u32 dst, u32 src, u32 n)
{
	ptr to = AT(dst), from = AT(src);
	u64 a, b;

	if (n > 32)
		return copy_long(c, dst, src, n);
	a = LD64(from);
	b = LD64(from + 8);
	ST64(to, a);
	ST64(to + 8, b);
	if (n > 16) {
		a = LD64(from + 16);
		b = LD64(from + 24);
		ST64(to + 16, a);
		ST64(to + 24, b);
	}
	return 0;
}

/* Compares two user keys. 0 below, 1 equal, 2 above; FAILED_CUT. */
#ifdef ROCKMILL_COMPARATOR
FRAME u64 compare_user(ptr c, u32 a, u32 a_len, u32 b, u32 b_len)
{
	u64 order;

	ST64(c + CTL_WORK, LD64(c + CTL_WORK) + a_len + b_len);
	order = (u32)compare((const struct rockmill_job *)c, a, a_len, b, b_len);
	return order > ROCKMILL_BEHIND ? FAILED_CUT : order;
}
#else
#define compare_user compare_bytes
#endif

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

/* The current entry of run a against that of run b, whose heads are equal. 0 it comes first, 2 it does not. */
FRAME u64 before_equal(ptr c, ptr a, ptr b)
{
	u32 a_key = LD32(a + RUN_KEY), a_len = LD32(a + RUN_KEY_LEN) - 8;
	u32 b_key = LD32(b + RUN_KEY), b_len = LD32(b + RUN_KEY_LEN) - 8;
	u64 order = compare_user(c, a_key, a_len, b_key, b_len);
	u64 a_tag, b_tag;

	if (order != 1)
		return order;
	/* Newer versions first; of the same one, that of the newer run. */
	a_tag = LD64(AT(a_key + a_len));
	b_tag = LD64(AT(b_key + b_len));
	if (a_tag != b_tag)
		return a_tag > b_tag ? 0 : 2;
	return LD32(a + RUN_NUMBER) < LD32(b + RUN_NUMBER) ? 0 : 2;
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

/* A varint of at most 32 bits at pos, before end: its value, and its length in the upper half; 0 where damaged. */
FRAME u64 varint(u32 pos, u32 end)
{
	u64 value = 0;
	u32 byte;

#pragma unroll
	for (u32 i = 0; i < 5; i++) {
		if (pos + i >= end)
			return 0;
		byte = LD8(AT(pos + i));
		/* Bits above the 32nd are left out, as RocksDB leaves them out. */
		value |= (u64)(byte & 0x7f) << (7 * i);
		if (byte < 0x80)
			return (value & 0xffffffffu) | (u64)(i + 1) << 32;
	}
	return 0;
}

/* Decodes the next entry of the run's block, if there is one. 0, FAILED_CORRUPT, FAILED_KEY or FAILED_CUT. */
FRAME u64 decode(ptr c, ptr r)
{
	u32 pos = LD32(r + RUN_POS), end = LD32(r + RUN_END), key = LD32(r + RUN_KEY);
	u64 shared, unshared, value_len, v;
	u32 word, len, skip;

	if (pos >= end) {
		ST32(r + RUN_STATE, STATE_NEED);
		return 0;
	}
	word = LD32(AT(pos));
	if (end - pos >= 4 && !(word & 0x8080)) {
		shared = word & 0x7f;
		unshared = (word >> 8) & 0x7f;
		value_len = (word >> 16) & 0x7f;
		pos += 3;
		if (word & 0x800000) {
			if (word & 0x80000000) {
				v = varint(pos - 1, end);
				if (!v)
					return FAILED_CORRUPT;
				value_len = (u32)v;
				pos = pos - 1 + (u32)(v >> 32);
			} else {
				value_len |= (word >> 17) & 0x3f80;
				pos += 1;
			}
		}
	} else {
		v = varint(pos, end);
		if (!v)
			return FAILED_CORRUPT;
		shared = (u32)v;
		pos += (u32)(v >> 32);
		v = varint(pos, end);
		if (!v)
			return FAILED_CORRUPT;
		unshared = (u32)v;
		pos += (u32)(v >> 32);
		v = varint(pos, end);
		if (!v)
			return FAILED_CORRUPT;
		value_len = (u32)v;
		pos += (u32)(v >> 32);
	}
	if (shared > LD32(r + RUN_KEY_LEN) || unshared + value_len > end - pos || shared + unshared < 8)
		return FAILED_CORRUPT;
	if (shared + unshared > LD32(c + CTL_KEY_MAX))
		return FAILED_KEY;
	len = shared + unshared;
	if (copy(c, key + shared, pos, unshared))
		return FAILED_CUT;
	ST32(r + RUN_KEY_LEN, len);
	ST32(r + RUN_VALUE, pos + unshared);
	ST32(r + RUN_VALUE_LEN, value_len);
	ST32(r + RUN_POS, pos + unshared + value_len);
	ST32(r + RUN_STATE, STATE_HAS);
	skip = LD32(c + CTL_SKIP);
	len -= 8;
	if (HAS_COMPARE || len <= skip) {
		/* Bytes say nothing of another order: all heads are equal. */
		v = 0;
	} else {
		v = __builtin_bswap64(LD64(AT(key + skip)));
		len -= skip;
		/* Bytes behind a short user key count as zeros. */
		if (len < 8)
			v &= ~(MAX64 >> (8 * len));
	}
	ST64(r + RUN_HEAD, v);
	return 0;
}

/* To the next block of a run. 0 with its entries to be decoded, ENDED, FAILED_DRY or FAILED_CORRUPT. */
FRAME u64 take_block(ptr r)
{
	u32 taken = LD32(r + RUN_TAKEN);
	ptr desc;

	if (taken == LD32(r + RUN_GIVEN)) {
		if (!LD32(r + RUN_LAST))
			return FAILED_DRY;
		ST32(r + RUN_STATE, STATE_ENDED);
		return ENDED;
	}
	desc = AT(LD32(r + RUN_DESCS) + DESC_BYTES * (taken & LD32(r + RUN_DESC_MASK)));
	ST32(r + RUN_TAKEN, taken + 1);
	ST32(r + RUN_POS, LD32(desc + DESC_AT));
	ST32(r + RUN_END, LD32(desc + DESC_END));
	ST32(r + RUN_KEY_LEN, 0);
	return LD32(desc + DESC_FLAGS) & DESC_DAMAGED ? FAILED_CORRUPT : 0;
}

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

/* True when the entry of the run at a comes before that of the run at b. 2 and more as before_equal. */
INLINE u64 before(ptr c, ptr a, ptr b)
{
	u64 x = LD64(a + RUN_HEAD), y = LD64(b + RUN_HEAD);

	if (x != y)
		return x < y ? 0 : 2;
	return before_equal(c, a, b);
}

/* Moves the run at place i of the heap down to where it belongs. 0 or FAILED_CUT. */
FRAME u64 sift(ptr c, u32 i)
{
	u32 order = LD32(c + CTL_ORDER), child, run, other, next;
	u64 first;

	i += LD32(c + CTL_ZERO);
	run = LD32(AT(order + 4 * i));
	while (2 * i + 1 < AGAIN32(c + CTL_LIVE) && can_loop) {
		child = 2 * i + 1;
		other = LD32(AT(order + 4 * child));
		if (child + 1 < AGAIN32(c + CTL_LIVE)) {
			next = LD32(AT(order + 4 * child + 4));
			first = before(c, AT(next), AT(other));
			if (first == FAILED_CUT)
				return first;
			if (!first) {
				child += 1;
				other = next;
			}
		}
		first = before(c, AT(run), AT(other));
		if (first == FAILED_CUT)
			return first;
		if (!first) {
			ST32(AT(order + 4 * i), run);
			return 0;
		}
		ST32(AT(order + 4 * i), other);
		i = child;
		HIDE(i);
	}
	ST32(AT(order + 4 * i), run);
	return 2 * i + 1 < AGAIN32(c + CTL_LIVE) ? FAILED_CUT : 0;
}

/* Makes a heap of the live runs. */
FRAME u64 build_heap(ptr c)
{
	u32 i = LD32(c + CTL_LIVE) / 2;

	while (i > 0 && can_loop) {
		i--;
		if (sift(c, i))
			return FAILED_CUT;
	}
	return i > 0 ? FAILED_CUT : 0;
}

/* Puts the live runs' heads in a row. */
FRAME u64 build_heads(ptr c)
{
	u32 i = LD32(c + CTL_ZERO), live = LD32(c + CTL_LIVE), heads = LD32(c + CTL_HEADS);
	u32 order = LD32(c + CTL_ORDER);

	while (i < live && can_loop) {
		ST64(AT(heads + 8 * i), LD64(AT(LD32(AT(order + 4 * i))) + RUN_HEAD));
		i++;
		HIDE(i);
	}
	return i < live ? FAILED_CUT : 0;
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
	return live <= LD32(c + CTL_LINEAR_MAX) ? build_heads(c) : build_heap(c);
}

/* Of the live runs with this head, of which best is the first, the one whose entry comes first; or CUT_PLACE. */
#define CUT_PLACE ((u64)1 << 32)
FRAME u64 first_equal(ptr c, u64 head, u32 best)
{
	u32 i = best + 1, heads = LD32(c + CTL_HEADS), order = LD32(c + CTL_ORDER);
	u64 first;

	HIDE(i);
	while (i < AGAIN32(c + CTL_LIVE) && can_loop) {
		if (LD64(AT(heads + 8 * i)) == head) {
			first = before_equal(c, AT(LD32(AT(order + 4 * i))), AT(LD32(AT(order + 4 * best))));
			if (first == FAILED_CUT)
				return CUT_PLACE;
			if (!first)
				best = i;
		}
		i++;
		HIDE(i);
	}
	return i < AGAIN32(c + CTL_LIVE) ? CUT_PLACE : best;
}

/* Finds the run with the smallest entry by going over all heads. 0, ENDED or FAILED_CUT. */
FRAME u64 pick_linear(ptr c)
{
	u32 i = LD32(c + CTL_ZERO), at = i, live = LD32(c + CTL_LIVE), heads = LD32(c + CTL_HEADS);
	u64 smallest, others = MAX64, head, below, next;

	if (!live)
		return ENDED;
	smallest = LD64(AT(heads));
	i++;
	while (i < live && can_loop) {
		head = LD64(AT(heads + 8 * i));
		/* Without branches, which nobody could foresee. */
		below = -(((~head & smallest) | ((~head | smallest) & (head - smallest))) >> 63);
		HIDE(below);
		next = head ^ ((head ^ smallest) & below);
		smallest ^= (head ^ smallest) & below;
		at ^= (at ^ i) & (u32)below;
		below = -(((~next & others) | ((~next | others) & (next - others))) >> 63);
		HIDE(below);
		others ^= (next ^ others) & below;
		i++;
		HIDE(i);
	}
	if (i < live)
		return FAILED_CUT;
	if (others == smallest && live > 1) {
		head = first_equal(c, smallest, at);
		if (head == CUT_PLACE)
			return FAILED_CUT;
		at = head;
	}
	ST32(c + CTL_AT, at);
	ST64(c + CTL_OTHERS, others);
	ST32(c + CTL_CURRENT, LD32(AT(LD32(c + CTL_ORDER) + 4 * at)));
	return 0;
}

/* The same from the heap, whose top has moved. */
FRAME u64 pick_heap(ptr c)
{
	u32 live = LD32(c + CTL_LIVE), order = LD32(c + CTL_ORDER);
	u64 others = MAX64, head;

	if (sift(c, LD32(c + CTL_ZERO)))
		return FAILED_CUT;
	if (live > 1)
		others = LD64(AT(LD32(AT(order + 4))) + RUN_HEAD);
	if (live > 2) {
		head = LD64(AT(LD32(AT(order + 8))) + RUN_HEAD);
		others = head < others ? head : others;
	}
	ST64(c + CTL_OTHERS, others);
	ST32(c + CTL_CURRENT, LD32(AT(order)));
	return 0;
}

/* Takes the current run, which is at its end, out of the order. */
FRAME u64 remove_current(ptr c, u64 linear)
{
	u32 live = LD32(c + CTL_LIVE) - 1, order = LD32(c + CTL_ORDER), heads = LD32(c + CTL_HEADS), i;

	ST32(c + CTL_LIVE, live);
	if (!linear) {
		ST32(AT(order), LD32(AT(order + 4 * live)));
		if (live > LD32(c + CTL_LINEAR_MAX))
			return 0;
		/* Few enough for the other way, in which the order of runs does not matter. */
		return build_heads(c);
	}
	i = LD32(c + CTL_AT);
	ST32(AT(order + 4 * i), LD32(AT(order + 4 * live)));
	ST64(AT(heads + 8 * i), LD64(AT(heads + 8 * live)));
	return 0;
}

/* Looks for the smallest entry anew. 0, ENDED or FAILED_CUT. */
INLINE u64 pick(ptr c)
{
	u64 linear = LD32(c + CTL_LIVE) <= LD32(c + CTL_LINEAR_MAX), failed = 0;
	u32 current = LD32(c + CTL_CURRENT);

	if (current) {
		if (LD32(AT(current) + RUN_STATE) == STATE_ENDED)
			failed = remove_current(c, linear);
		else if (linear)
			ST64(AT(LD32(c + CTL_HEADS) + 8 * LD32(c + CTL_AT)), LD64(AT(current) + RUN_HEAD));
		if (failed)
			return failed;
		linear = LD32(c + CTL_LIVE) <= LD32(c + CTL_LINEAR_MAX);
	}
	failed = linear ? pick_linear(c) : pick_heap(c);
	if (failed)
		return failed;
	if (LD32(c + CTL_CURRENT) != LD32(c + CTL_BEGAN))
		ST32(c + CTL_BEGAN, 0);
	return 0;
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
	others = LD64(c + CTL_OTHERS);
	end = LD64(c + CTL_END_HEAD);
	others = end < others ? end : others;
	if (LD64(r + RUN_HEAD) >= others || LD32(c + CTL_LAST_LEN) <= 8)
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
	if (!failed && LD64(r + RUN_HEAD) < others)
		return OFFERED;
	/* Back to its beginning; damage shows when the merge comes to it. */
	ST32(r + RUN_POS, LD32(desc + DESC_AT));
	ST32(r + RUN_KEY_LEN, 0);
	return decode(c, r);
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

/*
 * Whether the current entry is of the same user key as the one looked at before: 0 it is not, 1 byte for byte, 2 it
 * counts as the same though its bytes differ. FAILED_CUT.
 */
INLINE u64 same_as_last(ptr c, u32 key, u32 len, u64 head)
{
	u32 last = LD32(c + CTL_LAST_KEY), last_len = LD32(c + CTL_LAST_LEN);
	u64 order = 0;

	if (!(LD32(c + CTL_CHAIN) & CHAIN_HAVE))
		return 0;
	if (head == LD64(c + CTL_LAST_HEAD) && len == last_len) {
		order = compare_bytes(c, key, len - 8, last, last_len - 8);
		if (order == 1 || order == FAILED_CUT)
			return order;
	}
#if HAS_COMPARE && HAS_FILTER
	if (LD32(c + CTL_FLAGS) & FLAG_FILTER) {
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
	u64 head = LD64(r + RUN_HEAD), tag = LD64(AT(key + len - 8)), seq = tag >> 8, same, hidden;
	u32 type = tag & 0xff, kind = KIND_ENTRY, removed = 0, at;

	same = same_as_last(c, key, len, head);
	if (same == FAILED_CUT)
		return FAILED_CUT;
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
	ST32(c + CTL_LAST_KEY, at);
	ST32(c + CTL_LAST_LEN, len);
	ST64(c + CTL_LAST_HEAD, head);
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
	ST64(c + CTL_LAST_HEAD, LD64(r + RUN_HEAD));
	ST32(c + CTL_CHAIN, CHAIN_HAVE);
	ST32(r + RUN_STATE, STATE_NEED);
	return 0;
}

/* True when the run's entry is at or behind the part's end. FAILED_CUT. */
INLINE u64 at_end(ptr c, ptr r)
{
	u32 len = LD32(c + CTL_END_LEN);
	u64 order;

	if (len == NONE || LD64(r + RUN_HEAD) < LD64(c + CTL_END_HEAD))
		return 0;
	order = compare_user(c, LD32(r + RUN_KEY), LD32(r + RUN_KEY_LEN) - 8, LD32(c + CTL_END_KEY), len);
	return order == FAILED_CUT ? FAILED_CUT : order != 0;
}

/* The status for a failure. */
FRAME u64 fail(ptr c, u64 failed)
{
	u32 current = LD32(c + CTL_CURRENT);

	if (LD32(c + CTL_PHASE) != PHASE_PRIME && current)
		ST32(c + CTL_RUN, LD32(AT(current) + RUN_NUMBER));
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
		if (LD32(r + RUN_STATE) == STATE_HAS && LD64(r + RUN_HEAD) < LD64(c + CTL_OTHERS))
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

/* One call: merges until something has to be done outside. The status, which is in the control block, too. */
INLINE u64 merge(ptr c)
{
	u32 n = LD32(c + CTL_ZERO), steps = LD32(c + CTL_STEPS_MAX), at;
	u64 status = STATUS_PAUSE, failed, began = 0;

	if (HAS_COMPARE || HAS_FILTER)
		began = monotonic_nanos();
	if (steps > TAIL_ENTRIES_MAX)
		steps = TAIL_ENTRIES_MAX;
	if (LD32(c + CTL_PHASE) == PHASE_PRIME) {
		failed = prime(c);
		if (failed) {
			status = fail(c, failed);
			ST32(c + CTL_STATUS, status);
			return status;
		}
	}
	while (n < steps && can_loop) {
		n++;
		HIDE(n);
		if (LD32(c + CTL_RECORD_COUNT) + 2 > LD32(c + CTL_RECORDS_MAX) ||
		    LD32(c + CTL_KEYS_END) - LD32(c + CTL_KEYS) < 2 * (LD32(c + CTL_KEY_MAX) + SLACK)) {
			status = STATUS_FULL;
			break;
		}
		if (LD64(c + CTL_WORK) >= LD64(c + CTL_WORK_MAX))
			break;
		if ((HAS_COMPARE || HAS_FILTER) && !(n & 31) && monotonic_nanos() - began > OWN_CALL_NANOS)
			break;
		failed = step(c);
		if (failed != NONE) {
			status = failed;
			break;
		}
	}
	/* The room for keys is used anew by the next call. */
	if (LD32(c + CTL_CHAIN) & CHAIN_HAVE) {
		at = LD32(c + CTL_LAST_SLOT);
		if (LD32(c + CTL_LAST_KEY) != at) {
			if (copy(c, at, LD32(c + CTL_LAST_KEY), LD32(c + CTL_LAST_LEN))) {
				ST32(c + CTL_DETAIL, REASON_CUT);
				status = STATUS_HAND_OVER;
			}
			ST32(c + CTL_LAST_KEY, at);
		}
	}
	ST32(c + CTL_STATUS, status);
	return status;
}

#endif
