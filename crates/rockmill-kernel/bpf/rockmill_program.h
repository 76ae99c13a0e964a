/* SPDX-License-Identifier: GPL-2.0-only OR MIT
 *
 * A merge program of your own: Rockmill's merge with your order of keys, your filter, your way to combine merge
 * operands, or several of these. docs/kernel-engine.md says how it is built, given to a database, and checked.
 *
 *	#define ROCKMILL_COMPARATOR "name"	// of the store's comparator, if you bring compare()
 *	#define ROCKMILL_FILTER "name"		// of the store's compaction filter (or factory), if you bring filter()
 *	#define ROCKMILL_MERGE "name"		// of the store's merge operator, as OPTIONS files have it, if you bring
 *						// combine()
 *	#include "rockmill_program.h"
 *
 *	static int compare(const struct rockmill_job *job, u32 a, u32 a_len, u32 b, u32 b_len) { ... }
 *	static int filter(const struct rockmill_job *job, u32 key, u32 key_len, u32 value, u32 value_len) { ... }
 *	static u32 combine(const struct rockmill_job *job, u32 into, u32 newer, u32 newer_len, u32 older, u32 older_len)
 *	{ ... }
 *
 *	#include "rockmill_object.h"
 *
 * Keys are user keys. They and values are given as addresses in the memory that the program shares with the store;
 * the functions below read there. A read anywhere, behind an end too, harms nothing: what lies behind has no meaning.
 *
 * Each function is checked by the kernel's verifier, for all that it could be given: loops need can_loop, and their
 * counters begin with rockmill_zero(job) and are hidden from the compiler with HIDE(i) at each turn (see
 * rockmill_bytewise). A loop that can_loop ended before its end is said with ROCKMILL_CUT.
 */
#ifndef ROCKMILL_PROGRAM_H
#define ROCKMILL_PROGRAM_H

#include "arena.h"
#include "layout.h"

/* The job: nothing but a handle for the functions below. */
struct rockmill_job;

/* What compare() says of a: it comes before b, is the same user key, comes behind. */
#define ROCKMILL_BEFORE 0
#define ROCKMILL_SAME 1
#define ROCKMILL_BEHIND 2

/* What filter() says of a value: it stays; it is deleted, with all older versions; ask the store's own filter. */
#define ROCKMILL_KEEP 0
#define ROCKMILL_REMOVE 1
#define ROCKMILL_ASK 2

/* What both say when the kernel ended a loop early: the store begins the part of the job anew, without a program. */
#define ROCKMILL_CUT 3

/*
 * What combine() says where it does not combine two operands; otherwise it writes the one that they become to `into`,
 * where ROCKMILL_OPERAND_MAX bytes are free, and gives its length.
 */
#define ROCKMILL_OPERAND_MAX COMBINED_MAX
#define ROCKMILL_APART 0xffffffffu
/* And where the kernel ended a loop early. */
#define ROCKMILL_COMBINE_CUT 0xfffffffeu

/* What was built in; else, that is what the object says of itself. */
#ifdef ROCKMILL_COMPARATOR
static inline __attribute__((always_inline)) int compare(const struct rockmill_job *job, u32 a, u32 a_len, u32 b,
							 u32 b_len);
#endif
#ifdef ROCKMILL_FILTER
static inline __attribute__((always_inline)) int filter(const struct rockmill_job *job, u32 key, u32 key_len, u32 value,
							u32 value_len);
#endif
#ifdef ROCKMILL_MERGE
static inline __attribute__((always_inline)) u32 combine(const struct rockmill_job *job, u32 into, u32 newer,
							 u32 newer_len, u32 older, u32 older_len);
#endif

/* A byte, and numbers of eight bytes. */
INLINE u8 rockmill_byte(u32 at)
{
	return LD8(AT(at));
}

INLINE u64 rockmill_little_endian(u32 at)
{
	return LD64(AT(at));
}

INLINE u64 rockmill_big_endian(u32 at)
{
	return __builtin_bswap64(LD64(AT(at)));
}

/* Writes a byte, and a number of eight bytes. */
INLINE void rockmill_put_byte(u32 at, u8 byte)
{
	ST8(AT(at), byte);
}

INLINE void rockmill_put_little_endian(u32 at, u64 number)
{
	ST64(AT(at), number);
}

/* 0, of which the verifier does not know that it is: where loops' counters begin. */
INLINE u32 rockmill_zero(const struct rockmill_job *job)
{
	return LD32((ptr)job + CTL_ZERO);
}

/* When the job began, in microseconds since 1970, by the store's clock: the same for all of its entries. */
INLINE u64 rockmill_now_micros(const struct rockmill_job *job)
{
	return LD64((ptr)job + CTL_NOW);
}

/* The lowest level that the job reads: what the store's filter is given as `level`. */
INLINE u32 rockmill_level(const struct rockmill_job *job)
{
	return LD32((ptr)job + CTL_LEVEL);
}

/* Compares byte by byte, a prefix before what it begins: ROCKMILL_BEFORE, SAME, BEHIND or CUT. */
FRAME u64 compare_bytes(ptr c, u32 a, u32 a_len, u32 b, u32 b_len)
{
	u32 i = LD32(c + CTL_ZERO), n = a_len < b_len ? a_len : b_len;
	u64 x, y;

	ST64(c + CTL_WORK, LD64(c + CTL_WORK) + n);
	while (i < n && can_loop) {
		x = __builtin_bswap64(LD64(AT(a + i)));
		y = __builtin_bswap64(LD64(AT(b + i)));
		if (x != y) {
			if (n - i < 8) {
				/* Only n - i bytes of these count. */
				x >>= 8 * (8 - (n - i));
				y >>= 8 * (8 - (n - i));
				if (x == y) {
					i = n;
					break;
				}
			}
			return x < y ? ROCKMILL_BEFORE : ROCKMILL_BEHIND;
		}
		i += 8;
		HIDE(i);
	}
	if (i < n)
		return ROCKMILL_CUT;
	return a_len < b_len ? ROCKMILL_BEFORE : a_len > b_len ? ROCKMILL_BEHIND : ROCKMILL_SAME;
}

INLINE int rockmill_bytewise(const struct rockmill_job *job, u32 a, u32 a_len, u32 b, u32 b_len)
{
	return compare_bytes((ptr)job, a, a_len, b, b_len);
}

#endif
