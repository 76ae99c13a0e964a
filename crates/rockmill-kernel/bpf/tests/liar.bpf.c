// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * For tests: an order that is one only as long as no two keys are the same. Of those, it puts any before any other, so
 * that their versions come in any order. Operands are put together all the same (append.h).
 */
#define ROCKMILL_COMPARATOR "test.Liar"
#define ROCKMILL_MERGE "{id=StringAppendOperator;delimiter=,;}"
#include "rockmill_program.h"

static int compare(const struct rockmill_job *job, u32 a, u32 a_len, u32 b, u32 b_len)
{
	int order = rockmill_bytewise(job, a, a_len, b, b_len);

	return order == ROCKMILL_SAME ? ROCKMILL_BEFORE : order;
}

#include "tests/append.h"
#include "rockmill_object.h"
