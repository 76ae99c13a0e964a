/* SPDX-License-Identifier: GPL-2.0-only OR MIT
 *
 * A merge loop of your own, in the place of Rockmill's (merge.h). docs/kernel-engine.md ("A loop of your own") has the
 * rules, layout.h every field, and examples/sums.bpf.c is a whole one.
 *
 *	#define ROCKMILL_COMPARATOR ...	// these three, and their meaning, as in rockmill_program.h; each may be left out.
 *	#define ROCKMILL_FILTER ...	// compare() is called by before() below; a filter and a merge of operands are the
 *	#define ROCKMILL_MERGE ...	// loop's own work, where FLAG_FILTER and FLAG_COMBINE ask for them
 *	#include "rockmill_loop.h"
 *
 *	INLINE u64 merge(ptr c) { ... }	// one call: gives records; returns a STATUS_
 *
 *	#include "rockmill_object.h"
 *
 * What helps (c is the control block, r a run): run_at and to_entry, below; decode, take_block, copy (runs.h); before,
 * compare_user, compare_bytes (order.h); has_room, emit, same_stripe, at_end, status_of, keep_last_key (output.h).
 */
#ifndef ROCKMILL_LOOP_H
#define ROCKMILL_LOOP_H

#define ROCKMILL_OWN_LOOP
#include "output.h"

/* The address of run i, of CTL_RUNS. Run 0 is the newest. */
INLINE u32 run_at(ptr c, u32 i)
{
	return LD32(c + CTL_RUN_TABLE) + RUN_BYTES * i;
}

/*
 * Makes sure that a run stands on an entry, with its next block if it must: 0, ENDED, or a failure, which status_of
 * makes a status of (set CTL_RUN to the run's number before). After 0, RUN_KEY to RUN_VALUE_LEN and RUN_PREFIX describe
 * the entry; decode(c, r) goes on to the next one, or makes the run need a block.
 */
FRAME u64 to_entry(ptr c, ptr r)
{
	u32 state = LD32(r + RUN_STATE);
	u64 failed;

	if (state == STATE_HAS)
		return 0;
	if (state == STATE_ENDED)
		return ENDED;
	failed = take_block(r);
	if (failed)
		return failed;
	failed = decode(c, r);
	if (failed)
		return failed;
	return LD32(r + RUN_STATE) == STATE_HAS ? 0 : FAILED_CORRUPT;
}

#endif
