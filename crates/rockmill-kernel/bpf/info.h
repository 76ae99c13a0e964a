/* SPDX-License-Identifier: GPL-2.0-only OR MIT
 *
 * What an object says of itself.
 */
#ifndef ROCKMILL_INFO_H
#define ROCKMILL_INFO_H

#include "runs.h"

/* What this object is, for its loader (src/object.rs). */
struct rockmill_info {
	u32 interface;
	char comparator[64];
	char filter[64];
	char merge[64];
	u32 own_loop; /* 1: the merge loop is its own, and what it gives is compared more closely */
};

#ifdef ROCKMILL_FILTER
#define HAS_FILTER 1
#else
#define HAS_FILTER 0
#endif

#ifdef ROCKMILL_MERGE
#define HAS_MERGE 1
#else
#define HAS_MERGE 0
#endif

/* Functions of a user's own. */
#define HAS_OWN (HAS_COMPARE || HAS_FILTER || HAS_MERGE)

const struct rockmill_info rockmill_info SECTION("rockmill") = {
	.interface = INTERFACE,
#ifdef ROCKMILL_COMPARATOR
	.comparator = ROCKMILL_COMPARATOR,
#endif
#ifdef ROCKMILL_FILTER
	.filter = ROCKMILL_FILTER,
#endif
#ifdef ROCKMILL_MERGE
	.merge = ROCKMILL_MERGE,
#endif
#ifdef ROCKMILL_OWN_LOOP
	.own_loop = 1,
#endif
};

#endif
