/* SPDX-License-Identifier: GPL-2.0-only OR MIT
 *
 * For tests: operands are strung together with commas, the older one first; where the string would be too long, they
 * stay apart. The order shows in the result.
 */
static u32 combine(const struct rockmill_job *job, u32 into, u32 newer, u32 newer_len, u32 older, u32 older_len)
{
	u32 i = rockmill_zero(job), at = into, len;

	if (newer_len > ROCKMILL_OPERAND_MAX || older_len > ROCKMILL_OPERAND_MAX)
		return ROCKMILL_APART;
	len = older_len + 1 + newer_len;
	if (len > ROCKMILL_OPERAND_MAX)
		return ROCKMILL_APART;
	while (i < len && can_loop) {
		rockmill_put_byte(at, i < older_len ? rockmill_byte(older + i)
				      : i > older_len ? rockmill_byte(newer + i - older_len - 1) : ',');
		at++;
		i++;
		HIDE(i);
	}
	return i < len ? ROCKMILL_COMBINE_CUT : len;
}
