/* SPDX-License-Identifier: GPL-2.0-only OR MIT
 *
 * Which run has the smallest entry: comparing two, and the two ways to find it among all. Few live runs have marks in a
 * row, all of which are looked at (linear); many are in a heap.
 */
#ifndef ROCKMILL_ORDER_H
#define ROCKMILL_ORDER_H

#include "runs.h"

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

/*
 * Compares the current entries of runs a and b, whose prefixes are equal. 0: a's comes first; 2: it does not; or
 * FAILED_CUT.
 */
FRAME u64 before_equal(ptr c, ptr a, ptr b)
{
	u32 a_key = LD32(a + RUN_KEY), a_len = LD32(a + RUN_KEY_LEN) - 8;
	u32 b_key = LD32(b + RUN_KEY), b_len = LD32(b + RUN_KEY_LEN) - 8;
	u64 order = compare_user(c, a_key, a_len, b_key, b_len);
	u64 a_tag, b_tag;

	if (order != 1)
		return order;
	/* Newer versions first; for the same version, the newer run first. */
	a_tag = LD64(AT(a_key + a_len));
	b_tag = LD64(AT(b_key + b_len));
	if (a_tag != b_tag)
		return a_tag > b_tag ? 0 : 2;
	return LD32(a + RUN_NUMBER) < LD32(b + RUN_NUMBER) ? 0 : 2;
}

/* 0 if the entry of the run at a comes before that of the run at b. Other results as before_equal. */
INLINE u64 before(ptr c, ptr a, ptr b)
{
	u64 x = LD64(a + RUN_PREFIX), y = LD64(b + RUN_PREFIX);

	if (x != y)
		return x < y ? 0 : 2;
	return before_equal(c, a, b);
}

/* Sifts the run at place i of the heap down. 0 or FAILED_CUT. */
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

/*
 * A mark is a prefix shifted left by the bits that all prefixes share. Its lowest bits hold the run's place in the row
 * of marks instead; its highest bit is 0, so that differences have the right sign. Of two entries whose marks differ
 * above the place, the one with the smaller mark comes first.
 */
#define MARK_NONE (MAX64 >> 1)
#define MARK_PLACE ((u64)LINEAR_RUNS - 1)

INLINE u64 mark_of(ptr c, u64 prefix)
{
	return ((prefix << (LD32(c + CTL_SHIFT) & 63)) >> 1) & ~MARK_PLACE;
}

/* The smaller of two marks. Branch-free: the branch would be unpredictable. */
INLINE u64 smaller(u64 a, u64 b)
{
	u64 d = b - a, below = (u64)((long long)d >> 63);

	HIDE(below);
	return a + (d & below);
}

INLINE u64 smallest_of_four(ptr marks)
{
	return smaller(smaller(LD64(marks), LD64(marks + 8)), smaller(LD64(marks + 16), LD64(marks + 24)));
}

/* The smallest mark of the row. */
INLINE u64 smallest_mark(ptr c)
{
	ptr marks = AT(LD32(c + CTL_MARKS));
	u32 live = LD32(c + CTL_LIVE);
	u64 least = smallest_of_four(marks);

	if (live > 4)
		least = smaller(least, smallest_of_four(marks + 32));
	if (live > 8) {
		least = smaller(least, smallest_of_four(marks + 64));
		least = smaller(least, smallest_of_four(marks + 96));
	}
	return least;
}

/* Builds the row of the live runs' marks. */
FRAME u64 build_marks(ptr c)
{
	u32 i = LD32(c + CTL_ZERO), live = LD32(c + CTL_LIVE), marks = LD32(c + CTL_MARKS);
	u32 order = LD32(c + CTL_ORDER);

	while (i < LINEAR_RUNS && can_loop) {
		u64 mark = MARK_NONE;

		if (i < live)
			mark = mark_of(c, LD64(AT(LD32(AT(order + 4 * i))) + RUN_PREFIX)) | i;
		ST64(AT(marks + 8 * i), mark);
		i++;
		HIDE(i);
	}
	return i < LINEAR_RUNS ? FAILED_CUT : 0;
}

/*
 * Among the live runs whose marks equal this one apart from the place: the place of the run whose entry comes first; or
 * CUT_PLACE.
 */
#define CUT_PLACE ((u64)1 << 32)
FRAME u64 first_equal(ptr c, u64 mark)
{
	u32 best = mark & MARK_PLACE, i = LD32(c + CTL_ZERO), marks = LD32(c + CTL_MARKS), order = LD32(c + CTL_ORDER);
	u64 first;

	while (i < AGAIN32(c + CTL_LIVE) && can_loop) {
		if (i != best && !((LD64(AT(marks + 8 * i)) ^ mark) & ~MARK_PLACE)) {
			first = before(c, AT(LD32(AT(order + 4 * i))), AT(LD32(AT(order + 4 * best))));
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

/*
 * Makes the run at this place, which has the smallest entry, the current one. The current run's mark is not in the row.
 */
INLINE u64 make_current(ptr c, u32 at)
{
	u64 others;

	ST32(c + CTL_AT, at);
	ST32(c + CTL_CURRENT, LD32(AT(LD32(c + CTL_ORDER) + 4 * at)));
	ST64(AT(LD32(c + CTL_MARKS) + 8 * at), MARK_NONE);
	others = smallest_mark(c);
	ST64(c + CTL_OTHERS, others);
	return others;
}

/* The same if other marks equal this one apart from the place. 0 or FAILED_CUT. */
FRAME u64 among_equal(ptr c, u64 mark)
{
	u64 at;

	ST64(AT(LD32(c + CTL_MARKS) + 8 * (u32)(mark & MARK_PLACE)), mark);
	at = first_equal(c, mark);
	if (at == CUT_PLACE)
		return FAILED_CUT;
	make_current(c, at);
	return 0;
}

/* Makes the run with the smallest entry the current one; mark is the smallest of the row. 0 or FAILED_CUT. */
INLINE u64 settle(ptr c, u64 mark)
{
	if (make_current(c, mark & MARK_PLACE) <= (mark | MARK_PLACE))
		return among_equal(c, mark);
	return 0;
}

/* Finds the run with the smallest entry among all marks. 0, ENDED or FAILED_CUT. */
FRAME u64 pick_linear(ptr c)
{
	if (!LD32(c + CTL_LIVE))
		return ENDED;
	return settle(c, smallest_mark(c));
}

/* The same with the heap, whose top run has advanced. */
FRAME u64 pick_heap(ptr c)
{
	u32 live = LD32(c + CTL_LIVE), order = LD32(c + CTL_ORDER);
	u64 others = MARK_NONE, prefix, next;

	if (sift(c, LD32(c + CTL_ZERO)))
		return FAILED_CUT;
	if (live > 1) {
		prefix = LD64(AT(LD32(AT(order + 4))) + RUN_PREFIX);
		if (live > 2) {
			next = LD64(AT(LD32(AT(order + 8))) + RUN_PREFIX);
			prefix = next < prefix ? next : prefix;
		}
		others = mark_of(c, prefix);
	}
	ST64(c + CTL_OTHERS, others);
	ST32(c + CTL_CURRENT, LD32(AT(order)));
	return 0;
}

/* Removes the current run, which is at its end. */
FRAME u64 remove_current(ptr c, u64 linear)
{
	u32 live = LD32(c + CTL_LIVE) - 1, order = LD32(c + CTL_ORDER), i = 0;

	ST32(c + CTL_LIVE, live);
	if (linear)
		i = LD32(c + CTL_AT);
	ST32(AT(order + 4 * i), LD32(AT(order + 4 * live)));
	/* If few enough are left, switch to the row, in which the order of runs does not matter. */
	return live <= LD32(c + CTL_LINEAR_MAX) ? build_marks(c) : 0;
}

/* Finds the smallest entry again. 0, ENDED or FAILED_CUT. */
INLINE u64 pick(ptr c)
{
	u64 linear = LD32(c + CTL_LIVE) <= LD32(c + CTL_LINEAR_MAX), failed = 0;
	u32 current = LD32(c + CTL_CURRENT), at;

	if (current) {
		if (LD32(AT(current) + RUN_STATE) == STATE_ENDED) {
			failed = remove_current(c, linear);
		} else if (linear) {
			at = LD32(c + CTL_AT);
			ST64(AT(LD32(c + CTL_MARKS) + 8 * at), mark_of(c, LD64(AT(current) + RUN_PREFIX)) | at);
		}
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

/* The smallest prefix of the live runs except this one. 0 when cut: nothing is below that. */
FRAME u64 others_head(ptr c, u32 self)
{
	u32 i = LD32(c + CTL_ZERO), order = LD32(c + CTL_ORDER), run;
	u64 least = MAX64, prefix;

	while (i < AGAIN32(c + CTL_LIVE) && can_loop) {
		run = LD32(AT(order + 4 * i));
		if (run != self) {
			prefix = LD64(AT(run) + RUN_PREFIX);
			least = prefix < least ? prefix : least;
			HIDE(least);
		}
		i++;
		HIDE(i);
	}
	return i < AGAIN32(c + CTL_LIVE) ? 0 : least;
}

#endif
