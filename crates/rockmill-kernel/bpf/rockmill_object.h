/* SPDX-License-Identifier: GPL-2.0-only OR MIT
 *
 * The end of a merge program of your own (see rockmill_program.h, and rockmill_loop.h for a merge loop of your own): the
 * merge, unless that is yours, and the entries of both drivers.
 */
#ifndef ROCKMILL_LICENCE
#define ROCKMILL_LICENCE "Dual MIT/GPL"
#endif

#define ROCKMILL_OBJECT
#include "info.h"
#include "merge.bpf.c"
#include "loop.bpf.c"

/* The kernel's functions that `loop` uses are for programs whose licence is compatible with the GPL. */
char licence[] SECTION("license") = ROCKMILL_LICENCE;
