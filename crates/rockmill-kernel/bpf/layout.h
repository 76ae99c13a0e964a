/* SPDX-License-Identifier: GPL-2.0-only OR MIT
 *
 * What the merge program and user space share: a control block, one block for each run, and rings of descriptors, all
 * in the BPF arena. Offsets in bytes; addresses are the low 32 bits of user-space addresses, which is how an arena
 * names its memory. src/layout.rs has the same numbers, and a test compares them.
 */
#ifndef ROCKMILL_LAYOUT_H
#define ROCKMILL_LAYOUT_H

/* The version of all this: raised with each change. Objects of other versions are refused. */
#define INTERFACE 5

/* Control block. "in" is written by user space only, "out" by the program only. */
#define CTL_STATUS 0		/* out u32: STATUS_ */
#define CTL_RUN 4		/* out u32: number of the run that STATUS_ is about */
#define CTL_RUNS 8		/* in  u32: runs */
#define CTL_FLAGS 12		/* in  u32: FLAG_ */
#define CTL_END_PREFIX 16		/* in  u64: no key with a smaller prefix is at or behind the end */
#define CTL_END_KEY 24		/* in  u32: address of the user key where the part ends */
#define CTL_END_LEN 28		/* in  u32: its length; NONE without an end */
#define CTL_BEGIN_KEY 32	/* in  u32: address of the user key where the part begins */
#define CTL_BEGIN_LEN 36	/* in  u32: its length; NONE without a beginning */
#define CTL_SKIP 40		/* in  u32: bytes of user keys in front of prefixes */
#define CTL_SNAPSHOTS 44	/* in  u32: address of the snapshots' sequence numbers, u64 each, rising */
#define CTL_SNAPSHOT_COUNT 48	/* in  u32 */
#define CTL_BEGAN 52		/* out u32: run that gave all of its last block, alone; 0 without */
#define CTL_EARLIEST 56		/* in  u64: oldest snapshot; MAX without */
#define CTL_RECORDS 64		/* in  u32: address of the records */
#define CTL_RECORDS_MAX 68	/* in  u32 */
#define CTL_RECORD_COUNT 72	/* out u32: whole records */
#define CTL_KEYS 76		/* in  u32: address of the records' keys */
#define CTL_KEYS_END 80		/* in  u32 */
#define CTL_LAST_KEY 84		/* out u32: address of the last key looked at */
#define CTL_LAST_LEN 88		/* out u32: its length, tag included */
#define CTL_CHAIN 92		/* out u32: CHAIN_, of the versions of that user key */
#define CTL_LAST_PREFIX 96	/* out u64: its prefix */
#define CTL_OTHERS 104		/* out u64: smallest mark of the runs that are not the current one; MARK_NONE without */
#define CTL_LAST_SEQ 112	/* out u64: sequence number of the last version looked at */
#define CTL_HIDDEN 120		/* out u64: entries dropped behind a newer version */
#define CTL_OBSOLETE 128	/* out u64: tombstones dropped */
#define CTL_ENTRIES 136		/* out u64: entries looked at, those of whole blocks not counted */
#define CTL_WORK 144		/* out u64: work of this call, in bytes of keys or so */
#define CTL_WORK_MAX 152	/* in  u64: work at which a call ends */
#define CTL_CURRENT 160		/* out u32: address of the run that has the smallest entry */
#define CTL_PHASE 164		/* out u32: PHASE_ */
#define CTL_LIVE 168		/* out u32: runs that are not at their end */
#define CTL_AT 172		/* out u32: the current run's place in ORDER */
#define CTL_MARKS 176		/* in  u32: address of LINEAR_RUNS marks, u64 each, of the live runs (linear) */
#define CTL_ORDER 180		/* in  u32: address of the live runs' addresses, u32 each */
#define CTL_RUN_TABLE 184	/* in  u32: address of the runs' blocks */
#define CTL_KEY_MAX 188		/* in  u32: longest internal key */
#define CTL_ZERO 192		/* in  u32: 0; what the verifier does not know to be 0 */
#define CTL_LAST_SLOT 196	/* in  u32: address with room for a key, where the last one is kept between calls */
#define CTL_STEPS_MAX 200	/* in  u32: entries of a call at most */
#define CTL_LINEAR_MAX 204	/* in  u32: live runs up to which all marks are looked at, LINEAR_RUNS at most */
#define CTL_DETAIL 208		/* out u32: what STATUS_HAND_OVER is about: REASON_ */
#define CTL_LEVEL 212		/* in  u32: lowest level that the job reads, for filters */
#define CTL_NOW 216		/* in  u64: when the job began, microseconds since 1970, for filters */
#define CTL_FILTERED 224	/* out u64: values that the filter removed */
#define CTL_SHIFT 232		/* in  u32: upper bits that all prefixes have in common, 63 at most */
#define CTL_SHARED 236		/* out u32: of the entry that is being decoded: bytes of its key in the key before */
#define CTL_UNSHARED 240	/* out u32: and not there */
#define CTL_VALUE_LEN 244	/* out u32: and of its value */
#define CTL_STEPS 248		/* out u32: entries of this call so far */
#define CTL_CALLED 256		/* out u64: when this call began, nanoseconds (programs of users' own) */
#define CTL_COMBINED 264	/* out u64: merge operands that became part of a newer one */
#define CTL_OPERAND 272		/* out u32: address of the record that the next older operand may become part of; 0 */
#define CTL_BYTES 320

#define FLAG_PASS 1	/* offer whole blocks */
#define FLAG_DROP 2	/* drop what no reader can see */
#define FLAG_BOTTOM 4	/* nothing older is below: tombstones go */
#define FLAG_FILTER 8	/* ask the object's filter */
#define FLAG_COMBINE 16	/* let the object combine merge operands */

#define CHAIN_HAVE 1	/* there is a last key */
#define CHAIN_SIMPLE 2	/* all its versions so far were values and tombstones */
#define CHAIN_DELETION 8	/* the last one given was a tombstone */
#define CHAIN_TOMB 4	/* a tombstone of it was dropped, and nothing of it given since */
#define CHAIN_OPERANDS 16	/* all its versions so far were merge operands */

#define PHASE_PRIME 0
#define PHASE_PICK 1
#define PHASE_GIVE 2
#define PHASE_STEP 3

#define STATUS_PAUSE 0		/* the call has done its share: call again */
#define STATUS_FULL 1		/* no room for records or keys */
#define STATUS_DRY 2		/* a run has no block left */
#define STATUS_END 3		/* all runs, or the part, are at their end */
#define STATUS_CORRUPT 4	/* a run's current block is damaged */
#define STATUS_HAND_OVER 5	/* this program cannot go on with the job */

#define REASON_KEY 1	/* a key is longer than KEY_MAX */
#define REASON_CUT 2	/* the kernel ended a loop before its end */
#define REASON_BLOCK 3	/* a block has too many entries behind its last restart point */
#define REASON_ORDER 4	/* the object's comparator does not order: a newer version came behind an older one */

#define NONE 0xffffffffu

/* One run. */
#define RUN_PREFIX 0		/* out u64: the current entry's prefix */
#define RUN_KEY 8		/* in  u32: address of its key */
#define RUN_KEY_LEN 12		/* out u32 */
#define RUN_VALUE 16		/* out u32: address of its value */
#define RUN_VALUE_LEN 20	/* out u32 */
#define RUN_POS 24		/* out u32: address of the next entry */
#define RUN_END 28		/* out u32: end of the block's entries */
#define RUN_STATE 32		/* out u32: STATE_ */
#define RUN_DESCS 36		/* in  u32: address of its descriptors, a ring */
#define RUN_DESC_MASK 40	/* in  u32: their number, a power of two, less 1 */
#define RUN_TAKEN 44		/* out u32: descriptors taken so far */
#define RUN_GIVEN 48		/* in  u32: descriptors given so far */
#define RUN_LAST 52		/* in  u32: not 0 when no more will be given */
#define RUN_NUMBER 56		/* in  u32 */
#define RUN_SELF 60		/* in  u32: address of this */
#define RUN_BYTES 64

#define STATE_NEED 0	/* between two blocks */
#define STATE_HAS 1	/* on an entry */
#define STATE_ENDED 2

/* One block of a run. */
#define DESC_AT 0	/* u32: address of the first entry */
#define DESC_END 4	/* u32: end of the entries */
#define DESC_RESTART 8	/* u32: address of the entry at the last restart point */
#define DESC_FLAGS 12	/* u32: DESC_ */
#define DESC_BYTES 16

#define DESC_WHOLE 1	/* may be offered as a whole */
#define DESC_DAMAGED 2	/* user space found damage where the entries should begin */

/* One record of the output. */
#define REC_KIND 0	/* u32: KIND_ */
#define REC_RUN 4	/* u32: number of the run */
#define REC_BLOCK 8	/* u32: number of the block in the run */
#define REC_KEY 12	/* u32: address of the internal key */
#define REC_KEY_LEN 16	/* u32 */
#define REC_VALUE 20	/* u32: address of the value: in the block, or what combine() wrote */
#define REC_VALUE_LEN 24 /* u32 */
#define REC_BYTES 32

#define KIND_ENTRY 0
#define KIND_NEW 2	/* an entry of another user key than the one looked at before */
#define KIND_KEPT 3	/* the same, of which the object's filter was asked, and keeps it */
#define KIND_BLOCK 1	/* a whole block: its entries come before those of any other run */

/* Marks in a row: a run's place there is the lower bits of its mark. */
#define LINEAR_RUNS 16

/* Bytes of a combined operand at most: with as many room is made for each, behind the records' keys. */
#define COMBINED_MAX 64

/* Room behind a key that copies in words may write to. */
#define SLACK 40

/* The page that a ring's program finds as the ring's region. */
#define RING_CONTROL 0		/* in  u32: address of the control block */
#define RING_STEPS 4		/* out u32: steps of this call */
#define RING_MODE 8		/* in  u32: MODE_ */
#define RING_WAIT 12		/* in  u32: completions that MODE_WAIT waits for */
#define RING_PHASE 16		/* in  u32: 0; out: 1 when nothing is left but to wait */
#define RING_HEAD 20		/* in  u32: completions that were taken before, all in all */
#define RING_PENDING 24		/* in  u32: operations to be handed over; out: 0 when that is done */
#define RING_SUBMITTED 28	/* out u32: operations handed over */
#define RING_ERROR 32		/* out u32: why not all of them, an errno; 0 */
#define RING_BUSY 36		/* in  u32: operations are in flight: what has completed is to be posted */
#define RING_AWAITED 40		/* in  u32: bytes of RING_PLACES that are not 0 */
#define RING_TAIL_AT 44		/* in  u32: where the ring's memory has the number of completions; 0: not known */
#define RING_CQES_AT 48		/* in  u32: and the completions */
#define RING_MASK 52		/* in  u32: their number, a power of two, less 1 */
#define RING_PLACES 1024	/* in  u8 each: not 0 where a dry run waits for the operation with this user_data */
#define RING_PLACES_MAX 3072
#define RING_BYTES 4096

#define MODE_MERGE 0
#define MODE_WAIT 1

#endif
