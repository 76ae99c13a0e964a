/* SPDX-License-Identifier: GPL-2.0-only OR MIT
 *
 * The little that a program needs to work on a BPF arena, without the kernel's or libbpf's headers.
 */
#ifndef ROCKMILL_ARENA_H
#define ROCKMILL_ARENA_H

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define SECTION(name) __attribute__((section(name), used))
#define INLINE static inline __attribute__((always_inline))
/* A function of its own: it has its own allowance of loop steps, and the verifier's work stays small. */
#define FRAME static __attribute__((noinline, unused))
#define __arena __attribute__((address_space(1)))

/* The arena: the loader puts the map's descriptor wherever this is named. */
struct arena_map {
	int unused;
} arena SECTION(".maps");

/* A program that uses an arena must name it. */
#define NAME_ARENA() asm volatile("" ::"r"(&arena))

/*
 * True, unless the kernel ends the loop (`may_goto`): after 65,535 steps of a function's frame it checks the clock, and
 * it ends the loop after a quarter of a second. No loop here comes near that number; nevertheless, every loop is
 * checked to have run to its end.
 */
#define can_loop                                                           \
	({                                                                 \
		__label__ l_break, l_continue;                             \
		int ret = 1;                                               \
		asm volatile goto("may_goto %l[l_break]" :: : : l_break);  \
		goto l_continue;                                           \
	l_break:                                                           \
		ret = 0;                                                   \
	l_continue:;                                                       \
		ret;                                                       \
	})

/*
 * Loads and stores at a numeric address. The cast is made once for each structure; its fields are offsets. Stores are
 * volatile because clang-19 drops address-space casts of stores that it merges.
 */
typedef char *ptr;
#define AT(at) ((ptr)(char __arena *)(unsigned long)(at))
#define LD8(p) (*(const u8 *)(p))
#define LD32(p) (*(const u32 *)(p))
#define LD64(p) (*(const u64 *)(p))
/* Hides a loop's counter from the compiler, which must not replace it with another counter. */
#define HIDE(i) asm volatile("" : "+r"(i))
/* Loads a loop's bound again at each turn, so that the verifier does not learn more about it with each turn. */
#define AGAIN32(p) (*(const volatile u32 *)(p))
#define ST8(p, v) (*(volatile u8 *)(p) = (u8)(v))
#define ST32(p, v) (*(volatile u32 *)(p) = (u32)(v))
#define ST64(p, v) (*(volatile u64 *)(p) = (u64)(v))

#endif
