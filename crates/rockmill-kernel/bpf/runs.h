/* SPDX-License-Identifier: GPL-2.0-only OR MIT
 *
 * Runs of blocks: to the next block, and to the next entry of one. What is read from a block is checked against its end
 * before it is used.
 */
#ifndef ROCKMILL_RUNS_H
#define ROCKMILL_RUNS_H

#include "rockmill_program.h"

#ifdef ROCKMILL_COMPARATOR
#define HAS_COMPARE 1
#else
#define HAS_COMPARE 0
#endif

/* Results of the functions below other than 0. */
#define FAILED_CORRUPT 1
#define FAILED_DRY 2
#define FAILED_CUT 3
#define FAILED_KEY 4
#define FAILED_BLOCK 5
#define OFFERED 6
#define ENDED 7
#define FAILED_ORDER 8

#define MAX64 0xffffffffffffffffull
/*
 * Limit of the entries after the last restart point that are decoded to find a block's last key; below the kernel's
 * limit.
 */
#define TAIL_ENTRIES_MAX 60000u

/* Copies n bytes from src to dst, and up to seven more. 0, or FAILED_CUT. */
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

/* Copies n bytes, 32 at most, and up to 31 more. */
INLINE void copy_short(u32 dst, u32 src, u32 n)
{
	ptr to = AT(dst), from = AT(src);
	u64 a = LD64(from), b = LD64(from + 8);

	ST64(to, a);
	ST64(to + 8, b);
	if (n > 16) {
		a = LD64(from + 16);
		b = LD64(from + 24);
		ST64(to + 16, a);
		ST64(to + 24, b);
	}
}

INLINE u64 copy(ptr c, u32 dst, u32 src, u32 n)
{
	if (n > 32)
		return copy_long(c, dst, src, n);
	copy_short(dst, src, n);
	return 0;
}

/*
 * Reads a varint of at most 32 bits at the run's position, advances the position, and stores the value at `to`. False
 * if the varint is damaged. Position and value stay in memory, so that the verifier does not track each possible
 * length.
 */
FRAME u64 varint(ptr c, ptr r, u32 to)
{
	u32 pos = LD32(r + RUN_POS), end = LD32(r + RUN_END), byte;
	u64 value = 0;

#pragma unroll
	for (u32 i = 0; i < 5; i++) {
		if (pos + i >= end)
			return 0;
		byte = LD8(AT(pos + i));
		/* Bits above the 32nd are dropped, as in RocksDB. */
		value |= (u64)(byte & 0x7f) << (7 * i);
		if (byte < 0x80) {
			ST32(c + to, value);
			ST32(r + RUN_POS, pos + i + 1);
			return 1;
		}
	}
	return 0;
}

/* The prefix of a user key in a slot. */
INLINE u64 prefix_in_slot(ptr c, u32 key, u32 len)
{
	u32 skip = LD32(c + CTL_SKIP);
	u64 prefix;

	/* Bytes say nothing of another order: all prefixes are equal. */
	if (HAS_COMPARE || len <= skip)
		return 0;
	prefix = __builtin_bswap64(LD64(AT(key + skip)));
	len -= skip;
	/* Bytes behind a short user key count as zeros. */
	if (len < 8)
		prefix &= ~(MAX64 >> (8 * len));
	return prefix;
}

/*
 * The prefix of the entry that is being decoded. Its user key has len bytes: the first `shared` ones are those of the
 * entry before, whose user key had `before` bytes and this prefix; the others are at pos. The slot at key has the whole
 * key, but a load from there would wait for the stores just made.
 */
INLINE u64 prefix_of(ptr c, u32 key, u32 len, u32 pos, u32 shared, u32 before, u64 prefix)
{
	u32 skip = LD32(c + CTL_SKIP), d;

	/* Bytes say nothing of another order: all prefixes are equal. */
	if (HAS_COMPARE || len <= skip)
		return 0;
	if (shared <= skip) {
		prefix = __builtin_bswap64(LD64(AT(pos + (skip - shared))));
	} else if (before >= skip + 8) {
		d = shared - skip;
		if (d < 8) {
			prefix &= ~(MAX64 >> (8 * d));
			prefix |= __builtin_bswap64(LD64(AT(pos))) >> (8 * d);
		}
	} else {
		prefix = __builtin_bswap64(LD64(AT(key + skip)));
	}
	len -= skip;
	/* Bytes behind a short user key count as zeros. */
	if (len < 8)
		prefix &= ~(MAX64 >> (8 * len));
	return prefix;
}

/*
 * Fast path: decodes the next entry of the run's block if its two key lengths take a byte each, its value length takes
 * at most two, and the block has up to 32 bytes of its key. Otherwise returns false and changes nothing.
 */
INLINE u32 decode_usual(ptr c, ptr r)
{
	u32 pos = LD32(r + RUN_POS), end = LD32(r + RUN_END), key = LD32(r + RUN_KEY), before = LD32(r + RUN_KEY_LEN);
	u32 word = LD32(AT(pos)), shared, unshared, value_len, len;

	/* A fifth byte may be missing: if the key needs it, that is damage. */
	if (pos >= end || end - pos < 4 || (word & 0x8080))
		return 0;
	shared = word & 0x7f;
	unshared = (word >> 8) & 0x7f;
	value_len = (word >> 16) & 0x7f;
	pos += 3;
	if (word & 0x800000) {
		if (word & 0x80000000)
			return 0;
		value_len |= (word >> 17) & 0x3f80;
		pos += 1;
	}
	len = shared + unshared;
	if (unshared > 32 || shared > before || unshared + value_len > end - pos || len < 8 || len > LD32(c + CTL_KEY_MAX))
		return 0;
	copy_short(key + shared, pos, unshared);
	ST64(r + RUN_PREFIX, prefix_of(c, key, len - 8, pos, shared, before - 8, LD64(r + RUN_PREFIX)));
	ST32(r + RUN_KEY_LEN, len);
	ST32(r + RUN_VALUE, pos + unshared);
	ST32(r + RUN_VALUE_LEN, value_len);
	ST32(r + RUN_POS, pos + unshared + value_len);
	return 1;
}

/* Decodes the next entry of the run's block, if there is one. 0, FAILED_CORRUPT, FAILED_KEY or FAILED_CUT. */
FRAME u64 decode(ptr c, ptr r)
{
	u32 key = LD32(r + RUN_KEY), pos, len;
	u64 shared, unshared, value_len;

	if (LD32(r + RUN_POS) >= LD32(r + RUN_END)) {
		ST32(r + RUN_STATE, STATE_NEED);
		return 0;
	}
	if (decode_usual(c, r)) {
		ST32(r + RUN_STATE, STATE_HAS);
		return 0;
	}
	if (!varint(c, r, CTL_SHARED) || !varint(c, r, CTL_UNSHARED) || !varint(c, r, CTL_VALUE_LEN))
		return FAILED_CORRUPT;
	pos = AGAIN32(r + RUN_POS);
	shared = AGAIN32(c + CTL_SHARED);
	unshared = AGAIN32(c + CTL_UNSHARED);
	value_len = AGAIN32(c + CTL_VALUE_LEN);
	if (shared > LD32(r + RUN_KEY_LEN) || unshared + value_len > LD32(r + RUN_END) - pos || shared + unshared < 8)
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
	ST64(r + RUN_PREFIX, prefix_in_slot(c, key, len - 8));
	return 0;
}

/* Moves to the next block of a run. 0 if its entries can be decoded, ENDED, FAILED_DRY or FAILED_CORRUPT. */
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

#endif
